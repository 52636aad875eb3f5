//! Whether the marker stands on the frame that it names (R3, C03).
//!
//! The broker compares sequences, not contents. A broker that loses the tail after it was read,
//! and then takes a copy of an old writer's frame in its place, accepts the marker on top of it,
//! although that continues a frame that is no longer there. So the frame below the marker is read
//! once more when the marker is acknowledged, before anything follows from it. A marker that
//! stands on another frame is void: nothing is ever published behind it, and the next incarnation
//! goes on from the frame below it (`ending::read`).

use std::time::Duration;

use trellara_envelope::{FrameDigest, Halt, StreamSequence};

use super::{Command, FootingAnswer, Machine, Phase};

/// Before the frame is asked for again after a failure.
const RETRY_AFTER: Duration = Duration::from_millis(500);

#[derive(Debug)]
pub(super) struct Footing {
    at: StreamSequence,
    digest: FrameDigest,
    state: State,
}

#[derive(Debug, PartialEq, Eq)]
enum State {
    /// When to ask.
    AskAt(Duration),
    Asked,
    Proved,
}

impl Footing {
    /// `digest` is that of the frame at `at`, as it was read.
    pub(super) fn new(at: StreamSequence, digest: FrameDigest) -> Self {
        Self {
            at,
            digest,
            state: State::AskAt(Duration::ZERO),
        }
    }

    pub(super) fn is_proved(&self) -> bool {
        self.state == State::Proved
    }
}

impl Machine {
    /// Asks what the marker stands on, once it is acknowledged.
    pub(super) fn check_footing(&mut self, now: Duration, out: &mut Vec<Command>) {
        if self.phase == Phase::Marking
            && self.frames.is_first_acknowledged()
            && matches!(self.footing.state, State::AskAt(at) if at <= now)
        {
            self.footing.state = State::Asked;
            out.push(Command::ReadFooting(self.footing.at));
        }
    }

    pub(super) fn footing(
        &mut self,
        now: Duration,
        answer: FootingAnswer,
        out: &mut Vec<Command>,
    ) -> Result<(), Halt> {
        match answer {
            // Only the target takes away what lies that close to the end, and only once it has
            // applied the marker: then it misses nothing below it.
            FootingAnswer::Missing => self.footing.state = State::Proved,
            FootingAnswer::Frame(digest) if digest == self.footing.digest => {
                self.footing.state = State::Proved;
            }
            FootingAnswer::Frame(_) => {
                let at = self.footing.at;
                self.restart(
                    format!("sequence {at} holds another frame than when the marker was built"),
                    out,
                );
                return Ok(());
            }
            FootingAnswer::Failed(reason) => {
                tracing::debug!(reason, "what the marker stands on could not be read");
                self.footing.state = State::AskAt(now + RETRY_AFTER);
                return Ok(());
            }
        }
        self.advance(now, out)
    }
}
