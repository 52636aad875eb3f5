//! What a probe costs, by size of the ledger.

#![allow(clippy::print_stdout, reason = "plans and times are shown")]

use tokio_postgres::Client;
use trellara_applier::ledger::probe::{self, Asked};
use trellara_envelope::{Lsn, TransactionHash};

use crate::flow::history;
use crate::lanes::{Lanes, NOWHERE, end_of};

/// Identities of the seeded ledger in an ordinary run; `TRELLARA_PROBE_IDENTITIES` asks for more.
const SEEDED: u64 = 240_000;

/// Rows of 120 identities each, made by the server: identity `n` is the md5 of its number.
async fn seed(client: &Client, identities: u64) {
    let rows = identities / 120;
    let sql = format!(
        "INSERT INTO trellara.applied (flow, lane, first_ordinal, last_ordinal, source_system, \
             source_timeline, end_lsn, transaction_end_lsn, lowest_end_lsn, highest_end_lsn, epoch, \
             stream, stream_created, stream_sequence, incarnation, frame_ordinal, frame_digest, \
             hashes) \
         SELECT 'shop', 0, r * 120 + 1, r * 120 + 120, {}, 1, last.lsn, last.lsn, \
                '0/1010'::pg_lsn + (r * 120 * 16)::numeric, last.lsn, 1, \
                'TRELLARA_shop', 'then', r + 2, 1, r + 2, decode(repeat('00', 16), 'hex'), \
                (SELECT string_agg(decode(md5(n::text), 'hex'), NULL ORDER BY n) \
                   FROM generate_series(r * 120 + 1, r * 120 + 120) AS n) \
           FROM generate_series(0, {rows} - 1) AS r, \
                LATERAL (SELECT '0/1000'::pg_lsn + ((r * 120 + 120) * 16)::numeric AS lsn) AS last",
        history().system.0.cast_signed()
    );
    client.batch_execute(&sql).await.unwrap();
    client
        .batch_execute("ANALYZE trellara.applied")
        .await
        .unwrap();
}

/// What a probe of a seeded ledger costs: rows read, blocks touched, milliseconds.
struct Cost {
    found: usize,
    rows: u64,
    blocks: i64,
    plan: String,
    milliseconds: f64,
}

/// `count` identities from number `first` on, under their names or under others.
async fn cost(lanes: &Lanes, first: u64, count: u64, absent: bool) -> Cost {
    let client = &lanes.target.client;
    let salt = if absent { "x" } else { "" };
    let hashes = client
        .query(
            "SELECT decode(md5(n::text || $3::text), 'hex') FROM generate_series($1::bigint, $2::bigint) AS n",
            &[&(first as i64), &((first + count - 1) as i64), &salt],
        )
        .await
        .unwrap();
    let asked: Vec<Asked> = (first..)
        .zip(&hashes)
        .map(|(n, row)| Asked {
            hash: TransactionHash(row.get::<_, Vec<u8>>(0).try_into().unwrap()),
            end_lsn: Lsn(end_of(n)),
            system: history().system,
        })
        .collect();
    lanes.probe(&asked, NOWHERE).await;
    let began = std::time::Instant::now();
    let found = lanes.probe(&asked, NOWHERE).await;
    let milliseconds = began.elapsed().as_secs_f64() * 1000.0;
    let lowest = Lsn(end_of(first));
    let highest = Lsn(end_of(first + count - 1));
    let execute = format!(
        "EXPLAIN (ANALYZE, BUFFERS) EXECUTE probe('shop', 0, {}, '{lowest}', '{highest}', -1)",
        history().system.0.cast_signed()
    );
    let plan = client.query(&execute, &[]).await.unwrap();
    let plan: Vec<String> = plan.iter().map(|row| row.get(0)).collect();
    let plan = plan.join("\n");
    let top = plan.lines().find(|line| line.contains("Buffers:")).unwrap();
    let number = |name: &str| {
        let rest = top.split_once(name).map_or("", |(_, rest)| rest);
        let digits = rest.split(|c: char| !c.is_ascii_digit()).next();
        digits.unwrap().parse::<i64>().unwrap_or(0)
    };
    Cost {
        found: found.ordinals.len(),
        rows: found.rows,
        blocks: number("hit=") + number("read="),
        plan,
        milliseconds,
    }
}

/// C44: a probe is one index range whatever the window holds. With `TRELLARA_PROBE_IDENTITIES`
/// (such as 10000000) and `--no-capture` it prints its plan and times at that size.
async fn probe_cost(version: u32) {
    let wanted = std::env::var("TRELLARA_PROBE_IDENTITIES");
    let identities: u64 = wanted.map_or(SEEDED, |text| text.parse().unwrap()) / 120 * 120;
    let lanes = Lanes::new(version).await;
    seed(&lanes.target.client, identities).await;
    let prepare = format!(
        "PREPARE probe(text, integer, bigint, pg_lsn, pg_lsn, bigint) AS {}",
        probe::SQL
    );
    lanes.run(&prepare).await;
    println!("PostgreSQL {version}, {identities} identities");
    for (count, most_rows, most_blocks) in [(1, 1, 16), (1000, 10, 48)] {
        for (place, first) in [
            ("oldest", 1),
            ("middle", identities / 2),
            ("newest", identities - count + 1),
        ] {
            for absent in [false, true] {
                let cost = cost(&lanes, first, count, absent).await;
                let what = if absent { "absent" } else { "there" };
                println!(
                    "  {count:>4} at the {place}, {what:<6}: {:>3} rows, {:>3} blocks, {:.2} ms",
                    cost.rows, cost.blocks, cost.milliseconds
                );
                let expected = if absent { 0 } else { count as usize };
                assert_eq!(cost.found, expected, "{}", cost.plan);
                assert!(cost.rows <= most_rows, "{} rows\n{}", cost.rows, cost.plan);
                assert!(cost.blocks <= most_blocks, "{}", cost.plan);
                assert!(!cost.plan.contains("Seq Scan"), "{}", cost.plan);
                if place == "middle" {
                    println!("{}", cost.plan);
                }
            }
        }
        // Beyond everything.
        let beyond = cost(&lanes, identities + 1, count, true).await;
        assert_eq!((beyond.found, beyond.rows), (0, 0), "{}", beyond.plan);
        assert!(beyond.blocks <= most_blocks, "{}", beyond.plan);
    }
}

#[tokio::test]
async fn c44_a_probe_reads_a_few_rows_whatever_the_window_on_15() {
    probe_cost(15).await;
}

#[tokio::test]
async fn c44_a_probe_reads_a_few_rows_whatever_the_window_on_18() {
    probe_cost(18).await;
}
