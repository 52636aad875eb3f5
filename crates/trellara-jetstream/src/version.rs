//! Versions of nats-server, and how far each may be trusted.

use std::fmt;

/// A version of nats-server.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct ServerVersion {
    /// First number.
    pub major: u32,
    /// Second number.
    pub minor: u32,
    /// Third number.
    pub patch: u32,
}

/// How far a server version may be trusted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Support {
    /// 2.12.3 and newer.
    Full,
    /// 2.10.25 to 2.12.2: `acknowledge: applied` only, and no message ids (they poison on R3).
    Limited,
    /// Older: refused. No ack of theirs can be made durable, or they lose streams when killed.
    Refused,
}

impl ServerVersion {
    /// A version from its numbers.
    pub const fn new(major: u32, minor: u32, patch: u32) -> Self {
        ServerVersion {
            major,
            minor,
            patch,
        }
    }

    /// Reads `2.15.1`, also `v2.15.1` and `2.16.0-RC.1`; what is no number counts as 0, so that
    /// an unreadable version is an old one.
    pub fn parse(text: &str) -> Self {
        let numbers = text.trim_start_matches('v');
        let mut parts = numbers.split(['.', '-', '+']).map(|part| part.parse().ok());
        let mut next = || parts.next().flatten().unwrap_or(0);
        ServerVersion::new(next(), next(), next())
    }

    /// How far this version may be trusted.
    pub fn support(self) -> Support {
        if self >= ServerVersion::new(2, 12, 3) {
            Support::Full
        } else if self >= ServerVersion::new(2, 10, 25) {
            Support::Limited
        } else {
            Support::Refused
        }
    }

    /// True when a consumer can be moved without making it anew (CONSUMER.RESET).
    pub(crate) fn can_reset_consumers(self) -> bool {
        self >= ServerVersion::new(2, 14, 0)
    }
}

impl fmt::Display for ServerVersion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}.{}", self.major, self.minor, self.patch)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn support_begins_where_the_design_says() {
        let support = |text| ServerVersion::parse(text).support();
        for text in ["2.9.10", "2.10.24", "", "nonsense"] {
            assert_eq!(support(text), Support::Refused, "{text}");
        }
        for text in ["2.10.25", "2.11.11", "2.12.2"] {
            assert_eq!(support(text), Support::Limited, "{text}");
        }
        for text in ["2.12.3", "2.15.1", "v2.16.0-RC.1", "3.0.0"] {
            assert_eq!(support(text), Support::Full, "{text}");
        }
    }
}
