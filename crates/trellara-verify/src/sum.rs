//! Sums of row digests. Pure.

use std::fmt;
use std::ops::{Add, AddAssign};
use std::str::FromStr;

/// A whole number of 256 bits with a sign, in two's complement: what exceeds it wraps around. Sums
/// of 64-bit digests never come near; those of BLAKE3 are meant modulo 2^256.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Sum([u64; 4]);

impl Sum {
    /// A digest's bytes, the lowest first.
    pub(crate) fn of_digest(digest: &[u8; 32]) -> Self {
        let (words, _) = digest.as_chunks::<8>();
        let mut sum = [0; 4];
        for (limb, word) in sum.iter_mut().zip(words) {
            *limb = u64::from_le_bytes(*word);
        }
        Self(sum)
    }

    /// So many times over.
    pub(crate) fn times(self, count: u64) -> Self {
        let mut carry = 0u128;
        Self(self.0.map(|limb| {
            let product = u128::from(limb) * u128::from(count) + carry;
            carry = product >> 64;
            product as u64
        }))
    }

    /// The lowest bits, which name a row.
    pub(crate) fn low(self) -> i64 {
        let [low, ..] = self.0;
        low.cast_signed()
    }

    fn is_negative(self) -> bool {
        let [.., high] = self.0;
        high.cast_signed() < 0
    }

    fn negated(self) -> Self {
        Self(self.0.map(|limb| !limb)) + Self([1, 0, 0, 0])
    }
}

impl From<i128> for Sum {
    fn from(number: i128) -> Self {
        let sign = (number >> 127) as u64;
        Self([number as u64, (number >> 64) as u64, sign, sign])
    }
}

impl Add for Sum {
    type Output = Self;

    fn add(self, other: Self) -> Self {
        let mut all = [0; 4];
        let mut carry = 0u128;
        for (limb, (a, b)) in all.iter_mut().zip(self.0.into_iter().zip(other.0)) {
            let sum = u128::from(a) + u128::from(b) + carry;
            *limb = sum as u64;
            carry = sum >> 64;
        }
        Self(all)
    }
}

impl AddAssign for Sum {
    fn add_assign(&mut self, other: Self) {
        *self = *self + other;
    }
}

/// In decimal.
impl fmt::Display for Sum {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let negative = self.is_negative();
        let Self(mut left) = if negative { self.negated() } else { *self };
        let mut digits = Vec::new();
        while left != [0; 4] || digits.is_empty() {
            let mut rest = 0u128;
            for limb in left.iter_mut().rev() {
                let part = rest << 64 | u128::from(*limb);
                *limb = (part / 10) as u64;
                rest = part % 10;
            }
            digits.push(char::from(b'0' + rest as u8));
        }
        let text: String = digits.into_iter().rev().collect();
        f.pad_integral(!negative, "", &text)
    }
}

/// What [`Display`](fmt::Display) writes.
impl FromStr for Sum {
    type Err = NotASum;

    fn from_str(text: &str) -> Result<Self, NotASum> {
        let digits = text.strip_prefix('-').unwrap_or(text);
        if digits.is_empty() {
            return Err(NotASum);
        }
        let mut sum = Self::default();
        for digit in digits.chars() {
            let digit = digit.to_digit(10).ok_or(NotASum)?;
            sum = sum.times(10) + Self([u64::from(digit), 0, 0, 0]);
        }
        Ok(if text.starts_with('-') {
            sum.negated()
        } else {
            sum
        })
    }
}

/// A text that is no whole number.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct NotASum;

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn within_128_bits_it_is_their_arithmetic(a: i64, b: i64, count: u32) {
            let (x, y) = (i128::from(a), i128::from(b));
            let sum = Sum::from(x) + Sum::from(y).times(u64::from(count));
            prop_assert_eq!(sum, Sum::from(x + y * i128::from(count)));
            prop_assert_eq!(sum.to_string(), (x + y * i128::from(count)).to_string());
        }

        #[test]
        fn every_bit_counts(digest: [u8; 32], bit in 0usize..256) {
            let mut other = digest;
            other[bit / 8] ^= 1 << (bit % 8);
            prop_assert_ne!(Sum::of_digest(&digest), Sum::of_digest(&other));
        }

        #[test]
        fn what_is_written_is_read_again(digest: [u8; 32]) {
            let sum = Sum::of_digest(&digest);
            prop_assert_eq!(sum.to_string().parse(), Ok(sum));
        }

        #[test]
        fn so_many_times_is_so_many_sums(digest: [u8; 32], count in 0u64..50) {
            let one = Sum::of_digest(&digest);
            let all = (0..count).fold(Sum::default(), |all, _| all + one);
            prop_assert_eq!(one.times(count), all);
        }
    }

    #[test]
    fn what_is_no_number_is_no_sum() {
        for text in ["", "-", "1x", "--1", " 1"] {
            assert_eq!(text.parse::<Sum>(), Err(NotASum), "{text:?}");
        }
        assert_eq!("-1".parse(), Ok(Sum([u64::MAX; 4])));
    }

    #[test]
    fn digests_are_numbers_beyond_128_bits() {
        let one_high = Sum([0, 0, 1, 0]);
        assert_eq!(
            one_high.to_string(),
            "340282366920938463463374607431768211456"
        );
        assert_eq!(Sum([u64::MAX; 4]).to_string(), "-1");
        assert_eq!(Sum([u64::MAX; 4]) + Sum([1, 0, 0, 0]), Sum::default());
        assert_eq!(Sum::of_digest(&[255; 32]).low(), -1);
    }
}
