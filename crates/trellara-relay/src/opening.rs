//! Beginning an incarnation: both servers are asked, the slot is taken, the table decides.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use trellara_envelope::{
    CopyOrder, FlowName, Halt, HaltCode, Incarnation, Lsn, Marker, Oid, SourceHistory,
};
use trellara_jetstream::publish::Publisher;
use trellara_jetstream::read::Reader;
use trellara_jetstream::topology::StreamFacts;
use trellara_jetstream::{Broker, BrokerError, BrokerErrorKind, CoreSubscription, Support};
use trellara_postgres::{
    ConnectError, ConnectErrorKind, QueryError, ReplicationConnection, Session,
};
use trellara_source::publication::PublicationFacts;
use trellara_source::stream;
use trellara_source::stream::{ReplicationStream, Streaming};

use crate::asking::ORDER_GRACE;
use crate::facts::{self, BrokerFacts};
use crate::incarnation::End;
use crate::machine::{Settings, Start, StreamSpace};
use crate::resume::{Outcome as Decision, decide};
use crate::{RelayOptions, RelayState, RelayStatus};

/// A question to the source is given up after this long.
const SOURCE_TIMEOUT: Duration = Duration::from_secs(20);
/// A command on the replication connection is given up after this long. Each is answered at once
/// unless the source hangs; without a limit the relay would hang with it, and say nothing.
const COMMAND_TIMEOUT: Duration = Duration::from_secs(60);

/// A message cannot be smaller than this: a marker names up to a thousand tables, an abort frame
/// two thousand rollbacks.
const LEAST_MESSAGE: usize = 64 << 10;

/// Everything that must be there before the machine begins.
pub(crate) struct Opened {
    pub(crate) stream: ReplicationStream,
    pub(crate) session: Arc<Session>,
    pub(crate) publisher: Publisher,
    pub(crate) reports: CoreSubscription,
    pub(crate) orders: CoreSubscription,
    pub(crate) publication: PublicationFacts,
    pub(crate) start: Start,
    /// Of the stream, in bytes; `None` leaves it to the server.
    pub(crate) max_message: Option<u64>,
}

pub(crate) async fn open(
    options: &RelayOptions,
    broker: &Broker,
    known: Incarnation,
    streaming: Streaming,
    status: &RelayStatus,
) -> Result<Opened, End> {
    let source = &options.source;
    let session = Arc::new(source.session().await.map_err(refused)?);
    let mut connection = ReplicationConnection::connect(&source.connect)
        .await
        .map_err(refused)?;
    let history = answered(COMMAND_TIMEOUT, connection.history()).await?;
    let stream_name = options.flow.stream();
    let reader = Reader::new(broker, &stream_name);
    // Asked before the slot is taken too: a missing slot or another cluster is not found out by a
    // failing START_REPLICATION.
    let facts = facts::of_broker(broker, &reader, &options.flow)
        .await
        .map_err(unheard)?;
    // Before the members are compared: who left on an operator's word is said in orders.
    let mut orders = broker
        .subscribe_core(&options.flow.copy_order_subject())
        .await
        .map_err(unheard)?;
    ask_table(options, &session, &history, (&facts, &mut orders)).await?;
    status.update(|status| status.state = RelayState::Resuming);
    let start = stream::start(connection, source, streaming);
    let stream = answered(COMMAND_TIMEOUT, start).await?;
    // The slot is ours; now the facts count (0.4).
    let facts = facts::of_broker(broker, &reader, &options.flow)
        .await
        .map_err(unheard)?;
    let (decision, publication) =
        ask_table(options, &session, &history, (&facts, &mut orders)).await?;
    let Decision::GoOn(tail, confirmed) = decision else {
        return Err(again("the facts changed while they were read"));
    };
    let publisher = Publisher::new(broker, &stream_name);
    let publisher = match &facts.stream {
        Some(stream) => publisher.fencing_pipelines(stream),
        None => publisher,
    };
    let reports = broker
        .subscribe_core(&options.flow.position_subject())
        .await
        .map_err(unheard)?;
    let max_message = facts.stream.as_ref().and_then(|s| s.max_message_bytes);
    check_messages(broker, max_message, &stream_name)?;
    let incarnation = Incarnation(known.max(tail.incarnation).0 + 1);
    let target = facts.stream.as_ref().and_then(|stream| stream.target());
    let space = facts
        .stream
        .as_ref()
        .map_or_else(StreamSpace::default, facts::space);
    let start = Start {
        incarnation,
        marker: marker(&history, &publication),
        history,
        tail,
        tail_at: facts.tail_at,
        last_transaction: facts.last_transaction,
        confirmed,
        target: target.map(str::to_owned),
        space,
    };
    Ok(Opened {
        stream,
        session,
        publisher,
        reports,
        orders,
        publication,
        start,
        max_message,
    })
}

/// Reads the source's side and asks the table; everything but going on is an error here.
async fn ask_table(
    options: &RelayOptions,
    session: &Session,
    history: &SourceHistory,
    (broker, orders): (&BrokerFacts, &mut CoreSubscription),
) -> Result<(Decision, PublicationFacts), End> {
    let read = facts::of_source(session, &options.source, history.clone(), broker);
    let mut facts = match tokio::time::timeout(SOURCE_TIMEOUT, read).await {
        Ok(Ok(facts)) => facts,
        Ok(Err(fault)) => {
            let text = format!("the source: {} ({})", fault.message, fault.sqlstate);
            return Err(again(text));
        }
        Err(_) => return Err(again("the source does not answer")),
    };
    let target = broker.stream.as_ref().and_then(StreamFacts::target);
    explain(&mut facts.existing, (&options.flow, target), orders).await;
    match decide(&facts) {
        Decision::Refuse(halt) => Err(halt.into()),
        Decision::NotASource => Err(again("the server is a standby; waiting for a primary")),
        Decision::FirstStart => Err(Halt::new(
            HaltCode::Config,
            "neither slot nor stream exist",
            "run `trellara setup` first; the relay creates nothing",
        )
        .into()),
        Decision::GoOn(tail, confirmed) => match facts.publication {
            Some(publication) => Ok((Decision::GoOn(tail, confirmed), publication)),
            None => Err(again("the publication disappeared")),
        },
    }
}

/// Takes out of the members that left those that did on an operator's word, as far as the registered
/// target says so within a moment.
async fn explain(
    existing: &mut BTreeSet<Oid>,
    (flow, target): (&FlowName, Option<&str>),
    orders: &mut CoreSubscription,
) {
    let deadline = tokio::time::Instant::now() + ORDER_GRACE;
    while !existing.is_empty() {
        let Ok(Some(message)) = tokio::time::timeout_at(deadline, orders.next()).await else {
            return;
        };
        if let Ok(order) = CopyOrder::decode(&message.payload)
            && order.flow == *flow
            && target == Some(order.target.as_str())
        {
            existing.retain(|oid| !order.removed.contains(oid));
        }
    }
}

fn marker(history: &SourceHistory, publication: &PublicationFacts) -> Marker {
    let mut members = publication.member_ids();
    members.truncate(Marker::MAX_MEMBERS);
    Marker {
        history: history.clone(),
        continues_at: Lsn::ZERO,
        publication: publication.oid,
        publication_flags: publication.flags(),
        members_digest: publication.members_digest(),
        members,
    }
}

/// The largest message that fits into the server's limit and into the stream's own.
pub(crate) fn largest_message(broker: &Broker, stream: Option<u64>) -> usize {
    let stream = stream.and_then(|bytes| usize::try_from(bytes).ok());
    broker.max_payload().min(stream.unwrap_or(usize::MAX))
}

/// Beginning again would not make a frame fit.
fn check_messages(broker: &Broker, stream: Option<u64>, name: &str) -> Result<(), End> {
    let largest = largest_message(broker, stream);
    if largest >= LEAST_MESSAGE {
        return Ok(());
    }
    Err(Halt::new(
        HaltCode::Broker,
        format!("stream {name} takes messages of at most {largest} bytes"),
        "the relay needs 65536: raise the stream's max_msg_size with `nats stream edit \
         --max-msg-size`, or max_payload on the server",
    )
    .into())
}

pub(crate) fn settings(
    options: &RelayOptions,
    broker: &Broker,
    max_message: Option<u64>,
) -> Settings {
    Settings {
        flow: options.flow.clone(),
        acknowledge: options.acknowledge,
        message_ids: broker.server_version().support() == Support::Full,
        window_bytes: options.window_bytes,
        bundle_bytes: options.bundle_bytes,
        chunk_bytes: options.chunk_bytes,
        unfinished_bytes: options.unfinished_bytes,
        open_bytes: options.open_bytes,
        shutdown_grace: options.shutdown_grace,
        heartbeat_interval: options.heartbeat_interval,
        membership_interval: options.membership_interval,
        max_payload: largest_message(broker, max_message),
    }
}

pub(crate) fn again(reason: impl Into<String>) -> End {
    End::Again {
        reason: reason.into(),
        began: None,
        streaming: None,
    }
}

const OBJECT_IN_USE: &str = "55006";
const INSUFFICIENT_PRIVILEGE: &str = "42501";
const UNDEFINED_FILE: &str = "58P01";

/// No connection to the source.
fn refused(error: ConnectError) -> End {
    if error.is_passing() {
        return again(format!("the source: {error}"));
    }
    let code = match error.kind {
        ConnectErrorKind::Refused => HaltCode::Rights,
        _ => HaltCode::Config,
    };
    Halt::new(code, format!("the source: {error}"), error.hint).into()
}

/// Waits for the answer to a command on the replication connection.
async fn answered<T>(
    limit: Duration,
    command: impl Future<Output = Result<T, QueryError>>,
) -> Result<T, End> {
    match tokio::time::timeout(limit, command).await {
        Ok(answer) => answer.map_err(not_started),
        Err(_) => Err(again(
            "the source does not answer on the replication connection",
        )),
    }
}

/// A command on the replication connection failed.
fn not_started(error: QueryError) -> End {
    let QueryError::Server(fault) = error else {
        return again(format!("the source: {error}"));
    };
    let text = format!("{} ({})", fault.message, fault.sqlstate);
    match fault.sqlstate.as_str() {
        // Another relay has it, or a dead one's walsender has not noticed yet (B17).
        OBJECT_IN_USE => End::Taken(format!("the replication slot: {text}")),
        INSUFFICIENT_PRIVILEGE => Halt::new(
            HaltCode::Rights,
            format!("the source: {text}"),
            "grant the relay's role REPLICATION, as in config/",
        )
        .into(),
        // A slot that was set back below WAL that is gone; it is not marked as lost (B14).
        UNDEFINED_FILE => Halt::new(
            HaltCode::SlotLost,
            format!("the source: {text}"),
            "what happened on the source since then cannot be read any more; copy the tables again",
        )
        .into(),
        // The table is asked again, which knows what to say about slot and publication.
        _ => again(format!("the source: {text}")),
    }
}

/// The broker did not do what was asked.
fn unheard(error: BrokerError) -> End {
    let code = match error.kind() {
        BrokerErrorKind::Passing | BrokerErrorKind::Missing | BrokerErrorKind::Refused { .. } => {
            return again(format!("the broker: {error}"));
        }
        BrokerErrorKind::Permission { .. } => HaltCode::Rights,
        BrokerErrorKind::Configuration => HaltCode::Broker,
    };
    let hint = error.hint().unwrap_or("check the nats section of the file");
    Halt::new(code, format!("the broker: {error}"), hint).into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn b14_wal_that_is_gone_is_no_fault_of_the_network() {
        let said = |sqlstate: &str, message: &str| {
            not_started(QueryError::Server(Box::new(trellara_postgres::Fault {
                class: trellara_postgres::sqlstate::classify(sqlstate),
                sqlstate: sqlstate.to_owned(),
                severity: "ERROR".to_owned(),
                message: message.to_owned(),
                schema: None,
                table: None,
                column: None,
                constraint: None,
            })))
        };
        let gone = "requested WAL segment 000000010000000000000001 has already been removed";
        match said("58P01", gone) {
            End::Halt(halt) => assert_eq!(halt.code, HaltCode::SlotLost),
            _ => panic!("it would be tried for ever"),
        }
        assert!(matches!(said("57P03", "starting up"), End::Again { .. }));
        assert!(matches!(said("55006", "in use"), End::Taken(_)));
    }

    /// A source that takes the connection and then hangs is named, and asked again.
    #[tokio::test]
    async fn a_command_that_is_never_answered_is_given_up() {
        let never = std::future::pending::<Result<(), QueryError>>();
        match answered(Duration::ZERO, never).await {
            Err(End::Again { reason, began, .. }) => {
                assert!(reason.contains("does not answer"), "{reason}");
                assert_eq!(began, None);
            }
            _ => panic!("it goes on waiting"),
        }
    }
}
