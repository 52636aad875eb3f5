//! How long a paused flow may stay so: what is written meanwhile, and how long until the stream is
//! full and the slot in danger. Two looks a moment apart give the rates; what they were a moment ago
//! is the best guess of what they will be.

use std::time::{Duration, Instant};

use serde::Serialize;
use trellara_envelope::Lsn;

use crate::acknowledge;
use crate::command::status::{age, bytes_text};
use crate::config::Config;
use crate::survey::{self, SourceFacts, StreamFacts};

/// Time between two looks: shorter ones make a rate of single commits.
const BETWEEN: Duration = Duration::from_secs(2);

/// What one look saw.
#[derive(Debug, Clone)]
pub(crate) struct Sample {
    at: Instant,
    head: Lsn,
    retained_bytes: Option<u64>,
    limit_bytes: Option<u64>,
    safe_bytes: Option<i64>,
    stream: Stored,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Stored {
    bytes: u64,
    messages: u64,
    last_sequence: u64,
    max_bytes: Option<u64>,
}

/// What two of them say.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub(crate) struct Forecast {
    /// Time between the two looks.
    pub(crate) sampled_seconds: f64,
    /// All that the source's cluster writes, because a slot keeps all of it.
    pub(crate) wal_bytes_per_second: f64,
    /// What the relay stores of it.
    pub(crate) stream_bytes_per_second: f64,
    pub(crate) stream_bytes: u64,
    /// `nats.max_bytes`; absent without a limit.
    pub(crate) stream_max_bytes: Option<u64>,
    /// Absent when it does not grow, or has no limit.
    pub(crate) stream_full_in_seconds: Option<f64>,
    /// `published` or `applied`: when the source may forget WAL.
    pub(crate) acknowledge: &'static str,
    /// WAL that the slot keeps now.
    pub(crate) slot_bytes: Option<u64>,
    /// `max_slot_wal_keep_size`; absent when the source's disk is the limit.
    pub(crate) slot_max_bytes: Option<u64>,
    /// Until PostgreSQL may take the slot's WAL away; absent where it never does, or nothing is
    /// written.
    pub(crate) slot_lost_in_seconds: Option<f64>,
}

/// Takes two looks.
///
/// # Errors
/// Source or stream do not answer: why.
pub(crate) async fn take(config: &Config) -> Result<Forecast, String> {
    let before = sample(config).await?;
    tokio::time::sleep(BETWEEN).await;
    let after = sample(config).await?;
    let acknowledge = acknowledge::decide(config).await.level();
    Ok(between(&before, &after, acknowledge))
}

async fn sample(config: &Config) -> Result<Sample, String> {
    let (source, stream) = survey::origins(config).await?;
    Ok(Sample::of(&source, &stream))
}

impl Sample {
    fn of(source: &SourceFacts, stream: &StreamFacts) -> Self {
        let slot = source.slot.as_ref();
        Self {
            at: Instant::now(),
            head: source.head(),
            retained_bytes: slot.and_then(|slot| slot.retained_bytes),
            limit_bytes: slot.and_then(|slot| slot.limit_bytes),
            safe_bytes: slot.and_then(|slot| slot.safe_bytes),
            stream: Stored {
                bytes: stream.bytes,
                messages: stream.messages,
                last_sequence: stream.last_sequence,
                max_bytes: stream.max_bytes,
            },
        }
    }
}

/// The forecast from two looks.
fn between(before: &Sample, after: &Sample, acknowledge: &'static str) -> Forecast {
    let seconds = after.at.duration_since(before.at).as_secs_f64().max(0.001);
    let wal = after.head.bytes_since(before.head) as f64 / seconds;
    let stream = growth(before.stream, after.stream) / seconds;
    let full = after.stream.max_bytes.and_then(|max| {
        let free = max.saturating_sub(after.stream.bytes) as f64;
        until(free, stream)
    });
    // PostgreSQL counts down to the next checkpoint's point; below nothing it is lost any moment.
    let lost = after
        .safe_bytes
        .and_then(|safe| until(safe.max(0) as f64, wal));
    let lost = match acknowledge {
        // Until the stream is full the slot moves on, and then it stands.
        "published" => full.zip(lost).map(|(full, lost)| full + lost),
        _ => lost,
    };
    Forecast {
        sampled_seconds: seconds,
        wal_bytes_per_second: wal,
        stream_bytes_per_second: stream,
        stream_bytes: after.stream.bytes,
        stream_max_bytes: after.stream.max_bytes,
        stream_full_in_seconds: full,
        acknowledge,
        slot_bytes: after.retained_bytes,
        slot_max_bytes: after.limit_bytes,
        slot_lost_in_seconds: lost,
    }
}

/// Bytes that came in. What was trimmed meanwhile hides them, so that the number of frames has a say:
/// at the mean size of those that are there.
fn growth(before: Stored, after: Stored) -> f64 {
    let grown = after.bytes.saturating_sub(before.bytes) as f64;
    let frames = after.last_sequence.saturating_sub(before.last_sequence) as f64;
    let mean = after.bytes as f64 / after.messages.max(1) as f64;
    match after.bytes >= before.bytes && after.messages >= before.messages {
        true => grown,
        false => grown.max(frames * mean),
    }
}

fn until(bytes: f64, bytes_per_second: f64) -> Option<f64> {
    // Less than a byte a second is no forecast.
    (bytes_per_second >= 1.0).then(|| bytes / bytes_per_second)
}

impl Forecast {
    /// For people, a line each.
    pub(crate) fn lines(&self) -> Vec<String> {
        let rate = |bytes: f64| format!("{} a second", bytes_text(bytes as u64));
        let limit = self
            .stream_max_bytes
            .map_or("no limit".to_owned(), bytes_text);
        let full = match (self.stream_full_in_seconds, self.stream_max_bytes) {
            (Some(seconds), _) => format!("full in {}", age(seconds)),
            (None, None) => "its broker's disk is the limit".to_owned(),
            (None, Some(_)) => "it does not grow now".to_owned(),
        };
        let keeps = self.slot_bytes.map_or("unknown".to_owned(), bytes_text);
        let (may, lost) = match (self.slot_max_bytes, self.slot_lost_in_seconds) {
            (None, _) => (
                "has no limit (max_slot_wal_keep_size = -1)".to_owned(),
                "the source's disk is the limit".to_owned(),
            ),
            (Some(limit), Some(seconds)) => (
                format!("may keep {}", bytes_text(limit)),
                format!("in danger in {}", age(seconds)),
            ),
            (Some(limit), None) => (
                format!("may keep {}", bytes_text(limit)),
                "in no danger at this rate".to_owned(),
            ),
        };
        let from = match self.acknowledge {
            "published" => "once the stream is full",
            _ => "from the pause on",
        };
        vec![
            format!("WAL      {} on the source", rate(self.wal_bytes_per_second)),
            format!(
                "stream   {} of {limit}, grows by {}: {full}",
                bytes_text(self.stream_bytes),
                rate(self.stream_bytes_per_second)
            ),
            format!(
                "slot     keeps {keeps} of WAL, all of it {from} (acknowledge: {}), and {may}: {lost}",
                self.acknowledge
            ),
        ]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    fn sample(at: Instant, head: u64, safe: Option<i64>, stream: (u64, u64, u64)) -> Sample {
        Sample {
            at,
            head: Lsn(head),
            retained_bytes: Some(5 * MIB),
            limit_bytes: safe.map(|_| 1000 * MIB),
            safe_bytes: safe,
            stream: Stored {
                bytes: stream.0,
                messages: stream.1,
                last_sequence: stream.2,
                max_bytes: Some(100 * MIB),
            },
        }
    }

    /// Two looks two seconds apart: 8 MiB of WAL, 4 MiB of frames.
    fn looks(safe: Option<i64>) -> (Sample, Sample) {
        let now = Instant::now();
        let before = sample(now, 16 * MIB, safe, (16 * MIB, 4, 10));
        let later = now + Duration::from_secs(2);
        let after = sample(later, 24 * MIB, safe, (20 * MIB, 5, 11));
        (before, after)
    }

    #[test]
    fn what_is_acknowledged_when_published_is_kept_only_from_a_full_stream_on() {
        let safe = i64::try_from(400 * MIB).expect("small");
        let (before, after) = looks(Some(safe));
        let forecast = between(&before, &after, "published");
        assert_eq!(forecast.wal_bytes_per_second, (4 * MIB) as f64);
        assert_eq!(forecast.stream_bytes_per_second, (2 * MIB) as f64);
        assert_eq!(forecast.stream_full_in_seconds, Some(40.0));
        assert_eq!(forecast.slot_lost_in_seconds, Some(140.0));
        let forecast = between(&before, &after, "applied");
        assert_eq!(forecast.slot_lost_in_seconds, Some(100.0));
    }

    #[test]
    fn a_slot_without_a_limit_is_never_lost_and_its_disk_is_named() {
        let (before, after) = looks(None);
        let forecast = between(&before, &after, "applied");
        assert_eq!(forecast.slot_lost_in_seconds, None);
        let lines = forecast.lines();
        assert!(
            lines[2].contains("the source's disk is the limit"),
            "{lines:?}"
        );
    }

    #[test]
    fn a_source_at_rest_fills_nothing() {
        let now = Instant::now();
        let still = sample(now, 16 * MIB, Some(100), (16 * MIB, 4, 10));
        let later = Sample {
            at: now + Duration::from_secs(2),
            ..still.clone()
        };
        let forecast = between(&still, &later, "published");
        assert_eq!(forecast.stream_full_in_seconds, None);
        assert_eq!(forecast.slot_lost_in_seconds, None);
        assert!(forecast.lines()[1].contains("does not grow"));
    }

    #[test]
    fn trimming_hides_no_growth() {
        let now = Instant::now();
        let before = sample(now, 0, None, (16 * MIB, 16, 20));
        let later = now + Duration::from_secs(1);
        let after = sample(later, 0, None, (12 * MIB, 12, 22));
        let forecast = between(&before, &after, "published");
        assert_eq!(forecast.stream_bytes_per_second, (2 * MIB) as f64);
    }
}
