//! Who has a transaction that writes: whom a new slot, a table that joins a flow, or a cut-over waits
//! for. One question for all of them, so that each names the same.

use std::fmt;
use std::time::Duration;

use crate::Session;

/// Transactions that have a number, the oldest first. Those of a role that may not see everything of
/// other sessions are there without their age and state, and come last.
const WRITERS: &str = "\
SELECT pid, coalesce(application_name, ''), coalesce(state, ''), \
       coalesce(nullif(wait_event_type, 'Client') || '/' || wait_event, ''), \
       extract(epoch FROM clock_timestamp() - xact_start)::float8 AS age, \
       datname = current_database() AS here, backend_type = 'client backend', NULL::text \
  FROM pg_catalog.pg_stat_activity \
 WHERE backend_xid IS NOT NULL AND pid <> pg_backend_pid() \
UNION ALL \
SELECT NULL, '', '', '', extract(epoch FROM clock_timestamp() - prepared)::float8, \
       database = current_database(), false, gid \
  FROM pg_catalog.pg_prepared_xacts \
 ORDER BY age DESC NULLS LAST";

/// One transaction that writes.
#[derive(Debug, Clone, PartialEq)]
pub struct Writer {
    /// Whose it is.
    pub who: Who,
    /// Since it began, or was prepared; absent where the role may not see it.
    pub age: Option<Duration>,
    /// Whether it is in the session's database. A slot waits for those of all databases.
    pub here: bool,
}

/// Whose a transaction is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Who {
    /// A session's.
    Backend {
        /// Its process.
        pid: i32,
        /// What it calls itself.
        application: String,
        /// `idle in transaction` and so on; empty where the role may not see it.
        state: String,
        /// What it waits for, but for its client.
        waits_for: String,
        /// Whether it is an ordinary client's.
        client: bool,
    },
    /// Nobody's any more.
    Prepared {
        /// Its name.
        gid: String,
    },
}

impl fmt::Display for Who {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Who::Backend {
                pid,
                application,
                state,
                waits_for,
                ..
            } => {
                let application = match application.as_str() {
                    "" => "unnamed",
                    name => name,
                };
                let state = match state.as_str() {
                    "" => "state unknown",
                    state => state,
                };
                write!(f, "backend {pid} ({application}, {state}")?;
                if !waits_for.is_empty() {
                    write!(f, ", waits for {waits_for}")?;
                }
                f.write_str(")")
            }
            Who::Prepared { gid } => write!(f, "prepared transaction {gid}"),
        }
    }
}

impl fmt::Display for Writer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.age {
            Some(age) => write!(f, "{}, open for {} s", self.who, age.as_secs()),
            None => write!(f, "{}, open for an unknown time", self.who),
        }
    }
}

/// All transactions that write now but the session's own, the oldest first.
///
/// # Errors
/// The server's.
pub async fn writers(session: &Session) -> Result<Vec<Writer>, tokio_postgres::Error> {
    let rows = session.client.query(WRITERS, &[]).await?;
    let writer = |row: &tokio_postgres::Row| {
        let who = match row.try_get::<_, Option<String>>(7)? {
            Some(gid) => Who::Prepared { gid },
            None => Who::Backend {
                pid: row.try_get(0)?,
                application: row.try_get(1)?,
                state: row.try_get(2)?,
                waits_for: row.try_get(3)?,
                client: row.try_get::<_, Option<bool>>(6)?.unwrap_or(true),
            },
        };
        let age = row.try_get::<_, Option<f64>>(4)?;
        Ok(Writer {
            who,
            age: age.map(|seconds| Duration::from_secs_f64(seconds.max(0.0))),
            here: row.try_get::<_, Option<bool>>(5)?.unwrap_or(false),
        })
    };
    rows.iter().map(writer).collect()
}

/// The first few of them in one line; empty when there is none.
pub fn named<'a>(writers: impl IntoIterator<Item = &'a Writer>) -> String {
    let first = writers.into_iter().take(5).map(ToString::to_string);
    first.collect::<Vec<_>>().join("; ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whoever_writes_is_named_as_far_as_it_is_known() {
        let backend = |application: &str, state: &str, waits_for: &str| Who::Backend {
            pid: 7,
            application: application.to_owned(),
            state: state.to_owned(),
            waits_for: waits_for.to_owned(),
            client: true,
        };
        let writer = |who, seconds: Option<u64>| Writer {
            who,
            age: seconds.map(Duration::from_secs),
            here: true,
        };
        let gid = "two phases".to_owned();
        let all = [
            writer(backend("psql", "active", "Lock/tuple"), Some(3)),
            writer(Who::Prepared { gid }, Some(90)),
            writer(backend("", "", ""), None),
        ];
        assert_eq!(
            named(&all),
            "backend 7 (psql, active, waits for Lock/tuple), open for 3 s; \
             prepared transaction two phases, open for 90 s; \
             backend 7 (unnamed, state unknown), open for an unknown time"
        );
    }
}
