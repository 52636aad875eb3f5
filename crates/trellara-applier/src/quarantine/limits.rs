//! How much may be held before the lane stops instead.

use std::fmt;
use std::time::Duration;

use tokio_postgres::{Client, Error};
use trellara_envelope::{FlowName, Lane};

use super::{HeldId, QuarantineOptions};
use crate::ledger::{lane as lane_number, microseconds};

const READ: &str = "\
SELECT count(*), coalesce(sum(bytes), 0)::bigint, coalesce(sum(keys), 0)::bigint, \
       coalesce(sum(bytes) FILTER (WHERE reason <> 'blocking'), 0)::bigint, \
       coalesce(sum(keys) FILTER (WHERE reason <> 'blocking'), 0)::bigint, \
       min(held_at), (array_agg(id ORDER BY held_at, id))[1], \
       min(held_at) FILTER (WHERE reason <> 'blocking'), \
       (array_agg(id ORDER BY held_at, id) FILTER (WHERE reason <> 'blocking'))[1], \
       count(*) FILTER (WHERE reason <> 'blocking'), \
       (SELECT count(*) FROM trellara.held AS d \
         WHERE d.flow = $1 AND d.lane = $2 AND d.state = 'discarded'), \
       clock_timestamp() \
  FROM trellara.held WHERE flow = $1 AND lane = $2 AND state IN ('held', 'replaying')";

const STANDS: &str = "\
SELECT h.id FROM trellara.held AS h \
 WHERE h.flow = $1 AND h.lane = $2 AND h.reason = 'blocking' AND h.state IN ('held', 'replaying') \
   AND h.before_ordinal = (SELECT a.last_ordinal FROM trellara.applied AS a \
                            WHERE a.flow = $1 AND a.lane = $2 \
                            ORDER BY a.first_ordinal DESC LIMIT 1)";

/// What is held of a lane and still to be applied.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Totals {
    /// Transactions.
    pub transactions: u64,
    /// Bytes of their frames.
    pub bytes: u64,
    /// Entries of their footprints.
    pub keys: u64,
    /// The same two of those that the lane has moved past.
    pub passed_bytes: u64,
    /// Their entries.
    pub passed_keys: u64,
    /// When the oldest was set aside, in microseconds since the Unix epoch, by the target's clock;
    /// and which it is.
    pub oldest: Option<(i64, HeldId)>,
    /// The oldest of those that the lane has moved past.
    pub oldest_passed: Option<(i64, HeldId)>,
    /// Those that the lane has moved past; limits are about them.
    pub passed: u64,
    /// Those that are not to be applied; they count in nothing else.
    pub discarded: u64,
    /// The target's clock when this was read.
    pub now_us: i64,
}

/// Reads them.
///
/// # Errors
/// When the server refuses.
pub async fn totals(client: &Client, flow: &FlowName, lane: Lane) -> Result<Totals, Error> {
    let row = client
        .query_one(READ, &[&flow.as_str(), &lane_number(lane)])
        .await?;
    let unsigned = |column: usize| row.get::<_, i64>(column).cast_unsigned();
    let oldest = |column: usize| {
        row.get::<_, Option<std::time::SystemTime>>(column)
            .map(microseconds)
            .zip(row.get::<_, Option<i64>>(column + 1).map(HeldId))
    };
    Ok(Totals {
        transactions: unsigned(0),
        bytes: unsigned(1),
        keys: unsigned(2),
        passed_bytes: unsigned(3),
        passed_keys: unsigned(4),
        oldest: oldest(5),
        oldest_passed: oldest(7),
        passed: unsigned(9),
        discarded: unsigned(10),
        now_us: microseconds(row.get(11)),
    })
}

/// The held transaction that is the next one of the lane, if the lane stands in front of one.
///
/// # Errors
/// When the server refuses.
pub async fn stands_in_front_of(
    client: &Client,
    flow: &FlowName,
    lane: Lane,
) -> Result<Option<HeldId>, Error> {
    let row = client
        .query_opt(STANDS, &[&flow.as_str(), &lane_number(lane)])
        .await?;
    Ok(row.map(|row| HeldId(row.get(0))))
}

/// A limit that stops the lane.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Limit {
    /// `quarantine.max_transactions`.
    Transactions(u64),
    /// `quarantine.max_bytes`.
    Bytes(u64),
    /// `quarantine.max_keys`.
    Keys(u64),
    /// `quarantine.max_age`.
    Age(Duration),
}

impl fmt::Display for Limit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Limit::Transactions(most) => write!(f, "quarantine.max_transactions ({most})"),
            Limit::Bytes(most) => write!(f, "quarantine.max_bytes ({most})"),
            Limit::Keys(most) => write!(f, "quarantine.max_keys ({most})"),
            Limit::Age(most) => write!(f, "quarantine.max_age ({} s)", most.as_secs()),
        }
    }
}

impl Totals {
    /// The limit that one more transaction of `bytes` bytes and `keys` keys would exceed.
    pub fn limit(self, options: &QuarantineOptions, bytes: u64, keys: u64) -> Option<Limit> {
        let most = options;
        if self.passed + 1 > most.max_transactions {
            Some(Limit::Transactions(most.max_transactions))
        } else if self.passed_bytes.saturating_add(bytes) > most.max_bytes {
            Some(Limit::Bytes(most.max_bytes))
        } else if self.passed_keys.saturating_add(keys) > most.max_keys {
            Some(Limit::Keys(most.max_keys))
        } else {
            None
        }
    }

    /// Counts one more.
    pub fn add(&mut self, id: HeldId, held_at_us: i64, bytes: u64, keys: u64) {
        self.transactions += 1;
        self.passed += 1;
        self.bytes = self.bytes.saturating_add(bytes);
        self.keys = self.keys.saturating_add(keys);
        self.passed_bytes = self.passed_bytes.saturating_add(bytes);
        self.passed_keys = self.passed_keys.saturating_add(keys);
        self.oldest.get_or_insert((held_at_us, id));
        self.oldest_passed.get_or_insert((held_at_us, id));
    }

    /// The oldest, when it has waited for longer than it may; `since` has passed since this was
    /// read.
    pub fn too_old(self, options: &QuarantineOptions, since: Duration) -> Option<(HeldId, Limit)> {
        let (most, (held_at, id)) = options.max_age.zip(self.oldest_passed)?;
        let waited = u64::try_from(self.now_us.saturating_sub(held_at)).unwrap_or(0);
        let waited = Duration::from_micros(waited).saturating_add(since);
        (waited > most).then_some((id, Limit::Age(most)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn options() -> QuarantineOptions {
        QuarantineOptions {
            max_bytes: 100,
            max_keys: 10,
            max_transactions: 2,
            max_age: Some(Duration::from_secs(60)),
            ..QuarantineOptions::default()
        }
    }

    #[test]
    fn each_limit_is_exceeded_by_the_first_beyond_it() {
        let mut totals = Totals::default();
        assert_eq!(totals.limit(&options(), 100, 10), None);
        assert_eq!(totals.limit(&options(), 101, 0), Some(Limit::Bytes(100)));
        assert_eq!(totals.limit(&options(), 0, 11), Some(Limit::Keys(10)));
        totals.add(HeldId(7), 1_000_000, 60, 6);
        totals.add(HeldId(8), 2_000_000, 40, 4);
        assert_eq!(totals.limit(&options(), 0, 0), Some(Limit::Transactions(2)));
        assert_eq!(totals.oldest, Some((1_000_000, HeldId(7))));
    }

    #[test]
    fn the_oldest_is_too_old_a_moment_after_its_limit() {
        let totals = Totals {
            oldest_passed: Some((0, HeldId(7))),
            now_us: 59_000_000,
            ..Totals::default()
        };
        assert_eq!(totals.too_old(&options(), Duration::from_secs(1)), None);
        let late = totals.too_old(&options(), Duration::from_millis(1001));
        assert_eq!(late, Some((HeldId(7), Limit::Age(Duration::from_secs(60)))));
        let off = QuarantineOptions::default();
        assert_eq!(totals.too_old(&off, Duration::from_secs(9999)), None);
    }
}
