//! Pauses between attempts to mend a reading that broke.

use std::time::Duration;

use tokio::time::Instant;

use crate::Broker;

/// Failures in a row, the loss among them, that the caller does not hear of.
const QUIET_FAILURES: u32 = 5;
/// Pause behind the second failure; doubles with each further one. Behind the first there is none.
const FIRST_PAUSE: Duration = Duration::from_millis(100);
/// Longest pause.
const MAX_PAUSE: Duration = Duration::from_secs(5);

/// Counts failures since something last went well, so that mending never spins.
///
/// The pause is a point in time and waiting for it counts nothing: whoever waits may be dropped
/// and begin to wait again as often as it likes, and is through no later for it.
#[derive(Debug, Default)]
pub(crate) struct Mending {
    failures: u32,
    not_before: Option<Instant>,
}

impl Mending {
    /// Something went well.
    pub(crate) fn worked(&mut self) {
        *self = Self::default();
    }

    /// The reading broke, or mending it did not work.
    pub(crate) fn failed(&mut self) {
        self.failures = self.failures.saturating_add(1);
        self.not_before = self.failures.checked_sub(2).map(|doublings| {
            let pause = FIRST_PAUSE * 2_u32.pow(doublings.min(6));
            Instant::now() + pause.min(MAX_PAUSE)
        });
    }

    /// Waits until the pause is over and there is a connection. Cancel safe.
    pub(crate) async fn ready(&self, broker: &Broker) {
        if let Some(not_before) = self.not_before {
            tokio::time::sleep_until(not_before).await;
        }
        broker.connected().await;
    }

    /// True when the caller should hear of this failure.
    pub(crate) fn exhausted(&self) -> bool {
        self.failures > QUIET_FAILURES
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_failure_is_mended_at_once_and_the_sixth_is_told() {
        let mut mending = Mending::default();
        mending.failed();
        assert_eq!(mending.not_before, None);
        for _ in 0..4 {
            mending.failed();
            assert!(!mending.exhausted());
        }
        mending.failed();
        assert!(mending.exhausted());
        mending.worked();
        assert!(!mending.exhausted());
        assert_eq!(mending.not_before, None);
    }

    #[test]
    fn pauses_are_bounded() {
        let mut mending = Mending::default();
        for _ in 0..100 {
            mending.failed();
        }
        let pause = mending.not_before.expect("a pause") - Instant::now();
        assert!(pause <= MAX_PAUSE && pause > MAX_PAUSE / 2, "{pause:?}");
    }
}
