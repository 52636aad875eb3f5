//! A position in a PostgreSQL write-ahead log.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// A log sequence number: a byte offset into the write-ahead log, printed `X/Y` in hexadecimal.
#[derive(Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Lsn(pub u64);

/// The text was not an LSN of the form `16/B374D848`.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("not an LSN (expected the form 16/B374D848): {0:?}")]
pub struct ParseLsnError(String);

impl Lsn {
    /// The invalid position, which PostgreSQL also uses for "none".
    pub const ZERO: Lsn = Lsn(0);
    /// A position beyond every real one.
    pub const MAX: Lsn = Lsn(u64::MAX);

    /// Bytes from `earlier` to `self`; zero when `earlier` is not earlier.
    pub fn bytes_since(self, earlier: Lsn) -> u64 {
        self.0.saturating_sub(earlier.0)
    }
}

impl fmt::Display for Lsn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:X}/{:X}", self.0 >> 32, self.0 & 0xffff_ffff)
    }
}

impl fmt::Debug for Lsn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl FromStr for Lsn {
    type Err = ParseLsnError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let invalid = || ParseLsnError(text.chars().take(40).collect());
        let (high, low) = text.split_once('/').ok_or_else(invalid)?;
        let part = |digits: &str| {
            let hexadecimal = digits.bytes().all(|b| b.is_ascii_hexdigit());
            if digits.is_empty() || digits.len() > 8 || !hexadecimal {
                return Err(invalid());
            }
            u32::from_str_radix(digits, 16).map_err(|_| invalid())
        };
        Ok(Lsn((u64::from(part(high)?) << 32) | u64::from(part(low)?)))
    }
}
