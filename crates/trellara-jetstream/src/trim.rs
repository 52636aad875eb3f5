//! Taking away what is applied.

use trellara_envelope::StreamSequence;

use crate::{Broker, BrokerError, BrokerErrorKind};

/// Removes the messages on `filter` with a sequence below `up_to_exclusive`; others stay. Returns
/// how many went.
#[allow(clippy::unused_async)]
pub async fn purge_to(
    _broker: &Broker,
    _stream: &str,
    _filter: &str,
    _up_to_exclusive: StreamSequence,
) -> Result<u64, BrokerError> {
    Err(BrokerError::new(
        BrokerErrorKind::Passing,
        "purge",
        "not yet",
    ))
}

/// Removes every message on a subject or filter. Returns how many went.
#[allow(clippy::unused_async)]
pub async fn purge_subject(
    _broker: &Broker,
    _stream: &str,
    _subject: &str,
) -> Result<u64, BrokerError> {
    Err(BrokerError::new(
        BrokerErrorKind::Passing,
        "purge",
        "not yet",
    ))
}
