//! The copy of what the source's tables held before the flow reached them.
//!
//! The target alone remembers what was copied ([`store`]). What a transaction of the stream means
//! for a table with a copy is decided by [`rule`], a pure function: what the copy's snapshot saw is
//! in the copy, everything else is applied, and nothing is decided by an LSN that somebody read
//! beside the rows.
//!
//! The loader orders what is not in, takes it out of the copy stream and into the target, part by
//! part: a part's rows and its row in the ledger of parts commit together, or neither does.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use tokio::sync::Notify;
use tokio_postgres::{Client, GenericClient};
use tokio_util::task::AbortOnDropHandle;
use trellara_envelope::{FlowName, SourceId, Timeline};
use trellara_jetstream::Broker;

use crate::lane::Held;
use crate::options::ApplierOptions;
use crate::status::ApplierStatus;
use crate::trouble::Trouble;

use self::books::Books;
use self::loader::{Begun, Loader};
pub(crate) use self::restore::Restorer;

mod books;
mod initial;
mod intake;
mod load;
mod loader;
mod order;
mod pool;
mod putoff;
pub mod restore;
pub mod rule;
mod session;
pub(crate) mod sieve;
pub mod store;
mod strip;
mod worker;

pub use initial::{forget_writers, has_begun, record_initial};
pub use rule::{Bearing, Copies};
pub use store::{CopyState, TableCopy};

/// Payload of a notification on [`crate::channel`]: look at `trellara.backfill` at once. Asked for
/// again every few seconds by whoever still waits.
pub const LOOK: &str = "backfill";

/// What the copies of a flow have to say now; how far each is on its way is no part of it.
///
/// # Errors
/// The server's.
pub async fn read(
    client: &impl GenericClient,
    flow: &FlowName,
) -> Result<Arc<Copies>, tokio_postgres::Error> {
    let rows = store::read(client, flow).await?;
    let rows = rows.into_iter().map(TableCopy::without_progress);
    Ok(Arc::new(Copies::of(rows)))
}

/// What an attempt has of the copy: what is known of it, and the loader that works on it.
#[derive(Debug)]
pub(crate) struct Backfill {
    /// The loader wrote down that a copy begins, is in, or is begun anew.
    changes: Arc<Notify>,
    nudge: Arc<Notify>,
    /// Whether the lane stands in front of a transaction that waits for a copy.
    awaited: Arc<AtomicBool>,
    /// The source's timeline as the lane has it.
    timeline: Arc<AtomicU32>,
    loader: AbortOnDropHandle<Trouble>,
}

impl Backfill {
    /// Reads what is to be copied, and starts to.
    pub(crate) async fn begin(
        client: &Client,
        (options, broker, status): (&ApplierOptions, &Broker, &Arc<ApplierStatus>),
        (held, registration, source): (Held, &str, SourceId),
        restorer: &Arc<Restorer>,
    ) -> Result<Self, Trouble> {
        let books = Books {
            flow: options.flow.clone(),
            lane: options.lane,
            epoch: held.epoch,
        };
        let rows = books.read(client).await?;
        let changes = Arc::new(Notify::new());
        let nudge = Arc::new(Notify::new());
        let awaited = Arc::new(AtomicBool::new(false));
        let timeline = Arc::new(AtomicU32::new(source.timeline.0));
        let begun = Begun {
            options: options.clone(),
            held,
            status: Arc::clone(status),
            registration: registration.to_owned(),
            system: source.system,
            changes: Arc::clone(&changes),
            nudge: Arc::clone(&nudge),
            awaited: Arc::clone(&awaited),
            timeline: Arc::clone(&timeline),
            restorer: Arc::clone(restorer),
        };
        let loader = Loader::new(broker, begun).run(rows);
        Ok(Self {
            changes,
            nudge,
            awaited,
            timeline,
            loader: AbortOnDropHandle::new(tokio::spawn(loader)),
        })
    }

    /// Somebody changed `trellara.backfill`.
    pub(crate) fn nudge(&self) {
        self.nudge.notify_one();
    }

    /// Whether the lane stands in front of a transaction that waits for a copy: the orders say so.
    pub(crate) fn awaited(&self, awaited: bool) {
        if self.awaited.swap(awaited, Ordering::Relaxed) != awaited {
            self.nudge();
        }
    }

    /// The lane has come to that timeline: what begins to come from an earlier one is void.
    pub(crate) fn on_timeline(&self, timeline: Timeline) {
        self.timeline.fetch_max(timeline.0, Ordering::Relaxed);
    }

    /// Resolves when the loader has changed something about the copies. Cancel safe.
    ///
    /// # Errors
    /// The loader cannot go on, and with it the attempt.
    pub(crate) async fn changed(&mut self) -> Result<(), Trouble> {
        tokio::select! {
            biased;
            ended = &mut self.loader => Err(match ended {
                Ok(trouble) => trouble,
                Err(error) => Trouble::passing(format!("the loader of the copy: {error}")),
            }),
            () = self.changes.notified() => Ok(()),
        }
    }
}
