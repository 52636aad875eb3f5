//! One error for everything asked of the broker, shaped by what the caller will do.

use std::fmt;

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
}

impl BrokerError {
    pub(crate) fn new(
        kind: BrokerErrorKind,
        doing: impl fmt::Display,
        what: impl fmt::Display,
    ) -> Self {
        BrokerError {
            kind,
            doing: doing.to_string(),
            what: what.to_string(),
            hint: None,
        }
    }

    /// What the caller can do about it.
    pub fn kind(&self) -> &BrokerErrorKind {
        &self.kind
    }

    /// True when trying again may help without anybody changing anything.
    pub fn is_passing(&self) -> bool {
        self.kind == BrokerErrorKind::Passing
    }

    /// Something for a human to check, where there is something better to say than the text.
    pub fn hint(&self) -> Option<&'static str> {
        self.hint
    }
}
