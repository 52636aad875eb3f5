//! A simulated stream: what JetStream promises about one, and nothing else.

use std::collections::{BTreeMap, BTreeSet};

use bytes::Bytes;
use trellara_envelope::{FrameDigest, StreamSequence};
use trellara_jetstream::publish::{Outcome, Outgoing};

/// One stored message.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Message {
    /// Its subject.
    pub subject: String,
    /// Its bytes.
    pub payload: Bytes,
    /// Its id.
    pub id: Option<String>,
    /// Its headers.
    pub headers: Vec<(String, String)>,
}

/// A stream of one copy.
#[derive(Debug, Clone, Default)]
pub struct Stream {
    messages: BTreeMap<u64, Message>,
    /// Of the last message ever stored.
    last: u64,
    ids: BTreeMap<String, u64>,
    /// Sequences that were given out, before and after the stream lost its end.
    given: BTreeSet<u64>,
}

/// One writer's connection: what it sent last.
#[derive(Debug, Clone, Default)]
pub struct Writer {
    before: Option<(u64, String)>,
}

impl Writer {
    /// The id that must be the last message's when this one arrives, as
    /// [`trellara_jetstream::publish::Publisher::fencing_pipelines`] has it.
    pub fn follow(&mut self, message: &Outgoing) -> Option<String> {
        let sent = message
            .message_id
            .clone()
            .map(|id| (message.expected_last.0 + 1, id));
        match std::mem::replace(&mut self.before, sent) {
            Some((sequence, id)) if sequence == message.expected_last.0 => Some(id),
            _ => None,
        }
    }
}

impl Stream {
    /// Takes a message, or says why not: first the expected sequence, then the expected id, then
    /// whether the id is known.
    pub fn publish(&mut self, message: &Outgoing, follows: Option<&str>) -> Outcome {
        let wrong = Outcome::WrongSequence {
            actual: Some(StreamSequence(self.last)),
        };
        if message.expected_last.0 != self.last {
            return wrong;
        }
        if let Some(id) = follows {
            let last = self.messages.get(&self.last);
            if last.and_then(|message| message.id.as_deref()) != Some(id) {
                return Outcome::WrongSequence { actual: None };
            }
        }
        if let Some(known) = message.message_id.as_ref().and_then(|id| self.ids.get(id)) {
            return Outcome::DuplicateAt {
                sequence: StreamSequence(*known),
            };
        }
        self.last += 1;
        self.given.insert(self.last);
        if let Some(id) = &message.message_id {
            self.ids.insert(id.clone(), self.last);
        }
        let headers = message.headers.iter();
        self.messages.insert(
            self.last,
            Message {
                subject: message.subject.clone(),
                payload: message.payload.clone(),
                id: message.message_id.clone(),
                headers: headers
                    .map(|(name, value)| ((*name).to_owned(), value.clone()))
                    .collect(),
            },
        );
        Outcome::Stored {
            sequence: StreamSequence(self.last),
        }
    }

    /// Sequence of the last message ever stored.
    pub fn last(&self) -> u64 {
        self.last
    }

    /// The message there.
    pub fn get(&self, sequence: u64) -> Option<&Message> {
        self.messages.get(&sequence)
    }

    /// Whether the frame of this digest is the message there.
    pub fn holds(&self, sequence: u64, digest: FrameDigest) -> bool {
        let message = self.get(sequence);
        message.is_some_and(|message| FrameDigest::of(&message.payload) == digest)
    }

    /// The last message that is there, up to `sequence`.
    pub fn last_up_to(&self, sequence: u64) -> Option<(u64, &Message)> {
        self.messages
            .range(..=sequence)
            .next_back()
            .map(|(at, message)| (*at, message))
    }

    /// The first message at or behind `from` whose subject fits.
    pub fn next_from(&self, from: u64, fits: impl Fn(&str) -> bool) -> Option<(u64, &Message)> {
        self.messages
            .range(from..)
            .find(|(_, message)| fits(&message.subject))
            .map(|(at, message)| (*at, message))
    }

    /// The last message whose subject fits.
    pub fn last_on(&self, fits: impl Fn(&str) -> bool) -> Option<(u64, &Message)> {
        self.messages
            .iter()
            .rfind(|(_, message)| fits(&message.subject))
            .map(|(at, message)| (*at, message))
    }

    /// Removes what fits below a sequence; how many.
    pub fn purge(&mut self, below: u64, fits: impl Fn(&str) -> bool) -> u64 {
        let before = self.messages.len();
        self.messages
            .retain(|at, message| *at >= below || !fits(&message.subject));
        (before - self.messages.len()) as u64
    }

    /// The server comes back with an earlier copy of its store: everything since is gone, its
    /// message ids as well, what was removed since is back, and sequences are given out again.
    pub fn roll_back(&mut self, copy: &Stream) {
        let given = std::mem::take(&mut self.given);
        *self = copy.clone();
        self.given = given;
    }

    /// Whether the next sequence was given out before.
    pub fn reuses(&self) -> bool {
        self.given.contains(&(self.last + 1))
    }

    /// Messages stored.
    pub fn len(&self) -> usize {
        self.messages.len()
    }

    /// Whether nothing is stored.
    pub fn is_empty(&self) -> bool {
        self.messages.is_empty()
    }
}

/// Whether a subject fits a filter with `*` and `>`.
pub fn matches(filter: &str, subject: &str) -> bool {
    let mut tokens = subject.split('.');
    for token in filter.split('.') {
        match (token, tokens.next()) {
            (">", Some(_)) => return true,
            ("*", Some(_)) => {}
            (token, Some(here)) if token == here => {}
            _ => return false,
        }
    }
    tokens.next().is_none()
}
