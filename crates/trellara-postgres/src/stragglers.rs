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

/// Between commit record and end a session is seen without a wait, or in one for the log, the log's
/// status pages or the list of running transactions, or for a standby, and in no other.
///
/// Every transaction with an id holds a lock of that name until it has left the list of running
/// ones, and anybody may see it. What a session does is NULL for who may not see that; one that was
/// prepared has none, and whoever commits it looks like a session without a transaction.
const RUNNING: &str = "\
SELECT l.transactionid::text, \
       coalesce('pid ' || l.pid::text, 'prepared'), \
       coalesce(a.wait_event_type || '/' || a.wait_event, a.state, '?'), \
       CASE WHEN l.pid IS NULL AND NOT EXISTS ( \
                   SELECT FROM pg_catalog.pg_stat_activity AS o \
                    WHERE o.backend_type = 'client backend' \
                      AND (o.state IS NULL OR o.wait_event = 'SyncRep')) THEN 'at work' \
            WHEN l.pid IS NULL OR a.state IS NULL OR a.wait_event = 'SyncRep' THEN 'unknown' \
            WHEN a.state LIKE 'idle in transaction%' THEN 'idle' \
            WHEN a.wait_event_type IN ('IO', 'LWLock') \
             AND a.wait_event ~ '^(WAL|SLRU|Xact|ProcArray|CommitTs|Subtrans)' THEN 'ending' \
            WHEN a.state = 'active' THEN 'at work' ELSE 'unknown' END, \
       pg_catalog.current_setting('synchronous_standby_names') <> '' \
  FROM pg_catalog.pg_locks AS l LEFT JOIN pg_catalog.pg_stat_activity AS a ON a.pid = l.pid \
 WHERE l.locktype = 'transactionid' AND l.mode = 'ExclusiveLock' AND l.granted";

/// The transactions that ran at one moment, of which some may have committed.
#[derive(Debug)]
pub struct Stragglers {
    running: BTreeMap<String, Seen>,
    since: Instant,
}

/// What was seen of a transaction in the looks so far.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct Seen {
    /// It may have waited for a standby once: then it commits.
    suspect: bool,
    /// It was at work in the last look.
    at_work: bool,
}

/// How a transaction stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Standing {
    /// Its session waits for the client: nothing of it is in the log that ends it.
    Idle,
    /// It works, and we see that it waits for nothing that a commit waits for.
    AtWork,
    /// It waits for something that everybody waits for, and a commit too.
    Ending,
    /// It waits for a standby, or we may not see what it does.
    Unknown,
}

impl Standing {
    fn parse(word: &str) -> Self {
        match word {
            "idle" => Self::Idle,
            "at work" => Self::AtWork,
            "ending" => Self::Ending,
            _ => Self::Unknown,
        }
    }
}

impl Stragglers {
    /// Whoever runs now. The session is in no transaction, here and in [`Stragglers::left`].
    ///
    /// # Errors
    /// The server's.
    pub async fn of(session: &Session) -> Result<Self, tokio_postgres::Error> {
        let rows = session.client.query(RUNNING, &[]).await?;
        let running: Result<BTreeMap<String, Seen>, _> = rows
            .iter()
            .map(|row| Ok((row.try_get(0)?, Seen::default())))
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
            let standing = Standing::parse(row.try_get(3)?);
            let Some(before) = self.running.get(&xid) else {
                continue;
            };
            if let Some(seen) = before.left(standing, is_patient, row.try_get(4)?) {
                words.push(format!("xid {xid} ({who}, {doing})"));
                left.insert(xid, seen);
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

impl Seen {
    /// What is known of it after one more look, or `None` when it need not be waited for.
    ///
    /// Whoever may have waited for a standby is not to be taken for somebody at work in the moment in
    /// which the standby has let it go: it is waited for until it is gone. What every batch waits for
    /// says less: two looks at work behind it are enough, for a commit would be gone.
    fn left(self, standing: Standing, is_patient: bool, standbys: bool) -> Option<Self> {
        let seen = Self {
            suspect: self.suspect || standing == Standing::Unknown,
            at_work: standing == Standing::AtWork,
        };
        let is_left = match standing {
            Standing::Idle => false,
            Standing::AtWork => is_patient || !self.at_work || (seen.suspect && standbys),
            Standing::Ending => true,
            Standing::Unknown => is_patient || standbys,
        };
        is_left.then_some(seen)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn after(looks: &[Standing], standbys: bool) -> Option<Seen> {
        let mut seen = Seen::default();
        for look in looks {
            seen = seen.left(*look, false, standbys)?;
        }
        Some(seen)
    }

    #[test]
    fn only_who_may_have_committed_is_waited_for() {
        use Standing::{AtWork, Ending, Idle, Unknown};
        for standbys in [true, false] {
            for standing in [AtWork, Ending, Unknown] {
                let seen = Seen::default().left(standing, true, standbys);
                assert!(
                    seen.is_some(),
                    "{standing:?}: it has just begun to be waited for"
                );
            }
            assert_eq!(Seen::default().left(Idle, true, standbys), None);
            assert_eq!(after(&[AtWork, AtWork], standbys), None);
            assert!(
                after(&[AtWork], standbys).is_some(),
                "it may be past a wait"
            );
            // A batch that writes a lot is seen in such waits all the time.
            assert!(after(&[Ending, Ending, AtWork], standbys).is_some());
            assert_eq!(after(&[Ending, AtWork, AtWork], standbys), None);
        }
        // The standby has let it go a moment ago.
        assert!(after(&[Unknown, AtWork, AtWork, AtWork], true).is_some());
        assert_eq!(after(&[Unknown], false), None);
    }
}
