//! What the source's commit log says about subtransactions.

use trellara_envelope::{AbortedRange, AbortedSet, Xid};
use trellara_postgres::{Session, fault};

/// Why it is not known which subtransactions were rolled back.
#[derive(Debug, thiserror::Error)]
pub enum Unknown {
    /// The question failed.
    #[error("{0}")]
    Failed(String),
    /// The session is with a server that does not decode our slot, or not our transaction.
    #[error("the server asked is not the one that sends")]
    Elsewhere,
    /// The server no longer remembers.
    #[error("the source no longer knows how subtransaction {0} ended")]
    Forgotten(Xid),
}

/// A query asks about this many ids at most: a moment of the server's time, and a bound for what
/// it answers.
const IDS_PER_QUERY: u32 = 1 << 16;

/// Whether this server decodes the slot. After a failover the session may be with a standby that
/// has not replayed a rollback yet, or with another primary, which gave the same ids to others.
const IS_HERE: &str = "SELECT NOT pg_catalog.pg_is_in_recovery() AND EXISTS (
    SELECT FROM pg_catalog.pg_replication_slots WHERE slot_name = $1 AND active)";

/// Ids with their status, except of those that are in effect. An id is 32 bits wide; the one
/// nearest to the newest is meant, behind it where a commit is just happening. In progress counts
/// as committed: a rollback of a part is in the commit log before the whole can commit.
const NOT_IN_EFFECT: &str = "WITH newest AS MATERIALIZED (
    SELECT pg_catalog.pg_snapshot_xmax(pg_catalog.pg_current_snapshot())::text::int8 AS id
), asked AS MATERIALIZED (
    SELECT ids.id, pg_catalog.pg_xact_status((newest.id
        + ((ids.id - newest.id + 2147483648) & 4294967295) - 2147483648)::text::xid8) AS status
    FROM newest, unnest($1::int8[], $2::int8[]) AS ranges (first, last),
        LATERAL generate_series(ranges.first, ranges.last) AS ids (id)
)
SELECT id, status FROM asked WHERE status IS NULL OR status NOT IN ('committed', 'in progress')";

/// Which of the subtransactions `asked` about, all of the committed transaction `xid`, were rolled
/// back.
///
/// # Errors
/// When the server cannot say so of each.
pub async fn rolled_back(
    session: &Session,
    slot: &str,
    xid: Xid,
    asked: &[AbortedRange],
) -> Result<AbortedSet, Unknown> {
    let failed = |error: tokio_postgres::Error| Unknown::Failed(fault(&error).message);
    let here = session.client.query_one(IS_HERE, &[&slot]).await;
    if !here.map_err(failed)?.get::<_, bool>(0) {
        return Err(Unknown::Elsewhere);
    }
    let statement = session
        .client
        .prepare(NOT_IN_EFFECT)
        .await
        .map_err(failed)?;
    let top = AbortedRange {
        first: xid,
        last: xid,
    };
    let mut found = AbortedSet::new();
    for piece in std::iter::once(vec![top]).chain(pieces(asked)) {
        let ends = |end: fn(&AbortedRange) -> Xid| -> Vec<i64> {
            piece.iter().map(|range| i64::from(end(range).0)).collect()
        };
        let (first, last) = (ends(|range| range.first), ends(|range| range.last));
        let rows = session.client.query(&statement, &[&first, &last]).await;
        let mut aborted = Vec::new();
        for row in rows.map_err(failed)? {
            let id = u32::try_from(row.get::<_, i64>(0)).expect("one of those asked about");
            if Xid(id) == xid {
                return Err(Unknown::Elsewhere);
            }
            if row.get::<_, Option<&str>>(1).is_none() {
                return Err(Unknown::Forgotten(Xid(id)));
            }
            aborted.push(AbortedRange {
                first: Xid(id),
                last: Xid(id),
            });
        }
        found.extend(aborted);
    }
    Ok(found)
}

/// The ranges, cut so that no piece names too many ids.
fn pieces(asked: &[AbortedRange]) -> impl Iterator<Item = Vec<AbortedRange>> {
    let mut ranges = asked.iter().copied();
    let mut rest: Option<AbortedRange> = None;
    std::iter::from_fn(move || {
        let mut piece = Vec::new();
        let mut room = IDS_PER_QUERY;
        while room > 0 {
            let Some(range) = rest.take().or_else(|| ranges.next()) else {
                break;
            };
            let (Xid(first), Xid(last)) = (range.first, range.last);
            let end = last.min(first.saturating_add(room - 1));
            piece.push(AbortedRange {
                first: range.first,
                last: Xid(end),
            });
            room -= end - first + 1;
            rest = (end < last).then(|| AbortedRange {
                first: Xid(end + 1),
                last: range.last,
            });
        }
        (!piece.is_empty()).then_some(piece)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_query_asks_about_too_many() {
        let range = |first, last| AbortedRange {
            first: Xid(first),
            last: Xid(last),
        };
        let asked = [range(7, 7), range(10, 150_000), range(u32::MAX, u32::MAX)];
        let cut: Vec<Vec<AbortedRange>> = pieces(&asked).collect();
        assert_eq!(
            cut,
            [
                vec![range(7, 7), range(10, 65_544)],
                vec![range(65_545, 131_080)],
                vec![range(131_081, 150_000), range(u32::MAX, u32::MAX)],
            ]
        );
    }
}
