//! What the source is asked for: the copy order, made of what the target remembers. Pure, but for
//! the sending.
//!
//! The relay remembers nothing of copies beyond its own life, so an order says everything each time:
//! what is not in yet, whether the lane waits for it, what room was given back.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use bytes::Bytes;
use trellara_envelope::{
    CopyOrder, CopyTable, CopyWanted, FlowName, LaneEpoch, Oid, StreamSequence,
};
use trellara_jetstream::Broker;

use super::rule::Copies;
use super::store::{CopyState, TableCopy};

/// Between two orders while nothing changes: the relay takes one for fresh for ten times as long.
pub(super) const EVERY: Duration = Duration::from_secs(1);

/// The longest pause in front of a copy whose predecessors came to nothing.
const PAUSE_MAX: Duration = Duration::from_secs(60);

/// Sends a flow's orders on its core subject. One that is lost is replaced by the next.
#[derive(Debug)]
pub(super) struct Orders {
    broker: Broker,
    flow: FlowName,
    target: String,
    epoch: LaneEpoch,
    order: Option<CopyOrder>,
    /// Copies that are ordered after a pause, with when it began.
    rests: HashMap<CopyTable, (u32, Instant)>,
    /// The lane stands in front of a transaction that waits for a copy.
    awaited: Arc<AtomicBool>,
}

impl Orders {
    pub(super) fn new(
        broker: &Broker,
        flow: &FlowName,
        (target, epoch): (&str, LaneEpoch),
        awaited: Arc<AtomicBool>,
    ) -> Self {
        Self {
            broker: broker.clone(),
            flow: flow.clone(),
            target: target.to_owned(),
            epoch,
            order: None,
            rests: HashMap::new(),
            awaited,
        }
    }

    /// From now on this is what is ordered.
    pub(super) fn set(&mut self, tables: &[&TableCopy], trimmed_to: StreamSequence, now: Instant) {
        rest(&mut self.rests, tables, now);
        let rests = |copy: &&TableCopy| {
            let since = self.rests.get(&copy.table);
            since.is_none_or(|(_, since)| now.duration_since(*since) >= pause(copy.in_vain))
        };
        let due: Vec<&TableCopy> = tables.iter().copied().filter(rests).collect();
        let wanted = wanted(&due);
        let order = CopyOrder {
            flow: self.flow.clone(),
            target: self.target.clone(),
            epoch: self.epoch,
            holds_lane: Copies::holds(tables.iter().copied()),
            wanted,
            trimmed_to: trimmed_to.0,
            removed: removed(tables),
            mac: Vec::new(),
        };
        self.order = Some(order);
    }

    /// Whether the lane waits for whoever reads an order.
    pub(super) fn awaited(&self) -> bool {
        self.awaited.load(Ordering::Relaxed)
    }

    pub(super) async fn send(&self) {
        let subject = self.flow.copy_order_subject();
        let Some(mut order) = self.order.clone() else {
            return;
        };
        // A commit on the source may wait for us, and the copy for the commit (C29).
        order.holds_lane |= self.awaited();
        let order = Bytes::from(order.encode());
        let sent = self.broker.publish_core(&subject, order).await;
        if let Err(error) = sent {
            tracing::debug!(%error, "a copy order was not sent");
        }
    }

    /// Goes on ordering while something on the target takes long: a silent target is taken for one
    /// that waits for nothing.
    pub(super) async fn alongside<T>(&self, work: impl Future<Output = T>) -> T {
        let ordering = async {
            loop {
                tokio::time::sleep(EVERY).await;
                self.send().await;
            }
        };
        tokio::select! {
            biased;
            done = work => done,
            () = ordering => unreachable!("it orders for ever"),
        }
    }
}

/// How long to wait before a copy is ordered of which so many came to nothing: the first may have
/// been a mishap, what goes on for longer needs time to pass.
fn pause(in_vain: u32) -> Duration {
    match in_vain {
        0 | 1 => Duration::ZERO,
        more => Duration::from_secs(1 << (more - 2).min(6)).min(PAUSE_MAX),
    }
}

/// Notes which copies are to be ordered after a pause; it begins when that is heard of.
fn rest(rests: &mut HashMap<CopyTable, (u32, Instant)>, tables: &[&TableCopy], now: Instant) {
    let resting = |copy: &&&TableCopy| {
        copy.state == CopyState::Wanted && pause(copy.in_vain) > Duration::ZERO
    };
    let resting = tables.iter().filter(resting);
    let next = resting.map(|copy| {
        let known = rests.get(&copy.table);
        let known = known.filter(|(generation, _)| *generation == copy.generation);
        let since = known.map_or(now, |(_, since)| *since);
        (copy.table.clone(), (copy.generation, since))
    });
    *rests = next.collect();
}

/// What is not in yet, as much of it as one order takes; what the lane waits for comes first.
fn wanted(tables: &[&TableCopy]) -> Vec<CopyWanted> {
    let open = |copy: &&&TableCopy| match copy.state {
        CopyState::Wanted => copy.may_begin(),
        CopyState::Copying => !copy.is_whole(),
        CopyState::Announced
        | CopyState::Loaded
        | CopyState::Done
        | CopyState::Failed
        | CopyState::Kept
        | CopyState::Removed => false,
    };
    let mut wanted: Vec<&&TableCopy> = tables.iter().filter(open).collect();
    // What was begun stays in the order until it is in: the relay gives up what is not asked for.
    wanted.sort_by_key(|copy| (copy.state != CopyState::Copying, !copy.initial, &copy.table));
    wanted.truncate(CopyOrder::MAX_TABLES);
    let one = |copy: &&TableCopy| CopyWanted {
        table: copy.table.clone(),
        generation: copy.generation,
    };
    wanted.into_iter().map(one).collect()
}

fn removed(tables: &[&TableCopy]) -> Vec<Oid> {
    let left = tables
        .iter()
        .filter(|copy| copy.state == CopyState::Removed);
    left.filter_map(|copy| copy.relation.map(Oid)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn copy(name: &str, state: CopyState, initial: bool) -> TableCopy {
        let table = CopyTable {
            schema: "public".into(),
            name: name.into(),
        };
        TableCopy {
            noticed: true,
            ..TableCopy::wanted(table, initial).in_state(state)
        }
    }

    fn names(wanted: &[CopyWanted]) -> Vec<&str> {
        wanted.iter().map(|one| one.table.name.as_str()).collect()
    }

    #[test]
    fn what_is_not_in_is_ordered_and_nothing_else() {
        let states = [
            ("a", CopyState::Announced),
            ("b", CopyState::Wanted),
            ("c", CopyState::Copying),
            ("d", CopyState::Loaded),
            ("e", CopyState::Done),
            ("f", CopyState::Failed),
            ("g", CopyState::Kept),
            ("h", CopyState::Removed),
        ];
        let mut rows: Vec<TableCopy> = states
            .iter()
            .map(|(name, state)| copy(name, *state, false))
            .collect();
        rows[7].relation = Some(77);
        rows[4].relation = Some(44);
        let rows: Vec<&TableCopy> = rows.iter().collect();
        assert_eq!(names(&wanted(&rows)), ["c", "b"], "what was begun first");
        assert_eq!(removed(&rows), [Oid(77)]);
    }

    #[test]
    fn what_the_lane_has_not_noticed_is_ordered_only_while_it_stands_still() {
        let unnoticed = |name, initial| TableCopy {
            noticed: false,
            ..copy(name, CopyState::Wanted, initial)
        };
        let rows = [unnoticed("a", false), unnoticed("b", true)];
        let rows: Vec<&TableCopy> = rows.iter().collect();
        assert_eq!(names(&wanted(&rows)), ["b"]);
    }

    #[test]
    fn the_pause_before_another_copy_grows_and_belongs_to_its_generation() {
        let begun = Instant::now();
        let at = |seconds| begun + Duration::from_secs(seconds);
        let mut rests = HashMap::new();
        let of = |generation, in_vain| TableCopy {
            generation,
            in_vain,
            ..copy("t", CopyState::Wanted, true)
        };
        let mut since = |copy: TableCopy, now| {
            rest(&mut rests, &[&copy], now);
            rests.get(&copy.table).map(|(_, since)| *since)
        };
        assert_eq!(since(of(2, 1), at(0)), None, "at once");
        assert_eq!(since(of(3, 2), at(1)), Some(at(1)));
        assert_eq!(since(of(3, 2), at(5)), Some(at(1)), "the same pause");
        assert_eq!(since(of(4, 3), at(9)), Some(at(9)));
        assert_eq!(since(of(1, 0), at(9)), None, "somebody asked for it");
        let pauses: Vec<u64> = (0..10).map(|times| pause(times).as_secs()).collect();
        assert_eq!(pauses, [0, 0, 1, 2, 4, 8, 16, 32, 60, 60]);
    }

    #[test]
    fn an_order_has_a_limit_and_the_lane_waits_for_the_first() {
        let mut rows: Vec<TableCopy> = (0..CopyOrder::MAX_TABLES)
            .map(|n| copy(&format!("a{n:04}"), CopyState::Wanted, false))
            .collect();
        rows.push(copy("z", CopyState::Wanted, true));
        let rows: Vec<&TableCopy> = rows.iter().collect();
        let wanted = wanted(&rows);
        assert_eq!(wanted.len(), CopyOrder::MAX_TABLES);
        assert_eq!(names(&wanted)[0], "z");
    }
}
