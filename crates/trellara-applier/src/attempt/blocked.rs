//! Standing still in front of a held transaction: the lane and its session are kept, positions are
//! reported, requests are served, and nothing is read.
//!
//! A new process tries once by itself whether the transaction goes in now, on the ordinary way.
//! From then on it waits for an operator: replayed or discarded, the transaction is behind the
//! checkpoint, and the lane goes on from there.

use std::sync::atomic::Ordering;
use std::time::Instant;

use tokio_postgres::Client;
use trellara_envelope::{Halt, HaltCode, Lsn};

use super::Attempt;
use crate::batch::Batch;
use crate::checkpoint::Checkpoint;
use crate::options::ApplierOptions;
use crate::position;
use crate::quarantine::footprint::{self, Footprints};
use crate::quarantine::hold::{self, Blocking};
use crate::quarantine::limits::{self, Totals};
use crate::quarantine::{HeldId, store};
use crate::status::{ApplierState, QuarantineSnapshot};
use crate::target::Catalog;
use crate::trouble::Trouble;

/// What is held of the lane.
pub(super) struct Quarantine {
    /// Open ones in front of which the lane stands or stood.
    pub(super) blocking: Vec<Blocking>,
    pub(super) totals: Totals,
    /// What later transactions are tested against.
    pub(super) footprints: Footprints,
    /// Whether one that was passed ends beyond where the lane stands: then each is asked for.
    pub(super) beyond: bool,
    /// When they were read.
    read: Instant,
    /// What the lane stands still for.
    pub(super) blocked: Option<Blocked>,
}

/// Why nothing is read.
#[derive(Debug, Clone)]
pub(super) struct Blocked {
    pub(super) id: HeldId,
    pub(super) halt: Halt,
}

impl Quarantine {
    /// Reads what is held, and whether the lane stands still for it at `durable`. That the next one
    /// was `tried` by this process is what makes it stand.
    pub(super) async fn read(
        client: &Client,
        target: (&mut Catalog, bool),
        options: &ApplierOptions,
        (durable, tried): (&Checkpoint, bool),
    ) -> Result<Self, Trouble> {
        let (flow, lane) = (&options.flow, options.lane);
        let blocking = hold::blocking(client, flow, lane).await?;
        let totals = limits::totals(client, flow, lane).await?;
        let read = Instant::now();
        let next = blocking.iter().find(|open| open.before == durable.ordinal);
        let blocked = match next.filter(|_| tried) {
            Some(open) => blocked_by(client, options, open.id, totals).await?,
            None => totals
                .too_old(&options.quarantine, read.elapsed())
                .map(|(id, limit)| Blocked {
                    id,
                    halt: Halt::new(
                        HaltCode::ApplyFailed,
                        format!("{limit} is reached: transaction {id} has been held for longer"),
                        format!(
                            "look at it with trellara quarantine show {id}, then replay or discard \
                             it, or raise the limit"
                        ),
                    ),
                }),
        };
        let footprints = footprint::load(client, target, flow, lane).await?;
        let beyond = store::any_beyond(client, (flow, lane), durable).await?;
        Ok(Self {
            blocking,
            totals,
            footprints,
            beyond,
            read,
            blocked,
        })
    }

    /// These were set aside; nothing else has changed.
    pub(super) fn add(&mut self, more: Totals) {
        let totals = &mut self.totals;
        totals.transactions += more.transactions;
        totals.passed += more.passed;
        totals.bytes = totals.bytes.saturating_add(more.bytes);
        totals.keys = totals.keys.saturating_add(more.keys);
        totals.passed_bytes = totals.passed_bytes.saturating_add(more.passed_bytes);
        totals.passed_keys = totals.passed_keys.saturating_add(more.passed_keys);
        totals.oldest = totals.oldest.or(more.oldest);
        totals.oldest_passed = totals.oldest_passed.or(more.oldest_passed);
    }

    fn is_over_age(&self, options: &ApplierOptions) -> bool {
        let since = self.read.elapsed();
        self.totals.too_old(&options.quarantine, since).is_some()
    }

    pub(super) fn snapshot(&self, options: &ApplierOptions) -> QuarantineSnapshot {
        let totals = self.totals;
        let waiting = self.blocked.as_ref().map(|blocked| blocked.id);
        QuarantineSnapshot {
            policy: options.quarantine.policy,
            open: totals.transactions,
            bytes: totals.bytes,
            keys: totals.keys,
            oldest: totals.oldest,
            passed: totals.passed,
            discarded: totals.discarded,
            stands_in_front_of: waiting,
        }
    }
}

/// Nothing, when the one that the lane stands in front of was never refused, only had no room, and
/// there is room now.
async fn blocked_by(
    client: &Client,
    options: &ApplierOptions,
    id: HeldId,
    totals: Totals,
) -> Result<Option<Blocked>, Trouble> {
    let held = store::get(client, &options.flow, options.lane, id).await?;
    let stands = held.filter(|held| {
        let limit = totals.limit(&options.quarantine, held.bytes, held.keys);
        !(held.attempts == 0 && held.cause.sqlstate.is_empty() && limit.is_none())
    });
    Ok(stands.map(|held| Blocked {
        id,
        halt: hold::halt(id, &held.identity, &held.cause),
    }))
}

impl Attempt<'_> {
    /// Whether the lane stands still for something held.
    pub(super) fn is_blocked(&self) -> bool {
        self.quarantine.blocked.is_some()
    }

    /// The state while the lane stands still for something held.
    pub(super) fn blocked_state(&self) -> Option<ApplierState> {
        let blocked = self.quarantine.blocked.as_ref()?;
        Some(ApplierState::Halted {
            halt: blocked.halt.clone(),
            probing: false,
        })
    }

    /// Something was set aside, replayed or discarded: reads what is held. The lane stood at
    /// `stood` before; where an operator moved it past what it stood still for, it goes on from
    /// there.
    pub(super) async fn look_at_quarantine(&mut self, stood: Lsn) -> Result<(), Trouble> {
        let was = self.is_blocked();
        let client = &self.target.session.client;
        let tried = self.tried.load(Ordering::Relaxed);
        let target = (&mut self.writer.catalog, self.writer.replica);
        let at = (&self.durable, tried);
        self.quarantine = Quarantine::read(client, target, self.options, at).await?;
        self.show_quarantine();
        if self.durable.end_lsn != stood || (was && !self.is_blocked()) {
            // Also when this process has not tried it yet: what was read on to is behind us.
            self.read_on().await?;
        }
        if was != self.is_blocked() {
            self.status.set_state(self.ordinary_state());
        }
        Ok(())
    }

    /// Reads on behind a checkpoint to which the lane was moved while it stood still.
    async fn read_on(&mut self) -> Result<(), Trouble> {
        let registration = self.target.identity.registration();
        let facts = position::check_stream(self.broker, self.options, &registration).await?;
        let (reader, durable) = (&self.reader, &self.durable);
        let start = position::find(self.broker, reader, self.options, &facts, durable).await?;
        self.machine = start.machine;
        self.stream = start.stream;
        self.keep_from = start.keep_from;
        self.batch = Batch::behind(&self.durable, self.keep_from);
        self.written = Instant::now();
        self.passed_over.clear();
        self.again = None;
        // It comes again.
        self.awaited = None;
        self.consumer.reposition(start.sequence).await?;
        self.show();
        self.reporter.send(&self.durable).await;
        tracing::info!(
            flow = %self.options.flow, lsn_applied = %self.durable.end_lsn,
            "going on behind a held transaction"
        );
        Ok(())
    }

    /// Whether one has been held for longer than any may be. The attempt ends, and the next one
    /// stands still.
    pub(super) fn check_age(&self) -> Result<(), Trouble> {
        if self.is_blocked() || !self.quarantine.is_over_age(self.options) {
            return Ok(());
        }
        Err(Trouble::passing(
            "a transaction has been held for longer than quarantine.max_age",
        ))
    }

    pub(super) fn show_quarantine(&self) {
        let snapshot = self.quarantine.snapshot(self.options);
        self.status.set_quarantine(&self.options.flow, snapshot);
    }
}
