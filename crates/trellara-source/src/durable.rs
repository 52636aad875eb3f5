//! When what a snapshot saw can no longer be taken back.
//!
//! An ordinary snapshot sees a commit that did not wait for the disk, and one that no standby has.
//! The transaction stream carries neither: it waits for both. What is read before would stay in the
//! target when a crash or a failover takes the commit back, and the position and transaction id of
//! that commit would be given out again, to a transaction that the target would leave out.

use std::time::{Duration, Instant};

use trellara_envelope::{Lsn, SourceId, SystemId, Timeline};
use trellara_postgres::Session;
use trellara_postgres::settle::SettleError;

/// Between two looks.
const PAUSE: Duration = Duration::from_millis(5);
/// The WAL writer needs three rounds at the most: 600 ms by default, 30 s where they are the longest.
const LIMIT: Duration = Duration::from_secs(45);

/// Waits until the log up to there is on the source's disk. `session` is outside of any transaction.
///
/// # Errors
/// As [`SettleError`], which names what it waited for.
pub(crate) async fn until_flushed(session: &Session, position: Lsn) -> Result<(), SettleError> {
    /// Whoever took an id commits, and without a row of its own it does so without waiting for the
    /// disk: that wakes the WAL writer, which alone would leave an unfinished page for a while.
    const WAKE: &str = "SELECT pg_catalog.pg_current_xact_id()";
    let mut is_awake = false;
    let began = Instant::now();
    loop {
        let sql = "SELECT pg_catalog.pg_current_wal_flush_lsn()::text";
        let row = session.client.query_one(sql, &[]).await?;
        let flushed: Option<Lsn> = row.try_get::<_, &str>(0)?.parse().ok();
        if flushed.is_some_and(|flushed| flushed >= position) {
            return Ok(());
        }
        if !std::mem::replace(&mut is_awake, true) {
            session.client.query_one(WAKE, &[]).await?;
        }
        pause(began, || {
            format!("the log up to {position} is not on the source's disk")
        })
        .await?;
    }
}

/// Waits until every standby that the flow's slot waits for has the log up to there: then a failover
/// to one of them takes nothing back. Before version 17 no slot waits for any.
///
/// # Errors
/// As [`until_flushed`].
pub(crate) async fn until_on_standbys(
    session: &Session,
    slot: &str,
    position: Lsn,
) -> Result<(), SettleError> {
    /// Those that keep the walsender waiting, as it decides itself.
    const BEHIND: &str = "\
        SELECT string_agg(w.name, ', ') FROM ( \
          SELECT trim(both ' \"' FROM name) FROM unnest(string_to_array( \
            pg_catalog.current_setting('synchronized_standby_slots'), ',')) AS name) AS w (name) \
          LEFT JOIN pg_catalog.pg_replication_slots AS s \
            ON s.slot_name = w.name AND s.slot_type = 'physical' \
         WHERE w.name <> '' AND coalesce(s.restart_lsn < $2::text::pg_catalog.pg_lsn, true) \
           AND EXISTS (SELECT FROM pg_catalog.pg_replication_slots \
                        WHERE slot_name = $1 AND failover)";
    if session.server_version().major() < 17 {
        return Ok(());
    }
    let at = position.to_string();
    let began = Instant::now();
    loop {
        let row = session.client.query_one(BEHIND, &[&slot, &at]).await?;
        let Some(names) = row.try_get::<_, Option<String>>(0)? else {
            return Ok(());
        };
        pause(began, || {
            format!("the log up to {position} is not on the standbys of these slots: {names}")
        })
        .await?;
    }
}

async fn pause(began: Instant, waiting: impl Fn() -> String) -> Result<(), SettleError> {
    let waited = began.elapsed();
    if waited >= LIMIT {
        let waiting = waiting();
        return Err(SettleError::TimedOut { waited, waiting });
    }
    tokio::time::sleep(PAUSE).await;
    Ok(())
}

/// Which cluster writes its log on which timeline.
///
/// # Errors
/// The server's, among them 55000 when it is in recovery.
pub(crate) async fn identity(session: &Session) -> Result<SourceId, tokio_postgres::Error> {
    /// The name of a WAL file begins with the timeline in 8 hexadecimal digits.
    const ASK: &str = "\
        SELECT system_identifier, \
               ('x' || left(pg_catalog.pg_walfile_name(pg_catalog.pg_current_wal_insert_lsn()), 8)) \
                 ::bit(32)::int \
          FROM pg_catalog.pg_control_system()";
    let row = session.client.query_one(ASK, &[]).await?;
    Ok(SourceId {
        system: SystemId(row.try_get::<_, i64>(0)?.cast_unsigned()),
        timeline: Timeline(row.try_get::<_, i32>(1)?.cast_unsigned()),
    })
}
