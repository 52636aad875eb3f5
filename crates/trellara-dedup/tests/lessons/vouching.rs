//! When a lane vouches, and what ends it.

use std::time::Duration;

use trellara_dedup::{Binding, Identity, Ordinal, Refused, Stamp, State, Wants};

use crate::lane::{BINDING, SECOND, START, id, push_rows, through, warm, with_budget};

#[test]
fn nothing_vouches_before_it_is_complete() {
    let cache = with_budget(1 << 20);
    assert_eq!(through(&cache, "a", 0), Ordinal::NONE);
    assert_eq!(cache.wants(&"a", START), Wants::Hydration);
    let mut hydration = cache.hydrate(&"a", &BINDING, Some(3), START).expect("room");
    push_rows(&mut hydration, 3).expect("contiguous");
    assert_eq!(through(&cache, "a", 0), Ordinal::NONE);
    cache
        .finish(hydration, Ordinal(0), Ordinal(3), START)
        .expect("complete");
    assert_eq!(through(&cache, "a", 0), Ordinal(3));
    assert_eq!(cache.wants(&"a", START), Wants::Nothing);
}

#[test]
fn a_hit_is_a_hint_for_that_identity_alone() {
    let cache = with_budget(1 << 20);
    warm(&cache, "a", 100, START);
    let verdict = cache.verify(&"a", &[id(-1), id(50), id(-2), id(50)], Ordinal(0), START);
    assert_eq!(verdict.hits, [1, 3]);
    assert!(!verdict.is_warm());
    let each: Vec<_> = (0..4).map(|at| verdict.verified_through(at).0).collect();
    assert_eq!(each, [100, -1, 100, -1]);
    let stats = cache.stats();
    assert_eq!((stats.vouched, stats.unvouched, stats.hits), (2, 2, 2));
}

#[test]
fn rows_without_identities_take_one_ordinal() {
    let cache = with_budget(1 << 20);
    warm(&cache, "a", 2, START);
    cache.applied(&"a", Ordinal(3), &[], Stamp(3 * SECOND), START);
    cache.applied(&"a", Ordinal(4), &[id(4), id(5)], Stamp(3 * SECOND), START);
    assert_eq!(through(&cache, "a", 0), Ordinal(5));
}

#[test]
fn an_interleaved_write_disqualifies_until_its_rows_are_known() {
    let cache = with_budget(1 << 20);
    warm(&cache, "a", 2, START);
    let tell = |first, at: i64| {
        cache
            .applied(&"a", Ordinal(first), &[id(at)], Stamp(3 * SECOND), START)
            .state
    };
    assert_eq!(tell(5, 5), State::Gapped);
    assert_eq!(through(&cache, "a", 0), Ordinal::NONE);
    let missing = Wants::Rows {
        after: Ordinal(2),
        upto: Ordinal(5),
    };
    assert_eq!(cache.wants(&"a", START), missing);
    assert_eq!(tell(3, 3), State::Gapped);
    assert_eq!(tell(4, 4), State::Gapped);
    assert_eq!(tell(5, 5), State::Vouching);
    assert_eq!(cache.verify(&"a", &[id(4)], Ordinal(0), START).hits, [0]);
    assert_eq!(cache.stats().gaps, 1);
}

#[test]
fn an_ordinal_that_comes_twice_makes_it_start_again() {
    let cache = with_budget(1 << 20);
    warm(&cache, "a", 5, START);
    let applied = cache.applied(&"a", Ordinal(5), &[id(9)], Stamp(0), START);
    assert_eq!(applied.state, State::RebuildWanted);
    assert_eq!(cache.stats().identities, 0);
    // No row brings it back.
    cache.applied(&"a", Ordinal(6), &[id(6)], Stamp(0), START);
    assert_eq!(cache.wants(&"a", START), Wants::Hydration);
}

#[test]
fn what_is_applied_during_a_hydration_is_missed_afterwards() {
    let cache = with_budget(1 << 20);
    let mut hydration = cache.hydrate(&"a", &BINDING, Some(3), START).expect("room");
    push_rows(&mut hydration, 3).expect("contiguous");
    cache.applied(&"a", Ordinal(4), &[id(4)], Stamp(0), START);
    let applied = cache
        .finish(hydration, Ordinal(0), Ordinal(3), START)
        .expect("complete");
    assert_eq!(applied.state, State::Gapped);
    assert_eq!(through(&cache, "a", 0), Ordinal::NONE);
}

/// C43: a vouch is bound to epoch and history and ends with every doubt.
#[test]
fn c43_reconnects_and_other_bindings_end_every_vouch() {
    let others = [
        Binding {
            epoch: 2,
            ..BINDING
        },
        Binding {
            history: 2,
            ..BINDING
        },
        Binding {
            identity: 2,
            ..BINDING
        },
        Binding {
            window: Duration::from_secs(61),
            ..BINDING
        },
        Binding {
            window: Duration::from_secs(59),
            ..BINDING
        },
    ];
    for other in others {
        let cache = with_budget(1 << 20);
        warm(&cache, "a", 3, START);
        cache.bind(&"a", &BINDING);
        assert_eq!(cache.state(&"a"), State::Vouching);
        let begun = cache.stats().identities;
        cache.bind(&"a", &other);
        assert_eq!((begun, cache.stats().identities), (3, 0));
        // Sticky: neither rows nor the old binding bring it back.
        cache.applied(&"a", Ordinal(4), &[id(4)], Stamp(0), START);
        cache.bind(&"a", &BINDING);
        assert_eq!(cache.state(&"a"), State::RebuildWanted);
    }

    let cache = with_budget(1 << 20);
    warm(&cache, "a", 3, START);
    let mut begun = cache.hydrate(&"a", &BINDING, Some(3), START).expect("room");
    push_rows(&mut begun, 3).expect("contiguous");
    cache.forget(&"a");
    let finished = cache.finish(begun, Ordinal(0), Ordinal(3), START);
    assert_eq!(finished, Err(Refused::Superseded));
    assert_eq!(through(&cache, "a", 0), Ordinal::NONE);
}

#[test]
fn a_row_that_is_missing_or_unreadable_is_never_not_seen() {
    let cache = with_budget(1 << 20);
    let begin = || cache.hydrate(&"a", &BINDING, Some(3), START).expect("room");

    let mut hole = begin();
    hole.push(Ordinal(1), &[id(1)], Stamp(0))
        .expect("the first");
    assert_eq!(
        hole.push(Ordinal(3), &[id(3)], Stamp(0)),
        Err(Refused::NotContiguous)
    );
    assert_eq!(
        hole.push(Ordinal(2), &[id(2)], Stamp(0)),
        Err(Refused::NotContiguous)
    );
    let finished = cache.finish(hole, Ordinal(0), Ordinal(3), START);
    assert_eq!(finished, Err(Refused::NotContiguous));

    for (from, upto) in [(0, 4), (0, 2), (-1, 3), (-2, 3), (4, 3), (3, 2)] {
        let mut short = begin();
        push_rows(&mut short, 3).expect("contiguous");
        let finished = cache.finish(short, Ordinal(from), Ordinal(upto), START);
        assert_eq!(finished, Err(Refused::NotCovered), "({from}, {upto}]");
    }
    let nothing = begin();
    let finished = cache.finish(nothing, Ordinal(0), Ordinal(1), START);
    assert_eq!(finished, Err(Refused::NotCovered));
    assert_eq!(cache.stats().refused, 8);
    assert_eq!(cache.state(&"a"), State::RebuildWanted);
}

/// Only the stamps of the target count, and what is 5 s too old is still inside.
#[test]
fn expiry_goes_by_the_targets_clock_and_errs_on_the_safe_side() {
    let cache = with_budget(1 << 20);
    warm(&cache, "a", 200, START);
    // Blocks of 16; the window is 60 s. At 97 s what is older than 32 s may leave, and the second
    // block ends exactly there.
    cache.expire(&"a", Stamp(97 * SECOND));
    let verdict = cache.verify(&"a", &[id(16), id(17)], Ordinal(16), START);
    assert_eq!(
        (verdict.known_from, &verdict.hits[..]),
        (Ordinal(16), &[1][..])
    );
    // A caller who answers for less is not vouched for.
    assert_eq!(through(&cache, "a", 15), Ordinal::NONE);
    assert_eq!(through(&cache, "a", 16), Ordinal(200));
    // A clock that runs backwards brings nothing back and drops nothing.
    cache.expire(&"a", Stamp(0));
    assert_eq!(through(&cache, "a", 15), Ordinal::NONE);
    // Idle for long: nothing is left, and that is known.
    cache.expire(&"a", Stamp(1_000 * SECOND));
    assert_eq!(cache.stats().identities, 0);
    assert_eq!(through(&cache, "a", 199), Ordinal::NONE);
    assert_eq!(through(&cache, "a", 200), Ordinal(200));
}

/// Digests are compared across processes and with SQL: order and bytes are what the target has.
#[test]
fn identities_are_their_bytes() {
    let bytes = *b"\x00\x01\x02\x03\x04\x05\x06\x07\x08\x09\x0a\x0b\x0c\x0d\x0e\x0f";
    let identity = Identity::from_bytes(bytes);
    assert_eq!(
        identity,
        Identity(0x0001_0203_0405_0607_0809_0a0b_0c0d_0e0f)
    );
    assert_eq!(identity.to_bytes(), bytes);
    assert!(identity < Identity::from_bytes([1; 16]));
}
