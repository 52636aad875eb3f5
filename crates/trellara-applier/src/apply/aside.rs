//! Setting transactions aside, in the target transaction in which the lane moves past them, or in
//! one of its own when it comes to stand in front of one.

use tokio_postgres::Client;
use trellara_envelope::FrameDigest;

use super::fates::numbered;
use super::{Beside, Committed, Failure, Part, Source, Writer};
use crate::batch::Unit;
use crate::checkpoint::Checkpoint;
use crate::chunks::Large;
use crate::ledger::Recorded;
use crate::quarantine::footprint::Touches;
use crate::quarantine::frames::{self, Recut};
use crate::quarantine::hold::{Aside, Blocking, Holding, Keeper};
use crate::quarantine::{Cause, HeldId, HeldReason, HeldStorage, keys};
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
    pub(crate) touches: Touches,
}

/// How a chunked transaction is held.
#[derive(Clone, Copy)]
pub(crate) struct HoldingLarge<'a> {
    pub(crate) reason: HeldReason,
    pub(crate) cause: &'a Cause,
    pub(crate) behind: &'a [HeldId],
    pub(crate) touches: &'a Touches,
    /// The row that is there already.
    pub(crate) existing: Option<Blocking>,
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
            fates,
            blocking,
            ..
        } = part;
        let aside = &fates.aside;
        let keeper = self.keeper(client, part.from);
        let mut ids = Vec::with_capacity(aside.len());
        let mut kept: Vec<(HeldId, &Recut)> = Vec::with_capacity(aside.len());
        for one in aside {
            let unit = &units[one.unit];
            let existing = blocking.iter().find(|open| open.hash == unit.hash);
            let behind = numbered(&one.behind, &ids);
            let holding = Holding {
                reason: one.reason,
                storage: HeldStorage::Target,
                cause: &one.cause,
                attempts: one.attempts,
                keys: one.touches.keys(),
                behind: &behind,
                existing: existing.map(|open| open.id),
            };
            let id = keeper
                .hold(&Aside::of_unit(unit, &one.recut), holding)
                .await?;
            if existing.is_none_or(|open| open.storage == HeldStorage::Stream) {
                kept.push((id, &one.recut));
            }
            write_keys(client, id, &one.touches, existing.copied()).await?;
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
        for (place, overtaken) in &fates.overtakes {
            let unit = &units[*place];
            let by = (unit.identity, unit.end_lsn);
            keeper.overtaken(overtaken, by).await?;
        }
        Ok(ids)
    }

    /// What an applied chunked transaction does to held ones, in the target transaction that is
    /// open.
    pub(super) async fn write_beside(
        &self,
        client: &Client,
        stands: &Checkpoint,
        large: Large<'_>,
        beside: Beside<'_>,
    ) -> Result<(), Trouble> {
        let keeper = self.keeper(client, stands);
        if let Some(open) = beside.closes {
            keeper.applied(open.id).await?;
        }
        let by = (large.manifest.identity(), large.manifest.end_lsn);
        keeper.overtaken(beside.overtakes, by).await
    }

    /// The lane comes to stand in front of a transaction of a bundle: it is kept, and nothing
    /// moves.
    pub(crate) async fn block(
        &self,
        client: &Client,
        stands: &Checkpoint,
        unit: &Unit,
        (cause, touches, behind): (&Cause, &Touches, &[HeldId]),
        existing: Option<Blocking>,
    ) -> Result<HeldId, Trouble> {
        let recut = Recut::of(unit)?;
        let aside = Aside::of_unit(unit, &recut);
        client.batch_execute(&self.held.begin()).await?;
        let written = self
            .write_blocking(
                client,
                stands,
                &aside,
                HeldStorage::Target,
                (cause, touches, behind),
                existing,
            )
            .await;
        // It may have come in chunks before, which stayed in the stream.
        let kept = existing.is_some_and(|open| open.storage == HeldStorage::Target);
        let written = match written {
            Ok(id) if !kept => frames::keep_small(client, &[(id, &recut)])
                .await
                .map(|()| id)
                .map_err(Trouble::from),
            written => written,
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
        (cause, touches, behind): (&Cause, &Touches, &[HeldId]),
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
            .write_blocking(
                client,
                stands,
                &aside,
                storage,
                (cause, touches, behind),
                existing,
            )
            .await;
        self.done(client, written).await
    }

    async fn write_blocking(
        &self,
        client: &Client,
        stands: &Checkpoint,
        aside: &Aside,
        storage: HeldStorage,
        (cause, touches, behind): (&Cause, &Touches, &[HeldId]),
        existing: Option<Blocking>,
    ) -> Result<HeldId, Trouble> {
        let holding = Holding {
            reason: HeldReason::Blocking,
            storage,
            cause,
            // One that has to wait was never tried.
            attempts: u64::from(behind.is_empty() && !cause.is_empty()),
            keys: touches.keys(),
            behind,
            existing: existing.map(|open| open.id),
        };
        let id = self.keeper(client, stands).hold(aside, holding).await?;
        // Discarded, it may be overtaken, and what it did not do has to be explained.
        write_keys(client, id, touches, existing).await?;
        Ok(id)
    }

    /// Sets a chunked transaction aside: its frames are copied, and the lane moves past it.
    pub(crate) async fn hold_large(
        &mut self,
        client: &Client,
        from: &Checkpoint,
        aside: LargeAside<'_>,
        hold: HoldingLarge<'_>,
        source: &Source<'_>,
    ) -> Result<Committed, Failure> {
        let LargeAside {
            large,
            digest,
            after,
        } = aside;
        let existing = hold.existing;
        let holding = Holding {
            reason: hold.reason,
            storage: HeldStorage::Target,
            cause: hold.cause,
            attempts: u64::from(!hold.cause.is_empty()),
            keys: hold.touches.keys(),
            behind: hold.behind,
            existing: existing.map(|open| open.id),
        };
        client.batch_execute(&self.held.begin()).await?;
        let row = Aside::of_large(large, digest, after);
        let written = self
            .write_large_aside(
                client,
                from,
                (&row, holding, hold.touches),
                (large, existing),
                source,
            )
            .await;
        let (recorded, id) = self.end(client, written).await?;
        Ok(Committed::nothing(recorded, vec![id]))
    }

    async fn write_large_aside(
        &self,
        client: &Client,
        from: &Checkpoint,
        (row, holding, touches): (&Aside, Holding<'_>, &Touches),
        (large, existing): (Large<'_>, Option<Blocking>),
        source: &Source<'_>,
    ) -> Result<(Recorded, HeldId), Failure> {
        let id = self.keeper(client, from).hold(row, holding).await?;
        write_keys(client, id, touches, existing).await?;
        if existing.is_none_or(|open| open.storage == HeldStorage::Stream) {
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

/// Writes what a held transaction touches. Of one that is there already less may have been known:
/// more keys may be kept now, or the table has more that ties its rows to others.
async fn write_keys(
    client: &Client,
    id: HeldId,
    touches: &Touches,
    existing: Option<Blocking>,
) -> Result<(), Trouble> {
    if existing.is_some() {
        let known = "SELECT count(*) FROM trellara.held_key WHERE held_id = $1";
        let known: i64 = client.query_one(known, &[&id.0]).await?.get(0);
        if known.cast_unsigned() >= touches.keys() {
            return Ok(());
        }
    }
    Ok(keys::write(client, id, touches).await?)
}
