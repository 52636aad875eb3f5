//! Creating a flow, in an order that every crash leaves resumable or refusable by name (C52):
//! publication → target schema with the intent, and stream → slot (C), and everybody gone who committed
//! in front of it → C in the intent → what the first copy has to bring → genesis frame → genesis row
//! in the ledger.
//!
//! What is there is read first ([`found`]), what to do is decided by a pure function ([`decide`]),
//! and only then something is changed ([`act`]); what fails on the way is taken back ([`undo`]).

mod act;
mod copies;
mod decide;
mod found;
mod undo;

use std::path::Path;

use serde::Serialize;
use trellara_envelope::FlowName;
use trellara_jetstream::Broker;
use trellara_jetstream::topology::{StreamKind, StreamSpec};
use trellara_postgres::Session;

use crate::config::{BrokerSetting, Config, MAX_BYTES_EMBEDDED, MAX_BYTES_EXTERNAL};
use crate::exit::Failure;

pub(crate) use act::{comment_sql, made_by_us};
pub(crate) use decide::{Action, Choices};

/// One thing that was done, or would be.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct Step {
    pub(crate) id: &'static str,
    pub(crate) what: String,
}

/// What there is to do, without doing it.
pub(crate) async fn plan(
    config: &Config,
    broker: &Broker,
    choices: Choices,
) -> Result<Vec<Action>, Failure> {
    let found = found::read(config, broker).await?;
    decide::decide(&found, choices)
}

/// Does what there is to do; each step is told to `each` as soon as it is done.
pub(crate) async fn perform(
    config: &Config,
    broker: &Broker,
    choices: Choices,
    each: impl FnMut(&Step),
) -> Result<Vec<Step>, Failure> {
    let found = found::read(config, broker).await?;
    let actions = decide::decide(&found, choices)?;
    act::perform(config, broker, found, actions, each).await
}

/// The stream as this configuration wants it.
pub(crate) fn stream_spec(config: &Config, target: Option<String>) -> StreamSpec {
    /// Message ids absorb our client's own retries, which end long before this.
    const DUPLICATE_WINDOW: std::time::Duration = std::time::Duration::from_secs(120);
    StreamSpec {
        kind: StreamKind::Transactions,
        flow: config.flow.clone(),
        max_bytes: config
            .nats
            .max_bytes
            .unwrap_or_else(|| default_max_bytes(config)),
        replicas: config.nats.replicas,
        duplicate_window: DUPLICATE_WINDOW,
        max_message_bytes: None,
        target,
    }
}

fn default_max_bytes(config: &Config) -> u64 {
    let BrokerSetting::Embedded { store_dir, .. } = &config.nats.broker else {
        return MAX_BYTES_EXTERNAL;
    };
    free_disk(store_dir).map_or(MAX_BYTES_EMBEDDED, |free| MAX_BYTES_EMBEDDED.min(free / 2))
}

/// Bytes free where the embedded broker keeps its store.
pub(crate) fn free_disk(store_dir: &Path) -> Option<u64> {
    // The store may not exist yet; its nearest ancestor that does is on the same disk.
    let disk = store_dir
        .ancestors()
        .find_map(|path| nix::sys::statvfs::statvfs(path).ok())?;
    Some(disk.blocks_available() * disk.fragment_size())
}

/// The mark on a publication that says who made it, so that `remove` leaves a DBA's alone.
fn publication_mark(flow: &FlowName) -> String {
    format!("made by trellara setup for flow {flow}")
}

/// Source and target sessions of one run.
struct Sessions {
    source: Session,
    target: Session,
}
