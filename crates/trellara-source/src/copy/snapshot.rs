//! The snapshot that a copy is read under, and the session that keeps it alive.

use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::sync::watch;
use tokio::task::AbortHandle;
use trellara_envelope::{Lsn, SourceId};
use trellara_postgres::settle::{ParseSnapshotError, SettleError, Snapshot};
use trellara_postgres::stragglers::Stragglers;
use trellara_postgres::{ConnectError, Session, fault, insert_position};

use crate::SourceOptions;
use crate::durable::{identity, until_flushed, until_on_standbys};

/// A session that nobody uses is asked this often, so that nothing between us and the server
/// forgets the connection.
const KEEPALIVE: Duration = Duration::from_secs(10);
/// A server that does not answer for this long is taken for gone.
const KEEPALIVE_LIMIT: Duration = Duration::from_secs(60);

/// Between two looks at whose commit is not seen yet.
const UNSEEN_PAUSE: Duration = Duration::from_millis(20);
/// Then somebody is told whose it is, and it is tried again.
const UNSEEN_LIMIT: Duration = Duration::from_secs(30);

/// A snapshot that other sessions can read under for as long as this value lives and
/// [`SharedSnapshot::ended`] waits.
#[derive(Debug)]
pub struct SharedSnapshot {
    session: Arc<Session>,
    id: String,
    seen: Snapshot,
    converges_at: Lsn,
    source: SourceId,
    taken_at: Instant,
    ended: watch::Receiver<Option<String>>,
    keeper: AbortHandle,
}

/// No snapshot could be taken.
#[derive(Debug, thiserror::Error)]
pub enum TakeError {
    /// No session.
    #[error(transparent)]
    Connect(#[from] ConnectError),
    /// The server refused.
    #[error("{}", fault(.0))]
    Server(#[from] tokio_postgres::Error),
    /// What it said was no snapshot.
    #[error(transparent)]
    Malformed(#[from] ParseSnapshotError),
    /// What it sees could still be taken back.
    #[error(transparent)]
    Unsettled(#[from] SettleError),
}

impl SharedSnapshot {
    /// Takes one now, and waits until neither a crash of the source nor a failover to a standby that
    /// its slot waits for can take back what it sees.
    ///
    /// # Errors
    /// The server's; nothing is left behind.
    pub async fn take(source: &SourceOptions) -> Result<Self, TakeError> {
        let beside = source.session().await?;
        until_commits_are_seen(&beside).await?;
        let session = source.session().await?;
        let client = &session.client;
        client.batch_execute(settings(&session)).await?;
        client
            .batch_execute("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY")
            .await?;
        let row = client
            .query_one(
                "SELECT pg_catalog.pg_current_snapshot()::text, pg_catalog.pg_export_snapshot()",
                &[],
            )
            .await?;
        let seen: Snapshot = row.try_get::<_, &str>(0)?.parse()?;
        let id: String = row.try_get(1)?;
        // Asked when the snapshot is there: whatever it sees has left the list of running
        // transactions, and wrote its commit record before that.
        let converges_at = insert_position(&beside).await?;
        let history = identity(&beside).await?;
        until_flushed(&beside, converges_at).await?;
        until_on_standbys(&beside, &source.slot, converges_at).await?;
        let session = Arc::new(session);
        let (say, ended) = watch::channel(None);
        let keeper = tokio::spawn(keep(session.clone(), say)).abort_handle();
        Ok(Self {
            session,
            id,
            seen,
            converges_at,
            source: history,
            taken_at: Instant::now(),
            ended,
            keeper,
        })
    }

    /// Which transactions it sees.
    pub fn seen(&self) -> &Snapshot {
        &self.seen
    }

    /// Every transaction that it sees committed before this position.
    pub fn converges_at(&self) -> Lsn {
        self.converges_at
    }

    /// The cluster and timeline that the position is one of.
    pub fn source(&self) -> SourceId {
        self.source
    }

    /// When it was taken; the source keeps all rows that died since.
    pub fn taken_at(&self) -> Instant {
        self.taken_at
    }

    /// What `SET TRANSACTION SNAPSHOT` wants.
    pub fn id(&self) -> &str {
        &self.id
    }

    /// The session that holds it, for reading catalogues under it.
    pub(super) fn session(&self) -> &Session {
        &self.session
    }

    /// Resolves, with the reason, when the snapshot is lost. Who reads under it already goes on,
    /// nobody can begin to. Cancel safe.
    pub async fn ended(&self) -> String {
        let mut ended = self.ended.clone();
        match ended.wait_for(Option::is_some).await {
            Ok(reason) => reason.clone().unwrap_or_default(),
            Err(_) => "its keeper is gone".to_owned(),
        }
    }
}

impl Drop for SharedSnapshot {
    fn drop(&mut self) {
        self.keeper.abort();
    }
}

/// A table that is copied anew was emptied of whatever the lane had applied: the snapshot has to see
/// all of that, also the commit that still waits for a standby.
async fn until_commits_are_seen(session: &Session) -> Result<(), TakeError> {
    let began = Instant::now();
    let mut stragglers = Stragglers::of(session).await?;
    while let Some(waiting) = stragglers.left(session).await? {
        let waited = began.elapsed();
        if waited >= UNSEEN_LIMIT {
            return Err(SettleError::TimedOut { waited, waiting }.into());
        }
        tokio::time::sleep(UNSEEN_PAUSE).await;
    }
    Ok(())
}

/// Statements that make a session fit for a long transaction of reading.
fn settings(session: &Session) -> &'static str {
    match session.server_version().major() {
        // Before 17 there is no such limit, and naming it is an error.
        ..17 => "SET row_security = off",
        17.. => "SET row_security = off; SET transaction_timeout = 0",
    }
}

async fn keep(session: Arc<Session>, say: watch::Sender<Option<String>>) {
    let reason = loop {
        tokio::select! {
            () = session.closed() => {
                break session.end_reason().map_or_else(
                    || "the connection ended".to_owned(),
                    |fault| fault.to_string(),
                );
            }
            () = tokio::time::sleep(KEEPALIVE) => {}
        }
        let ask = session.client.batch_execute("SELECT 1");
        match tokio::time::timeout(KEEPALIVE_LIMIT, ask).await {
            Ok(Ok(())) => {}
            Ok(Err(error)) => break fault(&error).to_string(),
            Err(_) => break "the source does not answer".to_owned(),
        }
    };
    say.send_replace(Some(reason));
}
