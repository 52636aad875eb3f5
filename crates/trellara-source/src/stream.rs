//! The replication stream: read in gulps on a thread of its own, answered from another.
//!
//! The walsender sends every message by itself; a reader that wakes for each costs three times the
//! CPU on both sides. So one thread owns the socket, receives once per wake, and lets messages
//! gather for a moment while many come; when few come it waits for nothing. A second thread sends
//! status updates, so that answering keepalives never waits for the broker, nor for anything else
//! that the relay does (R6, B15).

mod answer;
mod gate;
mod large;
mod read;

use std::io;
use std::ops::Range;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use tokio::sync::mpsc;
use trellara_envelope::Lsn;
use trellara_postgres::{CopyBoth, Fault, QueryError, ReplicationConnection};

use crate::SourceOptions;
use answer::Answering;
use gate::{Gate, Pass};

/// What one read of the socket brought: the payloads of complete CopyData messages. A large message
/// is a gulp of its own. Its bytes count as unread until it is dropped.
#[derive(Debug)]
pub struct Gulp {
    /// The bytes as read.
    pub bytes: Bytes,
    /// Where the CopyData payloads are in them, in order.
    pub messages: Vec<Range<usize>>,
    /// When they were read.
    pub read_at: Instant,
    #[expect(dead_code, reason = "dropped with the bytes that it counts")]
    pass: Pass,
}

impl Gulp {
    /// The CopyData payloads, in order.
    pub fn payloads(&self) -> impl Iterator<Item = &[u8]> {
        self.messages.iter().map(|range| &self.bytes[range.clone()])
    }
}

/// What the reading thread sends.
#[derive(Debug)]
pub enum StreamEvent {
    /// Messages.
    Gulp(Gulp),
    /// The server warns (C06: never to be ignored).
    Notice(Fault),
    /// The stream has ended; nothing follows.
    Ended(StreamEnd),
}

/// Why a stream ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum StreamEnd {
    /// The server ended it with an error.
    Error(Box<Fault>),
    /// The server closed it in an orderly way.
    Done,
    /// The connection was lost or closed by us.
    Lost(String),
}

/// The three positions of a status update.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Feedback {
    /// Received.
    pub write: Lsn,
    /// Confirmed: the server may forget everything before it.
    pub flush: Lsn,
    /// Applied, as a synchronous commit with `remote_apply` sees it.
    pub apply: Lsn,
}

/// Whether PostgreSQL sends large transactions before they commit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Streaming {
    /// In blocks, while they run.
    On,
    /// Whole, after their commit; the source spills them to its own disk meanwhile.
    Off,
}

/// A running replication stream. Dropping it ends the connection and both threads.
pub struct ReplicationStream {
    events: mpsc::UnboundedReceiver<StreamEvent>,
    gate: Arc<Gate>,
    answering: Arc<Answering>,
}

/// Received bytes that may wait for the relay or be in its hands; beyond it the socket is not read,
/// and the source waits. One message may always be received, however large, and none behind it
/// until the relay has let go of it.
const UNREAD_BYTES: usize = 4 << 20;

/// A server that says nothing for this long although it is asked every two seconds is gone, even
/// where something on the way keeps the connection alive.
pub const SILENCE_LIMIT: Duration = Duration::from_secs(30);
/// The limit where `wal_sender_timeout` is off: then a walsender that decodes one huge transaction
/// of which the publication has nothing hears nobody until it is done.
const SILENCE_WITHOUT_TIMEOUT: Duration = Duration::from_secs(600);

/// START_REPLICATION on the flow's slot, from the slot's own position: starting anywhere else
/// skips what a source that was set back would send again (C02).
pub async fn start(
    mut connection: ReplicationConnection,
    options: &SourceOptions,
    streaming: Streaming,
) -> Result<ReplicationStream, QueryError> {
    let silence = silence_limit(&mut connection).await?;
    let plugin_options = plugin_options(options, streaming);
    let copy = connection
        .start_replication(&options.slot, Lsn::ZERO, &plugin_options)
        .await?;
    copy.reader
        .set_read_timeout(Some(silence))
        .and_then(|()| ReplicationStream::new(copy))
        .map_err(QueryError::Connection)
}

/// A walsender that is busy speaks up after half its timeout at the latest.
async fn silence_limit(connection: &mut ReplicationConnection) -> Result<Duration, QueryError> {
    let rows = connection
        .simple_query("SELECT setting FROM pg_settings WHERE name = 'wal_sender_timeout'")
        .await?;
    let setting = rows.into_iter().flatten().flatten().next();
    let timeout_ms = setting.and_then(|text| text.parse().ok()).unwrap_or(0);
    Ok(silence_beside(Duration::from_millis(timeout_ms)))
}

fn silence_beside(wal_sender_timeout: Duration) -> Duration {
    if wal_sender_timeout.is_zero() {
        SILENCE_WITHOUT_TIMEOUT
    } else {
        SILENCE_LIMIT.max(wal_sender_timeout)
    }
}

/// Options for pgoutput; a publication's name is quoted once more inside its list (B94).
fn plugin_options(options: &SourceOptions, streaming: Streaming) -> Vec<(String, String)> {
    let mut list = vec![
        ("proto_version".to_owned(), "2".to_owned()),
        (
            "publication_names".to_owned(),
            format!("\"{}\"", options.publication.replace('"', "\"\"")),
        ),
    ];
    let mut on = |name: &str, set: bool| {
        if set {
            list.push((name.to_owned(), "on".to_owned()));
        }
    };
    on("streaming", streaming == Streaming::On);
    on("messages", options.messages);
    on("binary", options.binary);
    list
}

impl ReplicationStream {
    fn new(copy: CopyBoth) -> io::Result<Self> {
        let (sender, events) = mpsc::unbounded_channel();
        let gate = Arc::new(Gate::new(UNREAD_BYTES));
        let answering = Arc::new(Answering::default());
        let writer = copy.writer;
        {
            let gate = gate.clone();
            std::thread::Builder::new()
                .name("replication-read".to_owned())
                .spawn(move || read::run(copy.reader, &sender, &gate))?;
        }
        {
            let answering = answering.clone();
            std::thread::Builder::new()
                .name("replication-answer".to_owned())
                .spawn(move || answer::run(&answering, &writer))?;
        }
        Ok(Self {
            events,
            gate,
            answering,
        })
    }

    /// The next event. After [`StreamEvent::Ended`] there is none. Cancel-safe.
    pub async fn next(&mut self) -> Option<StreamEvent> {
        self.events.recv().await
    }

    /// Sends a status update as soon as the socket takes it; a newer one replaces an older one
    /// that is still waiting. It is repeated every few seconds until the next one.
    pub fn feedback(&self, feedback: Feedback, reply_requested: bool) {
        self.answering.set(feedback, reply_requested);
    }
}

impl Drop for ReplicationStream {
    fn drop(&mut self) {
        // The answering thread closes the connection behind its last words.
        self.answering.stop();
        self.gate.close();
    }
}

impl std::fmt::Debug for ReplicationStream {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("ReplicationStream")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use trellara_envelope::FlowName;
    use trellara_postgres::{ConnectOptions, Environment};

    #[test]
    fn a_busy_walsender_may_be_silent_for_as_long_as_it_may() {
        let limit = |seconds| silence_beside(Duration::from_secs(seconds)).as_secs();
        assert_eq!([limit(5), limit(60), limit(0)], [30, 60, 600]);
    }

    #[test]
    fn b94_publication_names_are_quoted() {
        let flow: FlowName = "shop".parse().expect("a flow name");
        let connect = ConnectOptions::parse("postgresql://u@localhost/d", &Environment::empty())
            .expect("url");
        let mut options = SourceOptions::new(&flow, connect);
        options.publication = "My \"Pub\"".to_owned();
        let list = plugin_options(&options, Streaming::Off);
        let names = list.iter().find(|(name, _)| name == "publication_names");
        assert_eq!(
            names.map(|(_, value)| value.as_str()),
            Some("\"My \"\"Pub\"\"\"")
        );
        assert!(!list.iter().any(|(name, _)| name == "streaming"));
    }
}
