//! The replication connection, up to the moment the stream starts.

use trellara_envelope::{Lsn, SourceHistory, SystemId, Timeline};

use crate::{ConnectError, ConnectErrorKind, ConnectOptions, CopyBoth, QueryError};

/// One row of a simple query: values as text, NULL as `None`.
pub type Row = Vec<Option<String>>;

/// The answer of IDENTIFY_SYSTEM.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct IdentifySystem {
    /// The cluster.
    pub system: SystemId,
    /// The server's present timeline.
    pub timeline: Timeline,
    /// The server's flush position.
    pub xlogpos: Lsn,
    /// The database connected to.
    pub dbname: Option<String>,
}

/// What becomes of the snapshot of a new slot.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SnapshotAction {
    /// Exported: other sessions may import it while this connection does nothing else.
    Export,
    /// None is made.
    NoExport,
}

/// A slot that was just created.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CreatedSlot {
    /// Its name.
    pub name: String,
    /// Changes committed from here on come through it.
    pub consistent_point: Lsn,
    /// The exported snapshot.
    pub snapshot: Option<String>,
}

/// A connection with `replication=database`.
pub struct ReplicationConnection {
    _private: (),
}

impl ReplicationConnection {
    /// Connects.
    pub async fn connect(options: &ConnectOptions) -> Result<Self, ConnectError> {
        std::future::ready(()).await;
        Err(ConnectError {
            kind: ConnectErrorKind::Protocol,
            host: options.redacted(),
            reason: "not available yet".into(),
            hint: String::new(),
            fault: None,
        })
    }

    /// IDENTIFY_SYSTEM.
    pub async fn identify_system(&mut self) -> Result<IdentifySystem, QueryError> {
        later().await
    }

    /// The timelines that led to the present one.
    pub async fn history(&mut self) -> Result<SourceHistory, QueryError> {
        later().await
    }

    /// A simple query; the rows of its last result.
    pub async fn simple_query(&mut self, _sql: &str) -> Result<Vec<Row>, QueryError> {
        later().await
    }

    /// CREATE_REPLICATION_SLOT … LOGICAL pgoutput; `failover` needs PostgreSQL 17.
    pub async fn create_logical_slot(
        &mut self,
        _name: &str,
        _temporary: bool,
        _snapshot: SnapshotAction,
        _failover: bool,
    ) -> Result<CreatedSlot, QueryError> {
        later().await
    }

    /// START_REPLICATION; options are quoted here.
    pub async fn start_replication(
        self,
        _slot: &str,
        _start: Lsn,
        _options: &[(String, String)],
    ) -> Result<CopyBoth, QueryError> {
        later().await
    }
}

async fn later<T>() -> Result<T, QueryError> {
    std::future::ready(()).await;
    Err(QueryError::Protocol("not available yet".into()))
}
