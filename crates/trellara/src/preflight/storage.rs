//! Whether broker and disk allow what the stream is to hold. The broker counts each stream's limit
//! as taken, whether used or not, and refuses the stream that goes beyond.

use trellara_jetstream::{Broker, account, monitor, topology};

use super::Findings;
use crate::config::{BrokerSetting, Config, size};
use crate::{http, setup};

/// What somebody has room for.
struct Room<'a> {
    whose: &'a str,
    /// Most, for all streams together.
    limit: u64,
    /// Promised to streams, ours included.
    promised: u64,
    /// How often the stream's limit counts.
    copies: u64,
    cure: &'a str,
}

pub(super) async fn examine(config: &Config, broker: Option<&Broker>, findings: &mut Findings) {
    let stream = match broker {
        Some(broker) => topology::facts(broker, &config.flow.stream()).await.ok(),
        None => None,
    };
    // `auto` leaves a stream that is there as it is.
    let ours = stream.as_ref().and_then(|stream| stream.max_bytes);
    let default = || setup::stream_spec(config, None).max_bytes;
    let wanted = config.nats.max_bytes.or(ours).unwrap_or_else(default);
    if ours.is_some_and(|ours| wanted <= ours) {
        return;
    }
    let ours = ours.unwrap_or(0);
    if let BrokerSetting::Embedded { store_dir, .. } = &config.nats.broker {
        let stored = stream.map_or(0, |stream| stream.bytes);
        if let Some(free) = setup::free_disk(store_dir) {
            let room = Room {
                whose: "the disk of nats.store_dir",
                limit: free + stored,
                promised: 0,
                copies: 1,
                cure: "make room on it",
            };
            room.compare(wanted, 0, findings);
        }
        return;
    }
    if let Some(broker) = broker {
        in_account(config, broker, (wanted, ours), findings).await;
    }
    for address in &config.nats.monitors {
        let Ok(body) = http::get(address, "/jsz").await else {
            continue;
        };
        if let Some(storage) = monitor::storage(&body) {
            let room = Room {
                whose: &format!("the server at {address}"),
                limit: storage.limit,
                promised: storage.promised,
                copies: 1,
                cure: "raise max_file_store in its jetstream section (its default follows the disk)",
            };
            room.compare(wanted, ours, findings);
        }
    }
}

/// Without the right to ask, the broker's answer to the stream itself has to do.
async fn in_account(
    config: &Config,
    broker: &Broker,
    (wanted, ours): (u64, u64),
    findings: &mut Findings,
) {
    let Ok(account) = account::storage(broker, config.nats.replicas).await else {
        return;
    };
    let copies = match account.counts_copies {
        true => config.nats.replicas as u64,
        false => 1,
    };
    let cure = "raise the account's limit (max_file) on the server";
    if let Some(limit) = account.limit {
        let room = Room {
            whose: "the broker's account",
            limit,
            promised: account.promised,
            copies,
            cure,
        };
        room.compare(wanted, ours, findings);
    }
    if let Some(limit) = account.stream_limit {
        let room = Room {
            whose: "one stream of the broker's account",
            limit,
            promised: 0,
            copies: 1,
            cure,
        };
        room.compare(wanted, 0, findings);
    }
}

impl Room<'_> {
    fn compare(&self, wanted: u64, ours: u64, findings: &mut Findings) {
        let others = self.promised.saturating_sub(ours * self.copies);
        let room = self.limit.saturating_sub(others) / self.copies;
        if wanted <= room {
            return;
        }
        let reason = format!(
            "the stream is to hold {}, and {} has room for {}: {} in all, {} promised to others",
            size(wanted),
            self.whose,
            size(room),
            size(self.limit),
            size(others)
        );
        // Below a mebibyte there is no stream.
        let cure = match room >> 20 {
            0 => self.cure.to_owned(),
            whole => format!(
                "set nats.max_bytes to {} or less, or {}",
                size(whole << 20),
                self.cure
            ),
        };
        findings.warning("BROKER_STORAGE", "nats.max_bytes", reason, cure);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::tests::{SMALLEST, resolved};

    #[tokio::test]
    async fn an_embedded_broker_is_held_against_its_disk() {
        for (limit, expected) in [("500000TiB", vec!["BROKER_STORAGE"]), ("1MiB", vec![])] {
            let text = format!("{SMALLEST}nats: {{max_bytes: {limit}}}\n");
            let config = resolved(&text, &[]).expect("a configuration");
            let mut findings = Findings::default();
            examine(&config, None, &mut findings).await;
            let found: Vec<&str> = findings.0.iter().map(|finding| finding.id).collect();
            assert_eq!(found, expected, "{limit}");
        }
    }

    #[test]
    fn what_others_were_promised_is_not_room() {
        let room = Room {
            whose: "the account",
            limit: 100 << 20,
            promised: 60 << 20,
            copies: 3,
            cure: "raise it",
        };
        // Ours are 3 × 10 of the 60 MiB: 70 are left, for three copies.
        for (wanted, warns) in [(23 << 20, false), (24 << 20, true)] {
            let mut findings = Findings::default();
            room.compare(wanted, 10 << 20, &mut findings);
            assert_eq!(!findings.0.is_empty(), warns, "{wanted}");
            for finding in &findings.0 {
                assert_eq!(
                    finding.cure,
                    "set nats.max_bytes to 23MiB or less, or raise it"
                );
            }
        }
    }
}
