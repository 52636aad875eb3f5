//! Finding a key in ascending keys.
//!
//! Keys are hashes, so their position is guessed by interpolation and the guess is mended by
//! doubling steps. When they are no hashes, the steps make it a binary search that costs twice as
//! much: correctness and bound assume no distribution.

use crate::words::Identity;

/// A guess among 4096 uniform keys is off by 32 at most places; three steps of this find it.
const FIRST_STEP: usize = 16;

/// How many of `keys` are not above `key`.
pub(crate) fn not_above(keys: &[Identity], key: Identity) -> usize {
    let (Some(&first), Some(&last)) = (keys.first(), keys.last()) else {
        return 0;
    };
    if key < first {
        return 0;
    }
    if key >= last {
        return keys.len();
    }
    let guess = interpolate(first, last, key, keys.len());
    let mut step = FIRST_STEP;
    let (mut low, mut high);
    if keys[guess] <= key {
        low = guess + 1;
        high = low + step;
        while high < keys.len() && keys[high] <= key {
            low = high + 1;
            step *= 2;
            high = low + step;
        }
        high = high.min(keys.len());
    } else {
        high = guess;
        low = high.saturating_sub(step);
        // Ends at the latest at the first key, which is not above.
        while keys[low] > key {
            high = low;
            step *= 2;
            low = high.saturating_sub(step);
        }
    }
    low + keys[low..high].partition_point(|at| *at <= key)
}

/// Whether `key` is among `keys`.
pub(crate) fn contains(keys: &[Identity], key: Identity) -> bool {
    let count = not_above(keys, key);
    count > 0 && keys[count - 1] == key
}

/// Where `key` would stand were the keys spread evenly; `first <= key < last`.
fn interpolate(first: Identity, last: Identity, key: Identity, len: usize) -> usize {
    // The leading 63 bits as doubles: a division of 128 bits costs as much as a search.
    let span = last.0 - first.0;
    let surplus = 65_u32.saturating_sub(span.leading_zeros());
    let leading = |distance: u128| ((distance >> surplus) as i64) as f64;
    let part = leading(key.0 - first.0) / leading(span);
    ((part * (len - 1) as f64) as usize).min(len - 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_key_is_found_whatever_the_distribution() {
        let spreads: [fn(u128) -> u128; 5] = [
            |at| at * (u128::MAX / 600),
            |at| at,
            |at| 1u128.checked_shl(at as u32 % 128).unwrap_or(0),
            |at| u128::MAX - at * at * at,
            |_| 7,
        ];
        for spread in spreads {
            for len in [0, 1, 2, 3, 16, 17, 600] {
                let mut keys: Vec<_> = (0..len).map(|at| Identity(spread(at))).collect();
                keys.sort_unstable();
                let near = keys
                    .iter()
                    .flat_map(|key| [key.0.wrapping_sub(1), key.0, key.0.wrapping_add(1)]);
                for key in near.chain([0, u128::MAX]).map(Identity) {
                    let count = keys.iter().filter(|at| **at <= key).count();
                    assert_eq!(not_above(&keys, key), count);
                    assert_eq!(contains(&keys, key), keys.contains(&key));
                }
            }
        }
    }
}
