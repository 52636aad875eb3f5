//! Whatever comes and wherever runs want the lane: it is found there with exactly the transactions
//! that committed before.

use std::fmt::Write;

use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};

use super::run::{LONG, Run};
use super::{flow, recorded};
use crate::dedup::sql;
use crate::flow::Flow;

/// A flow and what its source did. The seed stands in the runs' names, so that it is in every
/// failure's text; `TRELLARA_SEED` takes it.
struct World {
    flow: Flow,
    random: StdRng,
    /// Start of each transaction's commit record, and its row.
    source: Vec<(u64, i32)>,
}

impl World {
    fn commits(&mut self, count: usize) -> Vec<[i32; 1]> {
        let mut ids = Vec::new();
        for _ in 0..count {
            let id = self.source.len() as i32 + 1;
            let end = self.flow.position + 0x10 * (ids.len() as u64 + 1);
            self.source.push((end - 8, id));
            ids.push([id]);
        }
        ids
    }

    async fn publish(&mut self) {
        match self.random.random_range(0..8) {
            0 => {
                let beat = self.flow.position + 8 * self.random.random_range(1..6);
                self.flow.heartbeat(beat).await;
            }
            1 => {
                let ids = self.commits(1);
                self.flow.large(&ids[0], |_| {}).await;
            }
            2 => {
                self.flow.marker().await;
            }
            _ => {
                let count = self.random.random_range(1..7);
                let ids = self.commits(count);
                let ids: Vec<&[i32]> = ids.iter().map(<[i32; 1]>::as_slice).collect();
                self.flow.bundle(&ids).await;
            }
        }
    }

    /// The rows of what committed below `lsn`.
    fn rows_below(&self, lsn: u64) -> String {
        let mut rows = String::new();
        for (commit, id) in &self.source {
            if *commit < lsn {
                let space = if rows.is_empty() { "" } else { " " };
                write!(rows, "{space}{id}:1").unwrap();
            }
        }
        rows
    }

    /// A position inside no commit record, at or behind `from` and not behind what is published.
    fn position(&mut self, from: u64) -> u64 {
        let wanted = self.random.random_range(from..=self.flow.position);
        let inside = |(commit, _): &&(u64, i32)| *commit < wanted && wanted < commit + 8;
        let record = self.source.iter().find(inside);
        record.map_or(wanted, |(commit, _)| commit + 8)
    }
}

#[tokio::test]
async fn c53_the_lane_is_found_at_every_position_exactly() {
    let given = std::env::var("TRELLARA_SEED").ok();
    let seed: u64 = given.map_or_else(rand::random, |seed| seed.parse().unwrap());
    let (flow, mut applier) = flow(18).await;
    let mut world = World {
        flow,
        random: StdRng::seed_from_u64(seed),
        source: vec![(0x108, 1)],
    };
    for round in 0..40 {
        let mut run = Run::new(&world.flow, &format!("{seed}-{round}")).await;
        for _ in 0..world.random.random_range(0..3) {
            world.publish().await;
        }
        let cap = world.flow.position;
        assert!(run.claim(cap, LONG).await);
        run.notify().await;
        for _ in 0..world.random.random_range(0..4) {
            world.publish().await;
        }
        let armed = run.armed().await.0;
        for _ in 0..world.random.random_range(0..4) {
            world.publish().await;
        }
        let wanted = world.position(armed.max(cap));
        let disturb = world.random.random_range(0..5);
        if disturb == 0 {
            applier.stop().await;
            applier = world.flow.start();
        }
        let stands = world.flow.target.checkpoint(&world.flow.name).await;
        assert!(
            stands.end_lsn.0 <= armed.max(cap),
            "seed {seed}: {stands:?}"
        );
        assert!(run.want(wanted).await);
        if disturb == 1 {
            sql(
                &world.flow,
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity \
                  WHERE datname = current_database() \
                    AND application_name LIKE 'trellara applier%'",
            )
            .await;
        }
        run.reached(wanted).await;
        let rows = world.flow.target.rows().await;
        assert_eq!(rows, world.rows_below(wanted), "seed {seed}, at {wanted:x}");
        if disturb == 2 {
            applier.stop().await;
            applier = world.flow.start();
        }
        run.release().await;
    }
    world.flow.caught_up().await;
    assert_eq!(world.flow.target.rows().await, world.rows_below(u64::MAX));
    assert_eq!(recorded(&world.flow).await, world.source.len() as i64);
    applier.stop().await;
}
