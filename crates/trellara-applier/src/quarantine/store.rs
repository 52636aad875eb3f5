//! Reading what is held.

use std::collections::HashSet;
use std::time::SystemTime;

use tokio_postgres::types::PgLsn;
use tokio_postgres::{Client, Row};
use trellara_envelope::{
    CommitTime, FlowName, FrameDigest, FrameOrdinal, Halt, HaltCode, Incarnation, Lane,
    LedgerOrdinal, StreamSequence, TransactionHash, TransactionIdentity, Xid,
};

use super::{Cause, Held, HeldId, HeldReason, HeldState, HeldStorage, Overtaker};
use crate::checkpoint::{Checkpoint, StreamIdentity, Transport};
use crate::ledger::{LedgerError, lane as lane_number, lsn, microseconds, pg, source};

/// What [`read`] reads, in this order.
const COLUMNS: &str = "h.id, h.hash, h.source_system, h.source_timeline, h.commit_lsn, h.end_lsn, \
    h.source_xid, h.committed_at_us, h.reason, h.state, h.storage, h.chunked, h.stream_sequence, \
    h.stream, h.stream_created, h.after_lsn, h.after_sequence, h.after_incarnation, \
    h.after_ordinal, h.after_digest, h.frames, h.bytes, h.changes, h.keys, h.sqlstate, h.message, \
    h.detail, h.hint, h.schema_name, h.table_name, h.object, h.failed_change, h.attempts, \
    h.held_at, h.closed_at, h.overtaken_by, h.overtaken_lsn, h.after_timeline, \
    h.before_ordinal, h.incarnation, h.frame_digest, h.last_tried_at, h.closed_reason";

/// Which of a lane's held transactions.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Which {
    /// Those that are still to be applied.
    Open,
    /// All.
    All,
}

/// A lane's held transactions in the order in which they were set aside.
///
/// # Errors
/// When the server refuses, or a row holds what this build never wrote.
pub async fn list(
    client: &Client,
    flow: &FlowName,
    lane: Lane,
    which: Which,
) -> Result<Vec<Held>, LedgerError> {
    let open = match which {
        Which::Open => "AND h.state IN ('held', 'replaying')",
        Which::All => "",
    };
    let query = format!(
        "SELECT {COLUMNS} FROM trellara.held AS h WHERE h.flow = $1 AND h.lane = $2 {open} \
          ORDER BY h.id"
    );
    let rows = client
        .query(&query, &[&flow.as_str(), &lane_number(lane)])
        .await?;
    rows.iter().map(|row| Ok(read(row)?)).collect()
}

/// One held transaction of a flow; `None` when there is none of that number.
///
/// # Errors
/// As [`list`].
pub async fn get(
    client: &Client,
    flow: &FlowName,
    lane: Lane,
    id: HeldId,
) -> Result<Option<Held>, LedgerError> {
    let query = format!(
        "SELECT {COLUMNS} FROM trellara.held AS h WHERE h.flow = $1 AND h.lane = $2 AND h.id = $3"
    );
    let row = client
        .query_opt(&query, &[&flow.as_str(), &lane_number(lane), &id.0])
        .await?;
    Ok(row.as_ref().map(read).transpose()?)
}

/// Which of these transactions the lane has moved past by setting them aside, whatever became of them
/// since. One round trip, and none for none.
///
/// # Errors
/// When the server refuses.
pub async fn held_among(
    client: &Client,
    (flow, lane): (&FlowName, Lane),
    hashes: &[TransactionHash],
) -> Result<HashSet<TransactionHash>, LedgerError> {
    const AMONG: &str = "\
        SELECT hash FROM trellara.held \
         WHERE flow = $1 AND lane = $2 AND hash = ANY ($3) AND reason <> 'blocking'";
    if hashes.is_empty() {
        return Ok(HashSet::new());
    }
    let asked: Vec<&[u8]> = hashes.iter().map(|hash| &hash.0[..]).collect();
    let rows = client
        .query(AMONG, &[&flow.as_str(), &lane_number(lane), &asked])
        .await?;
    let hash = |row: &Row| row.get::<_, &[u8]>(0).try_into().ok().map(TransactionHash);
    Ok(rows.iter().filter_map(hash).collect())
}

/// Whether the lane has moved past a transaction that ends beyond where it stands: nothing does that
/// but a source that was set back, and a hand in our tables.
pub(crate) async fn any_beyond(
    client: &Client,
    (flow, lane): (&FlowName, Lane),
    stands: &Checkpoint,
) -> Result<bool, tokio_postgres::Error> {
    const BEYOND: &str = "\
        SELECT EXISTS (SELECT FROM trellara.held \
                        WHERE flow = $1 AND lane = $2 AND end_lsn > $3 AND reason <> 'blocking')";
    let stands = pg(stands.end_lsn);
    let row = client
        .query_one(BEYOND, &[&flow.as_str(), &lane_number(lane), &stands])
        .await?;
    Ok(row.get(0))
}

/// How many of a flow's transactions are held and neither replayed nor discarded, in all lanes.
///
/// # Errors
/// When the server refuses; 42P01 or 42703 where the target's state is older than quarantine.
pub async fn count_open(client: &Client, flow: &FlowName) -> Result<u64, tokio_postgres::Error> {
    const OPEN: &str = "\
        SELECT count(*) FROM trellara.held WHERE flow = $1 AND state IN ('held', 'replaying')";
    let row = client.query_one(OPEN, &[&flow.as_str()]).await?;
    Ok(row.get::<_, i64>(0).cast_unsigned())
}

/// Which open transactions of a lane wait behind which: pairs of the one that waits and one of the
/// nearest that it waits for; those may wait for others themselves.
///
/// # Errors
/// When the server refuses.
pub async fn waiting(
    client: &Client,
    flow: &FlowName,
    lane: Lane,
) -> Result<Vec<(HeldId, HeldId)>, tokio_postgres::Error> {
    const WAITING: &str = "\
        WITH RECURSIVE behind (id, on_id) AS ( \
            SELECT d.held_id, d.on_id FROM trellara.held_dependency AS d \
              JOIN trellara.held AS h ON h.id = d.held_id \
             WHERE h.flow = $1 AND h.lane = $2 AND h.state IN ('held', 'replaying') \
            UNION \
            SELECT b.id, d.on_id FROM behind AS b \
              JOIN trellara.held AS o ON o.id = b.on_id AND o.closed_at IS NOT NULL AND o.state <> 'replayed' \
              JOIN trellara.held_dependency AS d ON d.held_id = o.id) \
        SELECT b.id, b.on_id FROM behind AS b JOIN trellara.held AS o ON o.id = b.on_id \
         WHERE o.state IN ('held', 'replaying') ORDER BY 1, 2";
    let rows = client
        .query(WAITING, &[&flow.as_str(), &lane_number(lane)])
        .await?;
    let pair = |row: &Row| (HeldId(row.get(0)), HeldId(row.get(1)));
    Ok(rows.iter().map(pair).collect())
}

/// The target's clock: microseconds since the Unix epoch.
///
/// # Errors
/// When the server refuses.
pub async fn now_us(client: &Client) -> Result<i64, tokio_postgres::Error> {
    let row = client.query_one("SELECT clock_timestamp()", &[]).await?;
    Ok(microseconds(row.get(0)))
}

fn read(row: &Row) -> Result<Held, Halt> {
    let committed_on = source(row.get(2), row.get(3));
    let time = |column: usize| -> Option<i64> {
        row.get::<_, Option<SystemTime>>(column).map(microseconds)
    };
    let unsigned = |column: usize| row.get::<_, i64>(column).cast_unsigned();
    let position = |column: usize| lsn(row.get::<_, PgLsn>(column));
    Ok(Held {
        id: HeldId(row.get(0)),
        identity: TransactionIdentity {
            source: committed_on,
            commit_lsn: position(4),
            xid: Xid(u32::try_from(row.get::<_, i64>(6)).map_err(|_| unknown("source_xid"))?),
            commit_time: CommitTime(row.get(7)),
        },
        hash: TransactionHash::from_slice(row.get(1)).ok_or_else(|| unknown("hash"))?,
        end_lsn: position(5),
        reason: HeldReason::parse(row.get(8)).ok_or_else(|| unknown("reason"))?,
        state: HeldState::parse(row.get(9)).ok_or_else(|| unknown("state"))?,
        storage: HeldStorage::parse(row.get(10)).ok_or_else(|| unknown("storage"))?,
        chunked: row.get(11),
        sequence: StreamSequence(unsigned(12)),
        incarnation: Incarnation(unsigned(39)),
        digest: FrameDigest::from_slice(row.get(40)).ok_or_else(|| unknown("frame_digest"))?,
        after: Checkpoint {
            ordinal: LedgerOrdinal(0),
            // Written by a later timeline, perhaps, than the one it committed on.
            source: source(row.get(2), row.get(37)),
            end_lsn: position(15),
            transaction_end_lsn: position(5),
            transport: Transport {
                stream: StreamIdentity {
                    name: row.get(13),
                    created: row.get(14),
                },
                sequence: StreamSequence(unsigned(16)),
                incarnation: Incarnation(unsigned(17)),
                ordinal: FrameOrdinal(unsigned(18)),
                digest: FrameDigest::from_slice(row.get(19))
                    .ok_or_else(|| unknown("after_digest"))?,
            },
        },
        before: LedgerOrdinal(row.get(38)),
        frames: unsigned(20),
        bytes: unsigned(21),
        changes: unsigned(22),
        keys: unsigned(23),
        cause: Cause {
            sqlstate: row.get(24),
            message: row.get(25),
            detail: row.get(26),
            hint: row.get(27),
            schema: row.get(28),
            table: row.get(29),
            object: row.get(30),
            change: unsigned(31),
        },
        attempts: unsigned(32),
        held_at_us: time(33).ok_or_else(|| unknown("held_at"))?,
        closed_at_us: time(34),
        last_tried_at_us: time(41),
        closed_reason: row.get(42),
        overtaken: row
            .get::<_, Option<String>>(35)
            .map(|transaction| Overtaker {
                transaction,
                end_lsn: position(36),
            }),
    })
}

fn unknown(column: &str) -> Halt {
    Halt::new(
        HaltCode::State,
        format!("a row of trellara.held holds a {column} that this build does not know"),
        "was it changed by hand, or written by a newer trellara? Run that one",
    )
}
