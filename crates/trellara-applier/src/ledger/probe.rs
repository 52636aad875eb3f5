//! The probe: which of these transactions are in the ledger? One statement over one index range.
//!
//! The server finds the rows, the comparison by hash is done here: the apply session's planner
//! settings, which keep set-based statements on index lookups, would make a join of hashes slow,
//! and a thousand transactions in a row stand in about nine rows.

use std::collections::{HashMap, HashSet};

use futures_util::TryStreamExt;
use tokio_postgres::types::ToSql;
use tokio_postgres::{Client, Row, Statement};
use trellara_envelope::{
    FlowName, Halt, HaltCode, Lane, LedgerOrdinal, Lsn, SystemId, TransactionHash,
};

use super::{LedgerError, hydrate, lane, pg};

/// The statement, for whoever wants to see its plan: flow, lane, system, lowest and highest end LSN,
/// and the ordinal behind which to look.
pub const SQL: &str = include_str!("../sql/probe.sql");

/// A transaction asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Asked {
    /// Its dedup identity.
    pub hash: TransactionHash,
    /// Where it ends.
    pub end_lsn: Lsn,
    /// The system it was committed on.
    pub system: SystemId,
}

/// What a probe found.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Found {
    /// Ordinals by identity; the lowest, where one stands more than once.
    pub ordinals: HashMap<TransactionHash, LedgerOrdinal>,
    /// Rows that were read.
    pub rows: u64,
    /// Identities in them.
    pub identities: u64,
}

/// Asks the ledger of one lane.
#[derive(Debug, Clone)]
pub struct Prober {
    flow: FlowName,
    lane: Lane,
    statement: Statement,
}

impl Prober {
    /// Prepares the statement on a session.
    pub async fn prepare(
        client: &Client,
        flow: &FlowName,
        lane: Lane,
    ) -> Result<Self, tokio_postgres::Error> {
        Ok(Self {
            flow: flow.clone(),
            lane,
            statement: client.prepare(SQL).await?,
        })
    }

    /// Which of `asked` stand in a row behind `verified_through`. One round trip, or one for each
    /// system among them.
    pub async fn probe(
        &self,
        client: &Client,
        asked: &[Asked],
        verified_through: LedgerOrdinal,
    ) -> Result<Found, LedgerError> {
        let mut found = Found::default();
        let mut systems: Vec<SystemId> = asked.iter().map(|one| one.system).collect();
        systems.sort_unstable();
        systems.dedup();
        for system in systems {
            let of_it = || asked.iter().filter(|one| one.system == system);
            let (Some(lowest), Some(highest)) = (
                of_it().map(|one| one.end_lsn).min(),
                of_it().map(|one| one.end_lsn).max(),
            ) else {
                continue;
            };
            let wanted: HashSet<TransactionHash> = of_it().map(|one| one.hash).collect();
            let flow = self.flow.as_str();
            let (lane, system) = (lane(self.lane), system.0.cast_signed());
            let (lowest, highest) = (pg(lowest), pg(highest));
            let parameters: [&(dyn ToSql + Sync); 6] = [
                &flow,
                &lane,
                &system,
                &lowest,
                &highest,
                &verified_through.0,
            ];
            let rows = client.query_raw(&self.statement, parameters).await?;
            let mut rows = std::pin::pin!(rows);
            while let Some(row) = rows.try_next().await? {
                found.take(&Piece::read(&row, 2)?, &wanted);
            }
        }
        Ok(found)
    }

    /// The same over the whole lane, whatever its rows say of their ends: for an identity that the
    /// cache knows and the index does not find.
    pub async fn search(&self, client: &Client, asked: &[Asked]) -> Result<Found, LedgerError> {
        let wanted: HashSet<TransactionHash> = asked.iter().map(|one| one.hash).collect();
        let flow = self.flow.as_str();
        let lane = lane(self.lane);
        let parameters: [&(dyn ToSql + Sync); 4] = [&flow, &lane, &0_i64, &i64::MAX];
        let rows = client.query_raw(hydrate::SQL, parameters).await?;
        let mut rows = std::pin::pin!(rows);
        let mut found = Found::default();
        while let Some(row) = rows.try_next().await? {
            found.take(&Piece::read(&row, 7)?, &wanted);
        }
        Ok(found)
    }
}

impl Found {
    fn take(&mut self, piece: &Piece<'_>, wanted: &HashSet<TransactionHash>) {
        self.rows += 1;
        for (ordinal, hash) in piece.identities() {
            self.identities += 1;
            if wanted.contains(&hash) {
                // First occurrence wins: rows of replays do not come in the order of ordinals.
                let first = self.ordinals.entry(hash).or_insert(ordinal);
                *first = ordinal.min(*first);
            }
        }
    }
}

/// A row's ordinals and identities, checked against each other.
pub(super) struct Piece<'r> {
    pub(super) first: i64,
    pub(super) last: i64,
    hashes: &'r [u8],
}

impl<'r> Piece<'r> {
    /// Reads a row whose first columns are its ordinals. What cannot be read is never "not seen".
    pub(super) fn read(row: &'r Row, hashes: usize) -> Result<Self, LedgerError> {
        let (first, last): (i64, i64) = (row.get(0), row.get(1));
        let hashes: &[u8] = row.get(hashes);
        let count = (hashes.len() / 16).max(1) as i64;
        if !hashes.len().is_multiple_of(16)
            || first < 0
            || last.checked_sub(first) != Some(count - 1)
        {
            let what = format!(
                "its ordinals are {first} to {last}, but its identities have {} bytes",
                hashes.len()
            );
            return Err(unreadable(LedgerOrdinal(first), &what).into());
        }
        Ok(Self {
            first,
            last,
            hashes,
        })
    }

    pub(super) fn is_progress(&self) -> bool {
        self.hashes.is_empty()
    }

    pub(super) fn identities(&self) -> impl Iterator<Item = (LedgerOrdinal, TransactionHash)> {
        let (identities, _) = self.hashes.as_chunks::<16>();
        identities
            .iter()
            .zip(self.first..)
            .map(|(hash, ordinal)| (LedgerOrdinal(ordinal), TransactionHash(*hash)))
    }
}

/// A row that cannot be what this build wrote.
pub(super) fn unreadable(first: LedgerOrdinal, what: &str) -> Halt {
    Halt::new(
        HaltCode::State,
        format!("the row of trellara.applied at ordinal {first} cannot be trusted: {what}"),
        "was trellara.applied changed by hand, or restored in part? Restore the whole target, or \
         copy the tables anew",
    )
}
