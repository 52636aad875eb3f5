//! States that cannot be are refused by the server, whoever writes them.

use std::collections::BTreeSet;

use tokio_postgres::Client;

use crate::flow::Target;

/// One legal row of each table, of `held` a second one that waits behind the first.
const LEGAL: &str = "
    INSERT INTO trellara.held (flow, lane, hash, source_system, source_timeline, commit_lsn,
        end_lsn, source_xid, committed_at_us, reason, storage, chunked, stream, stream_created,
        stream_sequence, incarnation, frame_digest, after_lsn, after_timeline, after_sequence,
        after_incarnation, after_ordinal, after_digest, frames, bytes, changes)
      SELECT 'shop', 0, d, 1, 1, '0/1', '0/2', 700, 0, r, 'target', false, 's', 'then', 9, 1, d,
             '0/2', 1, 9, 1, 9, d, 1, 10, 1
        FROM unnest('{poisoned, dependent}'::text[]) AS r,
             LATERAL (SELECT substr(sha256(r::bytea), 1, 16)) AS h (d);
    INSERT INTO trellara.held_frame SELECT 1, 0, 9, hash, '' FROM trellara.held WHERE id = 1;
    INSERT INTO trellara.held_key VALUES (1, 'public', 't', 'row', '{}');
    INSERT INTO trellara.held_dependency VALUES (2, 1);
    INSERT INTO trellara.skipped (flow, lane, hash, commit_lsn, end_lsn, source_xid, change, verb,
        conflict, rule, schema, \"table\")
      SELECT 'shop', 0, hash, '0/1', '0/2', 700, 1, 'insert', 'duplicate_key', 'skip', 'public', 't'
        FROM trellara.held WHERE id = 1;
    INSERT INTO trellara.request (token, flow, lane, action, operator, host, version, lease_until)
      VALUES ('abcdefgh', 'shop', 0, 'replay', 'anna', 'a-host', '1', now());
    INSERT INTO trellara.pause (flow, lane, reason, operator, host)
      VALUES ('shop', 0, 'why', 'anna', 'a-host');
    INSERT INTO trellara.audit (flow, lane, action, held_id, operator, host, version, lsn)
      VALUES ('shop', 0, 'held', 1, 'anna', 'a-host', '1', '0/1')";

/// What a held transaction goes through.
const PASSES: &[&str] = &[
    "state = 'replaying', claimed_epoch = 1, claimed_at = now()",
    "state = 'replaying', claimed_epoch = 1, claimed_at = now(), closed_at = now()",
    "state = 'replayed', closed_at = now()",
    "state = 'discarded', closed_at = now(), closed_reason = 'x'",
    "reason = 'blocking', before_ordinal = 7",
    "reason = 'blocking', chunked = true, storage = 'stream'",
    "overtaken_by = 'x', overtaken_lsn = '0/9', overtaken_at = now()",
];

const REFUSED: &[(&str, &[&str])] = &[
    (
        "held",
        &[
            "lane = -1",
            "hash = '\\x00'",
            "reason = 'x'",
            "state = 'x'",
            "storage = 'x', chunked = true, reason = 'blocking'",
            "stream_sequence = 0",
            "incarnation = -1",
            "frame_digest = ''",
            "before_ordinal = -1",
            "after_sequence = 0",
            "after_incarnation = -1",
            "after_ordinal = -1",
            "after_digest = ''",
            "frames = -1",
            "bytes = -1",
            "changes = -1",
            "keys = -1",
            "failed_change = -1",
            "attempts = -1",
            "end_lsn = commit_lsn",
            // The stream keeps chunks alone, and those only of what the lane stands in front of.
            "storage = 'stream', reason = 'blocking'",
            "storage = 'stream', chunked = true",
            "storage = 'stream', chunked = true, reason = 'dependent'",
            // What is over has an end, and what is not has none.
            "state = 'replayed'",
            "closed_at = now()",
            // Whoever replays has claimed it, and nobody else has.
            "state = 'replaying'",
            "claimed_epoch = 1, claimed_at = now()",
            "state = 'replaying', claimed_epoch = 1",
            "claimed_at = now()",
            // What is discarded says why, can still be replayed, and has been passed.
            "state = 'discarded', closed_at = now()",
            "state = 'discarded', closed_at = now(), closed_reason = 'x', reason = 'blocking'",
            "overtaken_by = 'x'",
            "overtaken_lsn = '0/9'",
            "overtaken_at = now()",
        ],
    ),
    (
        "held_frame",
        &["number = -1", "sequence = 0", "digest = ''"],
    ),
    (
        "held_key",
        &[
            "touch = 'x'",
            "key = '[]'",
            "key = NULL",
            "touch = 'table'",
            "touch = 'everything'",
        ],
    ),
    ("held_dependency", &["on_id = held_id"]),
    (
        "skipped",
        &[
            "hash = ''",
            "change = 0",
            "verb = 'truncate'",
            "conflict = 'x'",
            "rule = 'error'",
            "key = '[]'",
        ],
    ),
    (
        "request",
        &[
            "token = 'short'",
            "token = 'A token!'",
            "action = 'x'",
            "reason = repeat('x', 4001)",
            "answered_at = now()",
            "answer = '{}'",
        ],
    ),
    (
        "pause",
        &[
            "stands_epoch = 1",
            "stands_lsn = '0/1'",
            "stands_at = now()",
        ],
    ),
    ("audit", &["digest = ''"]),
];

/// That frames of a dependent one are in the target: so are those of all but what the lane stands in
/// front of, and the server tells of that first.
const IMPLIED: &str = "held.held_check2";

/// The constraints of these tables, each as `table.name`.
async fn checks(client: &Client) -> BTreeSet<String> {
    let tables: Vec<&str> = REFUSED.iter().map(|(table, _)| *table).collect();
    let sql = "SELECT c.relname || '.' || k.conname FROM pg_constraint AS k \
                 JOIN pg_class AS c ON c.oid = k.conrelid \
                WHERE k.contype = 'c' AND c.relname = ANY ($1) \
                  AND c.relnamespace = 'trellara'::regnamespace";
    let rows = client.query(sql, &[&tables]).await.unwrap();
    rows.iter().map(|row| row.get(0)).collect()
}

async fn impossible_states(version: u32) {
    let target = Target::new(version).await;
    let client = &target.client;
    client.batch_execute(LEGAL).await.unwrap();
    for state in PASSES {
        let set = format!("BEGIN; UPDATE trellara.held SET {state} WHERE id = 1; ROLLBACK");
        client.batch_execute(&set).await.expect(state);
    }
    let mut refused = BTreeSet::new();
    for (table, states) in REFUSED {
        let first = if *table == "held" { "WHERE id = 1" } else { "" };
        for state in *states {
            let set = format!("UPDATE trellara.{table} SET {state} {first}");
            let error = client.batch_execute(&set).await.expect_err(state);
            let error = error.as_db_error().expect(state);
            assert_eq!(error.code().code(), "23514", "{table}: {state}: {error}");
            let name = error.constraint().expect(state);
            refused.insert(format!("{table}.{name}"));
        }
    }
    let mut all = checks(client).await;
    assert!(all.remove(IMPLIED), "{IMPLIED}");
    assert_eq!(refused, all, "each of them is there for something");
}

#[tokio::test]
async fn a_state_that_cannot_be_is_refused_by_the_server_on_15() {
    impossible_states(15).await;
}

#[tokio::test]
async fn a_state_that_cannot_be_is_refused_by_the_server_on_18() {
    impossible_states(18).await;
}
