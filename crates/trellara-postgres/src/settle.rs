//! The settle barrier: when an exported snapshot may be read.
//!
//! A walsender counts a transaction as committed as soon as its commit record is flushed, while its
//! backend leaves the proc array a moment later. Whoever reads with the exported snapshot in that
//! gap takes the transaction for aborted and *writes that into the page*: rows are lost on the
//! source, silently and for good. So nobody reads before every transaction that the snapshot calls
//! finished has left the proc array.

use std::fmt;
use std::str::FromStr;
use std::time::{Duration, Instant};

use trellara_envelope::Xid;

use crate::Session;

/// Between two looks; the longest wait ever measured was 26 ms.
const PAUSE: Duration = Duration::from_millis(2);

/// A snapshot as `pg_current_snapshot()` prints it: `xmin:xmax:in,progress`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Snapshot {
    /// Every transaction below is finished.
    pub xmin: u64,
    /// No transaction from here on is visible; never below `xmin`.
    pub xmax: u64,
    /// Still running between the two, ascending.
    pub in_progress: Vec<u64>,
}

/// The text was not a snapshot of the form `xmin:xmax:in,progress`.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("not a snapshot (expected the form 10:20:12,14)")]
pub struct ParseSnapshotError;

impl FromStr for Snapshot {
    type Err = ParseSnapshotError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let number = |text: &str| text.parse::<u64>().map_err(|_| ParseSnapshotError);
        let mut parts = text.splitn(3, ':');
        let mut part = || parts.next().ok_or(ParseSnapshotError);
        let (xmin, xmax, list) = (number(part()?)?, number(part()?)?, part()?);
        let in_progress: Result<Vec<u64>, _> = list
            .split(',')
            .filter(|xid| !xid.is_empty())
            .map(number)
            .collect();
        let snapshot = Snapshot {
            xmin,
            // A slot's snapshot can say less: logical decoding raises it at commits alone, and xmin
            // whenever it hears what is running. Visibility asks for xmin first, so what lies
            // between the two is finished, and the barrier has to wait for it like for the rest.
            xmax: xmax.max(xmin),
            in_progress: in_progress?,
        };
        let ascending = snapshot.in_progress.is_sorted_by(|a, b| a < b);
        if ascending {
            Ok(snapshot)
        } else {
            Err(ParseSnapshotError)
        }
    }
}

impl fmt::Display for Snapshot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let list: Vec<String> = self.in_progress.iter().map(u64::to_string).collect();
        write!(f, "{}:{}:{}", self.xmin, self.xmax, list.join(","))
    }
}

impl Snapshot {
    fn runs(&self, xid: u64) -> bool {
        self.in_progress.binary_search(&xid).is_ok()
    }

    /// Whether a transaction that has committed is in this snapshot, by its 32-bit id; ids are
    /// understood within two thousand million of the snapshot's own, as the server does.
    pub fn sees(&self, xid: Xid) -> bool {
        #[expect(clippy::cast_possible_truncation, reason = "ids wrap around by design")]
        let behind = (self.xmax as u32).wrapping_sub(xid.0).cast_signed();
        let xid = self.xmax.wrapping_add_signed(-i64::from(behind));
        behind > 0 && !self.runs(xid)
    }

    /// Transactions that this (exported) snapshot calls finished and `now` does not: those listed
    /// as running, and those that the later snapshot has not even heard of. Without the second
    /// half rows were still lost.
    pub fn pending(&self, now: &Snapshot) -> Vec<u64> {
        let running = now
            .in_progress
            .iter()
            .copied()
            .filter(|xid| *xid < self.xmax);
        let unheard = now.xmax..self.xmax.max(now.xmax);
        running
            .chain(unheard)
            .filter(|xid| !self.runs(*xid))
            .collect()
    }
}

/// The barrier could not be passed.
#[derive(Debug, thiserror::Error)]
pub enum SettleError {
    /// The transactions named were still committing when the time was up.
    #[error("transactions were still committing after {} ms: {waiting}", waited.as_millis())]
    TimedOut {
        /// How long was waited.
        waited: Duration,
        /// Transaction ids, with pid and wait event where they could be seen.
        waiting: String,
    },
    /// The server failed.
    #[error(transparent)]
    Server(#[from] tokio_postgres::Error),
    /// The server's answer was not a snapshot.
    #[error(transparent)]
    Malformed(#[from] ParseSnapshotError),
}

/// Waits until the exported snapshot may be read.
///
/// `exported` is what `SELECT pg_current_snapshot()` says as the *first* statement of the
/// transaction that imported it (that touches no table); `session` is another session, outside of
/// any transaction. Never waits for transactions that the exported snapshot lists as running. A
/// commit that waits for a synchronous standby holds the barrier up, so streaming must have started
/// before (rule C10).
///
/// # Errors
/// [`SettleError::TimedOut`] after `limit`, naming whom it waited for.
pub async fn settle(
    session: &Session,
    exported: &Snapshot,
    limit: Duration,
) -> Result<(), SettleError> {
    let began = Instant::now();
    loop {
        let row = session
            .client
            .query_one("SELECT pg_catalog.pg_current_snapshot()::text", &[])
            .await?;
        let now: Snapshot = row.try_get::<_, &str>(0)?.parse()?;
        let pending = exported.pending(&now);
        if pending.is_empty() {
            return Ok(());
        }
        let waited = began.elapsed();
        if waited >= limit {
            let waiting = who(session, &pending).await?;
            return Err(SettleError::TimedOut { waited, waiting });
        }
        tokio::time::sleep(PAUSE).await;
    }
}

/// Names the first few transactions with their backends.
async fn who(session: &Session, pending: &[u64]) -> Result<String, tokio_postgres::Error> {
    // backend_xid has 32 bits of the 64.
    let xids: Vec<String> = pending
        .iter()
        .take(10)
        .map(|xid| (xid & 0xffff_ffff).to_string())
        .collect();
    let list: Vec<String> = xids.iter().map(|xid| crate::quote::literal(xid)).collect();
    let sql = format!(
        "SELECT backend_xid::text, pid::text, coalesce(wait_event_type || '/' || wait_event, 'running') \
         FROM pg_catalog.pg_stat_activity WHERE backend_xid::text IN ({})",
        list.join(", ")
    );
    let rows = session.client.query(&sql, &[]).await?;
    let mut named = Vec::with_capacity(xids.len());
    for xid in xids {
        let row = rows
            .iter()
            .find(|row| row.try_get::<_, &str>(0).is_ok_and(|x| x == xid));
        named.push(match row {
            Some(row) => {
                let (pid, event): (&str, Option<&str>) = (row.try_get(1)?, row.try_get(2)?);
                format!("xid {xid} (pid {pid}, {})", event.unwrap_or("?"))
            }
            None => format!("xid {xid}"),
        });
    }
    Ok(named.join(", "))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn snapshot(text: &str) -> Snapshot {
        text.parse().expect("a snapshot")
    }

    #[test]
    fn pending_is_what_was_called_finished_too_early() {
        let exported = snapshot("10:20:12,14");
        assert_eq!(exported.pending(&snapshot("20:20:")), Vec::<u64>::new());
        assert_eq!(
            exported.pending(&snapshot("12:20:12,14")),
            Vec::<u64>::new(),
            "known to run"
        );
        assert_eq!(
            exported.pending(&snapshot("12:20:12,13,14,19")),
            vec![13, 19]
        );
        assert_eq!(
            exported.pending(&snapshot("12:18:12")),
            vec![18, 19],
            "not heard of yet"
        );
        assert_eq!(
            exported.pending(&snapshot("25:30:27")),
            Vec::<u64>::new(),
            "all later"
        );
    }

    /// Which a slot's snapshot has when nobody committed while it was made.
    #[test]
    fn an_xmax_below_xmin_hides_nobody_from_the_barrier() {
        let exported = snapshot("20:10:");
        assert_eq!(exported.pending(&snapshot("20:20:")), Vec::<u64>::new());
        assert_eq!(exported.pending(&snapshot("5:30:5,15,20")), vec![5, 15]);
        assert_eq!(exported.pending(&snapshot("18:18:")), vec![18, 19]);
    }

    #[test]
    fn a_snapshot_sees_what_was_over_by_its_32_bit_id() {
        let low = snapshot("10:20:12,14");
        for (xid, seen) in [(9, true), (10, true), (12, false), (19, true), (20, false)] {
            assert_eq!(low.sees(Xid(xid)), seen, "{xid}");
        }
        // Two epochs on, just behind the wrap-around.
        let wrapped = snapshot("8589934590:8589934602:8589934591,8589934600");
        for (xid, seen) in [
            (u32::MAX - 2, true),
            (u32::MAX - 1, true),
            (u32::MAX, false),
            (3, true),
            (8, false),
            (9, true),
            (10, false),
            (11, false),
        ] {
            assert_eq!(wrapped.sees(Xid(xid)), seen, "{xid}");
        }
    }

    #[test]
    fn snapshots_print_as_they_are_read() {
        for text in ["10:20:12,14", "5:5:"] {
            assert_eq!(snapshot(text).to_string(), text);
        }
        for text in ["", "1:2", "1:9:4,3", "a:b:c"] {
            assert!(text.parse::<Snapshot>().is_err(), "{text}");
        }
    }
}
