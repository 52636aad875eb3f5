//! The loop that acts: it waits for an order, takes a snapshot, lets readers read, and writes.

use std::sync::Arc;
use std::time::Duration;

use backon::{BackoffBuilder, ExponentialBuilder};
use bytes::Bytes;
use tokio::sync::watch;
use tokio_util::task::AbortOnDropHandle;
use trellara_envelope::{CopyEvent, CopyOrder, CopyWanted, Incarnation};
use trellara_jetstream::Broker;

use super::Serving;
use super::book::Book;
use super::numbers::{Numbered, Numbers};
use super::orders::{Heard, listen};
use super::outlet::{self, Fittings, Outlet, OutletError};
use super::reading::Failure;
use super::report::Report;
use super::window::Window;
use crate::{RelayOptions, RelayStatus};

/// What was written and is not in yet is looked after this often.
const LOOK_INTERVAL: Duration = Duration::from_secs(5);
const PAUSE_MIN: Duration = Duration::from_millis(100);
const PAUSE_MAX: Duration = Duration::from_secs(5);

/// Why an attempt came to nothing; another may do better.
#[derive(Debug)]
pub(super) enum Trouble {
    Outlet(OutletError),
    Again(String),
}

impl From<OutletError> for Trouble {
    fn from(error: OutletError) -> Self {
        Trouble::Outlet(error)
    }
}

/// Copies what is ordered for as long as the returned handle lives. `serving` says which
/// incarnation of this process holds the slot.
pub(crate) fn spawn(
    options: RelayOptions,
    broker: Broker,
    status: Arc<RelayStatus>,
    serving: watch::Receiver<Option<Serving>>,
) -> AbortOnDropHandle<()> {
    let (say, orders) = watch::channel(None);
    let listener = tokio::spawn(listen(broker.clone(), options.flow.clone(), say));
    let fittings = Fittings {
        broker,
        flow: options.flow.clone(),
        max_bytes: options.copy.max_bytes,
        silence: options.copy.silence,
        serving: serving.clone(),
        orders: orders.clone(),
        report: Report::new(&options.flow, status),
    };
    let copier = Copier {
        report: fittings.report.clone(),
        options,
        fittings,
        serving,
        orders,
        outlet: None,
        window: None,
        numbers: Numbers::default(),
        book: Book::default(),
        void: Vec::new(),
        is_cleared: false,
        _listener: AbortOnDropHandle::new(listener),
    };
    AbortOnDropHandle::new(tokio::spawn(copier.run()))
}

pub(super) struct Copier {
    pub(super) options: RelayOptions,
    fittings: Fittings,
    pub(super) report: Report,
    serving: watch::Receiver<Option<Serving>>,
    pub(super) orders: watch::Receiver<Option<Heard>>,
    pub(super) outlet: Option<Outlet>,
    /// The chain, while there is no outlet.
    window: Option<Window>,
    numbers: Numbers,
    pub(super) book: Book,
    /// What was begun and came to nothing. Whoever asks for it is told so.
    void: Vec<(CopyWanted, String)>,
    /// Whether the copy stream is known to be gone.
    is_cleared: bool,
    _listener: AbortOnDropHandle<()>,
}

impl Copier {
    async fn run(mut self) {
        let mut pauses = pauses();
        loop {
            let trouble = match self.once().await {
                Ok(()) => {
                    pauses = self::pauses();
                    continue;
                }
                Err(trouble) => trouble,
            };
            let reason = self.recover(trouble);
            tracing::warn!(reason, "the copy waits, and goes on by itself");
            self.report.over(&reason);
            tokio::time::sleep(pauses.next().unwrap_or(PAUSE_MAX)).await;
        }
    }

    /// What is left after an attempt that came to nothing.
    fn recover(&mut self, trouble: Trouble) -> String {
        self.close();
        match trouble {
            Trouble::Outlet(OutletError::Fenced(writer)) => {
                // Whatever we began is void by that writer's word, and so is our chain.
                self.forget();
                self.numbers.used(writer);
                format!("a newer relay (incarnation {writer}) writes the copy")
            }
            // What was wanted is begun anew, under the present incarnation's number.
            Trouble::Outlet(OutletError::Foreign(reason)) => {
                self.forget();
                reason
            }
            Trouble::Outlet(OutletError::Lost(reason)) => {
                self.cast_off();
                self.give_up_all(&reason);
                reason
            }
            Trouble::Outlet(OutletError::TakenBack { of, reason }) => {
                for wanted in of {
                    self.give_up(wanted, &reason);
                }
                reason
            }
            Trouble::Outlet(OutletError::Again(reason)) | Trouble::Again(reason) => reason,
        }
    }

    /// No outlet any more; its chain stays.
    fn close(&mut self) {
        if let Some(outlet) = self.outlet.take() {
            self.window = Some(outlet.into_window());
        }
    }

    /// What the chain wrote is gone: it goes on wherever the stream ends, until a higher number serves.
    fn cast_off(&mut self) {
        if let Some(window) = &mut self.window {
            window.cast_off();
            self.numbers.lost(window.writer());
        }
    }

    /// As if this process had written nothing, but for the number it did it under.
    fn forget(&mut self) {
        if let Some(window) = self.window.take() {
            self.numbers.used(window.writer());
        }
        self.book.clear();
        self.void.clear();
    }

    /// Tells the target as soon as it can be told, and asks for it.
    pub(super) fn give_up(&mut self, wanted: CopyWanted, reason: &str) {
        if !self.void.iter().any(|(known, _)| *known == wanted) {
            self.void.push((wanted, reason.to_owned()));
        }
    }

    /// Whatever of what was begun the target still asks for, it will never get.
    fn give_up_all(&mut self, reason: &str) {
        for wanted in self.book.all() {
            self.give_up(wanted, reason);
        }
    }

    /// One order: what of it is new is copied.
    async fn once(&mut self) -> Result<(), Trouble> {
        let Ok(serving) = self.serving.wait_for(Option::is_some).await.map(|now| *now) else {
            return std::future::pending().await;
        };
        let Some(serving) = serving else {
            return Ok(());
        };
        let heard = self.orders.borrow_and_update().clone();
        let Some(heard) = heard.filter(Heard::is_fresh) else {
            self.wait().await;
            return Ok(());
        };
        let order = &heard.order;
        if order.wanted.is_empty() {
            self.clear_away().await?;
            self.wait().await;
            return Ok(());
        }
        self.is_cleared = false;
        self.numbered(serving.incarnation)?;
        let new = self.book.to_begin(order);
        if new.is_empty() && self.book.not_in(order).is_empty() {
            if let Some(wanted) = self.book.went_back(order) {
                return Err(Trouble::Again(format!(
                    "the target asks for copy {} of {}, and a later one was made: it went back in \
                     time. Restart the relay, which then copies the table anew",
                    wanted.generation, wanted.table
                )));
            }
            self.wait().await;
            return Ok(());
        }
        // Also when all was written: a broker that was away may have come back with less.
        self.open(serving, &order.target).await?;
        self.say_void(order).await?;
        if !new.is_empty() {
            return self.copy(serving, new).await;
        }
        self.outlet()?.look().await?;
        self.wait().await;
        Ok(())
    }

    /// Whether the present incarnation may go on with what was written, or begin anew.
    fn numbered(&mut self, now: Incarnation) -> Result<(), Trouble> {
        match self.numbers.of(now) {
            Numbered::GoOn => Ok(()),
            Numbered::Anew => {
                self.close();
                self.forget();
                self.numbers.restart(now);
                Ok(())
            }
            Numbered::Wait(used) => Err(OutletError::Fenced(used).into()),
        }
    }

    /// Waits for another order, or for a while.
    async fn wait(&mut self) {
        let changed = async {
            tokio::select! {
                result = self.orders.changed() => result,
                result = self.serving.changed() => result,
            }
        };
        if let Ok(Err(_)) = tokio::time::timeout(LOOK_INTERVAL, changed).await {
            // The relay is going.
            std::future::pending().await
        }
    }

    /// Nothing is wanted any more: the stream goes.
    async fn clear_away(&mut self) -> Result<(), Trouble> {
        if self.is_cleared {
            return Ok(());
        }
        self.close();
        if outlet::delete(&self.fittings.broker, &self.options.flow).await? {
            tracing::info!("everything that was ordered is in; the copy stream was deleted");
        }
        // Should something of it be asked for again after all: its frames went with the stream. (It
        // cannot be begun once more under this number, the target would take its parts for those of
        // the first.)
        self.give_up_all("it was not wanted for a while");
        self.cast_off();
        self.is_cleared = true;
        self.report.over("");
        Ok(())
    }

    async fn open(&mut self, serving: Serving, target: &str) -> Result<(), Trouble> {
        if self.outlet.is_none() {
            let opened = self.fittings.open(serving, target, &mut self.window);
            let outlet = self.outlet.insert(opened.await?);
            outlet.join().await?;
        }
        Ok(())
    }

    pub(super) fn outlet(&mut self) -> Result<&mut Outlet, Trouble> {
        let none = || Trouble::Again("the copy stream is not open".to_owned());
        self.outlet.as_mut().ok_or_else(none)
    }

    /// Says what came to nothing, as far as it is asked for. The rest waits: an order may come to
    /// ask for it again.
    async fn say_void(&mut self, order: &CopyOrder) -> Result<(), Trouble> {
        self.void.retain(|(wanted, _)| self.book.has(wanted));
        let is_asked_for = |(wanted, _): &(CopyWanted, String)| order.wanted.contains(wanted);
        while let Some(at) = self.void.iter().position(is_asked_for) {
            let (wanted, reason) = self.void[at].clone();
            let failure = Failure {
                reason,
                hint: "it is copied anew".to_owned(),
                lasting: false,
            };
            self.fail(&wanted, failure).await?;
            self.void.remove(at);
        }
        self.outlet()?.flush().await?;
        Ok(())
    }

    pub(super) async fn fail(
        &mut self,
        wanted: &CopyWanted,
        failure: Failure,
    ) -> Result<(), Trouble> {
        let Failure {
            reason,
            hint,
            lasting,
        } = failure;
        tracing::warn!(table = %wanted.table, generation = wanted.generation, reason, hint, lasting, "the copy of a table failed");
        self.report.failed();
        let event = CopyEvent::Failed {
            reason,
            hint,
            lasting,
        };
        Ok(self.outlet()?.send(wanted, event, Bytes::new()).await?)
    }
}

fn pauses() -> impl Iterator<Item = Duration> {
    ExponentialBuilder::default()
        .with_min_delay(PAUSE_MIN)
        .with_max_delay(PAUSE_MAX)
        .with_jitter()
        .without_max_times()
        .build()
}
