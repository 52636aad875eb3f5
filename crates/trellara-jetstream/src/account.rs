//! What the account that we are in may store.

use std::collections::BTreeMap;

use serde::Deserialize;

use crate::{Broker, BrokerError};

/// Limits on files, and what is promised of them: the server counts each stream's own limit,
/// whether used or not.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct AccountStorage {
    /// Most that all streams together may promise, in bytes; `None` means unlimited.
    pub limit: Option<u64>,
    /// What the streams that are there promise of it.
    pub promised: u64,
    /// Most that one stream may promise.
    pub stream_limit: Option<u64>,
    /// Whether each copy of a stream counts against `limit`.
    pub counts_copies: bool,
}

#[derive(Deserialize, Default)]
struct Tier {
    #[serde(default)]
    reserved_storage: u64,
    #[serde(default)]
    limits: Limits,
}

#[derive(Deserialize, Default)]
struct Limits {
    #[serde(default)]
    max_storage: i64,
    #[serde(default)]
    storage_max_stream_bytes: i64,
}

#[derive(Deserialize)]
struct Info {
    #[serde(flatten)]
    whole: Tier,
    /// Limits per number of copies, where the account has such.
    #[serde(default)]
    tiers: BTreeMap<String, Tier>,
}

/// What a stream of so many copies may take up in this account.
///
/// # Errors
/// Permission without the right to `$JS.API.INFO`, or passing.
pub async fn storage(broker: &Broker, replicas: usize) -> Result<AccountStorage, BrokerError> {
    let doing = "read the account's limits";
    let info: Info = broker.api("INFO", &serde_json::json!({}), doing).await?;
    Ok(info.storage(replicas))
}

impl Info {
    fn storage(&self, replicas: usize) -> AccountStorage {
        let tier = self.tiers.get(&format!("R{replicas}"));
        let counts_copies = self.tiers.is_empty();
        let limited = tier.unwrap_or(&self.whole);
        // Without a tier for as many copies the whole says 0: nothing may be stored.
        let limit = u64::try_from(limited.limits.max_storage).ok();
        let stream_limit = u64::try_from(limited.limits.storage_max_stream_bytes).ok();
        AccountStorage {
            limit,
            promised: limited.reserved_storage,
            stream_limit: stream_limit.filter(|limit| *limit > 0),
            counts_copies,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(info: &str, replicas: usize, expected: AccountStorage) {
        let info: Info = serde_json::from_str(info).expect("an answer");
        assert_eq!(info.storage(replicas), expected);
    }

    #[test]
    fn limits_are_the_tiers_where_there_are_tiers() {
        let unlimited = r#"{"storage":5,"reserved_storage":7,"limits":{"max_storage":-1,"storage_max_stream_bytes":-1}}"#;
        let whole = AccountStorage {
            promised: 7,
            counts_copies: true,
            ..AccountStorage::default()
        };
        check(unlimited, 1, whole);
        let flat =
            r#"{"reserved_storage":7,"limits":{"max_storage":100,"storage_max_stream_bytes":50}}"#;
        let limited = AccountStorage {
            limit: Some(100),
            stream_limit: Some(50),
            ..whole
        };
        check(flat, 3, limited);
        let tiered = r#"{"limits":{},"tiers":{"R3":{"reserved_storage":9,"limits":{"max_storage":80,"storage_max_stream_bytes":0}}}}"#;
        let of_tier = AccountStorage {
            limit: Some(80),
            promised: 9,
            stream_limit: None,
            counts_copies: false,
        };
        check(tiered, 3, of_tier);
        let none = AccountStorage {
            limit: Some(0),
            ..AccountStorage::default()
        };
        check(tiered, 1, none);
    }
}
