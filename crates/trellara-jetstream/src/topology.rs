//! The streams of a flow: their settings, and what is wrong with an existing one.

mod settings;

use std::collections::BTreeMap;
use std::time::Duration;

use serde::Deserialize;
use serde_json::{Value, json};
use trellara_envelope::{FlowName, StreamSequence};

use crate::error::code;
use crate::{Broker, BrokerError, BrokerErrorKind};

/// Metadata key that names the one target allowed to acknowledge and trim (rule C24).
pub const TARGET_KEY: &str = "trellara.target";

/// Which of a flow's two streams.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum StreamKind {
    /// Committed transactions, for as long as the flow lives.
    #[default]
    Transactions,
    /// Rows of a copy, while there is one (C48).
    Copy,
}

/// A stream that a flow needs.
#[derive(Debug, Clone)]
pub struct StreamSpec {
    /// The flow; gives stream and subjects their names.
    pub flow: FlowName,
    /// Which of its streams.
    pub kind: StreamKind,
    /// Limit in bytes; a full stream refuses, it never drops.
    pub max_bytes: u64,
    /// Copies in a cluster: 1, 3 or 5.
    pub replicas: usize,
    /// How long message ids are remembered.
    pub duplicate_window: Duration,
    /// Largest message, headers included, in bytes; `None` leaves it to the server's limit.
    pub max_message_bytes: Option<u32>,
    /// Id of the registered target, kept in the stream's metadata.
    pub target: Option<String>,
}

impl StreamSpec {
    /// The usual stream of `flow`: one copy, ids remembered for two minutes, no target yet.
    pub fn new(flow: FlowName, max_bytes: u64) -> Self {
        StreamSpec {
            flow,
            kind: StreamKind::Transactions,
            max_bytes,
            replicas: 1,
            duplicate_window: Duration::from_secs(120),
            max_message_bytes: None,
            target: None,
        }
    }

    /// The stream that a copy of `flow`'s tables travels in, with the settings of its transaction
    /// stream: what loses one's frames would lose the other's.
    pub fn copy(flow: FlowName, max_bytes: u64) -> Self {
        StreamSpec {
            kind: StreamKind::Copy,
            ..StreamSpec::new(flow, max_bytes)
        }
    }

    /// The stream's name.
    pub fn stream(&self) -> String {
        match self.kind {
            StreamKind::Transactions => self.flow.stream(),
            StreamKind::Copy => self.flow.copy_stream(),
        }
    }

    /// The one subject or filter that it holds.
    pub fn subject(&self) -> String {
        match self.kind {
            StreamKind::Transactions => self.flow.all_subjects(),
            StreamKind::Copy => self.flow.copy_subject(),
        }
    }
}

/// One setting of an existing stream or consumer that is not as it must be.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Difference {
    /// NATS' name of the setting.
    pub setting: &'static str,
    /// What it is.
    pub is: String,
    /// What it must be.
    pub must: String,
    /// What would happen otherwise.
    pub why: &'static str,
    /// How to change it, or that it cannot be changed.
    pub hint: String,
    /// True when data can be lost or nothing can work; false when it is only another choice.
    pub fatal: bool,
}

/// What the stream is now.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StreamFacts {
    /// Name.
    pub name: String,
    /// Creation time as the server prints it; a hint, not a proof: a restore keeps it.
    pub created: String,
    /// Sequence of the first message; last + 1 when empty.
    pub first_sequence: StreamSequence,
    /// Sequence of the last message ever stored; 0 when there was none.
    pub last_sequence: StreamSequence,
    /// Messages stored.
    pub messages: u64,
    /// Bytes stored.
    pub bytes: u64,
    /// Limit; `None` means unlimited.
    pub max_bytes: Option<u64>,
    /// Limit of one message, headers included; `None` leaves it to the server.
    pub max_message_bytes: Option<u64>,
    /// Copies.
    pub replicas: usize,
    /// Subjects.
    pub subjects: Vec<String>,
    /// Metadata.
    pub metadata: BTreeMap<String, String>,
    /// Name of the leader in a cluster.
    pub leader: Option<String>,
}

impl StreamFacts {
    /// The registered target.
    pub fn target(&self) -> Option<&str> {
        self.metadata.get(TARGET_KEY).map(String::as_str)
    }
}

/// Facts of a stream, by its leader.
///
/// # Errors
/// Missing when there is none.
pub async fn facts(broker: &Broker, stream: &str) -> Result<StreamFacts, BrokerError> {
    Ok(info(broker, stream).await?.facts())
}

/// The same for a flow that is about to write to its stream or to read from it. Sizes are left to
/// whoever asks.
///
/// # Errors
/// Missing when there is none; a configuration error when the stream's settings can lose data,
/// however they became so.
pub async fn facts_of_flow(broker: &Broker, flow: &FlowName) -> Result<StreamFacts, BrokerError> {
    let mut spec = StreamSpec::new(flow.clone(), 0);
    spec.max_message_bytes = None;
    let stream = spec.stream();
    let info = info(broker, &stream).await?;
    let Some(losing) = losing(&settings::differences(&spec, &info.config)) else {
        return Ok(info.facts());
    };
    let doing = format!("use stream {stream}");
    let what = format!("it has settings that can lose data: {losing}");
    Err(
        BrokerError::new(BrokerErrorKind::Configuration, doing, what)
            .with_hint("change them back with `nats stream edit`; `trellara check` names each"),
    )
}

/// Compares an existing stream with what it must be; `None` when there is none.
///
/// # Errors
/// Permission or passing.
pub async fn check(
    broker: &Broker,
    spec: &StreamSpec,
) -> Result<Option<(StreamFacts, Vec<Difference>)>, BrokerError> {
    match info(broker, &spec.stream()).await {
        Ok(info) => Ok(Some((
            info.facts(),
            settings::differences(spec, &info.config),
        ))),
        Err(error) if error.is_missing() => Ok(None),
        Err(error) => Err(error),
    }
}

/// Creates the stream, or finds the one that is there good enough: then only what [`check`] calls
/// not fatal may differ, and nothing is changed.
///
/// # Errors
/// Refused, naming every setting, when a stream of this name can lose data or serves another
/// purpose; it is left as it is. Refused also when the server gives the new transaction stream
/// messages of an older one ([`Info::is_of_an_older_one`]); rows of a copy are deleted then, whoever
/// wants them reads them again.
pub async fn create(broker: &Broker, spec: &StreamSpec) -> Result<StreamFacts, BrokerError> {
    let stream = spec.stream();
    let doing = format!("create stream {stream}");
    if let Some((facts, differences)) = check(broker, spec).await? {
        return match refusal(&doing, &differences) {
            Some(error) => Err(error),
            None => Ok(facts),
        };
    }
    let config = settings::config(spec);
    let endpoint = format!("STREAM.CREATE.{stream}");
    loop {
        let info = match broker.api::<Info>(&endpoint, &config, &doing).await {
            Ok(info) => info,
            // Somebody was quicker.
            Err(error) if error.code() == code::STREAM_NAME_IN_USE => {
                return facts(broker, &stream).await;
            }
            Err(error) => return Err(error),
        };
        match spec.kind {
            _ if !info.is_of_an_older_one() => return Ok(info.facts()),
            // What is there now is deleted whole, unless the server is killed once more.
            StreamKind::Copy => {
                delete(broker, &stream).await?;
            }
            StreamKind::Transactions => return Err(remains(&doing, &info)),
        }
    }
}

/// They may be transactions that nobody else has, of a stream that the server lost; or of one that
/// was to go.
fn remains(doing: &str, info: &Info) -> BrokerError {
    let text = format!(
        "the server gave it {} message(s) of a stream of that name that it had lost, or not \
         finished deleting",
        info.state.messages
    );
    let kind = BrokerErrorKind::Refused {
        code: 0,
        text: text.clone(),
    };
    BrokerError::new(kind, doing, text).with_hint(
        "run this again to take them for the flow's, or delete the stream first (nats stream rm)",
    )
}

/// The error that names every fatal difference, if there is one.
pub(crate) fn refusal(doing: &str, differences: &[Difference]) -> Option<BrokerError> {
    let text = format!(
        "it exists with settings that can lose data: {}",
        losing(differences)?
    );
    let kind = BrokerErrorKind::Refused {
        code: 0,
        text: text.clone(),
    };
    Some(
        BrokerError::new(kind, doing, text)
            .with_hint("change the settings, or choose another flow name; nothing was changed"),
    )
}

/// The fatal differences in words, if there are any.
fn losing(differences: &[Difference]) -> Option<String> {
    let fatal: Vec<String> = differences
        .iter()
        .filter(|difference| difference.fatal)
        .map(|d| format!("{} is {}, must be {} ({})", d.setting, d.is, d.must, d.why))
        .collect();
    (!fatal.is_empty()).then(|| fatal.join("; "))
}

/// Changes the size limit while everything runs.
///
/// # Errors
/// Missing, permission, refused (more than the server or account has), or passing.
pub async fn update_max_bytes(
    broker: &Broker,
    stream: &str,
    max_bytes: u64,
) -> Result<StreamFacts, BrokerError> {
    let doing = format!("set max_bytes of stream {stream} to {max_bytes}");
    update(broker, stream, &doing, |config| {
        config["max_bytes"] = json!(max_bytes)
    })
    .await
}

/// Writes the registered target into the metadata.
///
/// # Errors
/// Missing, permission or passing.
pub async fn register_target(
    broker: &Broker,
    stream: &str,
    target: &str,
) -> Result<StreamFacts, BrokerError> {
    let doing = format!("register target {target} at stream {stream}");
    let set = |config: &mut Value| {
        if !config["metadata"].is_object() {
            config["metadata"] = json!({});
        }
        config["metadata"][TARGET_KEY] = json!(target);
    };
    update(broker, stream, &doing, set).await
}

/// Deletes the stream; true when there was one.
///
/// # Errors
/// Permission or passing.
pub async fn delete(broker: &Broker, stream: &str) -> Result<bool, BrokerError> {
    let doing = format!("delete stream {stream}");
    let endpoint = format!("STREAM.DELETE.{stream}");
    match broker.api::<Value>(&endpoint, &json!({}), &doing).await {
        Ok(_) => Ok(true),
        Err(error) if error.is_missing() => Ok(false),
        Err(error) => Err(error),
    }
}

/// Sends the stream's own configuration back with one change: what a newer server or an operator
/// set stays.
async fn update(
    broker: &Broker,
    stream: &str,
    doing: &str,
    change: impl FnOnce(&mut Value),
) -> Result<StreamFacts, BrokerError> {
    let mut config = info(broker, stream).await?.config;
    change(&mut config);
    let endpoint = format!("STREAM.UPDATE.{stream}");
    let info: Info = broker.api(&endpoint, &config, doing).await?;
    Ok(info.facts())
}

async fn info(broker: &Broker, stream: &str) -> Result<Info, BrokerError> {
    let doing = format!("ask for stream {stream}");
    broker
        .api(&format!("STREAM.INFO.{stream}"), &json!({}), &doing)
        .await
}

/// A time as the server prints it, in UTC, so that later ones are greater: it leaves zeros at the end
/// of a fraction out.
fn moment(text: &str) -> (&str, String) {
    let text = text.trim_end_matches('Z');
    let (seconds, fraction) = text.split_once('.').unwrap_or((text, ""));
    (seconds, format!("{fraction:0<9}"))
}

#[derive(Deserialize)]
struct Info {
    config: Value,
    created: String,
    state: State,
    cluster: Option<Cluster>,
}

#[derive(Deserialize)]
struct State {
    messages: u64,
    bytes: u64,
    first_seq: u64,
    last_seq: u64,
    #[serde(default)]
    first_ts: String,
    #[serde(default)]
    last_ts: String,
}

#[derive(Deserialize)]
struct Cluster {
    leader: Option<String>,
}

impl Info {
    /// Whether what is in it was stored before it was made. A nats-server that is killed while it
    /// deletes a stream leaves the messages and forgets the stream; when one of that name is made,
    /// it has them (seen with 2.10 to 2.15).
    fn is_of_an_older_one(&self) -> bool {
        let stored = match self.state.messages {
            0 => &self.state.last_ts,
            _ => &self.state.first_ts,
        };
        self.state.last_seq > 0 && moment(stored) < moment(&self.created)
    }

    fn facts(&self) -> StreamFacts {
        let config = &self.config;
        // NATS writes "no limit" as -1, or leaves it out.
        let limit = |name: &str| config[name].as_u64().filter(|limit| *limit > 0);
        let subjects = config["subjects"].as_array().into_iter().flatten();
        let metadata = config["metadata"].as_object().into_iter().flatten();
        StreamFacts {
            name: config["name"].as_str().unwrap_or_default().to_owned(),
            created: self.created.clone(),
            first_sequence: StreamSequence(self.state.first_seq),
            last_sequence: StreamSequence(self.state.last_seq),
            messages: self.state.messages,
            bytes: self.state.bytes,
            max_bytes: limit("max_bytes"),
            max_message_bytes: limit("max_msg_size"),
            replicas: limit("num_replicas").map_or(1, |n| usize::try_from(n).unwrap_or(1)),
            subjects: subjects
                .filter_map(|s| s.as_str().map(str::to_owned))
                .collect(),
            metadata: metadata
                .filter_map(|(key, value)| Some((key.clone(), value.as_str()?.to_owned())))
                .collect(),
            leader: self
                .cluster
                .as_ref()
                .and_then(|cluster| cluster.leader.clone()),
        }
    }
}
