//! Taking away what is applied.

use serde::Deserialize;
use serde_json::json;
use trellara_envelope::StreamSequence;

use crate::{Broker, BrokerError};

#[derive(Deserialize)]
struct Purged {
    purged: u64,
}

/// Removes the messages on `filter` with a sequence below `up_to_exclusive`; others stay. Returns
/// how many went.
///
/// # Errors
/// Permission, missing stream, or passing; repeating is harmless.
pub async fn purge_to(
    broker: &Broker,
    stream: &str,
    filter: &str,
    up_to_exclusive: StreamSequence,
) -> Result<u64, BrokerError> {
    // The server reads sequence 0 as "all of them" and nothing lies below 1.
    if up_to_exclusive.0 <= 1 {
        return Ok(0);
    }
    let doing = format!("purge {filter} of stream {stream} below {up_to_exclusive}");
    let body = json!({"filter": filter, "seq": up_to_exclusive.0});
    let endpoint = format!("STREAM.PURGE.{stream}");
    let purged: Purged = broker.api(&endpoint, &body, &doing).await?;
    Ok(purged.purged)
}

/// Removes every message on a subject or filter. Returns how many went.
///
/// # Errors
/// Permission, missing stream, or passing; an empty filter is refused, for it would mean all.
pub async fn purge_subject(
    broker: &Broker,
    stream: &str,
    subject: &str,
) -> Result<u64, BrokerError> {
    let doing = format!("purge {subject} of stream {stream}");
    if subject.is_empty() {
        return Err(BrokerError::configuration(doing, "no subject given"));
    }
    let endpoint = format!("STREAM.PURGE.{stream}");
    let purged: Purged = broker
        .api(&endpoint, &json!({"filter": subject}), &doing)
        .await?;
    Ok(purged.purged)
}
