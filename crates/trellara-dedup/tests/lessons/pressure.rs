//! When memory is short.

use std::sync::atomic::{AtomicI64, Ordering::SeqCst};
use std::thread;
use std::time::Duration;

use trellara_dedup::{Cache, Moment, Ordinal, Settings, Stamp, State, Wants};

use crate::lane::{BINDING, SECOND, START, Small, id, push_rows, through, warm, with_budget};

/// At the ceiling the oldest go; new ones are never let through unremembered.
#[test]
fn the_hard_ceiling_drops_the_oldest_and_never_fails_open() {
    let budget = 40_000;
    let cache = with_budget(budget);
    warm(&cache, "a", 1, START);
    let mut warnings = 0;
    for at in 2..20_000 {
        let applied = cache.applied(&"a", Ordinal(at), &[id(at)], Stamp(0), START);
        assert_eq!(applied.state, State::Vouching);
        warnings += i32::from(applied.warning.is_some());
        assert!(cache.stats().resident_bytes <= budget);
    }
    assert_eq!(warnings, 1, "at most one a minute");
    let stats = cache.stats();
    assert!(stats.truncated > 0 && stats.identities > 500, "{stats:?}");
    assert_eq!(through(&cache, "a", 0), Ordinal::NONE);
    let verdict = cache.verify(&"a", &[id(19_999), id(-1)], Ordinal(19_900), START);
    assert_eq!(
        (verdict.through, &verdict.hits[..]),
        (Ordinal(19_999), &[0][..])
    );
}

#[test]
fn when_a_hydration_is_truncated_the_newest_stay() {
    let budget = 40_000;
    let cache = with_budget(budget);
    // The estimate was far too low.
    let mut hydration = cache
        .hydrate(&"a", &BINDING, Some(10), START)
        .expect("room");
    push_rows(&mut hydration, 20_000).expect("contiguous");
    cache
        .finish(hydration, Ordinal(0), Ordinal(20_000), START)
        .expect("complete");
    assert!(cache.stats().resident_bytes <= budget);
    assert_eq!(through(&cache, "a", 0), Ordinal::NONE);
    let verdict = cache.verify(&"a", &[id(20_000)], Ordinal(19_900), START);
    assert_eq!(
        (verdict.through, &verdict.hits[..]),
        (Ordinal(20_000), &[0][..])
    );
}

/// What `room` promises is admitted and stays inside the budget.
#[test]
fn the_caller_cuts_by_the_room_there_is() {
    let cache: Small = with_budget(200_000);
    let room = cache.room(&"a", START) as i64;
    assert!(room > 5_000, "{room}");
    warm(&cache, "a", room, START);
    assert_eq!(cache.stats().truncated, 0, "{room} {:?}", cache.stats());
    assert!(cache.room(&"b", START) < 1_000);
    assert!(cache.room(&"a", START) as i64 >= room);
}

#[test]
fn a_lane_in_use_is_not_evicted_and_the_newcomer_waits() {
    let cache = with_budget(200_000);
    let at = |seconds: i64| Moment(seconds * SECOND);
    warm(&cache, "a", 4_000, at(0));
    warm(&cache, "b", 2_000, at(1));

    let refused = cache
        .hydrate(&"c", &BINDING, Some(4_000), at(5))
        .expect_err("no room");
    assert_eq!(refused.until, at(35));
    let warning = refused.warning.expect("the first one");
    assert!(warning.to_string().contains("1 lanes"), "{warning}");
    assert_eq!(cache.state(&"c"), State::Suppressed);
    assert_eq!(cache.wants(&"c", at(6)), Wants::Later { until: at(35) });
    // Not tested again before the cooldown is over, although there would be room.
    let refused = cache
        .hydrate(&"c", &BINDING, Some(4_000), at(34))
        .expect_err("cooldown");
    assert_eq!((refused.until, refused.warning), (at(35), None));
    assert_eq!(cache.stats().suppressions, 1);

    // The one that was unused the longest goes, and no more than needed.
    assert_eq!(cache.wants(&"c", at(35)), Wants::Hydration);
    drop(
        cache
            .hydrate(&"c", &BINDING, Some(4_000), at(35))
            .expect("a is idle"),
    );
    assert_eq!(cache.state(&"a"), State::RebuildWanted);
    assert_eq!(cache.state(&"b"), State::Vouching);
    assert_eq!(cache.stats().evictions, 1);
}

/// Admitted below 90 %, so that it does not have to evict whom it just joined.
#[test]
fn the_fit_test_leaves_headroom_and_evicts_nobody_in_vain() {
    let cache = with_budget(200_000);
    let later = Moment(3_600 * SECOND);
    warm(&cache, "a", 4_000, START);
    let resident = cache.stats().resident_bytes;
    // 7,000 with all others gone would do, 12,000 would not.
    cache
        .hydrate(&"b", &BINDING, Some(12_000), later)
        .expect_err("larger than the budget");
    assert_eq!(cache.stats().resident_bytes, resident);
    assert_eq!(cache.state(&"a"), State::Vouching);
    // What it holds itself does not count against it.
    cache
        .hydrate(&"a", &BINDING, Some(7_000), later)
        .expect("it replaces itself");
}

#[test]
fn lanes_of_unknown_size_are_never_suppressed() {
    let cache = with_budget(40_000);
    warm(&cache, "a", 1_000, START);
    for at in 1_001..3_000 {
        cache.applied(&"a", Ordinal(at), &[id(at)], Stamp(0), START);
    }
    cache
        .hydrate(&"new", &BINDING, None, START)
        .expect("first contact");
    cache
        .hydrate(&"empty", &BINDING, Some(0), START)
        .expect("nothing to load");
}

/// Each lane remembers its size when it goes: that is its estimate when nobody knows better.
#[test]
fn evicted_lanes_are_estimated_by_their_last_size() {
    let cache = with_budget(200_000);
    let at = |seconds: i64| Moment(seconds * SECOND);
    warm(&cache, "a", 5_000, at(0));
    warm(&cache, "b", 5_000, at(10));
    assert_eq!(cache.state(&"a"), State::RebuildWanted);
    cache
        .hydrate(&"a", &BINDING, None, at(11))
        .expect_err("b was used a second ago");
}

#[test]
fn disabling_frees_everything_whatever_comes_afterwards() {
    let cache = with_budget(1 << 20);
    warm(&cache, "a", 500, START);
    warm(&cache, "b", 500, START);
    cache.remove(&"a");
    cache.applied(&"a", Ordinal(501), &[id(501)], Stamp(0), START);
    assert_eq!(cache.stats().lanes, 1);
    cache.clear();
    assert_eq!((cache.stats().lanes, cache.stats().resident_bytes), (0, 0));
}

/// Lanes work side by side while others are evicted under them; nobody waits for ever, and what a
/// lane says stays true.
#[test]
fn lanes_side_by_side_under_pressure() {
    let cache: Cache<i64, 16> = Cache::new(Settings {
        budget: 60_000,
        guard: Duration::ZERO,
        cooldown: Duration::from_micros(5),
        ..Settings::default()
    });
    let clock = AtomicI64::new(0);
    let lane = |lane: i64| {
        let mut tail = 0;
        for round in 0..3_000 {
            let now = Moment(clock.fetch_add(1, SeqCst));
            let fresh = id(lane << 32 | round);
            let verdict = cache.verify(
                &lane,
                &[fresh, id(lane << 32 | (round - 1))],
                Ordinal(0),
                now,
            );
            assert!(verdict.through <= Ordinal(tail));
            // The one before was applied: it is a hit or not vouched for.
            assert!(round == 0 || verdict.verified_through(1) == Ordinal::NONE);
            tail += 1;
            cache.applied(&lane, Ordinal(tail), &[fresh], Stamp(0), now);
            if matches!(cache.wants(&lane, now), Wants::Hydration)
                && let Ok(mut hydration) = cache.hydrate(&lane, &BINDING, Some(tail as u64), now)
            {
                for at in 1..=tail {
                    let row = [id(lane << 32 | (at - 1))];
                    if hydration.push(Ordinal(at), &row, Stamp(0)).is_err() {
                        break;
                    }
                }
                _ = cache.finish(hydration, Ordinal(0), Ordinal(tail), now);
            }
        }
    };
    let lane = &lane;
    thread::scope(|scope| (0..4).for_each(|name| drop(scope.spawn(move || lane(name)))));
    let stats = cache.stats();
    assert!(stats.vouched > 0 && stats.evictions > 0, "{stats:?}");
    assert!(stats.resident_bytes <= 60_000, "{stats:?}");
}
