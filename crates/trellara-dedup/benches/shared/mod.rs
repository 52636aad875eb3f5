//! Identities for benches: the same in each run, and as spread as real hashes.

use trellara_dedup::Identity;

/// Those from here on are never appended.
pub(crate) const ABSENT: u64 = 1 << 40;

fn mix(number: u64) -> u64 {
    let mut mixed = number.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    mixed ^ (mixed >> 31)
}

pub(crate) fn identity(number: u64) -> Identity {
    let high = u128::from(mix(2 * number + 1));
    Identity(high << 64 | u128::from(mix(2 * number + 2)))
}
