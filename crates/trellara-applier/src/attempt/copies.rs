//! What copies mean to the lane. While a table of the flow's first copy is not in it stands still;
//! afterwards it stands in front of the first transaction that touches a table which is not in, and
//! leaves out of every other what the table's snapshot saw.
//!
//! What is said of the copies changes only between target transactions, with everything in that was
//! judged by what was said before.

use trellara_envelope::{AbortedSet, Body, BundleEntry, CopyTable};
use trellara_pgoutput::ChangeReader;

use super::Attempt;
use crate::apply::{self, Source};
use crate::backfill::sieve::Sieve;
use crate::backfill::{self, CopyState, store};
use crate::chunks::Large;
use crate::machine::cut::{self, Cap, Cut};
use crate::machine::{self, Delivered, Verdict};
use crate::status::ApplierState;
use crate::trouble::Trouble;

/// A frame that holds a transaction which has to wait for a copy.
pub(super) struct Awaited {
    opened: Delivered,
    /// How many of its transactions were applied before, or are now.
    known: usize,
    /// Which has to be in first.
    table: CopyTable,
}

impl Attempt<'_> {
    /// Reads the flow's rows of `trellara.backfill` and does what follows.
    pub(super) async fn look_at_copies(&mut self) -> Result<(), Trouble> {
        let copies = backfill::read(self.target.client(), &self.options.flow).await?;
        if *copies == *self.writer.copies {
            return Ok(());
        }
        self.write_down().await?;
        // Indexes may have gone, or be there again.
        self.writer.catalog.reread();
        self.writer.copies = copies;
        self.obey_copies().await
    }

    /// From here on what is known of the copies is obeyed.
    pub(super) async fn obey_copies(&mut self) -> Result<(), Trouble> {
        self.notice_copies().await?;
        if !self.writer.copies.is_empty() {
            // It may not have been the loader who changed them, and it waits for our notice.
            self.backfill.nudge();
        }
        self.show_copying();
        if let Some(awaited) = self.awaited.take() {
            Box::pin(self.judge(awaited.opened, awaited.known)).await?;
            self.show_copying();
        }
        self.settle().await
    }

    /// Says of tables that join the flow, or are copied anew, that nothing of them is applied from
    /// now on. Everything that was judged otherwise is in.
    async fn notice_copies(&mut self) -> Result<(), Trouble> {
        let copies = self.writer.copies.tables();
        let unnoticed: Vec<_> = copies
            .filter(|copy| match copy.state {
                // Whoever adds it waits for the word of the applier that has the lane now.
                CopyState::Announced => true,
                CopyState::Wanted | CopyState::Copying => !copy.may_begin(),
                CopyState::Loaded
                | CopyState::Done
                | CopyState::Failed
                | CopyState::Kept
                | CopyState::Removed => false,
            })
            .collect();
        if unnoticed.is_empty() {
            return Ok(());
        }
        let lane = (&self.options.flow, self.options.lane);
        let epoch = self.writer.held.epoch;
        Ok(store::notice(self.target.client(), lane, epoch, &unnoticed).await?)
    }

    /// The source goes on from a history: copies that brought what is not in it are void.
    pub(super) async fn leave_what_is_lost(&mut self, opened: &Delivered) -> Result<(), Trouble> {
        let Some(history) = machine::history_of(&opened.frame.body) else {
            return Ok(());
        };
        self.backfill.on_timeline(history.timeline);
        // As they are written down: one may have begun a moment ago.
        let copies = backfill::read(self.target.client(), &self.options.flow).await?;
        let lost = copies.lost_by(history);
        if lost.is_empty() {
            return Ok(());
        }
        let (timeline, tables) = (history.timeline, lost.len());
        tracing::warn!(
            flow = %self.options.flow, %timeline, tables,
            "the source went on without all that copies of tables brought; they are begun anew"
        );
        let reason = format!(
            "the source's timeline {timeline} begins in front of what the copy's snapshot saw"
        );
        self.write_down().await?;
        let lane = (&self.options.flow, self.options.lane);
        let epoch = self.writer.held.epoch;
        let client = self.target.client();
        store::lost(client, lane, epoch, (&lost, &reason)).await?;
        self.writer.copies = backfill::read(client, &self.options.flow).await?;
        self.notice_copies().await?;
        self.backfill.nudge();
        Ok(())
    }

    /// Whether the lane stands still for a copy. A rewind goes on: it applies nothing.
    pub(super) fn waits_for_copy(&self) -> bool {
        self.held_by_copy() && self.rewinding.is_none()
    }

    /// Whether a copy keeps the lane from going on, so that what is stored counts as applied (C29).
    pub(super) fn held_by_copy(&self) -> bool {
        self.awaited.is_some() || self.writer.copies.holds_lane()
    }

    /// Lets a frame through unless a transaction in it has to wait for a copy. What stands before
    /// that one is taken, and the frame is judged again when there is more to say.
    pub(super) async fn unless_awaited(
        &mut self,
        opened: Delivered,
        mut known: usize,
    ) -> Result<Option<(Delivered, usize)>, Trouble> {
        if !self.writer.copies.waits() || self.rewinding.is_some() {
            return Ok(Some((opened, known)));
        }
        let Verdict::Apply(range) = self.machine.clone().frame(&opened) else {
            return Ok(Some((opened, known)));
        };
        let Some((place, table)) = self.first_to_wait(&opened, range.start).await? else {
            return Ok(Some((opened, known)));
        };
        let entries = machine::entries(&opened.frame.body).into_owned();
        if self.cuts_before(entries[place].commit_lsn) {
            // The fence holds it before the copy does.
            return Ok(Some((opened, known)));
        }
        if let Some(end) = cut::end_of(&entries[range.start..place]) {
            let exact = Cap {
                lsn: end,
                exact: true,
            };
            if let Cut::Part(part) = self.machine.cut(&opened, exact) {
                let behind = part.end;
                self.machine.stand_at(end, Some(end));
                let taken = self.accept(&opened, (known, part), Some(end));
                Box::pin(taken).await?;
                known = behind;
            }
        }
        let transaction = entries[place].identity();
        if self.told_of.replace(transaction) != Some(transaction) {
            tracing::info!(
                flow = %self.options.flow, %transaction, %table,
                "standing in front of a transaction until the copy of a table is in"
            );
        }
        self.awaited = Some(Awaited {
            opened,
            known,
            table,
        });
        self.show_copying();
        Ok(None)
    }

    /// The first transaction of a frame, from one on, that has to wait, and for which table.
    async fn first_to_wait(
        &mut self,
        opened: &Delivered,
        from: usize,
    ) -> Result<Option<(usize, CopyTable)>, Trouble> {
        match &opened.frame.body {
            Body::Bundle(entries) => Ok(self.first_of_bundle(opened, entries, from)),
            Body::Manifest(manifest) => {
                let large = Large {
                    manifest,
                    incarnation: opened.frame.header.incarnation,
                    sequence: opened.sequence,
                };
                // What was accepted before it need not wait until its chunks are read.
                self.write_down().await?;
                let source = Source {
                    broker: self.broker,
                    reader: &self.reader,
                    options: self.options,
                    cancel: self.cancel,
                    status: self.status,
                };
                let waits = self.writer.large_waits_for(large, &source).await;
                let waits = waits.map_err(|failure| apply::blame(failure, &manifest.identity()))?;
                Ok(waits.map(|table| (0, table)))
            }
            Body::Genesis(_)
            | Body::Marker(_)
            | Body::Heartbeat(_)
            | Body::Chunk(_)
            | Body::Abort(_) => Ok(None),
        }
    }

    /// Damaged records wait for nothing: whoever applies them says what is wrong with them, and
    /// nothing behind them is applied.
    fn first_of_bundle(
        &self,
        opened: &Delivered,
        entries: &[BundleEntry],
        from: usize,
    ) -> Option<(usize, CopyTable)> {
        let none_aborted = AbortedSet::EMPTY;
        let mut reader = ChangeReader::new(false, &none_aborted);
        let length = |entry: &BundleEntry| entry.bytes as usize;
        let mut at: usize = entries[..from].iter().map(length).sum();
        let payload = &opened.frame.payload;
        reader.describe(&payload.slice(..at)).ok()?;
        for (place, entry) in entries.iter().enumerate().skip(from) {
            reader.feed(payload.slice(at..at + length(entry)));
            at += length(entry);
            let mut sieve = Sieve::of(&self.writer.copies, &entry.identity())?;
            if let Some(table) = sieve.waits_for(&mut reader).ok()? {
                return Some((place, table));
            }
            reader.next_transaction().ok()?;
        }
        None
    }

    /// Whether what was accepted brings the lane past what a snapshot saw.
    pub(super) fn at_convergence(&self) -> bool {
        let next = self.writer.copies.next_convergence();
        next.is_some_and(|at| self.durable.end_lsn < at && at <= self.batch.to().end_lsn)
    }

    /// Writes down which tables show what the lane shows from now on.
    pub(super) async fn converge(&mut self) -> Result<(), Trouble> {
        let next = self.writer.copies.next_convergence();
        if next.is_none_or(|at| self.durable.end_lsn < at) {
            return Ok(());
        }
        let lane = (&self.options.flow, self.options.lane);
        let (epoch, at) = (self.writer.held.epoch, self.durable.end_lsn);
        let client = self.target.client();
        let tables = store::converged(client, lane, epoch, at).await?;
        tracing::info!(
            flow = %self.options.flow, tables, lsn_applied = %at,
            "tables that were copied have converged"
        );
        Box::pin(self.look_at_copies()).await
    }

    fn show_copying(&self) {
        self.backfill.awaited(self.awaited.is_some());
        if self.broker_there {
            self.status.set_state(self.ordinary_state());
        }
    }

    /// The state while a copy is not in, or the lane has not passed what one saw.
    pub(super) fn copying_state(&self) -> Option<ApplierState> {
        let copies = &self.writer.copies;
        if let Some(awaited) = &self.awaited {
            let table = &awaited.table;
            let reason = format!("the next transaction touches {table}, whose copy is not in");
            return Some(ApplierState::Copying { reason });
        }
        if copies.holds_lane() {
            let initial = || copies.tables().filter(|copy| copy.initial);
            let all = initial().count();
            let is_in = initial().filter(|copy| copy.state.is_in()).count();
            let reason = format!("the flow's first copy: {is_in} of {all} tables are in");
            return Some(ApplierState::Copying { reason });
        }
        let (tables, at) = copies.converging()?;
        Some(ApplierState::Converging { tables, at })
    }
}
