//! Setting transactions aside, in the target transaction in which the lane moves past them, or in
//! one of its own when it comes to stand in front of one.

use tokio_postgres::Client;
use trellara_envelope::FrameDigest;

use super::{Committed, Failure, Part, Source, Writer};
use crate::batch::Unit;
use crate::checkpoint::Checkpoint;
use crate::chunks::Large;
use crate::ledger::Recorded;
use crate::quarantine::frames::{self, Recut};
use crate::quarantine::hold::{Aside, Blocking, Holding, Keeper};
use crate::quarantine::{Cause, HeldId, HeldReason, HeldStorage};
use crate::trouble::Trouble;

/// A transaction of a bundle that is not applied but set aside.
#[derive(Debug)]
pub(crate) struct SetAside {
    /// Which of the units.
    pub(crate) unit: usize,
    pub(crate) recut: Recut,
    pub(crate) reason: HeldReason,
    pub(crate) cause: Cause,
    /// 1 when it was just tried, 0 for one that was not.
    pub(crate) attempts: u64,
    /// What it waits behind.
    pub(crate) behind: Vec<HeldId>,
}

/// A chunked transaction with where the lane stands behind it.
#[derive(Clone, Copy)]
pub(crate) struct LargeAside<'a> {
    pub(crate) large: Large<'a>,
    /// Of its manifest.
    pub(crate) digest: FrameDigest,
    pub(crate) after: &'a Checkpoint,
}

impl Writer {
    fn keeper<'k>(&'k self, client: &'k Client, stands: &'k Checkpoint) -> Keeper<'k> {
        Keeper {
            client,
            flow: &self.flow,
            lane: self.lane,
            epoch: self.held.epoch,
            stands,
            host: &self.host,
        }
    }

    /// Writes the rows of those that are set aside, and closes those in front of which the lane
    /// stood and that are applied now.
    pub(super) async fn keep(
        &self,
        client: &Client,
        part: Part<'_>,
    ) -> Result<Vec<HeldId>, Trouble> {
        let Part {
            units,
            aside,
            blocking,
            ..
        } = part;
        let keeper = self.keeper(client, part.from);
        let mut ids = Vec::with_capacity(aside.len());
        let mut kept: Vec<(HeldId, &Recut)> = Vec::with_capacity(aside.len());
        for one in aside {
            let unit = &units[one.unit];
            let existing = blocking.iter().find(|open| open.hash == unit.hash);
            let holding = Holding {
                reason: one.reason,
                storage: HeldStorage::Target,
                cause: &one.cause,
                attempts: one.attempts,
                keys: 0,
                behind: &one.behind,
                existing: existing.map(|open| open.id),
            };
            let id = keeper
                .hold(&Aside::of_unit(unit, &one.recut), holding)
                .await?;
            if existing.is_none() {
                kept.push((id, &one.recut));
            }
            ids.push(id);
        }
        if !kept.is_empty() {
            frames::keep_small(client, &kept).await?;
        }
        for open in blocking {
            if part.applied().any(|unit| unit.hash == open.hash) {
                keeper.applied(open.id).await?;
            }
        }
        Ok(ids)
    }

    /// What the lane stood in front of is applied in the target transaction that is open.
    pub(super) async fn close_applied(
        &self,
        client: &Client,
        stands: &Checkpoint,
        open: Blocking,
    ) -> Result<(), Trouble> {
        self.keeper(client, stands).applied(open.id).await
    }

    /// The lane comes to stand in front of a transaction of a bundle: it is kept, and nothing
    /// moves.
    pub(crate) async fn block(
        &self,
        client: &Client,
        stands: &Checkpoint,
        unit: &Unit,
        cause: &Cause,
        existing: Option<Blocking>,
    ) -> Result<HeldId, Trouble> {
        let recut = Recut::of(unit)?;
        let aside = Aside::of_unit(unit, &recut);
        client.batch_execute(&self.held.begin()).await?;
        let written = self
            .write_blocking(client, stands, &aside, HeldStorage::Target, cause, existing)
            .await;
        let written = match (written, existing) {
            (Ok(id), None) => frames::keep_small(client, &[(id, &recut)])
                .await
                .map(|()| id)
                .map_err(Trouble::from),
            (written, _) => written,
        };
        self.done(client, written).await
    }

    /// The same of a chunked one: its frames stay in the stream, where the checkpoint in front of it
    /// keeps them (C47).
    pub(crate) async fn block_large(
        &self,
        client: &Client,
        stands: &Checkpoint,
        aside: LargeAside<'_>,
        cause: &Cause,
        existing: Option<Blocking>,
    ) -> Result<HeldId, Trouble> {
        let LargeAside {
            large,
            digest,
            after,
        } = aside;
        let aside = Aside::of_large(large, digest, after);
        let storage = existing.map_or(HeldStorage::Stream, |open| open.storage);
        client.batch_execute(&self.held.begin()).await?;
        let written = self
            .write_blocking(client, stands, &aside, storage, cause, existing)
            .await;
        self.done(client, written).await
    }

    async fn write_blocking(
        &self,
        client: &Client,
        stands: &Checkpoint,
        aside: &Aside,
        storage: HeldStorage,
        cause: &Cause,
        existing: Option<Blocking>,
    ) -> Result<HeldId, Trouble> {
        let holding = Holding {
            reason: HeldReason::Blocking,
            storage,
            cause,
            attempts: 1,
            keys: 0,
            behind: &[],
            existing: existing.map(|open| open.id),
        };
        self.keeper(client, stands).hold(aside, holding).await
    }

    /// Sets a chunked transaction aside: its frames are copied, and the lane moves past it.
    pub(crate) async fn hold_large(
        &mut self,
        client: &Client,
        from: &Checkpoint,
        aside: LargeAside<'_>,
        (reason, cause, behind): (HeldReason, &Cause, &[HeldId]),
        existing: Option<Blocking>,
        source: &Source<'_>,
    ) -> Result<Committed, Failure> {
        let LargeAside {
            large,
            digest,
            after,
        } = aside;
        let holding = Holding {
            reason,
            storage: HeldStorage::Target,
            cause,
            attempts: match reason {
                HeldReason::Poisoned | HeldReason::Blocking => 1,
                HeldReason::Dependent => 0,
            },
            keys: 0,
            behind,
            existing: existing.map(|open| open.id),
        };
        client.batch_execute(&self.held.begin()).await?;
        let row = Aside::of_large(large, digest, after);
        let copies = existing.is_none_or(|open| open.storage == HeldStorage::Stream);
        let written = self
            .write_large_aside(client, from, (&row, holding), (large, copies), source)
            .await;
        let (recorded, id) = self.end(client, written).await?;
        Ok(Committed::nothing(recorded, vec![id]))
    }

    async fn write_large_aside(
        &self,
        client: &Client,
        from: &Checkpoint,
        (row, holding): (&Aside, Holding<'_>),
        (large, copies): (Large<'_>, bool),
        source: &Source<'_>,
    ) -> Result<(Recorded, HeldId), Failure> {
        let id = self.keeper(client, from).hold(row, holding).await?;
        if copies {
            frames::keep_large(client, id, (large, row.digest), source).await?;
        }
        let recorded = self
            .ledger
            .record_timed(client, from, &row.after, &[])
            .await?;
        Ok((recorded, id))
    }

    async fn done<T>(&self, client: &Client, written: Result<T, Trouble>) -> Result<T, Trouble> {
        let ended = self.end(client, written.map_err(Failure::Trouble)).await;
        ended.map_err(|failure| super::blame(failure, &"while it was set aside"))
    }
}
