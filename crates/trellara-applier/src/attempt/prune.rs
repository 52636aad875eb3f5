//! Pruning the ledger: when, and up to where.

use std::time::{Duration, Instant};

use trellara_envelope::{FrameDigest, Header, Lsn, StreamSequence};
use trellara_jetstream::topology::{self, StreamFacts};

use super::Attempt;
use crate::checkpoint::{Checkpoint, StreamIdentity};
use crate::ledger::prune::{self, Bounds};
use crate::position;
use crate::trouble::Trouble;

/// Between two prunings, when the one before left nothing.
const PRUNE_EVERY: Duration = Duration::from_secs(60);

/// What the broker said about the stream of that name.
struct Look {
    /// The digest of the frame that stands where the checkpoint's stood.
    at_checkpoint: Option<FrameDigest>,
    /// The lane's oldest frame with transactions.
    first: Option<Header>,
    /// Read last: what was read before it came from a stream no newer than this one.
    facts: StreamFacts,
}

impl Attempt<'_> {
    /// Prunes the ledger when it is time, as far as the stream allows.
    pub(super) async fn prune(&mut self) -> Result<(), Trouble> {
        if Instant::now() < self.dedup.prune_at {
            return Ok(());
        }
        self.dedup.prune_at = Instant::now() + PRUNE_EVERY;
        let Some(up_to) = self.redeliverable().await? else {
            return Ok(());
        };
        let bounds = Bounds {
            flow: &self.options.flow,
            lane: self.options.lane,
            epoch: self.dedup.epoch,
            window: self.options.dedup_window,
            up_to,
            system: self.durable.source.system,
        };
        match prune::prune(self.target.client(), bounds).await {
            Ok(pruned) => {
                if pruned.rows > 0 {
                    self.dedup.watermark = None;
                    tracing::debug!(rows = pruned.rows, %up_to, "pruned the ledger");
                }
                if pruned.rows >= prune::PIECE.unsigned_abs().into() {
                    self.dedup.prune_at = Instant::now();
                }
                self.dedup.cache.expire(pruned.now_us);
            }
            Err(error) => {
                let error = trellara_postgres::fault(&error);
                tracing::warn!(%error, "the ledger was not pruned; trying again");
            }
        }
        Ok(())
    }

    /// Below this position the stream delivers no transaction again; `None` when that cannot be
    /// told.
    async fn redeliverable(&self) -> Result<Option<Lsn>, Trouble> {
        let look = match self.look().await {
            Err(Trouble::Passing(_)) => return Ok(None),
            look => look?,
        };
        let registration = self.target.identity.registration();
        Ok(prunable(&look, &self.stream, &registration, &self.durable))
    }

    async fn look(&self) -> Result<Look, Trouble> {
        let at_checkpoint = self.reader.get(self.durable.transport.sequence).await?;
        let subject = self.options.flow.transactions_subject(self.options.lane);
        let first = match self.reader.next_on(&subject, StreamSequence(1)).await? {
            Some(stored) => Some(position::decode(&stored.payload, stored.sequence)?.header),
            None => None,
        };
        Ok(Look {
            at_checkpoint: at_checkpoint.map(|stored| FrameDigest::of(&stored.payload)),
            first,
            facts: topology::facts(self.broker, &self.stream.name).await?,
        })
    }
}

/// Up to where rows may go: below what the stream can deliver again. Nothing may when the stream is
/// another one, or another target's, or has lost the checkpoint's frame: what it holds then says
/// nothing of what it will. Markers and heartbeats hold no transaction, however old the one that is
/// kept.
fn prunable(
    look: &Look,
    stream: &StreamIdentity,
    registration: &str,
    durable: &Checkpoint,
) -> Option<Lsn> {
    let ours = stream.is_still(&look.facts, registration)
        && look.at_checkpoint == Some(durable.transport.digest);
    if !ours {
        return None;
    }
    let Some(first) = &look.first else {
        return Some(durable.end_lsn);
    };
    let comparable = first.source.system == durable.source.system;
    comparable.then(|| first.follows.min(durable.end_lsn))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use trellara_envelope::SystemId;

    use super::*;
    use crate::machine::testing::{Writer, checkpoint_at};

    const US: &str = "7412345678901234567/shop";

    /// A stream of ours without transactions that holds the checkpoint's frame.
    fn look(durable: &Checkpoint) -> Look {
        let mut facts = StreamFacts {
            name: durable.transport.stream.name.clone(),
            created: durable.transport.stream.created.clone(),
            first_sequence: StreamSequence(1),
            last_sequence: durable.transport.sequence,
            messages: 1,
            bytes: 1000,
            max_bytes: None,
            max_message_bytes: None,
            replicas: 1,
            subjects: Vec::new(),
            metadata: BTreeMap::new(),
            leader: None,
        };
        give_to(&mut facts, US);
        Look {
            at_checkpoint: Some(durable.transport.digest),
            first: None,
            facts,
        }
    }

    fn give_to(facts: &mut StreamFacts, target: &str) {
        let key = topology::TARGET_KEY.to_owned();
        facts.metadata.insert(key, target.to_owned());
    }

    /// The header of a bundle behind this position.
    fn behind(follows: u64) -> Header {
        let (mut writer, _, _) = Writer::genesis(follows);
        writer.bundle(&[follows + 0x10]).frame.header
    }

    fn allowed(change: impl FnOnce(&mut Look)) -> Option<Lsn> {
        let durable = checkpoint_at(50, 0x100);
        let mut look = look(&durable);
        change(&mut look);
        prunable(&look, &durable.transport.stream, US, &durable)
    }

    #[test]
    fn what_the_stream_no_longer_holds_may_go() {
        assert_eq!(allowed(|_| {}), Some(Lsn(0x100)), "no transaction is left");
        for (follows, up_to) in [(0x80, 0x80), (0x100, 0x100), (0x180, 0x100)] {
            let first = behind(follows);
            let up_to = Some(Lsn(up_to));
            assert_eq!(allowed(|look| look.first = Some(first)), up_to);
        }
    }

    #[test]
    fn c24_a_stream_that_only_has_the_name_lets_nothing_go() {
        let made_anew = |look: &mut Look| look.facts.created = "2026-12-01T00:00:00Z".into();
        assert_eq!(allowed(made_anew), None);
        assert_eq!(allowed(|look| give_to(&mut look.facts, "another")), None);
        assert_eq!(allowed(|look| look.facts.metadata.clear()), None);
        for another in [None, Some(FrameDigest([8; 16]))] {
            assert_eq!(allowed(|look| look.at_checkpoint = another), None);
        }
        let mut first = behind(0x80);
        first.source.system = SystemId(1);
        assert_eq!(allowed(|look| look.first = Some(first)), None);
    }
}
