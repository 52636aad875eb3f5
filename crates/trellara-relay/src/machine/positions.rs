//! What may be confirmed to the source, and which reports of the target are believed (R1, R2).

use std::collections::VecDeque;
use std::time::Duration;

use trellara_envelope::{
    CopyOrder, FlowName, FrameDigest, FrameOrdinal, Lane, LaneEpoch, Lsn, PositionReport,
    SourceHistory,
};
use trellara_source::stream::Feedback;

use crate::Acknowledge;

/// Frames remembered so that a report about them needs no reading; older ones are read from the
/// stream. At 32 bytes each this is half a megabyte.
const REMEMBERED_FRAMES: usize = 16_384;

/// Orders come once a second; an older one says nothing about now.
const ORDER_IS_FRESH: Duration = Duration::from_secs(10);

/// Whether a report is believed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Belief {
    Yes,
    No(&'static str),
    /// The frame is older than what is remembered: read it from the stream.
    Ask,
}

#[derive(Debug)]
pub(super) struct Positions {
    acknowledge: Acknowledge,
    flow: FlowName,
    history: SourceHistory,
    /// The registered target; nobody else is believed (C24, C27).
    target: Option<String>,
    pub(super) received: Lsn,
    pub(super) published: Lsn,
    pub(super) confirmed: Lsn,
    pub(super) applied: Lsn,
    /// Nothing more may be confirmed before what the source sends again was compared (C02).
    withheld: bool,
    remembered: VecDeque<(FrameOrdinal, FrameDigest)>,
    /// The epoch of the order obeyed last, and when it came.
    epoch: (LaneEpoch, Duration),
    /// When the registered target said last that its lane waits for a copy. What is stored then
    /// counts as applied (C29): a source that kept its WAL for as long as a copy lasts would fill
    /// its disk, and a commit that waits for us would be waited for by the copy.
    held_at: Option<Duration>,
}

impl Positions {
    /// `confirmed` is the slot's own position: nothing lower is ever sent, and nothing higher
    /// while it is withheld.
    pub(super) fn new(
        acknowledge: Acknowledge,
        flow: FlowName,
        history: SourceHistory,
        target: Option<String>,
        published: Lsn,
        confirmed: Lsn,
        withheld: bool,
    ) -> Self {
        Self {
            acknowledge,
            flow,
            history,
            target,
            received: published.max(confirmed),
            published,
            confirmed,
            applied: Lsn::ZERO,
            withheld,
            remembered: VecDeque::new(),
            epoch: (LaneEpoch::default(), Duration::ZERO),
            held_at: None,
        }
    }

    /// What the target says of its copy.
    pub(super) fn ordered(&mut self, now: Duration, order: &CopyOrder) {
        let registered = self.target.as_deref() == Some(order.target.as_str());
        if order.flow != self.flow || !registered {
            return;
        }
        // Of two appliers of one target the one with the lower epoch is over; unless the higher one
        // says nothing any more: then the target was put back to an earlier state.
        let (epoch, heard_at) = self.epoch;
        if order.epoch < epoch && now.saturating_sub(heard_at) < ORDER_IS_FRESH {
            return;
        }
        self.epoch = (order.epoch, now);
        self.held_at = order.holds_lane.then_some(now);
        self.confirm();
    }

    /// An order that is not repeated holds for a moment only.
    pub(super) fn forget_order(&mut self, now: Duration) {
        let fresh = |at: &Duration| now.saturating_sub(*at) < ORDER_IS_FRESH;
        self.held_at = self.held_at.filter(fresh);
    }

    pub(super) fn set_target(&mut self, target: Option<String>) {
        if self.target != target {
            self.epoch = (LaneEpoch::default(), Duration::ZERO);
            self.held_at = None;
        }
        self.target = target;
    }

    pub(super) fn received(&mut self, position: Lsn) {
        self.received = self.received.max(position);
    }

    /// What the source sent again is what the stream holds.
    pub(super) fn release(&mut self) {
        self.withheld = false;
        self.confirm();
    }

    /// A frame joined the contiguous acknowledged prefix.
    pub(super) fn stored(&mut self, ordinal: FrameOrdinal, digest: FrameDigest, position: Lsn) {
        self.published = self.published.max(position);
        self.received = self.received.max(position);
        if self.remembered.len() == REMEMBERED_FRAMES {
            self.remembered.pop_front();
        }
        self.remembered.push_back((ordinal, digest));
        self.confirm();
    }

    /// Whether a report may be believed.
    pub(super) fn judge(&self, report: &PositionReport) -> Belief {
        if report.flow != self.flow || report.lane != Lane(0) {
            return Belief::No("it is about another flow or lane");
        }
        if self.target.as_deref() != Some(report.target.as_str()) {
            return Belief::No("it comes from a target that is not the registered one");
        }
        if !self.history.continues(report.source, report.end_lsn) {
            return Belief::No("its position is not in this source's history");
        }
        let (Some((first, _)), Some((last, _))) = (self.remembered.front(), self.remembered.back())
        else {
            return Belief::Ask;
        };
        if report.ordinal > *last {
            return Belief::No("it names a frame that is not stored yet");
        }
        if report.ordinal < *first {
            return Belief::Ask;
        }
        let at = (report.ordinal.0 - first.0) as usize;
        match self.remembered.get(at) {
            Some((_, digest)) if *digest == report.digest => Belief::Yes,
            _ => Belief::No("it names another frame than the one stored under that number"),
        }
    }

    /// A believed report.
    pub(super) fn applied(&mut self, end: Lsn) {
        self.applied = self.applied.max(end);
        self.confirm();
    }

    /// Moves `confirmed` as far as the rules allow, never back.
    pub(super) fn confirm(&mut self) {
        let allowed = match self.acknowledge {
            Acknowledge::Published => self.published,
            Acknowledge::Applied if self.held_at.is_some() => self.published,
            Acknowledge::Applied => self.applied.min(self.published),
        };
        if !self.withheld {
            self.confirmed = self.confirmed.max(allowed);
        }
        assert!(
            self.published <= self.received,
            "nothing is published that was not received"
        );
    }

    /// The status update that says so. `apply` equals `flush`: in `applied` mode it is the
    /// applied position, in `published` mode there is no better one (C10).
    pub(super) fn feedback(&self) -> Feedback {
        Feedback {
            write: self.received,
            flush: self.confirmed,
            apply: self.confirmed,
        }
    }
}
