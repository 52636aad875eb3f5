//! What becomes of a publish whose outcome is not simply "stored where it should be" (R4).

use std::time::Duration;

use trellara_envelope::{FrameOrdinal, Halt, HaltCode, StreamSequence};
use trellara_jetstream::publish::{Outcome, UnknownReason};

use super::sequencer::TailVerdict;
use super::{Command, Machine, Phase, TailAnswer};

/// Before the tail is read again after a failure, or a full stream is tried again.
const RETRY_AFTER: Duration = Duration::from_millis(500);

/// An outcome that only the stream's tail can settle. Nothing is sent meanwhile.
#[derive(Debug, Default)]
pub(super) struct Doubt {
    now: Option<Now>,
    count: u64,
}

#[derive(Debug)]
struct Now {
    reason: String,
    /// When to read the tail; `None` while it is being read.
    read_at: Option<Duration>,
    /// The highest sequence acknowledged when it was asked for. An answer below that means loss;
    /// one below what was acknowledged later is only old.
    floor: StreamSequence,
}

impl Doubt {
    pub(super) fn reason(&self) -> Option<&str> {
        self.now.as_ref().map(|now| now.reason.as_str())
    }

    /// How often an outcome was in doubt.
    pub(super) fn count(&self) -> u64 {
        self.count
    }
}

impl Machine {
    pub(super) fn published(
        &mut self,
        now: Duration,
        ordinal: FrameOrdinal,
        attempt: u32,
        outcome: Outcome,
        out: &mut Vec<Command>,
    ) -> Result<(), Halt> {
        let Some((current, expected)) = self.frames.waiting(ordinal) else {
            return Ok(());
        };
        let reason = match outcome {
            // Only the expected sequence proves that this frame is stored (C17).
            Outcome::Stored { sequence } | Outcome::DuplicateAt { sequence }
                if sequence == expected =>
            {
                self.frames.acknowledge(ordinal);
                return self.advance(now, out);
            }
            // An older attempt's failure says nothing about the newer one.
            _ if attempt < current => return Ok(()),
            Outcome::Stored { sequence } => format!("stored at {sequence}, not at {expected}"),
            Outcome::DuplicateAt { sequence } => {
                format!("known as a duplicate of {sequence}, not of {expected}")
            }
            Outcome::WrongSequence {
                actual: Some(actual),
            } => format!("the stream's last sequence is {actual}"),
            Outcome::WrongSequence { actual: None } => {
                "the stream's last sequence is another".to_owned()
            }
            Outcome::Full => {
                self.frames.refuse(now + RETRY_AFTER);
                "the stream is full".to_owned()
            }
            Outcome::TooLarge { limit } => {
                let limit = limit.map_or_else(String::new, |limit| format!(" of {limit} bytes"));
                self.restart(format!("a frame exceeds the broker's limit{limit}"), out);
                return Ok(());
            }
            Outcome::NoStream => "nobody answers for the stream".to_owned(),
            Outcome::Denied { subject } => {
                return Err(Halt::new(
                    HaltCode::Rights,
                    format!("the broker does not let the relay publish on {subject}"),
                    "grant the relay's user the permissions in config/ for this flow",
                ));
            }
            Outcome::Refused { code, text } => format!("the broker refused it: {text} ({code})"),
            Outcome::Unknown { reason } => unknown(reason),
        };
        self.doubt(now, reason, out);
        Ok(())
    }

    /// A broker that lost what it had acknowledged is noticed even when there is nothing to
    /// publish: what the target has not applied must be sent again.
    pub(super) fn notice_lost_tail(
        &mut self,
        now: Duration,
        last: StreamSequence,
        floor: StreamSequence,
        out: &mut Vec<Command>,
    ) {
        if last < floor {
            let reason = format!("the stream ends at {last}, acknowledged was {floor}");
            self.doubt(now, reason, out);
        }
    }

    fn doubt(&mut self, now: Duration, reason: String, out: &mut Vec<Command>) {
        if self.doubt.now.is_some() {
            return;
        }
        self.doubt.count += 1;
        self.doubt.now = Some(Now {
            reason,
            read_at: Some(now),
            floor: StreamSequence(0),
        });
        self.frames.paused = true;
        self.retry_doubt(now, out);
    }

    /// Reads the tail when its time has come.
    pub(super) fn retry_doubt(&mut self, now: Duration, out: &mut Vec<Command>) {
        if let Some(doubt) = &mut self.doubt.now
            && doubt.read_at.is_some_and(|at| at <= now)
        {
            doubt.read_at = None;
            doubt.floor = self.frames.highest();
            out.push(Command::ReadTail);
        }
    }

    pub(super) fn tail(
        &mut self,
        now: Duration,
        answer: TailAnswer,
        out: &mut Vec<Command>,
    ) -> Result<(), Halt> {
        let Some(doubt) = &mut self.doubt.now else {
            return Ok(());
        };
        let (tail, at) = match answer {
            TailAnswer::Failed(reason) => {
                doubt.read_at = Some(now + RETRY_AFTER);
                doubt.reason = reason;
                return Ok(());
            }
            TailAnswer::Gone => {
                self.restart("the stream is gone or empty", out);
                return Ok(());
            }
            TailAnswer::Foreign(reason) => {
                return Err(Halt::new(
                    HaltCode::Corrupt,
                    format!("the last message of the stream is not a frame of this flow: {reason}"),
                    "somebody else publishes on the flow's subjects; `trellara inspect` shows it",
                ));
            }
            TailAnswer::Frame(tail) => {
                let at = tail.sequence;
                (tail, at)
            }
            TailAnswer::Before(tail, at) => (tail, at),
        };
        let floor = doubt.floor;
        let ours = self.frames.incarnation();
        if tail.incarnation > ours {
            return Err(Halt::new(
                HaltCode::Fenced,
                format!(
                    "incarnation {} has taken over the flow from this relay's {ours}",
                    tail.incarnation
                ),
                "another relay writes this flow; only one is needed",
            ));
        }
        match self.frames.settle(&tail, at, floor) {
            TailVerdict::Ours => {
                self.doubt.now = None;
                self.frames.paused = false;
                self.advance(now, out)?;
                self.frames.pump(now, out);
                Ok(())
            }
            // Whether anything is lost is for the resume table to say, which knows the slot and
            // does not trust a tail before the next marker is acknowledged (C03).
            TailVerdict::Lost => {
                self.restart(
                    format!(
                        "the stream ends at sequence {}, below what it had acknowledged",
                        tail.sequence
                    ),
                    out,
                );
                Ok(())
            }
            TailVerdict::Overtaken => {
                doubt.read_at = Some(now);
                self.retry_doubt(now, out);
                Ok(())
            }
            // A fenced writer's chunk landed behind our frame and was purged: a new marker goes
            // where the stream has got to.
            TailVerdict::Shifted => {
                self.restart(
                    format!(
                        "what stood behind this relay's last frame was removed, up to sequence {}",
                        tail.sequence
                    ),
                    out,
                );
                Ok(())
            }
            // What a writer had on its way when our marker took the stream from it. Our window
            // continues frames that have no place any more; a new marker closes both.
            TailVerdict::Other if tail.incarnation < ours => {
                self.restart(
                    format!(
                        "frames of incarnation {} landed behind the marker of this one, {ours}",
                        tail.incarnation
                    ),
                    out,
                );
                Ok(())
            }
            TailVerdict::Other if self.phase == Phase::Marking => {
                self.restart("the stream has moved since its tail was read", out);
                Ok(())
            }
            TailVerdict::Other => Err(Halt::new(
                HaltCode::Fork,
                format!(
                    "sequence {} holds another frame than the one this relay published there",
                    tail.sequence
                ),
                "somebody else publishes on the flow's subjects; `trellara inspect` shows it",
            )),
        }
    }
}

fn unknown(reason: UnknownReason) -> String {
    match reason {
        UnknownReason::Timeout => "no answer in time".to_owned(),
        UnknownReason::Disconnected => "the connection to the broker was lost".to_owned(),
        UnknownReason::TooManyInFlight => "too many publishes without an answer".to_owned(),
        UnknownReason::Busy { text } => format!("the broker is busy: {text}"),
        UnknownReason::Answer { text } => format!("an answer could not be understood: {text}"),
    }
}
