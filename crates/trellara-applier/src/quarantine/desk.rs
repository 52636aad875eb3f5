//! Working an order off: by the applier that holds the lane, or by a command that takes the lane for
//! itself because nobody does.

use std::sync::Arc;

use tokio_postgres::Client;
use tokio_util::sync::CancellationToken;
use trellara_envelope::{FlowName, Halt, HaltCode, Lane, LaneEpoch};
use trellara_jetstream::Broker;
use trellara_jetstream::read::Reader;

use super::order;
use super::replay::{Desk, Step};
use super::request::{Answer, Item, Order};
use crate::apply::{Source, Writer};
use crate::backfill;
use crate::checkpoint::Checkpoint;
use crate::fence::Side;
use crate::lane::{self, Claimant};
use crate::ledger::{self, Ledger};
use crate::options::{ApplierOptions, Standby};
use crate::pause;
use crate::run::random_uuid;
use crate::session::TargetSession;
use crate::status::ApplierStatus;
use crate::target::Catalog;
use crate::trouble::Trouble;

/// What the desk works with.
pub(crate) struct Hands<'a> {
    pub(crate) client: &'a Client,
    pub(crate) writer: &'a mut Writer,
    pub(crate) flow: &'a FlowName,
    pub(crate) lane: Lane,
    /// The stream, for what is in it alone.
    pub(crate) source: Option<&'a Source<'a>>,
}

/// Works an order off behind the checkpoint `stands`, one transaction after another. What was
/// committed stays committed when a later one ends the session: the order may be begun again.
pub(crate) async fn work(
    hands: Hands<'_>,
    stands: &Checkpoint,
    order: &Order,
    token: &str,
) -> Result<Vec<Step>, Trouble> {
    let source = hands.source;
    let mut desk = Desk {
        client: hands.client,
        writer: hands.writer,
        flow: hands.flow,
        lane: hands.lane,
        source,
        stands: stands.clone(),
        order,
        token,
    };
    let mut steps = Vec::new();
    for id in order::listed(desk.client, (desk.flow, desk.lane), order).await? {
        if source.is_some_and(|source| source.cancel.is_cancelled()) {
            return Err(Trouble::Cancelled);
        }
        steps.push(desk.take(id).await?);
        if let Some(source) = source {
            source.status.moved();
        }
    }
    Ok(steps)
}

/// Why nothing may be applied on the lane although it is ours: it was promised to somebody that the
/// target stays as it is. The rows say so, whatever was or was not heard of them.
pub(crate) async fn stands_still(
    client: &Client,
    (flow, lane): (&FlowName, Lane),
    epoch: LaneEpoch,
) -> Result<Option<String>, Trouble> {
    if let Some(why) = pause::read(client, flow, lane).await? {
        return Ok(Some(format!(
            "flow {flow} is paused since {} by {}@{} ({}); try again after trellara resume",
            why.since, why.operator, why.host, why.reason
        )));
    }
    let side = Side {
        client,
        flow,
        lane,
        epoch,
    };
    Ok(side.read().await?.map(|row| fenced(&row.run)))
}

/// A verify run compares the target as it stands.
pub(crate) fn fenced(run: &str) -> String {
    format!("verify run {run} holds the lane; try again when it has ended")
}

/// What taking the lane came to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Direct {
    /// The order was worked off.
    Done(Vec<Item>),
    /// Somebody holds the lane; this is who.
    Held(String),
    /// Nothing may be applied now; this is why.
    NotNow(String),
}

/// Why an order was not worked off.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum DeskError {
    /// Stopped for cause.
    #[error("{0}")]
    Halted(Halt),
    /// It passes by itself: the same order may be given again.
    #[error("{0}")]
    Passing(String),
}

impl From<Trouble> for DeskError {
    fn from(trouble: Trouble) -> Self {
        match trouble {
            Trouble::Halted { halt, .. } => DeskError::Halted(halt),
            Trouble::Passing(reason) | Trouble::Disturbed { reason, .. } => {
                DeskError::Passing(reason)
            }
            Trouble::Cancelled => DeskError::Passing("it was stopped".to_owned()),
        }
    }
}

/// Takes the lane, if nobody holds it, and works the order off. Without a broker a transaction that
/// is in the stream alone is refused.
///
/// # Errors
/// When the target cannot be used, or the session is lost: what was not answered may be given again
/// under the same token.
pub async fn open(
    options: &ApplierOptions,
    broker: Option<&Broker>,
    (order, token): (&Order, &str),
    cancel: &CancellationToken,
) -> Result<Direct, DeskError> {
    let mut options = options.clone();
    options.standby = Standby::GiveUpAfter(std::time::Duration::ZERO);
    let status = ApplierStatus::default();
    let (target, watch) = TargetSession::connect(&options).await?;
    let working = in_session(&target, &options, broker, (order, token), cancel, &status);
    let ended = tokio::select! {
        ended = Box::pin(working) => ended,
        lost = watch.lost(&status) => Err(lost),
    };
    match ended {
        Ok(Answer::Done(items)) => Ok(Direct::Done(items)),
        Ok(Answer::NotNow { reason }) => Ok(Direct::NotNow(reason)),
        Err(Trouble::Halted { halt, .. }) if halt.code == HaltCode::Fenced => {
            Ok(Direct::Held(halt.reason))
        }
        Err(trouble) => Err(trouble.into()),
    }
}

async fn in_session(
    target: &TargetSession,
    options: &ApplierOptions,
    broker: Option<&Broker>,
    (order, token): (&Order, &str),
    cancel: &CancellationToken,
    status: &ApplierStatus,
) -> Result<Answer, Trouble> {
    let (client, flow, lane) = (target.client(), &options.flow, options.lane);
    let name = format!("trellara quarantine, process {}", std::process::id());
    let who = Claimant {
        flow,
        lane,
        instance: &random_uuid(),
        name: &name,
    };
    let held = lane::take(client, who, options.standby, cancel, status).await?;
    order::release_stale(client, flow, lane, held.epoch).await?;
    if let Some(reason) = stands_still(client, (flow, lane), held.epoch).await? {
        return Ok(Answer::NotNow { reason });
    }
    let Some(stands) = ledger::checkpoint(client, flow, lane).await? else {
        return Err(Trouble::operator(Halt::new(
            HaltCode::Config,
            format!("flow {flow} has no checkpoint in this target"),
            "run trellara setup",
        )));
    };
    let mut writer = Writer {
        flow: flow.clone(),
        lane,
        host: options.host.clone(),
        held,
        ledger: Ledger::prepare(client, flow, lane, held.epoch).await?,
        catalog: Catalog::new(),
        replica: target.replica,
        conflicts: Arc::new(options.conflicts.clone()),
        copies: backfill::read(client, flow).await?,
    };
    let reader = broker.map(|broker| Reader::new(broker, &flow.stream()));
    let source = broker.zip(reader.as_ref()).map(|(broker, reader)| Source {
        broker,
        reader,
        options,
        cancel,
        status,
    });
    let hands = Hands {
        client,
        writer: &mut writer,
        flow,
        lane,
        source: source.as_ref(),
    };
    let steps = work(hands, &stands, order, token).await?;
    let items = steps.into_iter().map(|step| step.item).collect();
    Ok(Answer::Done(items))
}
