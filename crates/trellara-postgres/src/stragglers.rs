//! Who may have committed and is still listed as running.
//!
//! A transaction's commit record is in the log, and with it in the stream, a moment before the
//! transaction leaves the list of running ones; where commits wait for a standby that moment lasts
//! as long as the standby takes. A snapshot taken meanwhile does not see it, though whoever follows
//! the stream may have applied it already. So before a snapshot that has to see all that was
//! streamed, those that ran are waited for, unless they cannot be such.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use crate::Session;

/// Between commit record and end there is a few milliseconds' work: whoever was at work for this
/// long, and does not wait for a standby, works at something else.
const AT_WORK: Duration = Duration::from_secs(5);

/// Every transaction with an id holds a lock of that name until it has left the list of running
/// ones, and anybody may see it. What a session does is NULL for who may not see that; one that was
/// prepared has none, and whoever commits it looks like a session without a transaction.
const RUNNING: &str = "\
SELECT l.transactionid::text, \
       coalesce('pid ' || l.pid::text, 'prepared'), \
       coalesce(a.wait_event_type || '/' || a.wait_event, a.state, '?'), \
       coalesce(a.state LIKE 'idle in transaction%', false), \
       CASE WHEN l.pid IS NULL THEN \
            NOT EXISTS (SELECT FROM pg_catalog.pg_stat_activity AS o \
                         WHERE o.backend_type = 'client backend' \
                           AND (o.state IS NULL OR o.wait_event = 'SyncRep')) \
            ELSE coalesce(a.state = 'active' AND a.wait_event IS DISTINCT FROM 'SyncRep' \
                     AND coalesce(a.wait_event_type, '') NOT IN ('IO', 'LWLock'), false) END, \
       pg_catalog.current_setting('synchronous_standby_names') <> '' \
  FROM pg_catalog.pg_locks AS l LEFT JOIN pg_catalog.pg_stat_activity AS a ON a.pid = l.pid \
 WHERE l.locktype = 'transactionid' AND l.mode = 'ExclusiveLock' AND l.granted";

/// The transactions that ran at one moment, of which some may have committed.
#[derive(Debug)]
pub struct Stragglers {
    /// Whether it may have been about to commit when it was looked at once: then it does.
    running: BTreeMap<String, bool>,
    since: Instant,
}

/// How a transaction stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Standing {
    /// Its session waits for the client: nothing of it is in the log that ends it.
    Idle,
    /// It works, and we see that it does not wait for a standby.
    AtWork,
    /// It waits for a standby, or we may not see what it does.
    Unknown,
}

impl Stragglers {
    /// Whoever runs now. The session is in no transaction, here and in [`Stragglers::left`].
    ///
    /// # Errors
    /// The server's.
    pub async fn of(session: &Session) -> Result<Self, tokio_postgres::Error> {
        let rows = session.client.query(RUNNING, &[]).await?;
        let running: Result<BTreeMap<String, bool>, _> = rows
            .iter()
            .map(|row| Ok((row.try_get(0)?, false)))
            .collect();
        Ok(Self {
            running: running?,
            since: Instant::now(),
        })
    }

    /// Who is left of them, in words; `None` when every snapshot from now on sees whatever had
    /// committed when they were listed. To be asked again after a few milliseconds.
    ///
    /// # Errors
    /// The server's.
    pub async fn left(
        &mut self,
        session: &Session,
    ) -> Result<Option<String>, tokio_postgres::Error> {
        if self.running.is_empty() {
            return Ok(None);
        }
        let is_patient = self.since.elapsed() < AT_WORK;
        let mut left = BTreeMap::new();
        let mut words = Vec::new();
        for row in session.client.query(RUNNING, &[]).await? {
            let (xid, who, doing): (String, &str, &str) =
                (row.try_get(0)?, row.try_get(1)?, row.try_get(2)?);
            let standing = match (row.try_get(3)?, row.try_get(4)?) {
                (true, _) => Standing::Idle,
                (false, true) => Standing::AtWork,
                (false, false) => Standing::Unknown,
            };
            let Some(suspect) = self.running.get(&xid) else {
                continue;
            };
            let suspect = *suspect || standing == Standing::Unknown;
            if is_left(standing, is_patient, suspect && row.try_get(5)?) {
                words.push(format!("xid {xid} ({who}, {doing})"));
                left.insert(xid, suspect);
            }
        }
        // Whoever waited for its client once had not committed.
        self.running = left;
        words.truncate(5);
        Ok((!words.is_empty()).then(|| {
            format!(
                "transactions that may have committed are still listed as running: {}",
                words.join(", ")
            )
        }))
    }
}

/// `suspect`: it may have waited for a standby, now or before. Whoever did is not to be taken for
/// somebody at work in the moment in which the standby has let it go.
fn is_left(standing: Standing, patient: bool, suspect: bool) -> bool {
    match standing {
        Standing::Idle => false,
        Standing::AtWork | Standing::Unknown => patient || suspect,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_who_may_have_committed_is_waited_for() {
        for suspect in [true, false] {
            assert!(!is_left(Standing::Idle, true, suspect));
            for standing in [Standing::AtWork, Standing::Unknown] {
                assert!(is_left(standing, true, suspect));
                assert_eq!(is_left(standing, false, suspect), suspect);
            }
        }
    }
}
