//! Chance for tests: seeded, printed, repeatable.

use std::collections::hash_map::RandomState;
use std::hash::{BuildHasher, Hasher};

/// SplitMix64.
pub(crate) struct Chance(u64);

impl Chance {
    /// A new seed each time, printed so that a failure shows it, or the one of `TRELLARA_SEED`.
    #[expect(
        clippy::disallowed_methods,
        reason = "a test that is repeated is told its seed"
    )]
    #[expect(clippy::print_stdout, reason = "the seed")]
    pub(crate) fn fresh() -> Self {
        let given = std::env::var("TRELLARA_SEED").ok();
        let given = given.and_then(|seed| seed.parse().ok());
        let seed = given.unwrap_or_else(|| RandomState::new().build_hasher().finish());
        println!("TRELLARA_SEED={seed}");
        Self(seed)
    }

    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// Below `end`.
    pub(crate) fn below(&mut self, end: u64) -> u64 {
        self.next() % end
    }

    pub(crate) fn wide(&mut self) -> u128 {
        u128::from(self.next()) << 64 | u128::from(self.next())
    }
}
