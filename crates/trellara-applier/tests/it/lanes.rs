//! One lane's ledger, written and asked by hand.

use std::time::Duration;

use trellara_applier::Checkpoint;
use trellara_applier::lane::{self, Claimant};
use trellara_applier::ledger::hydrate::{self, Floor, Span};
use trellara_applier::ledger::probe::{self, Asked, Prober};
use trellara_applier::ledger::prune::{self, Bounds};
use trellara_applier::ledger::watermark::{self, Watermark};
use trellara_applier::ledger::{Ledger, LedgerError, LedgerIdentity};
use trellara_envelope::{
    FlowName, Halt, Lane, LaneEpoch, LedgerOrdinal, Lsn, StreamSequence, TransactionHash,
};

use crate::flow::{Target, genesis_checkpoint, history};

/// No ordinal: look in the whole ledger.
pub(crate) const NOWHERE: LedgerOrdinal = LedgerOrdinal(-1);

pub(crate) fn shop() -> FlowName {
    "shop".parse().unwrap()
}

pub(crate) fn hash(n: u64) -> TransactionHash {
    TransactionHash::of(&n.to_be_bytes())
}

/// A lane with its writer; transaction `n` ends at `0x1000 + 16 n`.
pub(crate) struct Lanes {
    pub(crate) target: Target,
    ledger: Ledger,
    pub(crate) prober: Prober,
    pub(crate) epoch: LaneEpoch,
    pub(crate) at: Checkpoint,
    pub(crate) next: u64,
}

pub(crate) fn end_of(n: u64) -> u64 {
    0x1000 + 16 * n
}

pub(crate) fn asked(n: u64) -> Asked {
    Asked {
        hash: hash(n),
        end_lsn: Lsn(end_of(n)),
        system: history().system,
    }
}

impl Lanes {
    pub(crate) async fn new(version: u32) -> Self {
        let target = Target::new(version).await;
        let genesis = genesis_checkpoint(&shop());
        target.set_up(&shop(), &genesis).await;
        // The settings of an apply session: its plans are the ones to see.
        for (name, value) in trellara_applier::APPLY_SETTINGS {
            let set = "SELECT set_config($1, $2, false)";
            target.client.execute(set, &[name, value]).await.unwrap();
        }
        let who = Claimant {
            flow: &shop(),
            lane: Lane(0),
            instance: "11111111-2222-4333-8444-555555555555",
            name: "a test",
        };
        let epoch = lane::fence(&target.client, who).await.unwrap().epoch;
        let client = &target.client;
        let flow = shop();
        let ledger = Ledger::prepare(client, &flow, Lane(0), epoch);
        let prober = Prober::prepare(client, &flow, Lane(0));
        Self {
            ledger: ledger.await.unwrap(),
            prober: prober.await.unwrap(),
            target,
            epoch,
            at: genesis,
            next: 0,
        }
    }

    /// Applies the next `count` transactions as one batch.
    pub(crate) async fn apply(&mut self, count: u64) {
        let range = self.next..self.next + count;
        let identities: Vec<LedgerIdentity> = range
            .clone()
            .map(|n| LedgerIdentity {
                hash: hash(n),
                end_lsn: Lsn(end_of(n)),
            })
            .collect();
        let mut to = self.at.clone();
        to.end_lsn = Lsn(end_of(range.end - 1) + 4);
        to.transaction_end_lsn = Lsn(end_of(range.end - 1));
        self.record(to, &identities).await;
        self.next = range.end;
    }

    /// Progress without transactions.
    pub(crate) async fn beat(&mut self) {
        let mut to = self.at.clone();
        to.end_lsn = Lsn(to.end_lsn.0 + 1);
        self.record(to, &[]).await;
    }

    /// A transaction that was held is replayed: alone in a row, in the midst of others.
    pub(crate) async fn replay(&mut self, one: LedgerIdentity) {
        let to = self.at.clone();
        self.record(to, &[one]).await;
    }

    pub(crate) async fn record(&mut self, mut to: Checkpoint, identities: &[LedgerIdentity]) {
        to.transport.sequence = StreamSequence(to.transport.sequence.0 + 1);
        let client = &self.target.client;
        client.batch_execute("BEGIN").await.unwrap();
        let recorded = self.ledger.record(client, &self.at, &to, identities).await;
        self.at = recorded.unwrap();
        client.batch_execute("COMMIT").await.unwrap();
    }

    pub(crate) async fn probe(&self, asked: &[Asked], behind: LedgerOrdinal) -> probe::Found {
        let client = &self.target.client;
        self.prober.probe(client, asked, behind).await.unwrap()
    }

    pub(crate) async fn run(&self, sql: &str) {
        self.target.client.batch_execute(sql).await.unwrap();
    }

    /// The identities that a hydration from `cut` hands out, and where it began.
    pub(crate) async fn hydrate(
        &self,
        cut: i64,
    ) -> Result<(Vec<(i64, TransactionHash)>, Floor), Halt> {
        let mut seen = Vec::new();
        let span = Span {
            flow: &shop(),
            lane: Lane(0),
            cut: LedgerOrdinal(cut),
            newest: self.at.ordinal,
        };
        let read = hydrate::read(&self.target.client, span, |row| {
            seen.extend((row.first.0..).zip(row.identities.iter().copied()));
        })
        .await;
        match read {
            Ok(read) => {
                assert_eq!(read.identities, seen.len() as u64);
                assert_eq!(read.through, self.at.ordinal);
                Ok((seen, read.floor))
            }
            Err(LedgerError::Inconsistent(halt)) => Err(halt),
            Err(LedgerError::Server(error)) => panic!("{error}"),
        }
    }

    pub(crate) async fn prune(&self, up_to: u64, epoch: LaneEpoch) -> u64 {
        let bounds = Bounds {
            flow: &shop(),
            lane: Lane(0),
            epoch,
            window: Duration::from_secs(3600),
            up_to: Lsn(up_to),
            system: history().system,
        };
        prune::prune(&self.target.client, bounds)
            .await
            .unwrap()
            .rows
    }

    pub(crate) async fn watermark(&self) -> Option<Watermark> {
        watermark::read(&self.target.client, &shop(), Lane(0), history().system)
            .await
            .unwrap()
    }

    /// Makes rows up to this ordinal two hours old.
    pub(crate) async fn age(&self, through: i64) {
        let sql = format!(
            "UPDATE trellara.applied SET applied_at = applied_at - interval '2 hours' \
              WHERE last_ordinal <= {through}"
        );
        self.run(&sql).await;
    }

    pub(crate) async fn count(&self) -> i64 {
        let sql = "SELECT count(*) FROM trellara.applied";
        self.target.client.query_one(sql, &[]).await.unwrap().get(0)
    }
}
