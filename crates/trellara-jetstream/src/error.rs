//! One error for everything asked of the broker, shaped by what the caller will do.

use std::fmt;

use serde::Deserialize;

/// What the caller can do about a [`BrokerError`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum BrokerErrorKind {
    /// Not reachable, no answer in time, no leader, overloaded: try again with back-off, for ever.
    Passing,
    /// The server refuses our credentials, or one subject to them; a human must change rights.
    Permission {
        /// The subject that was refused; empty when the whole connection was.
        subject: String,
    },
    /// The stream, consumer or message is not there.
    Missing,
    /// The server answered with an error of its own that repeating does not mend.
    Refused {
        /// JetStream's `err_code`, 0 when the answer had none.
        code: u64,
        /// The server's text.
        text: String,
    },
    /// Our own settings are wrong: address, key file, certificate, server too old.
    Configuration,
}

/// A failed request to the broker: what was tried, what kind of failure, what to check.
#[derive(Debug, thiserror::Error)]
#[error("{doing}: {what}")]
pub struct BrokerError {
    kind: BrokerErrorKind,
    doing: String,
    what: String,
    hint: Option<&'static str>,
    code: u64,
    rewound: bool,
}

impl BrokerError {
    /// What kind of trouble, doing what, and what was said about it.
    pub fn new(kind: BrokerErrorKind, doing: impl fmt::Display, what: impl fmt::Display) -> Self {
        BrokerError {
            kind,
            doing: doing.to_string(),
            what: what.to_string(),
            hint: None,
            code: 0,
            rewound: false,
        }
    }

    /// A stream that ends before what it had handed out. Passing, because whoever reads has to
    /// take up its work anew, and then the content decides (rule C26).
    pub(crate) fn rewound(doing: impl fmt::Display, handed_out: u64, last: u64) -> Self {
        let what = format!(
            "the stream ends at sequence {last}, though {handed_out} had been handed out: it lost \
             its tail, was restored or replaced"
        );
        let mut error = Self::passing(doing, what);
        error.rewound = true;
        error
    }

    pub(crate) fn passing(doing: impl fmt::Display, what: impl fmt::Display) -> Self {
        Self::new(BrokerErrorKind::Passing, doing, what)
    }

    pub(crate) fn configuration(doing: impl fmt::Display, what: impl fmt::Display) -> Self {
        Self::new(BrokerErrorKind::Configuration, doing, what)
    }

    pub(crate) fn with_hint(mut self, hint: &'static str) -> Self {
        self.hint = Some(hint);
        self
    }

    /// What the caller can do about it.
    pub fn kind(&self) -> &BrokerErrorKind {
        &self.kind
    }

    /// True when trying again may help without anybody changing anything.
    pub fn is_passing(&self) -> bool {
        self.kind == BrokerErrorKind::Passing
    }

    /// True when what was asked for is not there.
    pub fn is_missing(&self) -> bool {
        self.kind == BrokerErrorKind::Missing
    }

    /// True when a stream ends before a sequence that it had handed out.
    pub fn is_rewound(&self) -> bool {
        self.rewound
    }

    /// JetStream's `err_code`, 0 when the failure was not the server's answer.
    pub fn code(&self) -> u64 {
        self.code
    }

    /// Something for a human to check, where there is something better to say than the text.
    pub fn hint(&self) -> Option<&'static str> {
        self.hint
    }
}

/// JetStream's own numbers for what went wrong, as far as we tell them apart.
pub(crate) mod code {
    pub(crate) const CONSUMER_NOT_FOUND: u64 = 10014;
    pub(crate) const INSUFFICIENT_RESOURCES: u64 = 10023;
    pub(crate) const MESSAGE_NOT_FOUND: u64 = 10037;
    pub(crate) const NOT_ENABLED_FOR_ACCOUNT: u64 = 10039;
    pub(crate) const STORAGE_EXCEEDED: u64 = 10047;
    pub(crate) const MESSAGE_TOO_LARGE: u64 = 10054;
    pub(crate) const STREAM_NAME_IN_USE: u64 = 10058;
    pub(crate) const STREAM_NOT_FOUND: u64 = 10059;
    pub(crate) const STREAM_MISMATCH: u64 = 10060;
    pub(crate) const SUBJECT_OVERLAP: u64 = 10065;
    pub(crate) const WRONG_LAST_MESSAGE_ID: u64 = 10070;
    pub(crate) const WRONG_LAST_SEQUENCE: u64 = 10071;
    pub(crate) const NOT_ENABLED: u64 = 10076;
    pub(crate) const STORE_FAILED: u64 = 10077;
    pub(crate) const ID_IN_PROCESS: u64 = 10158;
    pub(crate) const WRONG_LAST_SEQUENCE_CONSTANT: u64 = 10164;
    pub(crate) const TOO_MANY_REQUESTS: u64 = 10167;
}

/// The `error` part of a JetStream answer.
#[derive(Debug, Clone, Deserialize)]
pub(crate) struct ApiError {
    /// HTTP-like status.
    #[serde(default)]
    pub(crate) code: u64,
    /// The precise number.
    #[serde(default)]
    pub(crate) err_code: u64,
    /// Text.
    #[serde(default)]
    pub(crate) description: String,
}

impl ApiError {
    /// True when the server could not do it now: no leader, overload, out of resources.
    pub(crate) fn is_passing(&self) -> bool {
        matches!(
            self.err_code,
            code::INSUFFICIENT_RESOURCES | code::STORAGE_EXCEEDED | code::TOO_MANY_REQUESTS
        ) || matches!(self.code, 408 | 429)
            || (self.code == 503
                && !matches!(self.err_code, code::NOT_ENABLED | code::NOT_ENABLED_FOR_ACCOUNT))
            // "raft: not leader" and its like come as 500 without a number of their own.
            || (self.code == 500 && self.err_code == 0)
    }

    /// The one place where JetStream's answers become ours.
    pub(crate) fn into_error(self, doing: impl fmt::Display) -> BrokerError {
        let kind = match self.err_code {
            code::CONSUMER_NOT_FOUND | code::MESSAGE_NOT_FOUND | code::STREAM_NOT_FOUND => {
                BrokerErrorKind::Missing
            }
            _ if self.is_passing() => BrokerErrorKind::Passing,
            _ => BrokerErrorKind::Refused {
                code: self.err_code,
                text: self.description.clone(),
            },
        };
        let mut error = BrokerError::new(
            kind,
            doing,
            format_args!("{} ({}/{})", self.description, self.code, self.err_code),
        );
        error.code = self.err_code;
        error.hint = match self.err_code {
            code::NOT_ENABLED | code::NOT_ENABLED_FOR_ACCOUNT => Some(
                "start nats-server with JetStream (-js, or a jetstream block), for this account",
            ),
            code::SUBJECT_OVERLAP => Some(
                "another stream already stores these subjects; `nats stream ls --subjects` names it",
            ),
            _ => None,
        };
        error
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn kind(code: u64, err_code: u64) -> BrokerErrorKind {
        let description = String::new();
        ApiError {
            code,
            err_code,
            description,
        }
        .into_error("test")
        .kind
    }

    #[test]
    fn a_lack_of_leader_passes_and_a_lack_of_jetstream_does_not() {
        assert_eq!(kind(503, 10008), BrokerErrorKind::Passing);
        assert_eq!(kind(500, 0), BrokerErrorKind::Passing);
        assert_eq!(kind(429, 10167), BrokerErrorKind::Passing);
        assert!(matches!(kind(503, 10076), BrokerErrorKind::Refused { .. }));
        assert!(matches!(kind(400, 10052), BrokerErrorKind::Refused { .. }));
        assert_eq!(kind(404, 10059), BrokerErrorKind::Missing);
    }
}
