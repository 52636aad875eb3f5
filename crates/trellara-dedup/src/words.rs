//! The words of this crate: identities, ordinals, and the two kinds of time.

use std::time::Duration;

/// The 16 bytes that stand for a transaction, as a number whose order is the order of the bytes.
///
/// They are expected to be a hash (xxh3 with a fixed seed in Trellara). Nothing is wrong when they
/// are not; clustered identities only cost more searches.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Identity(pub u128);

impl Identity {
    /// Reads the bytes as they stand in the ledger.
    #[must_use]
    pub const fn from_bytes(bytes: [u8; 16]) -> Self {
        Self(u128::from_be_bytes(bytes))
    }

    /// The bytes as they stand in the ledger.
    #[must_use]
    pub const fn to_bytes(self) -> [u8; 16] {
        self.0.to_be_bytes()
    }
}

/// The number of an identity, or of a row without identities, in the ledger of one lane.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Ordinal(pub i64);

impl Ordinal {
    /// "Cannot vouch": the caller probes everything.
    pub const NONE: Self = Self(-1);

    /// The last ordinal of a row that begins here and holds `identities`; a row without any takes
    /// one ordinal. `None` when that is not a number any more.
    pub(crate) fn last_of(self, identities: usize) -> Option<Self> {
        let more = i64::try_from(identities.max(1) - 1).ok()?;
        self.0.checked_add(more).map(Self)
    }

    pub(crate) fn follows(self, earlier: Self) -> bool {
        earlier.0.checked_add(1) == Some(self.0)
    }
}

/// When something was applied, in microseconds of the *target's* clock. Expiry knows no other.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Stamp(pub i64);

impl Stamp {
    /// This time less `span`, or the beginning of time.
    #[must_use]
    pub fn less(self, span: Duration) -> Self {
        Self(self.0.saturating_sub(micros(span)))
    }
}

/// Microseconds of any clock of this process that never runs backwards; for guard, cooldown and
/// warnings alone.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Moment(pub i64);

impl Moment {
    /// This moment and `span` more.
    #[must_use]
    pub fn plus(self, span: Duration) -> Self {
        Self(self.0.saturating_add(micros(span)))
    }
}

fn micros(span: Duration) -> i64 {
    i64::try_from(span.as_micros()).unwrap_or(i64::MAX)
}
