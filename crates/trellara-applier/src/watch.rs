//! Watches a target session that has fallen silent.
//!
//! Something on the way (a proxy, a load balancer, a firewall that answers for the server) can
//! keep our end of a connection open while the server's end is gone. TCP notices nothing, the
//! statement under way waits for ever, and a long wait alone proves nothing: the statement may be
//! blocked by somebody's lock. So a second session looks at what the first one's backend does.

use std::fmt;
use std::sync::Arc;
use std::time::{Duration, Instant};

use trellara_envelope::FlowName;
use trellara_postgres::{ConnectError, ConnectErrorKind, ConnectOptions, Session, fault};

use crate::options::ApplierOptions;
use crate::status::ApplierStatus;
use crate::trouble::Trouble;

/// A session that said nothing for this long is asked: longer than the ten seconds after which an
/// idle applier writes progress down, so that a healthy flow is never asked. Less where less is a
/// stall, so that what holds the session up is known by then.
const QUIET: Duration = Duration::from_secs(20);
/// An answer that takes longer stands behind a statement that takes long, or never comes.
const ANSWER: Duration = Duration::from_secs(10);
/// How often a resting watch notices that the session has said something.
const NOTICE: Duration = Duration::from_secs(1);
/// For connecting, and again for one small query.
const LOOK: Duration = Duration::from_secs(10);
/// Between two looks while there is doubt: an answer on its way has come by then.
const DOUBT: Duration = Duration::from_secs(5);
/// Between two looks while the backend works: each of them costs a connection.
const WORK: Duration = Duration::from_secs(30);
/// Looks in a row that must find the backend waiting for us while we wait for it.
const WAITS_MAX: u32 = 2;
/// Looks in a row that may fail to reach the server: it, or the way to it, is gone for a minute
/// then, and taking everything up anew says so in the status.
const UNREACHABLE_MAX: u32 = 4;

/// Which backend is ours; its start tells it from a later one with the same number.
const BACKEND: &str = "\
SELECT pid, (extract(epoch FROM backend_start) * 1000000)::bigint \
  FROM pg_catalog.pg_stat_activity WHERE pid = pg_catalog.pg_backend_pid()";
/// What it does. Its query is not asked for: that may hold values.
const ACTIVITY: &str = "\
SELECT coalesce(a.state, ''), coalesce(a.wait_event_type, ''), coalesce(a.wait_event, ''), b.who \
  FROM pg_catalog.pg_stat_activity AS a, ";
const WHICH: &str = " \
 WHERE a.pid = $1 AND (extract(epoch FROM a.backend_start) * 1000000)::bigint = $2";

/// SQL: a lateral table of one row, whose column `who` names the sessions that the backend `pid`
/// waits for; empty when it waits for nobody. What they are is shown to every role.
pub fn blockers(pid: &str) -> String {
    format!(
        "LATERAL (\
         SELECT coalesce(string_agg(DISTINCT CASE o.pid WHEN 0 THEN 'a prepared transaction' \
                ELSE concat('pid ', o.pid, ' (', concat_ws(', ', s.usename, \
                            nullif(s.application_name, '')), ')') END, ', '), '') AS who \
           FROM unnest(pg_catalog.pg_blocking_pids({pid})) AS o (pid) \
           LEFT JOIN pg_catalog.pg_stat_activity AS s ON s.pid = o.pid)"
    )
}

/// A backend of the target.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Backend {
    pid: i32,
    started: i64,
}

impl Backend {
    /// The one behind `client`.
    pub(crate) async fn of(client: &tokio_postgres::Client) -> Result<Self, Trouble> {
        let row = client.query_one(BACKEND, &[]).await?;
        Ok(Self {
            pid: row.get(0),
            started: row.get(1),
        })
    }
}

/// What a look saw.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Sight {
    /// No server was reached.
    Unreachable(String),
    /// A server answered, and would not let us look.
    Refused(String),
    /// The backend is not there.
    Gone,
    /// The backend waits for us.
    WaitsForUs,
    /// The backend works, or waits for somebody else.
    Works(String),
}

impl fmt::Display for Sight {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Sight::Unreachable(reason) => write!(f, "is silent, and so is the target: {reason}"),
            Sight::Refused(reason) => write!(f, "is silent, and may not be looked at: {reason}"),
            Sight::Gone => f.write_str("is gone"),
            Sight::WaitsForUs => f.write_str("waits for us"),
            Sight::Works(doing) => write!(f, "is {doing}"),
        }
    }
}

/// Counts doubts.
#[derive(Debug, Default)]
struct Judge {
    waits: u32,
    unreachable: u32,
}

impl Judge {
    /// Why the session is given up; `None` while it may still answer.
    fn judge(&mut self, sight: &Sight) -> Option<String> {
        let (waits, unreachable) = match sight {
            Sight::Gone => return Some("its backend is gone".to_owned()),
            Sight::WaitsForUs => (self.waits + 1, 0),
            Sight::Unreachable(_) => (0, self.unreachable + 1),
            Sight::Works(_) | Sight::Refused(_) => (0, 0),
        };
        (self.waits, self.unreachable) = (waits, unreachable);
        match sight {
            Sight::WaitsForUs if waits >= WAITS_MAX => {
                Some("its backend waits for us while we wait for it".to_owned())
            }
            Sight::Unreachable(reason) if unreachable >= UNREACHABLE_MAX => {
                Some(format!("new sessions do not reach it either: {reason}"))
            }
            _ => None,
        }
    }
}

/// The watch over one session.
pub(crate) struct Watch {
    session: Arc<Session>,
    backend: Backend,
    target: ConnectOptions,
    flow: FlowName,
    quiet: Duration,
    answer: Duration,
}

impl Watch {
    pub(crate) fn new(session: Arc<Session>, backend: Backend, options: &ApplierOptions) -> Self {
        let name = format!("trellara applier {} watch", options.flow);
        Self {
            session,
            backend,
            target: options.target.clone().with_application_name(&name),
            flow: options.flow.clone(),
            quiet: QUIET.min(options.stall_timeout / 2),
            answer: ANSWER.min(options.stall_timeout / 3),
        }
    }

    /// Resolves when the session will not answer any more; whether a commit under way happened is
    /// then for the ledger to say. What the session is seen doing before goes into `status`.
    pub(crate) async fn lost(&self, status: &ApplierStatus) -> Trouble {
        loop {
            self.quiet().await;
            let asked = Instant::now();
            if !self.answers().await
                && let Some(reason) = self.look_since(asked, status).await
            {
                let silent = self.session.silent_for().as_secs();
                self.session.abandon();
                return Trouble::passing(format!(
                    "the target session has said nothing for {silent} s, and {reason}"
                ));
            }
        }
    }

    async fn quiet(&self) {
        while let Some(rest) = self.quiet.checked_sub(self.session.silent_for()) {
            tokio::time::sleep(rest.max(Duration::from_millis(1))).await;
        }
    }

    /// Whether the session answers at once. An empty statement needs no transaction and no
    /// snapshot, and may stand behind any other.
    async fn answers(&self) -> bool {
        match tokio::time::timeout(self.answer, self.session.client.batch_execute("")).await {
            Ok(Err(_)) if self.session.is_closed() => {
                // Whoever works on the session gets the reason.
                std::future::pending().await
            }
            Ok(_) => true,
            Err(_) => false,
        }
    }

    /// Looks until the session has said something since `asked`, or is lost.
    async fn look_since(&self, asked: Instant, status: &ApplierStatus) -> Option<String> {
        let mut judge = Judge::default();
        let mut said = None;
        loop {
            let sight = self.look().await;
            if self.session.silent_for() < asked.elapsed() {
                return None;
            }
            let lost = judge.judge(&sight);
            if lost.is_some() {
                return lost;
            }
            if said.as_ref() != Some(&sight) {
                self.say(&sight);
            }
            status.seen(format!("its session {} {sight}", self.backend.pid));
            let rest = match sight {
                Sight::Works(_) | Sight::Refused(_) => WORK,
                Sight::Unreachable(_) | Sight::WaitsForUs | Sight::Gone => DOUBT,
            };
            said = Some(sight);
            if self.spoke_within(rest, asked).await {
                return None;
            }
        }
    }

    /// Rests; ends early, and with true, when the session has said something since `asked`.
    async fn spoke_within(&self, rest: Duration, asked: Instant) -> bool {
        let until = Instant::now() + rest;
        loop {
            if self.session.silent_for() < asked.elapsed() {
                return true;
            }
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return false;
            }
            tokio::time::sleep(left.min(NOTICE)).await;
        }
    }

    async fn look(&self) -> Sight {
        let unanswered = || Sight::Unreachable(format!("no answer within {} s", LOOK.as_secs()));
        let session = match tokio::time::timeout(LOOK, Session::connect(&self.target)).await {
            Ok(Ok(session)) => session,
            Ok(Err(error)) => return not_connected(&error),
            Err(_) => return unanswered(),
        };
        let Backend { pid, started } = self.backend;
        let which: [&(dyn tokio_postgres::types::ToSql + Sync); 2] = [&pid, &started];
        let activity = format!("{ACTIVITY}{} AS b{WHICH}", blockers("a.pid"));
        let asked = session.client.query_opt(&activity, &which);
        match tokio::time::timeout(LOOK, asked).await {
            Ok(Ok(None)) => Sight::Gone,
            Ok(Ok(Some(row))) => seen(row.get(0), row.get(1), row.get(2), row.get(3)),
            Ok(Err(error)) if error.as_db_error().is_some() => {
                Sight::Refused(fault(&error).to_string())
            }
            Ok(Err(error)) => Sight::Unreachable(fault(&error).to_string()),
            Err(_) => {
                session.abandon();
                unanswered()
            }
        }
    }

    fn say(&self, sight: &Sight) {
        let (flow, pid) = (&self.flow, self.backend.pid);
        let silent_seconds = self.session.silent_for().as_secs();
        match sight {
            Sight::Works(doing) => {
                tracing::warn!(%flow, pid, silent_seconds, doing, "a statement on the target takes long");
            }
            Sight::Refused(reason) | Sight::Unreachable(reason) => {
                tracing::warn!(
                    %flow, pid, silent_seconds, error = reason,
                    "the target session is silent, and what it does cannot be seen"
                );
            }
            Sight::WaitsForUs | Sight::Gone => {
                tracing::warn!(%flow, pid, silent_seconds, "the target session is silent");
            }
        }
    }
}

fn not_connected(error: &ConnectError) -> Sight {
    match error.kind {
        ConnectErrorKind::Unreachable
        | ConnectErrorKind::ServerStarting
        | ConnectErrorKind::NoSuitableServer => Sight::Unreachable(error.to_string()),
        ConnectErrorKind::TooManyConnections
        | ConnectErrorKind::Refused
        | ConnectErrorKind::Tls
        | ConnectErrorKind::Server
        | ConnectErrorKind::Protocol => Sight::Refused(error.to_string()),
    }
}

/// What a row of `pg_stat_activity` says. The wait event is there even where states are not
/// tracked; a backend that cannot get rid of an answer waits for us as well.
fn seen(state: &str, event_type: &str, event: &str, blockers: &str) -> Sight {
    if event_type == "Client" || state.starts_with("idle") {
        return Sight::WaitsForUs;
    }
    Sight::Works(match (event_type, blockers) {
        ("", _) => state.to_owned(),
        (_, "") => format!("{state}, waiting for {event_type} {event}"),
        _ => format!("{state}, waiting for {event_type} {event}, held by {blockers}"),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn unreachable() -> Sight {
        Sight::Unreachable("no route".to_owned())
    }

    #[test]
    fn a_backend_that_is_gone_answers_nothing() {
        assert!(Judge::default().judge(&Sight::Gone).is_some());
    }

    #[test]
    fn a_backend_that_works_or_is_blocked_is_waited_for_for_ever() {
        let mut judge = Judge::default();
        for _ in 0..1000 {
            let works = seen("active", "Lock", "relation", "pid 17 ()");
            assert_eq!(judge.judge(&works), None);
            assert_eq!(judge.judge(&Sight::Refused("no slot".to_owned())), None);
        }
    }

    #[test]
    fn only_a_second_look_in_a_row_finds_an_answer_lost() {
        let mut judge = Judge::default();
        assert_eq!(judge.judge(&Sight::WaitsForUs), None);
        assert_eq!(judge.judge(&seen("active", "", "", "")), None);
        assert_eq!(judge.judge(&Sight::WaitsForUs), None);
        assert_eq!(judge.judge(&unreachable()), None);
        assert_eq!(judge.judge(&Sight::WaitsForUs), None);
        assert!(judge.judge(&Sight::WaitsForUs).is_some());
    }

    #[test]
    fn an_unreachable_server_is_waited_for_a_bounded_time() {
        let mut judge = Judge::default();
        for _ in 1..UNREACHABLE_MAX {
            assert_eq!(judge.judge(&unreachable()), None);
        }
        let reason = judge.judge(&unreachable()).expect("given up");
        assert!(reason.contains("no route"), "{reason}");
    }

    #[test]
    fn rows_are_read_with_and_without_tracked_states() {
        for (state, event_type, event) in [
            ("idle", "Client", "ClientRead"),
            ("idle in transaction", "Client", "ClientRead"),
            ("idle in transaction (aborted)", "", ""),
            ("disabled", "Client", "ClientRead"),
            ("active", "Client", "ClientWrite"),
        ] {
            assert_eq!(seen(state, event_type, event, ""), Sight::WaitsForUs);
        }
        let works =
            |state, event_type, event, blockers| match seen(state, event_type, event, blockers) {
                Sight::Works(doing) => doing,
                sight => panic!("{sight:?}"),
            };
        assert_eq!(works("active", "", "", ""), "active");
        assert_eq!(
            works("active", "IO", "DataFileRead", ""),
            "active, waiting for IO DataFileRead"
        );
        assert_eq!(
            works(
                "active",
                "Lock",
                "transactionid",
                "pid 12 (ann, psql), pid 14 (bob)"
            ),
            "active, waiting for Lock transactionid, held by pid 12 (ann, psql), pid 14 (bob)"
        );
    }
}
