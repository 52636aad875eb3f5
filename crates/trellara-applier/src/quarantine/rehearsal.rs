//! A replay that is always rolled back: what it would do, and what still stands in its way.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use tokio_postgres::Client;
use tokio_util::sync::CancellationToken;
use trellara_envelope::HaltCode;
use trellara_jetstream::Broker;
use trellara_jetstream::read::Reader;

use super::desk::DeskError;
use super::effects::{Effect, Effects};
use super::frames::Head;
use super::order;
use super::replay::{self, not_next, refused_by_us};
use super::request::Order;
use super::skipped::Recorder;
use super::{Cause, Held, HeldId, HeldReason, HeldState, store};
use crate::apply::{Failure, Source};
use crate::backfill::sieve::Sieve;
use crate::backfill::{self, Copies};
use crate::execute::{ApplyError, Executor, ExecutorOptions};
use crate::ledger;
use crate::options::ApplierOptions;
use crate::session::TargetSession;
use crate::status::ApplierStatus;
use crate::target::Catalog;
use crate::trouble::Trouble;

/// Nobody is kept waiting for long by what is not meant.
const BEGIN: &str = "BEGIN ISOLATION LEVEL READ COMMITTED; SET LOCAL lock_timeout = '5s'";

/// What would become of one held transaction.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Rehearsed {
    /// Which.
    pub id: HeldId,
    /// The transaction's identity; empty when there is no such one.
    pub transaction: String,
    /// What would happen.
    pub would: Would,
}

/// What would happen.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Would {
    /// It would go in.
    Apply(Vec<Effect>),
    /// It would not be tried.
    Refuse {
        /// Why.
        reason: String,
        /// What to do instead.
        hint: String,
    },
    /// The target would refuse it.
    Fail(Box<Cause>),
    /// It is in.
    BeReplayedAlready,
    /// The flow holds nothing of that number.
    BeUnknown,
}

/// Tries an order in a session of its own and rolls everything back. The lane is not taken, nothing
/// of it is written down, and no lock is waited for longer than five seconds.
///
/// # Errors
/// When target or broker cannot be used.
pub async fn rehearse(
    options: &ApplierOptions,
    broker: Option<&Broker>,
    order: &Order,
    cancel: &CancellationToken,
) -> Result<Vec<Rehearsed>, DeskError> {
    let status = ApplierStatus::default();
    let (target, watch) = TargetSession::connect(options).await?;
    let reader = broker.map(|broker| Reader::new(broker, &options.flow.stream()));
    let source = broker.zip(reader.as_ref()).map(|(broker, reader)| Source {
        broker,
        reader,
        options,
        cancel,
        status: &status,
    });
    let mut rehearsal = Rehearsal {
        client: target.client(),
        options,
        source: source.as_ref(),
        catalog: Catalog::new(),
        replica: target.replica,
        copies: backfill::read(target.client(), &options.flow)
            .await
            .map_err(Trouble::from)?,
        order,
        slow: BTreeSet::new(),
        failed: BTreeMap::new(),
    };
    let rehearsing = Box::pin(rehearsal.run());
    let ended = tokio::select! {
        ended = rehearsing => ended,
        lost = watch.lost(&status) => Err(lost),
    };
    Ok(ended?)
}

struct Rehearsal<'a> {
    client: &'a Client,
    options: &'a ApplierOptions,
    source: Option<&'a Source<'a>>,
    catalog: Catalog,
    replica: bool,
    copies: Arc<Copies>,
    order: &'a Order,
    /// Those that failed set-wise: row by row the failing change has a number.
    slow: BTreeSet<HeldId>,
    failed: BTreeMap<HeldId, Cause>,
}

impl Rehearsal<'_> {
    /// A failed one takes the transaction with it, so the others are begun again without it.
    async fn run(&mut self) -> Result<Vec<Rehearsed>, Trouble> {
        let (flow, lane) = (&self.options.flow, self.options.lane);
        let ids = order::listed(self.client, (flow, lane), self.order).await?;
        loop {
            self.client.batch_execute(BEGIN).await?;
            let tried = self.pass(&ids).await;
            // When the connection is gone the server rolls back by itself.
            let rolled_back = self.client.batch_execute("ROLLBACK").await;
            if let Some(rehearsed) = tried? {
                rolled_back?;
                return Ok(rehearsed);
            }
        }
    }

    /// All of them in one transaction; `None` when one failed.
    async fn pass(&mut self, ids: &[HeldId]) -> Result<Option<Vec<Rehearsed>>, Trouble> {
        let (flow, lane) = (&self.options.flow, self.options.lane);
        let mut done = BTreeSet::new();
        let mut all = Vec::new();
        for id in ids {
            let held = store::get(self.client, flow, lane, *id).await?;
            let would = match &held {
                None => Would::BeUnknown,
                Some(held) if held.state == HeldState::Replayed => Would::BeReplayedAlready,
                Some(held) => match self.one(held, &done).await? {
                    Some(would) => would,
                    None => return Ok(None),
                },
            };
            if matches!(would, Would::Apply(_)) {
                done.insert(*id);
            }
            all.push(Rehearsed {
                id: *id,
                transaction: held.map_or(String::new(), |held| held.identity.to_string()),
                would,
            });
        }
        Ok(Some(all))
    }

    async fn one(
        &mut self,
        held: &Held,
        done: &BTreeSet<HeldId>,
    ) -> Result<Option<Would>, Trouble> {
        if let Some(cause) = self.failed.get(&held.id) {
            return Ok(Some(Would::Fail(Box::new(cause.clone()))));
        }
        if let Some(refused) = self.not_next(held).await? {
            return Ok(Some(refused));
        }
        let mut behind = order::waits_behind(self.client, held.id).await?;
        behind.retain(|id| !done.contains(id));
        if let Some((reason, hint)) = order::out_of_order(held, &behind, self.order.force) {
            return Ok(Some(Would::Refuse { reason, hint }));
        }
        let head = match Head::read(self.client, held, self.source).await {
            Err(Trouble::Halted { halt, .. }) if halt.code != HaltCode::Fenced => {
                return Ok(Some(Would::Fail(Box::new(refused_by_us(&halt)))));
            }
            head => head?,
        };
        let mut effects = Effects::default();
        let cause = match self.apply(held, &head, &mut effects).await {
            Ok(()) => return Ok(Some(Would::Apply(effects.finish()))),
            Err(Failure::Change(error)) => self.verdict(held, &error),
            Err(Failure::Trouble(Trouble::Halted { halt, .. })) => Some(refused_by_us(&halt)),
            Err(Failure::Trouble(trouble)) => return Err(trouble),
        };
        if let Some(cause) = cause {
            self.failed.insert(held.id, cause);
        }
        Ok(None)
    }

    /// Why one is not tried that the lane stood in front of: it stands elsewhere now.
    async fn not_next(&self, held: &Held) -> Result<Option<Would>, Trouble> {
        if held.reason != HeldReason::Blocking {
            return Ok(None);
        }
        let (flow, lane) = (&self.options.flow, self.options.lane);
        let stands = ledger::checkpoint(self.client, flow, lane).await?;
        if stands.is_some_and(|stands| stands.ordinal == held.before) {
            return Ok(None);
        }
        let (reason, hint) = not_next(held);
        Ok(Some(Would::Refuse { reason, hint }))
    }

    fn verdict(&mut self, held: &Held, error: &ApplyError) -> Option<Cause> {
        let set_wise = self.slow.insert(held.id);
        (!set_wise).then(|| Cause::from(error))
    }

    async fn apply(
        &mut self,
        held: &Held,
        head: &Head,
        effects: &mut Effects,
    ) -> Result<(), Failure> {
        let options = ExecutorOptions {
            role_replica: self.replica,
            set_wise: !self.slow.contains(&held.id),
        };
        let mut executor = Executor::new(self.client, &mut self.catalog, options)
            .with_conflicts(&self.options.conflicts)
            .rehearsing();
        executor.sift(Sieve::of(&self.copies, &held.identity));
        let of = (&self.options.flow, self.options.lane);
        let mut recorder = Recorder::new(of, held.identity, held.end_lsn);
        let (client, source) = (self.client, self.source);
        replay::apply(&mut executor, client, head, source, effects, &mut recorder).await?;
        drop(executor);
        // What would speak up at COMMIT speaks up now.
        let checked = self.client.batch_execute("SET CONSTRAINTS ALL IMMEDIATE");
        let refused = |error| Failure::Change(ApplyError::from_server(&error));
        checked.await.map_err(refused)
    }
}
