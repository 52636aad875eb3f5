//! Kill -9, each part in turn.

use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

use indicatif::ProgressBar;

use super::copied::Copied;
use super::daemons::Daemon;
use super::place::Place;
use super::workload::Workload;
use crate::exit::Failure;

/// Time between two kills: enough to get going again, not enough to get comfortable.
const KILL_EVERY: Duration = Duration::from_millis(2500);
/// How often the progress line changes.
const TICK: Duration = Duration::from_millis(200);

/// Kills of each part.
#[derive(Debug, Default, Clone, Copy)]
pub(super) struct Kills {
    pub(super) relay: u32,
    pub(super) applier: u32,
    pub(super) broker: u32,
}

/// Lets the workload run for `length` and kills relay, applier and broker in turn.
pub(super) async fn kill_in_turn(
    place: &Place,
    relay: &mut Daemon,
    applier: &mut Daemon,
    workload: &Workload,
    copied: &Copied,
    length: Duration,
    bar: &ProgressBar,
) -> Result<Kills, Failure> {
    let mut kills = Kills::default();
    let began = Instant::now();
    let mut next = KILL_EVERY;
    let mut turn = 0;
    bar.set_length(length.as_millis().try_into().unwrap_or(u64::MAX));
    while began.elapsed() < length {
        tokio::time::sleep(TICK).await;
        let committed = workload.committed.load(Relaxed);
        let copied = copied.rows().await?;
        bar.set_position(began.elapsed().as_millis().try_into().unwrap_or(u64::MAX));
        bar.set_message(format!(
            "{copied} rows copied, {committed} transactions, kills: relay {}, applier {}, broker {}",
            kills.relay, kills.applier, kills.broker
        ));
        if began.elapsed() < next {
            relay.check_alive()?;
            applier.check_alive()?;
            continue;
        }
        next += KILL_EVERY;
        match turn % 3 {
            0 => {
                relay.kill_and_start_again().await?;
                kills.relay += 1;
            }
            1 => {
                applier.kill_and_start_again().await?;
                kills.applier += 1;
            }
            _ => {
                place.kill_broker().await?;
                kills.broker += 1;
            }
        }
        turn += 1;
    }
    Ok(kills)
}
