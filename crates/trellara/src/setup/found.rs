//! What is already there; read-only.

use trellara_applier::{Checkpoint, lane, ledger, schema};
use trellara_envelope::{Frame, Lane, Lsn, SourceHistory};
use trellara_jetstream::topology::{self, Difference, StreamFacts};
use trellara_jetstream::{Broker, read::Reader};
use trellara_source::publication::{self, PublicationFacts};
use trellara_source::slot::{self, SlotFacts};

use super::{Sessions, stream_spec};
use crate::config::Config;
use crate::exit::{Exit, Failure};
use crate::{acknowledge, link};

/// What setup, a crash in it, or somebody else left behind.
pub(super) struct Found {
    pub(super) sessions: Option<Sessions>,
    pub(super) flow: String,
    pub(super) database: String,
    pub(super) slot_name: String,
    pub(super) publication: Option<PublicationFacts>,
    pub(super) slot: Option<SlotFacts>,
    pub(super) stream: Option<StreamFacts>,
    pub(super) differences: Vec<Difference>,
    pub(super) tail: Option<Frame>,
    /// `{target id}@{system id}`, once the schema is there.
    pub(super) registration: Option<String>,
    /// An older build made that schema.
    pub(super) outdated: bool,
    pub(super) intent: Option<lane::FlowIntent>,
    pub(super) checkpoint: Option<Checkpoint>,
    pub(super) history: SourceHistory,
    /// Whether positions are confirmed only when the target has them.
    pub(super) applied: bool,
    /// Whether rows that are there before the flow begins are copied.
    pub(super) copies: bool,
}

impl Found {
    /// The slot's confirmed position.
    pub(super) fn slot_position(&self) -> Option<Lsn> {
        self.slot.as_ref()?.confirmed_flush
    }
}

pub(super) async fn read(config: &Config, broker: &Broker) -> Result<Found, Failure> {
    let source = link::source(config).await?;
    let target = link::target(config).await?;
    let publication = publication::describe(&source, &config.source.publication).await?;
    let slot = slot::read(&source, &config.source.slot).await?;
    let checked = topology::check(broker, &stream_spec(config, None)).await?;
    let (stream, differences) = match checked {
        Some((facts, differences)) => (Some(facts), differences),
        None => (None, Vec::new()),
    };
    let tail = match &stream {
        Some(stream) if stream.messages > 0 => read_tail(broker, &stream.name).await?,
        _ => None,
    };
    // One of an older version is this target all the same, and knows its flows.
    let installed = match schema::installed(&target.client).await {
        Ok(installed) => installed,
        Err(error) => {
            let exit = match &error {
                schema::SchemaError::Server(fault) if fault.sqlstate == "42501" => Exit::Rights,
                schema::SchemaError::Server(_) => Exit::Unexpected,
                _ => Exit::Unfit,
            };
            return Err(Failure::from_error(exit, &error));
        }
    };
    let outdated = installed
        .as_ref()
        .is_some_and(|identity| identity.version < schema::SCHEMA_VERSION);
    let registration = installed.map(|identity| identity.registration());
    let (intent, checkpoint) = match &registration {
        Some(_) => (
            lane::read_intent(&target.client, &config.flow, Lane(0)).await?,
            ledger::checkpoint(&target.client, &config.flow, Lane(0)).await?,
        ),
        None => (None, None),
    };
    Ok(Found {
        flow: config.flow.to_string(),
        database: config.source.connect.database().to_owned(),
        slot_name: config.source.slot.clone(),
        publication,
        slot,
        stream,
        differences,
        tail,
        registration,
        outdated,
        intent,
        checkpoint,
        history: link::history(config).await?,
        applied: acknowledge::decide(config).await.acknowledge
            == trellara_relay::Acknowledge::Applied,
        copies: config.backfill.copy,
        sessions: Some(Sessions { source, target }),
    })
}

async fn read_tail(broker: &Broker, stream: &str) -> Result<Option<Frame>, Failure> {
    let Some(tail) = Reader::new(broker, stream).tail().await? else {
        return Ok(None);
    };
    let frame = Frame::decode(&tail.payload).map_err(|error| {
        Failure::new(
            Exit::Unfit,
            format!(
                "message {} of stream {stream} is not a frame of ours: {error}",
                tail.sequence
            ),
            "somebody else writes to the flow's subjects; choose another flow name or stop them",
        )
    })?;
    Ok(Some(frame))
}
