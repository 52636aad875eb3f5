//! The replication slot: facts, create, drop.

use trellara_envelope::Lsn;
use trellara_postgres::{
    CreatedSlot, QueryError, ReplicationConnection, ServerVersion, Session, SnapshotAction, quote,
};

/// What `pg_replication_slots` says about one slot.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SlotFacts {
    /// Output plugin; `None` for a physical slot.
    pub plugin: Option<String>,
    /// Database; `None` for a physical slot.
    pub database: Option<String>,
    /// Whether prepared transactions are decoded at PREPARE; never in our slots.
    pub two_phase: bool,
    /// Whether the slot dies with its session.
    pub temporary: bool,
    /// The walsender that uses it.
    pub active_pid: Option<i32>,
    /// Everything before it was confirmed.
    pub confirmed_flush: Option<Lsn>,
    /// WAL from here on is kept.
    pub restart_lsn: Option<Lsn>,
    /// `reserved`, `extended`, `unreserved` or `lost`.
    pub wal_status: Option<String>,
    /// Bytes that may still be written before the slot can be lost; `None` without a limit.
    pub safe_wal_size: Option<i64>,
    /// Why the server gave the slot up (16 and newer).
    pub invalidation_reason: Option<String>,
    /// Whether the slot is synchronised to standbys (17 and newer).
    pub failover: bool,
}

impl SlotFacts {
    /// Why nothing can be read from this slot any more, if so.
    pub fn lost(&self) -> Option<String> {
        if let Some(reason) = &self.invalidation_reason {
            return Some(reason.clone());
        }
        (self.wal_status.as_deref() == Some("lost")).then(|| "its WAL was removed".to_owned())
    }
}

/// The slot's facts; `None` when there is no slot of that name.
pub async fn read(
    session: &Session,
    name: &str,
) -> Result<Option<SlotFacts>, tokio_postgres::Error> {
    let major = session.server_version().major();
    let invalidation = match major {
        ..16 => "NULL::text",
        16 => "CASE WHEN conflicting THEN 'conflict with recovery' END",
        17.. => "invalidation_reason",
    };
    let failover = if major >= 17 { "failover" } else { "false" };
    let sql = format!(
        "SELECT plugin::text, database::text, two_phase, temporary, active_pid, \
         confirmed_flush_lsn::text, restart_lsn::text, wal_status, safe_wal_size, \
         {invalidation}, {failover} FROM pg_catalog.pg_replication_slots WHERE slot_name = $1"
    );
    let Some(row) = session.client.query_opt(&sql, &[&name]).await? else {
        return Ok(None);
    };
    let lsn = |at: usize| -> Option<Lsn> { row.get::<_, Option<String>>(at)?.parse().ok() };
    Ok(Some(SlotFacts {
        plugin: row.get(0),
        database: row.get(1),
        two_phase: row.get(2),
        temporary: row.get(3),
        active_pid: row.get(4),
        confirmed_flush: lsn(5),
        restart_lsn: lsn(6),
        wal_status: row.get(7),
        safe_wal_size: row.get(8),
        invalidation_reason: row.get(9),
        failover: row.get(10),
    }))
}

/// Creates the flow's slot, with the failover flag where the server knows it (C11). The caller
/// bounds the wait: slot creation waits for every transaction that runs (C10).
pub async fn create(
    connection: &mut ReplicationConnection,
    version: ServerVersion,
    name: &str,
    snapshot: SnapshotAction,
) -> Result<CreatedSlot, QueryError> {
    connection
        .create_logical_slot(name, false, snapshot, version.major() >= 17)
        .await
}

/// Drops the slot, ending its walsender first if there is one. True when there was a slot.
///
/// A walsender needs a moment to leave after it was told to, and a relay that still runs takes
/// the slot again; both are met by trying a bounded number of times inside the server.
pub async fn drop(session: &Session, name: &str) -> Result<bool, tokio_postgres::Error> {
    if read(session, name).await?.is_none() {
        return Ok(false);
    }
    let slot = quote::literal(name);
    let block = format!(
        "DO $trellara$ BEGIN \
         FOR attempt IN 1..100 LOOP \
           PERFORM pg_catalog.pg_terminate_backend(active_pid) \
             FROM pg_catalog.pg_replication_slots \
             WHERE slot_name = {slot} AND active_pid IS NOT NULL; \
           BEGIN \
             PERFORM pg_catalog.pg_drop_replication_slot({slot}); \
             RETURN; \
           EXCEPTION WHEN object_in_use THEN \
             PERFORM pg_catalog.pg_sleep(0.05); \
           WHEN undefined_object THEN RETURN; \
           END; \
         END LOOP; \
         RAISE object_in_use USING MESSAGE = 'replication slot is still in use'; \
         END $trellara$"
    );
    session.client.batch_execute(&block).await?;
    Ok(true)
}

/// Who reads from a slot.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SlotReader {
    /// The walsender's process.
    pub pid: i32,
    /// When it began, which tells it from a later process of the same number; empty where the role
    /// may not see it.
    pub began: String,
    /// The time on the last status update that the server has taken in, as its client wrote it;
    /// `None` before the first, and where the role may not see it.
    pub said_at: Option<String>,
    /// Whether the walsender waits for its client or for more to send. A busy one takes in no status
    /// updates for up to half of `wal_sender_timeout`, even while it sends.
    pub waits: bool,
}

/// Who reads from the slot of that name now; `None` when nobody does. What they say is shown to
/// members of `pg_read_all_stats`.
pub async fn reader(
    session: &Session,
    name: &str,
) -> Result<Option<SlotReader>, tokio_postgres::Error> {
    let row = session
        .client
        .query_opt(
            "SELECT s.active_pid, coalesce(r.backend_start::text, ''), r.reply_time::text, \
                    coalesce(a.wait_event LIKE 'WalSender%', false) \
             FROM pg_catalog.pg_replication_slots s \
             LEFT JOIN pg_catalog.pg_stat_replication r ON r.pid = s.active_pid \
             LEFT JOIN pg_catalog.pg_stat_activity a ON a.pid = s.active_pid \
             WHERE s.slot_name = $1 AND s.active_pid IS NOT NULL",
            &[&name],
        )
        .await?;
    Ok(row.map(|row| SlotReader {
        pid: row.get(0),
        began: row.get(1),
        said_at: row.get(2),
        waits: row.get(3),
    }))
}

/// Ends the walsender of a slot, if its client has still said nothing since. True when it was told
/// to go.
pub async fn end_reader(
    session: &Session,
    name: &str,
    reader: &SlotReader,
) -> Result<bool, tokio_postgres::Error> {
    let row = session
        .client
        .query_opt(
            "SELECT pg_catalog.pg_terminate_backend(s.active_pid) \
             FROM pg_catalog.pg_replication_slots s \
             JOIN pg_catalog.pg_stat_replication r ON r.pid = s.active_pid \
             WHERE s.slot_name = $1 AND s.active_pid = $2 AND r.backend_start::text = $3 \
               AND r.reply_time::text IS NOT DISTINCT FROM $4",
            &[&name, &reader.pid, &reader.began, &reader.said_at],
        )
        .await?;
    Ok(row.is_some_and(|row| row.get(0)))
}

/// Whether commits on the source wait for the walsender of this slot (C05). False when nobody
/// reads from it.
pub async fn is_synchronous_standby(
    session: &Session,
    name: &str,
) -> Result<bool, tokio_postgres::Error> {
    let row = session
        .client
        .query_opt(
            "SELECT coalesce(r.sync_state, 'async') <> 'async' \
             FROM pg_catalog.pg_replication_slots s \
             JOIN pg_catalog.pg_stat_replication r ON r.pid = s.active_pid \
             WHERE s.slot_name = $1",
            &[&name],
        )
        .await?;
    Ok(row.is_some_and(|row| row.get(0)))
}

/// The flush position; `None` when the server is a standby.
pub async fn flush_position(session: &Session) -> Result<Option<Lsn>, tokio_postgres::Error> {
    let row = session
        .client
        .query_one(
            "SELECT CASE WHEN pg_catalog.pg_is_in_recovery() THEN NULL \
             ELSE pg_catalog.pg_current_wal_flush_lsn()::text END",
            &[],
        )
        .await?;
    let text: Option<String> = row.get(0);
    Ok(text.and_then(|text| text.parse().ok()))
}
