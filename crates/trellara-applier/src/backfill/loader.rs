//! The loop of the loader: orders what is not in, reads the copy stream, hands parts to sessions of
//! their own, and writes down what became of them.
//!
//! It lives as long as an attempt. Whatever passes by itself ends the attempt, which begins anew: a
//! part is in or it is not, and the stream holds every part that is not.

use std::collections::{HashSet, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::{Duration, Instant};

use tokio::sync::Notify;
use trellara_envelope::{
    CopyBegin, CopyFrame, CopyTable, FlowName, FrameDigest, Incarnation, SourceId, StreamSequence,
    SystemId,
};
use trellara_jetstream::Broker;
use trellara_jetstream::consume::Delivery;
use trellara_postgres::{fault, quote};

use super::books::{Books, CopyKey};
use super::intake::{Intake, Received};
use super::load::{Book, PartKey, Step};
use super::order::{self, Orders};
use super::pool::{Pending, Pool, Turn};
use super::putoff;
use super::restore::{self, Restorer};
use super::rule::Copies;
use super::session::LoadSession;
use super::store::{CopyState, TableCopy};
use super::worker::{self, Common, Outcome, PartEnd, Piece};
use crate::execute::ApplyError;
use crate::execute::deferred::check_whole;
use crate::lane::Held;
use crate::metric;
use crate::options::ApplierOptions;
use crate::status::{ApplierStatus, CopyRates};
use crate::trouble::Trouble;

/// After that many copies of a table that came to nothing, since it was asked for, an operator is
/// needed: with the pauses between them that takes three minutes and what was copied in vain.
const IN_VAIN_MAX: u32 = 10;
/// What the target remembers is read again at least this often while something is copied: the
/// notification of a change may be lost.
const REREAD: Duration = Duration::from_secs(10);
/// Between two trims: each costs two requests.
const TRIM: Duration = Duration::from_millis(100);

const OUTDATED: &str = "it was read before a standby of the source was promoted";

/// What the loader works with.
pub(super) struct Loader {
    common: Arc<Common>,
    flow: FlowName,
    book: Book,
    orders: Orders,
    intake: Intake,
    pool: Pool,
    /// What has to be handed over before anything else is read.
    pending: Option<Pending>,
    /// Parts that ended while others were waited for: what follows from them comes next.
    put_off: VecDeque<Box<PartEnd>>,
    /// The session for the books.
    desk: Option<LoadSession>,
    changes: Arc<Notify>,
    nudge: Arc<Notify>,
    restorer: Arc<Restorer>,
    /// Tables with all parts in, to be looked at whether they are complete with what was put off.
    wholes: Vec<CopyTable>,
    /// What the lane was told of.
    told: Copies,
    trimmed_to: StreamSequence,
    trim_at: Option<Instant>,
    read_at: Instant,
    heard_at: Instant,
    /// Nothing came for so long that what is on its way was given up; what comes next begins anew.
    stalled: bool,
    /// Whether the copy stream may be there although nothing is wanted.
    lingers: bool,
    /// Whether the rows were read at all.
    looked: bool,
    rates: CopyRates,
    /// The source's timeline as the lane has it.
    timeline: Arc<AtomicU32>,
}

/// What the target remembers: copies, with the parts that are in of those under way.
pub(super) type Rows = Vec<(TableCopy, HashSet<u32>)>;

/// What a loader is made of.
pub(super) struct Begun {
    pub(super) options: ApplierOptions,
    pub(super) held: Held,
    pub(super) status: Arc<ApplierStatus>,
    pub(super) registration: String,
    pub(super) system: SystemId,
    /// Whom to tell when a copy begins, is in, or is begun anew.
    pub(super) changes: Arc<Notify>,
    pub(super) nudge: Arc<Notify>,
    /// The lane stands in front of a transaction that waits for a copy.
    pub(super) awaited: Arc<AtomicBool>,
    /// The source's timeline as the lane has it.
    pub(super) timeline: Arc<AtomicU32>,
    /// Makes again what was put off.
    pub(super) restorer: Arc<Restorer>,
}

enum Event {
    Nudged,
    Tick,
    Trim,
    Received(Received),
    Turn(Turn),
}

impl Loader {
    pub(super) fn new(broker: &Broker, begun: Begun) -> Self {
        let Begun {
            options,
            held,
            status,
            registration,
            system,
            changes,
            nudge,
            awaited,
            timeline,
            restorer,
        } = begun;
        let flow = options.flow.clone();
        let books = Books {
            flow: flow.clone(),
            lane: options.lane,
            epoch: held.epoch,
        };
        let now = Instant::now();
        let common = Arc::new(Common {
            options,
            held,
            books,
            status,
        });
        let options = &common.options;
        Self {
            book: Book::new(system),
            orders: Orders::new(broker, &flow, (&registration, held.epoch), awaited),
            intake: Intake::new(broker, &flow, &registration, options.stall_timeout),
            pool: Pool::new(options.backfill_workers),
            common,
            flow,
            pending: None,
            put_off: VecDeque::new(),
            desk: None,
            changes,
            nudge,
            restorer,
            wholes: Vec::new(),
            told: Copies::default(),
            trimmed_to: StreamSequence(0),
            trim_at: None,
            read_at: now,
            heard_at: now,
            stalled: false,
            lingers: false,
            looked: false,
            rates: CopyRates::default(),
            timeline,
        }
    }

    /// Loads what is wanted, for ever.
    ///
    /// `rows` is what the target remembers as the attempt begins.
    pub(super) async fn run(mut self, rows: Rows) -> Trouble {
        match self.work(rows).await {
            Ok(never) => match never {},
            Err(trouble) => trouble,
        }
    }

    async fn work(&mut self, rows: Rows) -> Result<std::convert::Infallible, Trouble> {
        self.take_up(rows).await?;
        // Of an applier before; most never had a copy.
        if self.lingers {
            self.have_restored().await?;
        }
        let mut tick = tokio::time::interval(order::EVERY);
        tick.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        loop {
            while let Some(ended) = self.put_off.pop_front() {
                self.ended(ended).await?;
            }
            while let Some(table) = self.wholes.pop() {
                self.complete(&table).await?;
            }
            if !self.has_work() {
                self.rest().await?;
            }
            self.start_pending();
            let trim_at = self.trim_at;
            let reads = self.pending.is_none();
            let event = tokio::select! {
                biased;
                () = self.nudge.notified() => Event::Nudged,
                () = self.restorer.made() => Event::Nudged,
                turn = self.pool.turn(&mut self.pending) => Event::Turn(turn?),
                _ = tick.tick() => Event::Tick,
                () = at(trim_at) => Event::Trim,
                received = self.intake.next(), if reads => Event::Received(received?),
            };
            match event {
                Event::Nudged => self.reread().await?,
                Event::Tick => self.tick().await?,
                Event::Trim => self.trim().await?,
                Event::Turn(Turn::Delivered) => self.heard_at = Instant::now(),
                Event::Received(Received::Delivery(delivery)) => self.delivered(delivery).await?,
                Event::Received(Received::Anew(reason)) => {
                    tracing::debug!(flow = %self.flow, reason, "reading the copy stream anew");
                    self.begin_anew().await?;
                }
                Event::Turn(Turn::Ended(ended)) => self.ended(ended).await?,
            }
        }
    }

    /// Whether anything is to be ordered, read or waited for.
    fn has_work(&self) -> bool {
        self.lingers
            || self.orders.awaited()
            || self.intake.is_open()
            || self.book.copies().any(|copy| match copy.state {
                CopyState::Wanted | CopyState::Copying | CopyState::Removed => true,
                // The relay does not keep WAL for a lane that waits for an operator.
                CopyState::Announced | CopyState::Failed => copy.initial,
                CopyState::Loaded | CopyState::Done | CopyState::Kept => false,
            })
    }

    /// Nothing to do until somebody asks for a copy.
    async fn rest(&mut self) -> Result<(), Trouble> {
        self.desk = None;
        self.pool.close_idle();
        tokio::select! {
            () = self.nudge.notified() => {}
            () = self.restorer.made() => {}
        }
        self.reread().await
    }

    async fn tick(&mut self) -> Result<(), Trouble> {
        // A pause may be over.
        self.order();
        self.orders.send().await;
        if self.read_at.elapsed() >= REREAD {
            self.reread().await?;
        }
        self.pool.close_idle_longer_than(super::session::IDLE);
        self.show();
        if !self.intake.is_open() {
            self.open_intake().await?;
        }
        let stall = self.common.options.stall_timeout;
        let waits = self.book.waits_for_chunks() && self.pending.is_none();
        if waits && !self.stalled && self.heard_at.elapsed() >= stall {
            // The relay is gone, or waits. Transactions that stay open keep others from the table.
            tracing::warn!(
                flow = %self.flow, seconds = stall.as_secs(),
                "no more of the parts under way came; rolling them back until something comes"
            );
            self.give_up_parts().await?;
            self.stalled = true;
        }
        Ok(())
    }

    /// What the target remembers now.
    async fn reread(&mut self) -> Result<(), Trouble> {
        let books = self.common.books.clone();
        let desk = self.desk().await?;
        let put_off = restore::is_anything(desk.client(), &books.flow).await?;
        let rows = books.read(desk.client()).await?;
        self.take_up(rows).await?;
        if put_off {
            self.restorer.look();
        }
        Ok(())
    }

    async fn take_up(&mut self, rows: Rows) -> Result<(), Trouble> {
        self.read_at = Instant::now();
        for table in self.book.read(rows) {
            self.drain(&table).await?;
        }
        self.changed().await;
        self.wholes = self.book.wholes();
        Ok(())
    }

    /// What was put off may be made again now; mostly nothing was, and then no session is opened.
    async fn have_restored(&mut self) -> Result<(), Trouble> {
        let flow = self.flow.clone();
        let desk = self.desk().await?;
        if restore::is_anything(desk.client(), &flow).await? {
            self.restorer.look();
        }
        Ok(())
    }

    /// Something about some copy is different: lane, relay and operator are told.
    async fn changed(&mut self) {
        let copies = Copies::of(self.book.copies().cloned());
        if !self.looked {
            // Of a copy before, unless there was none.
            self.looked = true;
            self.lingers = !copies.is_empty();
        }
        if copies != self.told {
            self.told = copies;
            self.changes.notify_one();
        }
        self.order();
        self.orders.send().await;
        self.show();
    }

    fn order(&mut self) {
        let tables: Vec<&TableCopy> = self.book.copies().collect();
        self.orders.set(&tables, self.trimmed_to, Instant::now());
    }

    fn show(&mut self) {
        let copies = self.book.copies();
        let status = &self.common.status;
        status.set_copy(&self.flow, copies, &mut self.rates);
    }

    async fn desk(&mut self) -> Result<&LoadSession, Trouble> {
        if self.desk.as_ref().is_none_or(LoadSession::is_closed) {
            let connecting = LoadSession::connect(&self.common.options);
            self.desk = Some(self.orders.alongside(connecting).await?);
        }
        Ok(self.desk.as_ref().expect("just made"))
    }

    async fn delivered(&mut self, delivery: Delivery) -> Result<(), Trouble> {
        self.heard_at = Instant::now();
        if self.stalled {
            return self.begin_anew().await;
        }
        let sequence = delivery.sequence;
        let frame = match CopyFrame::decode(&delivery.payload) {
            Ok(frame) if frame.header.flow == self.flow => frame,
            Ok(frame) => {
                let reason = format!(
                    "a frame of flow {} is in its copy stream",
                    frame.header.flow
                );
                return self.damaged(sequence, &reason).await;
            }
            Err(error) => {
                let reason = format!("a frame of the copy stream is none: {error}");
                return self.damaged(sequence, &reason).await;
            }
        };
        let digest = FrameDigest::of(&delivery.payload);
        if let Some((tables, reason)) = self.book.follow(&frame.header, digest) {
            for table in tables {
                self.void(&table, &reason).await?;
            }
        }
        let writer = frame.header.writer;
        let step = self.book.step(sequence, frame);
        self.act(step, writer).await?;
        self.trim_soon();
        Ok(())
    }

    /// Whose frame it was is not known.
    async fn damaged(&mut self, sequence: StreamSequence, reason: &str) -> Result<(), Trouble> {
        self.book.passed(sequence);
        for table in self.book.copying() {
            self.void(&table, reason).await?;
        }
        self.trim_soon();
        Ok(())
    }

    async fn act(&mut self, step: Step, writer: Incarnation) -> Result<(), Trouble> {
        match step {
            Step::Nothing => Ok(()),
            Step::Begin(table, source, begin) => {
                self.begin((&table, writer), (source, &begin)).await
            }
            Step::Chunk(key, number, bytes) => {
                let piece = Piece::Chunk(bytes);
                self.hand_over(key, number == 0, piece);
                Ok(())
            }
            Step::Part(key, manifest) => {
                let piece = Piece::Whole(manifest);
                self.hand_over(key, manifest.chunks == 0, piece);
                Ok(())
            }
            Step::Complete(table) => self.complete(&table).await,
            Step::Failed {
                table,
                reason,
                hint,
                lasting: true,
            } => self.give_up(&table, &reason, &hint).await,
            Step::Failed { table, reason, .. } | Step::Void(table, reason) => {
                self.void(&table, &reason).await
            }
        }
    }

    fn hand_over(&mut self, key: PartKey, first: bool, piece: Piece) {
        self.pending = Some(Pending { key, first, piece });
    }

    /// Gives the pending piece a session of its own, where it begins a part and one more may begin.
    fn start_pending(&mut self) {
        let Some(pending) = &self.pending else {
            return;
        };
        if self.pool.has(&pending.key) {
            return;
        }
        let copy = self.copy_key(&pending.key.table);
        let Some(copy) = copy.filter(|_| pending.first) else {
            // Its part is over, and nothing came of it.
            self.pending = None;
            return;
        };
        if self.pool.may_start() {
            let columns = self
                .book
                .copy(&copy.table)
                .map(|known| known.columns.clone());
            let columns = columns.unwrap_or_default();
            self.pool.start(&self.common, &pending.key, (copy, columns));
        }
    }

    fn copy_key(&self, table: &CopyTable) -> Option<CopyKey> {
        let copy = self.book.copy(table)?;
        Some(CopyKey {
            table: table.clone(),
            generation: copy.generation,
            writer: copy.writer?,
        })
    }

    /// A copy begins: what makes it slow is put off, then in one transaction it is written down, and
    /// what the table holds goes.
    async fn begin(
        &mut self,
        (table, writer): (&CopyTable, Incarnation),
        begin: (SourceId, &CopyBegin),
    ) -> Result<(), Trouble> {
        let is_outdated =
            |loader: &Self| begin.0.timeline.0 < loader.timeline.load(Ordering::Relaxed);
        if is_outdated(self) {
            return self.void(table, OUTDATED).await;
        }
        self.drain(table).await?;
        let Some(generation) = self.book.copy(table).map(|copy| copy.generation) else {
            return Ok(());
        };
        let copy = CopyKey {
            table: table.clone(),
            generation,
            writer,
        };
        let common = Arc::clone(&self.common);
        self.desk().await?;
        let Some(mut desk) = self.desk.take() else {
            return Ok(());
        };
        desk.rests(false);
        let emptying = async {
            let client = desk.client();
            if common.options.backfill_defer {
                // Not under the locks of what follows: emptying may take hours.
                putoff::put_off(client, &common, &copy).await?;
            }
            client.batch_execute(&common.held.begin()).await?;
            let begun = common.books.begin(client, &copy, begin).await?;
            if begun {
                common.books.forgive(client, table).await?;
                common.books.empty(client, table).await?;
            }
            client.batch_execute("COMMIT").await?;
            Ok::<_, tokio_postgres::Error>(begun)
        };
        let emptying = desk.watched(&common.status, emptying);
        let emptied = self.orders.alongside(emptying).await?;
        if emptied.is_ok() {
            desk.rests(true);
            self.desk = Some(desk);
        }
        match emptied {
            Ok(true) => {
                tracing::info!(flow = %self.flow, %table, generation, %writer, "a copy begins");
                self.book.begun((table, writer), begin);
                self.changed().await;
                if is_outdated(self) {
                    // The lane came to the promotion while the table was emptied.
                    return self.void(table, OUTDATED).await;
                }
                Ok(())
            }
            // Somebody asks for another copy, or took the lane.
            Ok(false) => self.reread().await,
            Err(error) => {
                let key = PartKey {
                    table: table.clone(),
                    part: 0,
                };
                match worker::refused(&error, &key)? {
                    Outcome::Refused { reason, hint } => self.give_up(table, &reason, &hint).await,
                    Outcome::In { .. }
                    | Outcome::Dropped
                    | Outcome::Differs(_)
                    | Outcome::NotOurs
                    | Outcome::Trouble(_) => Ok(()),
                }
            }
        }
    }

    /// A part came to its end.
    async fn ended(&mut self, ended: Box<PartEnd>) -> Result<(), Trouble> {
        let PartEnd {
            key,
            copy,
            outcome,
            session,
        } = *ended;
        self.pool.take_back(session);
        if self.pending.as_ref().is_some_and(|one| one.key == key) {
            self.pending = None;
        }
        let current = self.copy_key(&key.table).as_ref() == Some(&copy);
        match outcome {
            Outcome::In { rows, bytes } => {
                self.common.status.count_part(&self.flow, rows, bytes);
                if !current {
                    return Ok(());
                }
                let step = self.book.part_in(&key, rows, bytes);
                self.act(step, Incarnation(0)).await?;
                self.trim_soon();
                Ok(())
            }
            Outcome::Dropped => Ok(()),
            Outcome::Trouble(trouble) => Err(trouble),
            Outcome::Differs(reason) if current => {
                let reason = format!("part {}: {reason}", key.part);
                self.void(&key.table, &reason).await
            }
            Outcome::Refused { reason, hint } if current => {
                self.give_up(&key.table, &reason, &hint).await
            }
            Outcome::Differs(_) | Outcome::Refused { .. } => Ok(()),
            Outcome::NotOurs => {
                self.reread().await?;
                if current && self.copy_key(&key.table) == Some(copy) {
                    return Err(Trouble::passing(
                        "the ledger refused a part of the copy although nobody replaced it",
                    ));
                }
                Ok(())
            }
        }
    }

    async fn complete(&mut self, table: &CopyTable) -> Result<(), Trouble> {
        let (Some(copy), Some(parts)) = (self.copy_key(table), self.book.parts_in(table)) else {
            return Ok(());
        };
        let (flow, books) = (self.flow.clone(), self.common.books.clone());
        let desk = self.desk().await?;
        if restore::is_pending(desk.client(), &flow, table).await? {
            if books.whole(desk.client(), &copy, parts).await? {
                self.book.whole_noted(table, parts);
                self.restorer.look();
            }
            self.changed().await;
            return Ok(());
        }
        if let Some(refused) = self.recheck(table).await? {
            return self
                .give_up(table, &refused.to_string(), &refused.hint)
                .await;
        }
        let desk = self.desk().await?;
        let loaded = books.loaded(desk.client(), &copy, parts).await?;
        if !loaded {
            self.reread().await?;
            if self.copy_key(table) == Some(copy) {
                let reason = "the ledger has other parts than came";
                self.void(table, reason).await?;
            }
            return Ok(());
        }
        let (rows, bytes) = self.book.copy(table).map_or((0, 0), |copy| copy.loaded);
        tracing::info!(flow = %self.flow, %table, rows, bytes, parts, "a table is in");
        self.book.loaded(table);
        self.pool.analyze(&self.common, table);
        self.changed().await;
        self.have_restored().await
    }

    /// What the table's rows are refused for although they are in: the replica role does not enforce
    /// everything.
    async fn recheck(&mut self, table: &CopyTable) -> Result<Option<ApplyError>, Trouble> {
        let common = Arc::clone(&self.common);
        self.desk().await?;
        let Some(mut desk) = self.desk.take() else {
            return Ok(None);
        };
        desk.rests(false);
        let checking = Box::pin(check_whole(desk.client(), (&table.schema, &table.name)));
        let checking = desk.watched(&common.status, checking);
        let checked = self.orders.alongside(checking).await?;
        desk.rests(true);
        self.desk = Some(desk);
        match checked {
            Ok(()) => Ok(None),
            Err(error) if worker::passes(&error) => Err(Trouble::passing(error.to_string())),
            Err(error) => Ok(Some(error)),
        }
    }

    /// What came of the table's copy is void: another one is asked for, unless that happened too
    /// often.
    async fn void(&mut self, table: &CopyTable, reason: &str) -> Result<(), Trouble> {
        let times = self.book.copy(table).map_or(0, |copy| copy.in_vain) + 1;
        if times >= IN_VAIN_MAX {
            let hint = format!("look at the relay's log, then run trellara table recopy {table}");
            let reason = format!("{times} copies came to nothing, the last because: {reason}");
            return self.give_up(table, &reason, &hint).await;
        }
        tracing::warn!(flow = %self.flow, %table, reason, "a copy is void and begins anew");
        metric::count(metric::BACKFILL_GENERATIONS, &self.flow, 1);
        self.drain(table).await?;
        let Some(generation) = self.book.copy(table).map(|copy| copy.generation) else {
            return Ok(());
        };
        let books = self.common.books.clone();
        let desk = self.desk().await?;
        let again = books
            .again(desk.client(), (table, generation), reason)
            .await?;
        if !again {
            return self.reread().await;
        }
        self.book.again(table, generation + 1, reason);
        self.changed().await;
        Ok(())
    }

    /// An operator is needed.
    async fn give_up(
        &mut self,
        table: &CopyTable,
        reason: &str,
        hint: &str,
    ) -> Result<(), Trouble> {
        tracing::error!(flow = %self.flow, %table, error = reason, hint, "a table cannot be copied");
        self.drain(table).await?;
        let Some(generation) = self.book.copy(table).map(|copy| copy.generation) else {
            return Ok(());
        };
        let books = self.common.books.clone();
        let desk = self.desk().await?;
        let failed = books
            .failed(desk.client(), (table, generation), (reason, hint))
            .await?;
        if !failed {
            return self.reread().await;
        }
        self.book.given_up(table, reason, hint);
        self.changed().await;
        Ok(())
    }

    /// Ends the table's parts under way, and waits until their transactions are over: what follows
    /// would wait for their locks.
    async fn drain(&mut self, table: &CopyTable) -> Result<(), Trouble> {
        self.pool.drop_parts(Some(table));
        if self
            .pending
            .as_ref()
            .is_some_and(|one| one.key.table == *table)
        {
            self.pending = None;
        }
        while self.pool.works_on(Some(table)) {
            let ended = self.orders.alongside(self.pool.ended()).await?;
            if ended.key.table == *table {
                self.ended_in_vain(*ended)?;
            } else {
                self.put_off(ended);
            }
        }
        Ok(())
    }

    /// Ends all parts under way, but for those of which everything was handed over.
    async fn give_up_parts(&mut self) -> Result<(), Trouble> {
        self.pool.drop_parts(None);
        self.pending = None;
        while self.pool.works_on(None) {
            let ended = self.orders.alongside(self.pool.ended()).await?;
            self.put_off(ended);
        }
        Ok(())
    }

    /// A part ended in the middle of something else. Its table may be complete with it, or cannot
    /// be copied, and nothing else would ever say so. Until then the book has it on its way.
    fn put_off(&mut self, mut ended: Box<PartEnd>) {
        self.pool.take_back(ended.session.take());
        self.put_off.push_back(ended);
    }

    /// A part of a copy that is void ended: if it is in, it is in.
    fn ended_in_vain(&mut self, ended: PartEnd) -> Result<(), Trouble> {
        self.pool.take_back(ended.session);
        match ended.outcome {
            Outcome::In { rows, bytes } => {
                self.common.status.count_part(&self.flow, rows, bytes);
                if self.copy_key(&ended.key.table) == Some(ended.copy) {
                    self.book.part_noted(&ended.key, rows, bytes);
                }
                Ok(())
            }
            Outcome::Dropped | Outcome::Differs(_) | Outcome::Refused { .. } | Outcome::NotOurs => {
                Ok(())
            }
            Outcome::Trouble(trouble) => Err(trouble),
        }
    }

    /// Reads the stream from its first message.
    async fn begin_anew(&mut self) -> Result<(), Trouble> {
        self.give_up_parts().await?;
        self.book.reread();
        self.stalled = false;
        self.trim_at = None;
        self.intake.close();
        self.open_intake().await
    }

    async fn open_intake(&mut self) -> Result<(), Trouble> {
        self.heard_at = Instant::now();
        let first = self.intake.open().await?;
        self.lingers = first.is_some();
        self.trimmed_to = first.map_or(StreamSequence(0), |first| StreamSequence(first.0 - 1));
        self.order();
        Ok(())
    }

    fn trim_soon(&mut self) {
        if self.trim_at.is_none() && self.book.trimmable() > self.trimmed_to {
            self.trim_at = Some(Instant::now() + TRIM);
        }
    }

    /// Gives the room of what is in back.
    async fn trim(&mut self) -> Result<(), Trouble> {
        self.trim_at = None;
        let to = self.book.trimmable();
        if to <= self.trimmed_to {
            return Ok(());
        }
        if !self.intake.trim(to).await? {
            return self.begin_anew().await;
        }
        self.trimmed_to = to;
        self.order();
        self.orders.send().await;
        Ok(())
    }
}

async fn at(when: Option<Instant>) {
    match when {
        Some(when) => tokio::time::sleep_until(when.into()).await,
        None => std::future::pending().await,
    }
}

/// Whoever may not is warned by the server, table by table. The right to do it came with 17; before,
/// nobody knows the word.
const MAY_ANALYZE: &str = "\
SELECT pg_catalog.pg_has_role(c.relowner, 'USAGE') \
       OR (c.relkind <> 'p' \
           AND pg_catalog.current_setting('server_version_num')::integer >= 170000 \
           AND pg_catalog.has_table_privilege(c.oid, \
                 CASE WHEN pg_catalog.current_setting('server_version_num')::integer >= 170000 \
                      THEN 'MAINTAIN' ELSE 'TRIGGER' END)) \
  FROM pg_catalog.pg_class AS c WHERE c.oid = $1::text::pg_catalog.regclass";

/// Statistics for the planner, where the role may take them; nothing waits for that.
pub(super) async fn analyze(
    common: Arc<Common>,
    table: CopyTable,
    session: Option<LoadSession>,
) -> Option<LoadSession> {
    let session = match session {
        Some(session) => session,
        None => LoadSession::connect(&common.options).await.ok()?,
    };
    let name = quote::qualified(&table.schema, &table.name);
    let client = session.client();
    let analyzed = async {
        let may: bool = client.query_one(MAY_ANALYZE, &[&name]).await?.try_get(0)?;
        match may {
            true => client.batch_execute(&format!("ANALYZE {name}")).await,
            false => Ok(()),
        }
    };
    match analyzed.await {
        Ok(()) => Some(session),
        Err(error) => {
            tracing::warn!(%table, error = %fault(&error), "the table was not analyzed");
            None
        }
    }
}
