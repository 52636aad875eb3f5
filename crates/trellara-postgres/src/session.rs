//! Ordinary sessions: tokio-postgres on a connection made by our own connect path.

use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use bytes::BytesMut;
use postgres_protocol::message::frontend;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::sync::{mpsc, watch};
use tokio::task::AbortHandle;
use tokio_postgres::{AsyncMessage, Connection, NoTls};

use crate::connect::{Connected, connect};
use crate::replay::{Heard, Replay};
use crate::socket::{Endpoint, Socket};
use crate::startup::{Attempt, Encryption, Purpose};
use crate::{ConnectError, ConnectErrorKind, ConnectOptions, Fault, Host, fault};

/// Notifications that wait for their reader; more are dropped and counted in the log, because a
/// session must not grow with what others send it.
const NOTIFICATIONS_MAX: usize = 1024;

/// A server version as `server_version_num` counts it: 150019 is 15.19.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ServerVersion {
    /// The number.
    pub num: u32,
}

impl ServerVersion {
    /// 15 for 15.19.
    pub fn major(self) -> u32 {
        self.num / 10_000
    }

    /// Reads `15.19 (Debian …)`, `18beta1` or `9.6.24`.
    pub(crate) fn parse(text: &str) -> Option<Self> {
        let end = text
            .find(|c: char| !c.is_ascii_digit() && c != '.')
            .unwrap_or(text.len());
        let mut numbers = text[..end].split('.').filter(|n| !n.is_empty());
        let major: u32 = numbers.next()?.parse().ok()?;
        let mut next = || {
            numbers
                .next()
                .and_then(|n| n.parse::<u32>().ok())
                .unwrap_or(0)
        };
        let num = match major {
            0..=9 => major * 10_000 + next() * 100 + next(),
            10..=999 => major * 10_000 + next(),
            _ => return None,
        };
        Some(Self { num })
    }
}

impl fmt::Display for ServerVersion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.num / 10_000, self.num % 10_000)
    }
}

/// What NOTIFY brought.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Notification {
    /// The backend that sent it.
    pub pid: i32,
    /// The channel.
    pub channel: String,
    /// The payload.
    pub payload: String,
}

/// An ordinary connection; dropping it ends it.
pub struct Session {
    /// The client to run statements with.
    pub client: tokio_postgres::Client,
    notifications: Option<mpsc::Receiver<Notification>>,
    ended: watch::Receiver<Option<Fault>>,
    version: ServerVersion,
    parameters: HashMap<String, String>,
    cancel: CancelHandle,
    heard: Arc<Heard>,
    driver: AbortHandle,
}

impl fmt::Debug for Session {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "Session(pid {} on {})",
            self.cancel.pid, self.cancel.host
        )
    }
}

impl Session {
    /// Connects to the first host that will do, with [`crate::SESSION_SETTINGS`], and spawns the task
    /// that drives the connection.
    ///
    /// # Errors
    /// No session could be had; the error says where, why, and what to check.
    pub async fn connect(options: &ConnectOptions) -> Result<Session, ConnectError> {
        let connected = Box::pin(connect(options, Purpose::Ordinary)).await?;
        let Connected {
            established,
            version,
            host,
            endpoint,
            encryption,
        } = connected;
        let parameters = established.wire.parameters.clone();
        let cancel = CancelHandle {
            options: Arc::new(options.clone()),
            host,
            endpoint,
            encryption,
            pid: established.pid,
            secret: established.secret,
        };
        let heard = Arc::new(Heard::new());
        let (client, connection) = tokio_postgres::Config::new()
            .user(options.user())
            .ssl_mode(tokio_postgres::config::SslMode::Disable)
            .connect_raw(Replay::new(established, Arc::clone(&heard)), NoTls)
            .await
            .map_err(|error| ConnectError {
                kind: ConnectErrorKind::Protocol,
                host: cancel.host.to_string(),
                reason: fault(&error).to_string(),
                hint: "this is an error in Trellara".into(),
                fault: None,
            })?;
        let (notify, notifications) = mpsc::channel(NOTIFICATIONS_MAX);
        let (ending, ended) = watch::channel(None);
        let driver = tokio::spawn(drive(connection, notify, ending)).abort_handle();
        Ok(Session {
            client,
            notifications: Some(notifications),
            ended,
            version,
            parameters,
            cancel,
            heard,
            driver,
        })
    }

    /// The backend's process id.
    pub fn pid(&self) -> i32 {
        self.cancel.pid
    }

    /// Whether the connection has ended.
    pub fn is_closed(&self) -> bool {
        self.client.is_closed()
    }

    /// Resolves when the connection has ended, whoever ended it.
    pub async fn closed(&self) {
        let mut ended = self.ended.clone();
        // An error means that the task is gone, and the connection with it.
        let _ = ended.wait_for(Option::is_some).await;
    }

    /// Why the connection ended; `None` while it lives and when it ended in peace.
    pub fn end_reason(&self) -> Option<Fault> {
        self.ended.borrow().clone()
    }

    /// How long ago the server last said anything. A session that nobody asks is silent too.
    pub fn silent_for(&self) -> Duration {
        self.heard.ago()
    }

    /// Ends a session whose server is gone, without waiting for what it still owes: a dropped
    /// session otherwise stays until its last statement is answered.
    pub fn abandon(&self) {
        self.driver.abort();
    }

    /// The notifications of this session; the first caller gets them.
    pub fn take_notifications(&mut self) -> Option<mpsc::Receiver<Notification>> {
        self.notifications.take()
    }

    /// The server's version.
    pub fn server_version(&self) -> ServerVersion {
        self.version
    }

    /// A setting that the server reported when the session began, such as `server_encoding`.
    pub fn parameter(&self, name: &str) -> Option<&str> {
        self.parameters.get(name).map(String::as_str)
    }

    /// A handle to cancel this session's running statement with, from elsewhere. (The one that
    /// tokio-postgres offers does not know the way to the server.)
    pub fn cancel_handle(&self) -> CancelHandle {
        self.cancel.clone()
    }
}

/// Drives a connection until it ends.
async fn drive(
    mut connection: Connection<Replay, tokio_postgres::tls::NoTlsStream>,
    notify: mpsc::Sender<Notification>,
    ending: watch::Sender<Option<Fault>>,
) {
    let mut dropped: u64 = 0;
    let end = loop {
        let next = std::future::poll_fn(|cx| connection.poll_message(cx)).await;
        match next {
            None => break None,
            Some(Err(error)) => break Some(fault(&error)),
            Some(Ok(AsyncMessage::Notice(notice))) => Fault::from(&notice).log_notice(),
            Some(Ok(AsyncMessage::Notification(got))) => {
                let notification = Notification {
                    pid: got.process_id(),
                    channel: got.channel().to_owned(),
                    payload: got.payload().to_owned(),
                };
                if let Err(mpsc::error::TrySendError::Full(_)) = notify.try_send(notification) {
                    dropped += 1;
                    tracing::warn!(dropped, "notifications are not being read; one was dropped");
                }
            }
            Some(Ok(_)) => {}
        }
    };
    if let Some(fault) = &end {
        tracing::debug!(error = %fault, "a session ended");
    }
    // Without a reason the sender's going away says that it is over.
    if end.is_some() {
        ending.send_replace(end);
    }
}

/// Cancels a session's running statement over a connection of its own, which is made and encrypted
/// like the session's.
#[derive(Clone)]
pub struct CancelHandle {
    options: Arc<ConnectOptions>,
    host: Host,
    endpoint: Endpoint,
    encryption: Encryption,
    pid: i32,
    secret: i32,
}

impl CancelHandle {
    /// Sends the request. That it was sent does not say that anything was cancelled.
    ///
    /// # Errors
    /// The server could not be reached within `connect_timeout`.
    pub async fn cancel(&self) -> Result<(), ConnectError> {
        let attempt = Attempt {
            options: &self.options,
            host: &self.host,
            purpose: Purpose::Ordinary,
        };
        let send = async {
            let socket = Socket::connect(&self.endpoint, &self.options.tcp)
                .await
                .map_err(|error| attempt.io(&error))?;
            let (mut transport, _) = attempt.encrypt(socket, self.encryption).await?;
            let mut request = BytesMut::new();
            frontend::cancel_request(self.pid, self.secret, &mut request);
            transport
                .write_all(&request)
                .await
                .map_err(|e| attempt.io(&e))?;
            transport.flush().await.map_err(|e| attempt.io(&e))?;
            // The server closes when it has acted; a reset says the same.
            let _ = transport.read_u8().await;
            Ok(())
        };
        crate::connect::limited(&attempt, send).await?
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_read_as_servers_write_them() {
        let num = |text| ServerVersion::parse(text).map(|v| v.num);
        assert_eq!(num("15.19 (Debian 15.19-1)"), Some(150_019));
        assert_eq!(num("18beta1"), Some(180_000));
        assert_eq!(num("9.6.24"), Some(90_624));
        assert_eq!(num(""), None);
        assert_eq!(ServerVersion { num: 150_019 }.to_string(), "15.19");
    }
}
