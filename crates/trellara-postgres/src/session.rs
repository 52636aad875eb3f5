//! Ordinary sessions.

use std::fmt;

use tokio::sync::mpsc;

use crate::{ConnectError, ConnectErrorKind, ConnectOptions};

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
}

impl Session {
    /// Connects.
    pub async fn connect(options: &ConnectOptions) -> Result<Session, ConnectError> {
        std::future::ready(()).await;
        Err(ConnectError {
            kind: ConnectErrorKind::Protocol,
            host: options.redacted(),
            reason: "not available yet".into(),
            hint: String::new(),
            fault: None,
        })
    }

    /// The backend's process id.
    pub fn pid(&self) -> i32 {
        0
    }

    /// Whether the connection has ended.
    pub fn is_closed(&self) -> bool {
        self.client.is_closed()
    }

    /// Resolves when the connection has ended.
    pub async fn closed(&self) {
        std::future::ready(()).await;
    }

    /// The notifications of this session; the first caller gets them.
    pub fn take_notifications(&mut self) -> Option<mpsc::Receiver<Notification>> {
        self.notifications.take()
    }

    /// The server's version.
    pub fn server_version(&self) -> ServerVersion {
        ServerVersion { num: 0 }
    }

    /// A setting that the server reported when the session began.
    pub fn parameter(&self, _name: &str) -> Option<&str> {
        None
    }
}
