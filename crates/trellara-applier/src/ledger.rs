//! The ledger: one insert is dedup record, compare-and-set and checkpoint at once (C31).
//!
//! This module never updates or deletes a row. It does not decide what was applied; it makes sure
//! that rows and their record are committed together or not at all. Below it are the questions that
//! are asked of the ledger, and its pruning.

use std::future::{Future, poll_fn};
use std::task::Poll;
use std::time::SystemTime;

use futures_util::future::maybe_done;
use tokio_postgres::types::PgLsn;
use tokio_postgres::{Client, Error, Row, Statement};
use trellara_envelope::{
    FlowName, FrameDigest, FrameOrdinal, Halt, Incarnation, Lane, LaneEpoch, LedgerOrdinal, Lsn,
    SourceId, StreamSequence, SystemId, Timeline, TransactionHash,
};

use crate::checkpoint::{Checkpoint, StreamIdentity, Transport};

pub mod hydrate;
pub mod probe;
pub mod prune;
pub mod watermark;
pub mod writer;

/// Identities in one row: 1920 bytes stay below the TOAST threshold, and a row that is never
/// TOASTed is read ten times faster by a probe.
pub const IDENTITIES_PER_ROW: usize = 120;

const READ_CHECKPOINT: &str = include_str!("sql/read_checkpoint.sql");
const INSERT_APPLIED: &str = include_str!("sql/insert_applied.sql");
const INSERT_GENESIS: &str = include_str!("sql/insert_genesis.sql");

/// A transaction as the ledger remembers it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LedgerIdentity {
    /// Its dedup identity.
    pub hash: TransactionHash,
    /// Its end LSN.
    pub end_lsn: Lsn,
}

/// The ledger could not be read.
#[derive(Debug, thiserror::Error)]
pub enum LedgerError {
    /// The server refused or the connection was lost.
    #[error(transparent)]
    Server(#[from] Error),
    /// It holds what this build never wrote: nobody may guess what was applied.
    #[error("{0}")]
    Inconsistent(Halt),
}

impl From<Halt> for LedgerError {
    fn from(halt: Halt) -> Self {
        LedgerError::Inconsistent(halt)
    }
}

/// What was recorded, and when by the target's clock.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Recorded {
    /// The checkpoint with its new ordinal.
    pub checkpoint: Checkpoint,
    /// The newest row's time: microseconds since the Unix epoch.
    pub applied_at_us: i64,
}

/// Writes the rows of one lane on one session.
#[derive(Debug, Clone)]
pub struct Ledger {
    flow: FlowName,
    lane: Lane,
    epoch: LaneEpoch,
    insert: Statement,
}

impl Ledger {
    /// Prepares the insert for one lane under one epoch.
    pub async fn prepare(
        client: &Client,
        flow: &FlowName,
        lane: Lane,
        epoch: LaneEpoch,
    ) -> Result<Self, Error> {
        Ok(Self {
            flow: flow.clone(),
            lane,
            epoch,
            insert: client.prepare(INSERT_APPLIED).await?,
        })
    }

    /// [`Ledger::record_timed`] for callers that need no time.
    pub async fn record(
        &self,
        client: &Client,
        from: &Checkpoint,
        to: &Checkpoint,
        identities: &[LedgerIdentity],
    ) -> Result<Checkpoint, Error> {
        let recorded = self.record_timed(client, from, to, identities).await?;
        Ok(recorded.checkpoint)
    }

    /// Records `identities` and the checkpoint `to` behind the checkpoint `from`, inside the
    /// target transaction that is open on `client`. Returns the checkpoint with its new ordinal.
    ///
    /// Fails with 23502 or 23505 on `trellara.applied` when `from` is not the newest row or the
    /// epoch is not ours; the target transaction can then only be rolled back.
    pub async fn record_timed(
        &self,
        client: &Client,
        from: &Checkpoint,
        to: &Checkpoint,
        identities: &[LedgerIdentity],
    ) -> Result<Recorded, Error> {
        let rows = rows(from, to, identities);
        let mut newest = from;
        let mut inserts = Vec::with_capacity(rows.len());
        for (row, piece) in &rows {
            let mut insert = Box::pin(maybe_done(self.insert(client, newest, row, piece)));
            // The first poll sends. Each row looks for the one before it, which stands before it on
            // the same connection: there is no need to wait for an answer in between.
            _ = poll_fn(|context| Poll::Ready(insert.as_mut().poll(context))).await;
            inserts.push(insert);
            newest = row;
        }
        let mut applied_at_us = i64::MIN;
        for mut insert in inserts {
            // In order: what stands behind a refused row fails only because of it.
            insert.as_mut().await;
            if let Some(at) = insert.as_mut().take_output().transpose()? {
                applied_at_us = applied_at_us.max(at);
            }
        }
        Ok(Recorded {
            checkpoint: newest.clone(),
            applied_at_us,
        })
    }

    async fn insert(
        &self,
        client: &Client,
        from: &Checkpoint,
        row: &Checkpoint,
        identities: &[LedgerIdentity],
    ) -> Result<i64, Error> {
        let hashes: Vec<u8> = identities.iter().flat_map(|one| one.hash.0).collect();
        let lowest = identities.iter().map(|one| one.end_lsn).min();
        let highest = identities.iter().map(|one| one.end_lsn).max();
        let transport = &row.transport;
        let row = client
            .query_one(
                &self.insert,
                &[
                    &self.flow.as_str(),
                    &lane(self.lane),
                    &from.ordinal.0,
                    &pg(from.end_lsn),
                    &system(from.source),
                    &timeline(from.source),
                    &self.epoch.0,
                    &row.ordinal.0,
                    &system(row.source),
                    &timeline(row.source),
                    &pg(row.end_lsn),
                    &pg(row.transaction_end_lsn),
                    &lowest.map(pg),
                    &highest.map(pg),
                    &transport.stream.name,
                    &transport.stream.created,
                    &transport.sequence.0.cast_signed(),
                    &transport.incarnation.0.cast_signed(),
                    &transport.ordinal.0.cast_signed(),
                    &transport.digest.0.as_slice(),
                    &hashes,
                ],
            )
            .await?;
        Ok(microseconds(row.get(0)))
    }
}

/// The rows that `identities` take behind `from`, the last of them standing at `to`.
fn rows<'i>(
    from: &Checkpoint,
    to: &Checkpoint,
    identities: &'i [LedgerIdentity],
) -> Vec<(Checkpoint, &'i [LedgerIdentity])> {
    let mut rows = Vec::with_capacity(identities.len() / IDENTITIES_PER_ROW + 1);
    let (mut ordinal, mut rest) = (from.ordinal, identities);
    loop {
        let (piece, behind) = rest.split_at(rest.len().min(IDENTITIES_PER_ROW));
        let mut row = to.clone();
        if let (Some(last), false) = (piece.last(), behind.is_empty()) {
            // An intermediate row: visible to nobody, because they commit together.
            row.end_lsn = last.end_lsn;
            row.transaction_end_lsn = last.end_lsn;
            row.transport = from.transport.clone();
        }
        ordinal = LedgerOrdinal(ordinal.0 + piece.len().max(1) as i64);
        row.ordinal = ordinal;
        rows.push((row, piece));
        rest = behind;
        if rest.is_empty() {
            return rows;
        }
    }
}

/// The checkpoint of a lane: its newest row. `None` when the lane was never set up. Reads only, so
/// that `status` and `wait` may call it from a session of their own.
pub async fn checkpoint(
    client: &Client,
    flow: &FlowName,
    lane_number: Lane,
) -> Result<Option<Checkpoint>, Error> {
    let row = client
        .query_opt(READ_CHECKPOINT, &[&flow.as_str(), &lane(lane_number)])
        .await?;
    Ok(row.as_ref().map(read))
}

/// Writes the first row of a lane; `genesis` names the genesis frame and its consistent point.
/// Returns whether it was written: a lane that has rows is left as it is.
pub async fn write_genesis(
    client: &Client,
    flow: &FlowName,
    lane_number: Lane,
    genesis: &Checkpoint,
) -> Result<bool, Error> {
    let transport = &genesis.transport;
    let written = client
        .execute(
            INSERT_GENESIS,
            &[
                &flow.as_str(),
                &lane(lane_number),
                &system(genesis.source),
                &timeline(genesis.source),
                &pg(genesis.end_lsn),
                &transport.stream.name,
                &transport.stream.created,
                &transport.sequence.0.cast_signed(),
                &transport.incarnation.0.cast_signed(),
                &transport.ordinal.0.cast_signed(),
                &transport.digest.0.as_slice(),
            ],
        )
        .await?;
    Ok(written == 1)
}

fn read(row: &Row) -> Checkpoint {
    Checkpoint {
        ordinal: LedgerOrdinal(row.get(0)),
        source: source(row.get(1), row.get(2)),
        end_lsn: lsn(row.get(3)),
        transaction_end_lsn: lsn(row.get(4)),
        transport: Transport {
            stream: StreamIdentity {
                name: row.get(5),
                created: row.get(6),
            },
            sequence: StreamSequence(row.get::<_, i64>(7).cast_unsigned()),
            incarnation: Incarnation(row.get::<_, i64>(8).cast_unsigned()),
            ordinal: FrameOrdinal(row.get::<_, i64>(9).cast_unsigned()),
            // A CHECK of the table holds the length.
            digest: FrameDigest::from_slice(row.get(10)).unwrap_or_default(),
        },
    }
}

/// A time of the target as microseconds since the Unix epoch.
pub(crate) fn microseconds(at: SystemTime) -> i64 {
    let micros = |duration: std::time::Duration| i64::try_from(duration.as_micros());
    match at.duration_since(SystemTime::UNIX_EPOCH) {
        Ok(since) => micros(since).unwrap_or(i64::MAX),
        Err(before) => micros(before.duration()).map_or(i64::MIN, |us| -us),
    }
}

pub(crate) fn pg(lsn: Lsn) -> PgLsn {
    PgLsn::from(lsn.0)
}

pub(crate) fn lsn(lsn: PgLsn) -> Lsn {
    Lsn(u64::from(lsn))
}

pub(crate) fn lane(lane: Lane) -> i32 {
    i32::try_from(lane.0).expect("lanes are few")
}

pub(crate) fn system(source: SourceId) -> i64 {
    source.system.0.cast_signed()
}

pub(crate) fn timeline(source: SourceId) -> i64 {
    i64::from(source.timeline.0)
}

pub(crate) fn source(system: i64, timeline: i64) -> SourceId {
    SourceId {
        system: SystemId(system.cast_unsigned()),
        // Written from a u32 by this build alone.
        timeline: Timeline(u32::try_from(timeline).unwrap_or(u32::MAX)),
    }
}
