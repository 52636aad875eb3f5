//! A simulated target: rows, ledger and checkpoint change together, and only behind the
//! predecessor that is expected.

use std::collections::BTreeSet;

use trellara_applier::{Checkpoint, StreamIdentity, Transport};
use trellara_envelope::{
    FrameDigest, FrameOrdinal, Incarnation, LaneEpoch, LedgerOrdinal, SourceId, StreamSequence,
    TransactionHash, TransactionIdentity,
};

use super::source::{BEGIN, Committed};

/// What a transaction left.
pub(super) type Effect = (TransactionIdentity, Vec<String>);

#[derive(Debug)]
pub(super) struct Target {
    /// In the order of the commits.
    pub(super) effects: Vec<Effect>,
    pub(super) ledger: BTreeSet<TransactionHash>,
    pub(super) checkpoint: Checkpoint,
    pub(super) epoch: LaneEpoch,
    /// Earlier states: effects, checkpoint and epoch.
    kept: Vec<(usize, Checkpoint, LaneEpoch)>,
}

pub(super) fn stream_identity() -> StreamIdentity {
    StreamIdentity {
        name: "TRELLARA_shop".to_owned(),
        created: "once".to_owned(),
    }
}

impl Target {
    /// As setup leaves it: standing at the genesis frame.
    pub(super) fn new(source: SourceId, genesis: FrameDigest) -> Self {
        Self {
            effects: Vec::new(),
            ledger: BTreeSet::new(),
            checkpoint: Checkpoint {
                ordinal: LedgerOrdinal(0),
                source,
                end_lsn: BEGIN,
                transaction_end_lsn: BEGIN,
                transport: Transport {
                    stream: stream_identity(),
                    sequence: StreamSequence(1),
                    incarnation: Incarnation(0),
                    ordinal: FrameOrdinal(0),
                    digest: genesis,
                },
            },
            epoch: LaneEpoch(0),
            kept: Vec::new(),
        }
    }

    /// Takes the lane.
    pub(super) fn raise_epoch(&mut self) -> LaneEpoch {
        self.epoch = LaneEpoch(self.epoch.0 + 1);
        self.epoch
    }

    /// One target transaction: all of it, or nothing when somebody else was first.
    pub(super) fn apply(
        &mut self,
        (predecessor, epoch): (LedgerOrdinal, LaneEpoch),
        effects: &[Effect],
        checkpoint: &Checkpoint,
    ) -> bool {
        if self.checkpoint.ordinal != predecessor || self.epoch != epoch {
            return false;
        }
        let before = (self.effects.len(), self.checkpoint.clone(), self.epoch);
        self.kept.push(before);
        for effect in effects {
            self.ledger.insert(effect.0.hash());
            self.effects.push(effect.clone());
        }
        self.checkpoint = checkpoint.clone();
        true
    }

    /// States that can be restored, oldest first.
    pub(super) fn kept(&self) -> &[(usize, Checkpoint, LaneEpoch)] {
        &self.kept
    }

    /// Puts back what was there before a commit.
    pub(super) fn restore(&mut self, number: usize) {
        let (effects, checkpoint, epoch) = self.kept[number].clone();
        self.kept.truncate(number);
        self.effects.truncate(effects);
        self.ledger = self.effects.iter().map(|(id, _)| id.hash()).collect();
        self.checkpoint = checkpoint;
        self.epoch = epoch;
    }

    /// H1 to H3 and H6: a prefix of the source's commits, each whole and once, in order, and the
    /// checkpoint at its end.
    pub(super) fn holds_a_prefix(&self, log: &[Committed]) -> Result<(), String> {
        if self.effects.len() > log.len() {
            return Err(format!(
                "{} applied, {} committed",
                self.effects.len(),
                log.len()
            ));
        }
        // What was there before was looked at before.
        let from = self.kept.last().map_or(0, |(effects, _, _)| *effects);
        for (at, (identity, rows)) in self.effects.iter().enumerate().skip(from) {
            let committed = &log[at];
            if *identity != committed.identity {
                return Err(format!(
                    "number {at} is {identity:?}, not {:?}",
                    committed.identity
                ));
            }
            if *rows != committed.rows {
                return Err(format!("number {at} was torn: {rows:?}"));
            }
        }
        if self.ledger.len() != self.effects.len() {
            return Err(format!(
                "{} in the ledger for {} applied",
                self.ledger.len(),
                self.effects.len()
            ));
        }
        let end = self
            .effects
            .len()
            .checked_sub(1)
            .map_or(BEGIN, |at| log[at].end);
        let next = log.get(self.effects.len()).map(|next| next.end);
        let at = self.checkpoint.end_lsn;
        if at < end || next.is_some_and(|next| at >= next) {
            return Err(format!(
                "the checkpoint is {at}, the last applied ends at {end}, the next at {next:?}"
            ));
        }
        Ok(())
    }
}
