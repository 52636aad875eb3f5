//! Waiting while another relay has the slot, and taking it over when that one is no more.
//!
//! A relay that was killed leaves the slot at once; one that was stopped, or whose machine is gone,
//! keeps it until `wal_sender_timeout`. So the standby looks at what the server hears from it: a
//! relay repeats its positions every two seconds whatever else it does, from a thread that waits for
//! nothing. Where that has not changed for [`SILENCE_LIMIT`], although the walsender waits and so
//! takes in what is said, it is ended: one that is busy with a large transaction hears nobody. Should it live
//! after all, it can do no harm: our marker takes the place in the stream that its next frame
//! expects.

use std::time::{Duration, Instant};

use tokio_util::sync::CancellationToken;
use trellara_postgres::{Session, Silence};
use trellara_source::slot::{self, SlotReader};

use crate::{RelayOptions, RelayState, RelayStatus};

/// Between two looks.
const LOOK: Duration = Duration::from_millis(500);
/// A question to the source is given up after this long.
const ANSWER: Duration = Duration::from_secs(10);
/// A relay that has said nothing for this long is gone: more than twice the interval at which it
/// repeats what it said last.
const SILENCE_LIMIT: Duration = Duration::from_secs(5);
/// The same for one that has said nothing at all yet: it says the first thing when it knows where the
/// stream ends, and the broker may keep it waiting.
const FIRST_WORD_LIMIT: Duration = Duration::from_secs(30);

/// Waits until the slot is free, or something prevents looking.
pub(crate) async fn wait(options: &RelayOptions, cancel: &CancellationToken, status: &RelayStatus) {
    tokio::select! {
        () = cancel.cancelled() => {}
        ended = watch(options, status) => {
            if let Err(reason) = ended {
                tracing::warn!(reason, "the slot's reader could not be looked at");
            }
        }
    }
}

async fn watch(options: &RelayOptions, status: &RelayStatus) -> Result<(), String> {
    let session = options.source.session().await;
    let session = session.map_err(|error| error.to_string())?;
    let name = &options.source.slot;
    let began = Instant::now();
    let mut silence = Silence::default();
    let mut said = None;
    while let Some(reader) = answered(slot::reader(&session, name)).await? {
        let silent = silence.observe(began.elapsed(), reader.clone());
        if is_gone(&reader, silent) {
            end(&session, name, &reader, silent).await?;
            silence.forget();
        }
        if said != Some(reader.pid) {
            tracing::info!(
                slot = name,
                pid = reader.pid,
                "waiting as a standby: another relay has the slot"
            );
            said = Some(reader.pid);
        }
        let holder = format!(
            "another relay has the slot: pid {} on the source",
            reader.pid
        );
        status.update(|status| {
            status.state = RelayState::Standby;
            status.waiting_for = holder;
            status.halt = None;
        });
        tokio::time::sleep(LOOK).await;
    }
    Ok(())
}

/// Whether nothing is to be expected any more of a reader that has not changed for so long. One that
/// our role may not see is never judged.
fn is_gone(reader: &SlotReader, silent: Duration) -> bool {
    let limit = match reader.said_at {
        Some(_) => SILENCE_LIMIT,
        None => FIRST_WORD_LIMIT,
    };
    reader.waits && !reader.began.is_empty() && silent >= limit
}

async fn end(
    session: &Session,
    name: &str,
    reader: &SlotReader,
    silent: Duration,
) -> Result<(), String> {
    if answered(slot::end_reader(session, name, reader)).await? {
        tracing::warn!(
            slot = name,
            pid = reader.pid,
            silent_seconds = silent.as_secs_f64(),
            "taking over: ended the walsender of a relay that has fallen silent"
        );
    }
    Ok(())
}

async fn answered<T, E: std::fmt::Display>(
    question: impl Future<Output = Result<T, E>>,
) -> Result<T, String> {
    match tokio::time::timeout(ANSWER, question).await {
        Ok(answer) => answer.map_err(|error| error.to_string()),
        Err(_) => Err("the source does not answer".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn reader(began: &str, said_at: Option<&str>) -> SlotReader {
        SlotReader {
            pid: 17,
            began: began.to_owned(),
            said_at: said_at.map(str::to_owned),
            waits: true,
        }
    }

    #[test]
    fn a_walsender_that_is_busy_hears_nobody_and_proves_nothing() {
        let busy = SlotReader {
            waits: false,
            ..reader("yesterday", Some("long ago"))
        };
        assert!(!is_gone(&busy, Duration::from_secs(86_400)));
    }

    #[test]
    fn a_reader_that_has_fallen_silent_is_gone_and_one_that_never_spoke_gets_longer() {
        let spoke = reader("yesterday", Some("just now"));
        assert!(!is_gone(&spoke, Duration::from_secs(4)));
        assert!(is_gone(&spoke, Duration::from_secs(5)));
        let new = reader("yesterday", None);
        assert!(!is_gone(&new, Duration::from_secs(29)));
        assert!(is_gone(&new, Duration::from_secs(30)));
    }

    #[test]
    fn a_reader_that_cannot_be_seen_is_never_judged() {
        assert!(!is_gone(&reader("", None), Duration::from_secs(86_400)));
    }
}
