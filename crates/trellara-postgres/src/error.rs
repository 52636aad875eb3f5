//! Errors, shaped by what the caller will do about them.

use std::io;

use crate::Fault;

/// The connection string cannot be used. Messages name keys, never values of secrets.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{reason}")]
pub struct ConnectStringError {
    /// What is wrong.
    pub reason: String,
    /// What to write instead; empty when the reason says it all.
    pub hint: String,
}

impl ConnectStringError {
    pub(crate) fn new(reason: impl Into<String>, hint: impl Into<String>) -> Self {
        Self {
            reason: reason.into(),
            hint: hint.into(),
        }
    }
}

/// Why no session could be had.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ConnectErrorKind {
    /// No route, refused, timed out, name not resolved, connection lost. Passes.
    Unreachable,
    /// 57P03: starting up, shutting down or in recovery. Passes.
    ServerStarting,
    /// 53300: no slot for another connection. Passes.
    TooManyConnections,
    /// No server of the list has the session attributes asked for (all are standbys, say). Passes.
    NoSuitableServer,
    /// Wrong password, no pg_hba entry, unknown role or database, missing password.
    Refused,
    /// TLS could not be had as demanded: certificate, name, sslmode, files.
    Tls,
    /// Any other answer of the server; see the fault's SQLSTATE.
    Server,
    /// Whatever answered does not speak PostgreSQL's protocol as we know it.
    Protocol,
}

/// No session could be had; with the host tried last and what to check.
#[derive(Debug, thiserror::Error)]
#[error("{host}: {reason}")]
pub struct ConnectError {
    /// What the caller can do about it.
    pub kind: ConnectErrorKind,
    /// The host the error is about, as in the connection string, with port.
    pub host: String,
    /// What happened.
    pub reason: String,
    /// What to check next.
    pub hint: String,
    /// What the server said, when it did.
    pub fault: Option<Box<Fault>>,
}

impl ConnectError {
    /// Whether trying again later can help without anybody changing anything.
    pub fn is_passing(&self) -> bool {
        match self.kind {
            ConnectErrorKind::Unreachable
            | ConnectErrorKind::ServerStarting
            | ConnectErrorKind::TooManyConnections
            | ConnectErrorKind::NoSuitableServer => true,
            ConnectErrorKind::Refused | ConnectErrorKind::Tls | ConnectErrorKind::Protocol => false,
            ConnectErrorKind::Server => self.fault.as_ref().is_some_and(|fault| {
                matches!(
                    fault.class,
                    crate::sqlstate::ErrorClass::Passing | crate::sqlstate::ErrorClass::Suspicious
                )
            }),
        }
    }
}

/// A command on a replication connection failed.
#[derive(Debug, thiserror::Error)]
pub enum QueryError {
    /// The server refused; the connection goes on.
    #[error("{} ({})", .0.message, .0.sqlstate)]
    Server(Box<Fault>),
    /// The connection is gone.
    #[error("connection lost: {0}")]
    Connection(#[source] io::Error),
    /// The server answered in a way that the command does not allow.
    #[error("unexpected answer of the server: {0}")]
    Protocol(String),
}
