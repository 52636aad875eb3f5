//! Random tables and random differences: what is found is what two maps say.

use std::collections::BTreeMap;

use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use trellara_verify::report::Outcome;

use crate::support::{LANES, VERSIONS, World, found};

type Rows = BTreeMap<(i32, i32, i32), u32>;

/// Random rows, and the same with some of them deleted, added, changed or repeated.
fn rows(random: &mut StdRng, keyed: bool) -> (Rows, Rows) {
    let count = random.random_range(0..3000);
    let mut source = Rows::new();
    for i in 0..count {
        let (a, b) = match keyed {
            true => (i % 7, i * 3),
            false => (random.random_range(0..40), random.random_range(0..40)),
        };
        *source.entry((a, b, random.random_range(0..9))).or_insert(0) += 1;
    }
    let mut target = source.clone();
    for _ in 0..random.random_range(0..80) {
        let nth = random.random_range(0..source.len().max(1));
        let Some(row) = source.keys().nth(nth).copied() else {
            break;
        };
        match random.random_range(0..3) {
            0 => _ = target.remove(&row),
            1 if target.remove(&row).is_some() => _ = target.insert((row.0, row.1, -1), 1),
            _ if keyed => _ = target.insert((row.0, row.1 + 1, 0), 1),
            _ => *target.entry(row).or_insert(0) += 1,
        }
    }
    (source, target)
}

fn expected(source: &Rows, target: &Rows, keyed: bool) -> Vec<String> {
    let mut lines = Vec::new();
    if keyed {
        let by_key = |rows: &Rows| -> BTreeMap<(i32, i32), i32> {
            rows.keys().map(|(a, b, v)| ((*a, *b), *v)).collect()
        };
        let (source, target) = (by_key(source), by_key(target));
        for key in source.keys().chain(target.keys()) {
            let kind = match (source.get(key), target.get(key)) {
                (Some(s), Some(t)) if s == t => continue,
                (Some(_), Some(_)) => "changed(v)",
                (Some(_), None) => "missing",
                _ => "extra",
            };
            lines.push(format!("a={},b={} {kind}", key.0, key.1));
        }
    } else {
        for row in source.keys().chain(target.keys()) {
            let count = |rows: &Rows| rows.get(row).copied().unwrap_or(0);
            let kind = match (count(source), count(target)) {
                (s, t) if s == t => continue,
                (_, 0) => "missing".to_owned(),
                (0, _) => "extra".to_owned(),
                (s, t) => format!("duplicate({s}:{t})"),
            };
            lines.push(format!("a={},b={},v={} {kind}", row.0, row.1, row.2));
        }
    }
    lines.sort();
    lines.dedup();
    lines
}

fn insert(rows: &Rows) -> String {
    let repeated = rows
        .iter()
        .flat_map(|(row, count)| std::iter::repeat_n(row, *count as usize));
    let values: Vec<String> = repeated.map(|(a, b, v)| format!("({a},{b},{v})")).collect();
    if values.is_empty() {
        return "TRUNCATE t".into();
    }
    format!("TRUNCATE t; INSERT INTO t VALUES {}", values.join(","))
}

#[tokio::test]
async fn what_is_found_is_what_differs() {
    for (version, keyed) in VERSIONS.into_iter().flat_map(|v| [(v, true), (v, false)]) {
        let world = World::new(version).await;
        let key = if keyed { ", PRIMARY KEY (a, b)" } else { "" };
        let make = format!("CREATE TABLE t (a int, b int, v int{key})");
        world.both(&make).await;
        world.publish_all().await;
        for _ in 0..6 {
            let seed: u64 = rand::random();
            let mut random = StdRng::seed_from_u64(seed);
            let (source, target) = rows(&mut random, keyed);
            world.source.run(&insert(&source)).await;
            world.target.run(&insert(&target)).await;
            let lane = LANES[random.random_range(0..2)];
            let set = (
                random.random_range(1..2000),
                random.random_range(1..4),
                lane,
            );
            let report = world
                .report_with(|o| {
                    (o.range_rows, o.jobs, o.lane, o.values) = (set.0, set.1, set.2, !keyed)
                })
                .await;
            let mut got = found(&report);
            got.sort();
            let context = format!("seed {seed}, key {keyed}, {set:?} on {version}");
            assert_eq!(got, expected(&source, &target, keyed), "{context}");
            let equal = report.outcome == Outcome::Equal;
            assert_eq!(equal, source == target, "{context}");
            let count = |rows: &Rows| rows.values().map(|n| u64::from(*n)).sum::<u64>();
            let counted = (report.source_rows, report.target_rows);
            assert_eq!(counted, (count(&source), count(&target)), "{context}");
        }
    }
}
