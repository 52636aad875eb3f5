//! Lanes to try things on.

use std::time::Duration;

use trellara_dedup::{
    Binding, Cache, Hydration, Identity, Moment, Ordinal, Refused, Settings, Stamp, State,
};

pub(crate) const SECOND: i64 = 1_000_000;
pub(crate) const START: Moment = Moment(0);
pub(crate) const BINDING: Binding = Binding {
    epoch: 1,
    history: 1,
    identity: 1,
    window: Duration::from_secs(60),
};

pub(crate) type Small = Cache<&'static str, 16>;

/// An identity that looks like a hash.
pub(crate) fn id(number: i64) -> Identity {
    let mix = |number: u64| (number ^ (number >> 31)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    let seed = mix(number as u64);
    let (high, low) = (mix(seed), mix(!seed));
    Identity(u128::from(high) << 64 | u128::from(low))
}

pub(crate) fn with_budget(budget: u64) -> Small {
    Cache::new(Settings {
        budget,
        ..Settings::default()
    })
}

/// One identity for each ordinal from 1 to `upto`, a second apart.
pub(crate) fn push_rows(
    hydration: &mut Hydration<&'static str, 16>,
    upto: i64,
) -> Result<(), Refused> {
    (1..=upto).try_for_each(|at| hydration.push(Ordinal(at), &[id(at)], Stamp(at * SECOND)))
}

pub(crate) fn warm(cache: &Small, lane: &'static str, upto: i64, now: Moment) {
    let mut hydration = cache
        .hydrate(&lane, &BINDING, Some(upto as u64), now)
        .expect("room");
    push_rows(&mut hydration, upto).expect("contiguous");
    let applied = cache
        .finish(hydration, Ordinal(0), Ordinal(upto), now)
        .expect("complete");
    assert_eq!(applied.state, State::Vouching);
}

pub(crate) fn through(cache: &Small, lane: &'static str, window_start: i64) -> Ordinal {
    cache
        .verify(&lane, &[id(-1)], Ordinal(window_start), START)
        .through
}
