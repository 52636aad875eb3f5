//! The lines between the parts of a soak: every connection of both daemons goes through a proxy, and
//! is cut, silenced, slowed down and flaps there.

use std::time::Duration;

use anyhow::Result;
use rand::Rng;
use rand::rngs::StdRng;

use crate::flow::Flow;
use crate::ground::Ground;
use crate::proxy::{Direction, Proxy, Rules, Side};

/// To source, broker and target.
pub(super) struct Lines([Proxy; 3]);

impl Lines {
    /// Lays them, and has the flow's daemons use them from their next start on.
    pub(super) async fn lay(ground: &Ground, flow: &mut Flow) -> Result<Self> {
        let lines = [
            Proxy::to_port(ground.source.port()).await?,
            Proxy::to_port(ground.nats.port()).await?,
            Proxy::to_port(ground.target.port()).await?,
        ];
        let [source, broker, target] = &lines;
        let places = &mut flow.places;
        places.source_url = source.url(&places.source_url);
        places.nats_url = broker.url(&places.nats_url);
        places.target_url = target.url(&places.target_url);
        flow.write_config()?;
        Ok(Self(lines))
    }

    /// One of them is reset.
    pub(super) fn cut(&self, random: &mut StdRng) {
        self.0[random.random_range(0..3)].cut(Side::Both);
    }

    /// Nothing passes on one of them, in one direction or in both, and nobody is told; then what was
    /// on its way is lost, and only new connections work.
    pub(super) async fn silence(&self, random: &mut StdRng) {
        let line = &self.0[random.random_range(0..3)];
        match random.random_range(0..3) {
            0 => line.hold(Direction::ToServer),
            1 => line.hold(Direction::ToClient),
            _ => line.black_hole(),
        }
        tokio::time::sleep(Duration::from_millis(random.random_range(500..4000))).await;
        line.cut(Side::Server);
        line.heal();
    }

    /// All of them are far.
    pub(super) async fn slow_down(&self, random: &mut StdRng) {
        let far = Rules {
            delay: Duration::from_millis(random.random_range(20..200)),
            ..Rules::default()
        };
        for line in &self.0 {
            for direction in [Direction::ToServer, Direction::ToClient] {
                line.set(direction, far.clone());
            }
        }
        tokio::time::sleep(Duration::from_millis(random.random_range(1000..3000))).await;
        for line in &self.0 {
            line.heal();
        }
    }

    /// There, away, there, away, there.
    pub(super) async fn flap(&self, random: &mut StdRng) {
        for _ in 0..3 {
            for line in &self.0 {
                line.listen(false);
                line.cut(Side::Both);
            }
            tokio::time::sleep(Duration::from_millis(random.random_range(100..700))).await;
            for line in &self.0 {
                line.listen(true);
            }
            tokio::time::sleep(Duration::from_millis(random.random_range(100..700))).await;
        }
    }
}
