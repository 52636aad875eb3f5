//! Doing it, one action after the other.

use std::time::Duration;

use bytes::Bytes;
use trellara_applier::backfill;
use trellara_applier::lane::{self, FlowIntent, FlowState};
use trellara_applier::{Checkpoint, StreamIdentity, Transport, ledger, schema};
use trellara_crashpoints as crashpoints;
use trellara_envelope::{
    FlowName, Frame, FrameDigest, FrameOrdinal, Genesis, Incarnation, Lane, LedgerOrdinal, Lsn,
    StreamSequence,
};

use trellara_jetstream::publish::{Outcome, Outgoing, Publisher};
use trellara_jetstream::{Broker, topology};
use trellara_postgres::{ReplicationConnection, Session, SnapshotAction, quote, writers};
use trellara_relay::genesis_frame;
use trellara_source::publication;
use trellara_source::slot;

use super::found::Found;
use super::{Action, Sessions, Step, copies, publication_mark, stream_spec, undo};
use crate::config::Config;
use crate::exit::{Exit, Failure};
use crate::{link, visible};

/// Slot creation waits for every transaction that is running; longer than this somebody should
/// know which.
pub(super) const SLOT_PATIENCE: Duration = Duration::from_secs(60);

/// What is known on the way.
pub(super) struct Work<'a> {
    pub(super) config: &'a Config,
    pub(super) broker: &'a Broker,
    pub(super) found: Found,
    pub(super) sessions: Sessions,
    registration: String,
    consistent_point: Option<Lsn>,
}

pub(super) async fn perform(
    config: &Config,
    broker: &Broker,
    mut found: Found,
    actions: Vec<Action>,
    mut each: impl FnMut(&Step),
) -> Result<Vec<Step>, Failure> {
    let Some(sessions) = found.sessions.take() else {
        return Err(Failure::new(Exit::Bug, "setup lost its sessions", ""));
    };
    let registration = found.registration.clone().unwrap_or_default();
    let mut work = Work {
        config,
        broker,
        found,
        sessions,
        registration,
        consistent_point: None,
    };
    let mut steps = Vec::new();
    let mut done = Vec::new();
    for action in actions {
        let acted = match work.act(action).await {
            Ok(_) if crashpoints::reached(crashpoints::SETUP_BETWEEN) => {
                done.push(action);
                Err(Failure::new(Exit::Unexpected, "a crash point", ""))
            }
            acted => acted,
        };
        match acted {
            Ok(step) => {
                each(&step);
                steps.push(step);
                done.push(action);
            }
            Err(failure) => return Err(undo::undo(&mut work, &done, action, failure).await),
        }
    }
    Ok(steps)
}

impl Work<'_> {
    async fn act(&mut self, action: Action) -> Result<Step, Failure> {
        let flow = &self.config.flow;
        match action {
            Action::CreatePublication => {
                create_publication(self.config, &self.sessions.source).await
            }
            Action::InstallSchema => {
                let identity = schema::install(&mut self.sessions.target.client).await;
                let identity = identity.map_err(|error| {
                    Failure::from_error(Exit::Rights, &error).hint(
                        "let a role with CREATE on the database run `trellara setup --print-sql` first",
                    )
                })?;
                self.registration = identity.registration();
                Ok(step(
                    "schema",
                    format!("target {} has schema trellara", self.registration),
                ))
            }
            Action::UpgradeSchema => self.upgrade_schema().await,
            Action::RecordIntent => {
                self.record(FlowState::Intended, None).await?;
                Ok(step(
                    "intent",
                    format!("flow {flow} is noted in the target"),
                ))
            }
            Action::CreateStream => {
                let spec = stream_spec(self.config, Some(self.registration.clone()));
                let facts = topology::create(self.broker, &spec).await?;
                let size = spec.max_bytes;
                let what = format!("stream {} holds up to {size} bytes", facts.name);
                self.found.stream = Some(facts);
                Ok(step("stream", what))
            }
            Action::RegisterTarget => {
                let name = flow.stream();
                let facts =
                    topology::register_target(self.broker, &name, &self.registration).await?;
                self.found.stream = Some(facts);
                Ok(step(
                    "registration",
                    format!("stream {name} belongs to target {}", self.registration),
                ))
            }
            Action::CreateSlot => {
                let point = create_slot(self.config, &self.sessions.source).await?;
                self.use_point(point).await?;
                Ok(step(
                    "slot",
                    format!("slot {} begins at {point}", self.config.source.slot),
                ))
            }
            Action::UseSlot(point) => {
                if self.config.backfill.copy {
                    copies::settle_again(self.config, &self.sessions.source).await?;
                }
                self.use_point(point).await?;
                Ok(step(
                    "slot",
                    format!("slot {} goes on at {point}", self.config.source.slot),
                ))
            }
            Action::RecordCopies => self.record_copies().await,
            Action::WriteGenesis(continues_at) => self.write_genesis(continues_at).await,
            Action::WriteLedger => self.write_ledger().await,
        }
    }

    /// C is written down before the stream knows it: a crash behind this line finds a slot that
    /// stands exactly where the intent says.
    async fn upgrade_schema(&mut self) -> Result<Step, Failure> {
        let identity = schema::install(&mut self.sessions.target.client).await;
        let identity = identity.map_err(|error| {
            Failure::from_error(Exit::Rights, &error)
                .hint("run setup as the role that owns schema trellara")
        })?;
        Ok(step(
            "schema",
            format!(
                "schema trellara has version {}; grant on its new tables what \
                 config/postgres/target.sql does",
                identity.version
            ),
        ))
    }

    async fn use_point(&mut self, point: Lsn) -> Result<(), Failure> {
        self.consistent_point = Some(point);
        self.record(FlowState::Intended, Some(point)).await
    }

    async fn record(&self, state: FlowState, point: Option<Lsn>) -> Result<(), Failure> {
        let intent = FlowIntent {
            state,
            slot: self.config.source.slot.clone(),
            publication: self.config.source.publication.clone(),
            stream: self.config.flow.stream(),
            start: point.map(|point| (self.found.history.source_at(point), point)),
        };
        let client = &self.sessions.target.client;
        Ok(lane::record_intent(client, &self.config.flow, Lane(0), &intent).await?)
    }

    async fn write_genesis(&mut self, continues_at: Option<Lsn>) -> Result<Step, Failure> {
        let point = self.point()?;
        let genesis = Genesis {
            history: self.found.history.clone(),
            slot: self.config.source.slot.clone(),
            publication: self.config.source.publication.clone(),
            consistent_point: point,
            copy_epoch: 0,
            continues_at: continues_at.unwrap_or(point),
        };
        // The numbers of relays begin anew with a stream, those of its copy as well: behind what an
        // earlier one left there, no relay of this one would ever write.
        topology::delete(self.broker, &self.config.flow.copy_stream()).await?;
        backfill::forget_writers(&self.sessions.target.client, &self.config.flow).await?;
        let frame = genesis_frame(self.config.flow.clone(), genesis);
        publish_genesis(self.broker, &self.config.flow, &frame).await?;
        self.found.tail = Some(frame);
        Ok(step("genesis", format!("the genesis frame names {point}")))
    }

    async fn write_ledger(&mut self) -> Result<Step, Failure> {
        let point = self.point()?;
        let (Some(frame), Some(stream)) = (&self.found.tail, &self.found.stream) else {
            return Err(Failure::new(Exit::Bug, "no genesis frame to record", ""));
        };
        let genesis = Checkpoint {
            ordinal: LedgerOrdinal(0),
            source: frame.header.source,
            end_lsn: point,
            transaction_end_lsn: point,
            transport: Transport {
                stream: StreamIdentity {
                    name: stream.name.clone(),
                    created: stream.created.clone(),
                },
                sequence: StreamSequence(1),
                incarnation: Incarnation(0),
                ordinal: FrameOrdinal(0),
                digest: FrameDigest::of(&frame.encode()),
            },
        };
        let client = &self.sessions.target.client;
        let written = ledger::write_genesis(client, &self.config.flow, Lane(0), &genesis).await?;
        if !written {
            let newest = ledger::checkpoint(client, &self.config.flow, Lane(0)).await?;
            let before = self.found.intent.as_ref().map(|intent| intent.state);
            refuse_left_over(before, newest.as_ref(), &genesis)?;
        }
        self.record(FlowState::Ready, Some(point)).await?;
        Ok(step(
            "ledger",
            format!("flow {} is ready from {point}", self.config.flow),
        ))
    }

    /// Whether the stream begins with a genesis frame.
    pub(super) fn has_genesis(&self) -> bool {
        self.found.tail.is_some()
    }

    pub(super) fn point(&self) -> Result<Lsn, Failure> {
        self.consistent_point
            .ok_or_else(|| Failure::new(Exit::Bug, "no consistent point is known", ""))
    }
}

/// A lane that has rows is right where setup repeats itself, and where a flow that was ready gets
/// another stream. Rows of an earlier flow of that name are not: this one would go on from them.
fn refuse_left_over(
    before: Option<FlowState>,
    newest: Option<&Checkpoint>,
    genesis: &Checkpoint,
) -> Result<(), Failure> {
    let ours = newest.is_some_and(|newest| newest.transport == genesis.transport);
    if ours || before == Some(FlowState::Ready) {
        return Ok(());
    }
    let at = newest.map_or(Lsn(0), |newest| newest.end_lsn);
    Err(Failure::new(
        Exit::Unfit,
        format!(
            "the target's ledger has a row of an earlier flow of this name, which stood at {at}"
        ),
        "an applier wrote it while that flow was removed: stop every applier, then `trellara remove`",
    ))
}

fn step(id: &'static str, what: String) -> Step {
    Step { id, what }
}

async fn create_publication(config: &Config, source: &Session) -> Result<Step, Failure> {
    let name = &config.source.publication;
    let tables = publication::expand(source, &config.source.tables)
        .await
        .map_err(|error| Failure::from_error(Exit::Unfit, &error).hint("see source.tables"))?;
    publication::create(source, name, &tables, config.source.partitions).await?;
    source
        .client
        .batch_execute(&comment_sql(name, &config.flow))
        .await?;
    Ok(step(
        "publication",
        format!("publication {name} holds {} table(s)", tables.len()),
    ))
}

/// The statement that marks a publication as ours.
pub(crate) fn comment_sql(name: &str, flow: &FlowName) -> String {
    let mark = quote::literal(&publication_mark(flow));
    format!(
        "COMMENT ON PUBLICATION {} IS {mark}",
        quote::identifier(name)
    )
}

/// Whether setup made this publication for this flow.
pub(crate) async fn made_by_us(
    source: &Session,
    name: &str,
    flow: &FlowName,
) -> Result<bool, Failure> {
    let row = source
        .client
        .query_opt(
            "SELECT obj_description(oid, 'pg_publication') FROM pg_publication WHERE pubname = $1",
            &[&name],
        )
        .await?;
    let comment: Option<String> = row.and_then(|row| row.get(0));
    Ok(comment.is_some_and(|comment| comment == publication_mark(flow)))
}

async fn create_slot(config: &Config, source: &Session) -> Result<Lsn, Failure> {
    let options = link::source_options(config);
    let mut connection = ReplicationConnection::connect(&options.connect)
        .await
        .map_err(Failure::from)?;
    let version = source.server_version();
    let creation = slot::create(
        &mut connection,
        version,
        &options.slot,
        match config.backfill.copy {
            true => SnapshotAction::Export,
            false => SnapshotAction::NoExport,
        },
    );
    let created = tokio::time::timeout(SLOT_PATIENCE, creation).await;
    match created {
        Ok(Ok(created)) => {
            if let Some(snapshot) = &created.snapshot
                && let Err(failure) = copies::settle(source, snapshot).await
            {
                drop(connection);
                return Err(without_slot(config, source, failure).await);
            }
            Ok(created.consistent_point)
        }
        Ok(Err(error)) => {
            Err(Failure::from_error(Exit::Unexpected, &error).doing("cannot create the slot"))
        }
        Err(_) => Err(blocked_slot(config, source).await),
    }
}

/// The slot is there, and nobody knows of it yet: it goes again.
async fn without_slot(config: &Config, source: &Session, failure: Failure) -> Failure {
    match slot::drop(source, &config.source.slot).await {
        Ok(_) => failure,
        Err(error) => failure.hint(format!(
            "slot {} could not be dropped again: {error}",
            config.source.slot
        )),
    }
}

/// Names who slot creation waits for, and ends the attempt: the server would go on with it.
pub(super) async fn blocked_slot(config: &Config, source: &Session) -> Failure {
    let seconds = SLOT_PATIENCE.as_secs();
    let mut failure = Failure::new(
        Exit::TimedOut,
        format!(
            "slot {} could not be created within {seconds} s",
            config.source.slot
        ),
        "it waits for every transaction that runs: end the oldest, or try again later",
    );
    let waiting = writers::writers(source).await.unwrap_or_default();
    for writer in waiting.iter().take(5) {
        failure = failure.hint(visible::inline(&writer.to_string()).into_owned());
    }
    let end = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity \
               WHERE backend_type = 'walsender' AND query LIKE 'CREATE_REPLICATION_SLOT%' \
                 AND usename = current_user AND application_name = $1";
    let name = format!("trellara-{}", config.flow);
    if let Err(error) = source.client.execute(end, &[&name]).await {
        failure = failure.hint(format!("its backend could not be ended: {error}"));
    }
    failure
}

/// Stores the genesis frame as the very first message.
async fn publish_genesis(broker: &Broker, flow: &FlowName, frame: &Frame) -> Result<(), Failure> {
    let payload: Bytes = frame.encode();
    let publisher = Publisher::new(broker, &flow.stream());
    let outcome = publisher
        .publish(Outgoing {
            subject: frame.subject(),
            expected_last: StreamSequence(0),
            message_id: None,
            headers: vec![
                ("Trellara-Kind", frame.body.kind().as_str().to_owned()),
                ("Trellara-Lsn", frame.header.position.to_string()),
            ],
            payload,
        })
        .await;
    match outcome {
        Outcome::Stored {
            sequence: StreamSequence(1),
        } => Ok(()),
        other => Err(Failure::new(
            Exit::Unexpected,
            format!("the genesis frame was not stored: {other:?}"),
            "run setup again: it finds out what is there",
        )),
    }
}

#[cfg(test)]
mod tests {
    use trellara_envelope::{SourceId, SystemId, Timeline};

    use super::*;

    fn checkpoint(stream: &str, end: u64) -> Checkpoint {
        Checkpoint {
            ordinal: LedgerOrdinal(0),
            source: SourceId {
                system: SystemId(1),
                timeline: Timeline(1),
            },
            end_lsn: Lsn(end),
            transaction_end_lsn: Lsn(end),
            transport: Transport {
                stream: StreamIdentity {
                    name: stream.to_owned(),
                    created: "then".to_owned(),
                },
                sequence: StreamSequence(1),
                incarnation: Incarnation(0),
                ordinal: FrameOrdinal(0),
                digest: FrameDigest([7; 16]),
            },
        }
    }

    #[test]
    fn a_row_of_an_earlier_flow_is_refused() {
        let (genesis, older) = (checkpoint("new", 0x200), checkpoint("old", 0x900));
        for before in [None, Some(FlowState::Intended), Some(FlowState::Removing)] {
            assert!(refuse_left_over(before, Some(&older), &genesis).is_err());
            assert!(refuse_left_over(before, Some(&genesis), &genesis).is_ok());
        }
        let ready = Some(FlowState::Ready);
        assert!(refuse_left_over(ready, Some(&older), &genesis).is_ok());
    }
}
