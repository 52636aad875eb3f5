//! What a verify run holds the lane at.

use std::fmt;
use std::time::Duration;

use trellara_envelope::{FlowName, Lsn};

use super::ApplierStatus;
use crate::metric;

/// A verify run that holds the lane at a position.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FenceSnapshot {
    /// Its name.
    pub run: String,
    /// No transaction is applied whose commit record begins here or beyond.
    pub cap: Lsn,
    /// The end of its lease as it was read last, in UTC.
    pub until: String,
    /// Whether the lane stands at the cap, and the run was told.
    pub reached: bool,
}

impl fmt::Display for FenceSnapshot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            run, cap, until, ..
        } = self;
        let place = if self.reached { "at" } else { "before" };
        write!(f, "fenced by verify run {run} until {until}, {place} {cap}")
    }
}

impl ApplierStatus {
    pub(crate) fn set_fence(&self, flow: &FlowName, fence: Option<FenceSnapshot>) {
        metric::fenced(flow, fence.is_some());
        self.slow().fence = fence;
    }

    pub(crate) fn fence_reached(&self, reached: bool) {
        if let Some(fence) = &mut self.slow().fence {
            fence.reached = reached;
        }
    }

    pub(crate) fn count_fence(&self, flow: &FlowName, stood: Duration) {
        metric::fence(flow, stood.as_secs_f64());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_fence_is_said_until_it_is_gone() {
        let flow: FlowName = "shop".parse().expect("a name");
        let status = ApplierStatus::default();
        status.fence_reached(true);
        assert_eq!(status.snapshot().fence, None);
        let fence = FenceSnapshot {
            run: "v-1".to_owned(),
            cap: Lsn(0x1_0000_0200),
            until: "2026-11-30 14:30:05Z".to_owned(),
            reached: false,
        };
        assert_eq!(
            fence.to_string(),
            "fenced by verify run v-1 until 2026-11-30 14:30:05Z, before 1/200"
        );
        status.set_fence(&flow, Some(fence));
        status.fence_reached(true);
        let shown = status.snapshot().fence.expect("fenced");
        assert!(shown.to_string().ends_with("05Z, at 1/200"), "{shown}");
        status.set_fence(&flow, None);
        assert_eq!(status.snapshot().fence, None);
    }
}
