//! After a doubt: what the stream's tail proves about the frames in the window (R4).

use trellara_envelope::StreamSequence;

use super::{Sequencer, Tail};

/// What the tail says about the frames in the window.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in crate::machine) enum TailVerdict {
    /// Everything up to it is stored, the rest is not.
    Ours,
    /// It lies before what was acknowledged when it was asked for.
    Lost,
    /// It lies before what has been acknowledged since: the answer was overtaken.
    Overtaken,
    /// Our frame is the last one, but the stream has counted further: what stood behind it was
    /// removed, and our next frames have no place any more.
    Shifted,
    /// The place that should hold our frame holds another one.
    Other,
}

impl Sequencer {
    /// The highest sequence acknowledged, whether or not those before it are.
    pub(in crate::machine) fn highest(&self) -> StreamSequence {
        let last = self.window.iter().rfind(|waiting| waiting.acknowledged);
        last.map_or(self.acknowledged.sequence, |last| last.sequence)
    }

    /// Takes the stream's tail for what it says: acknowledges what it proves to be stored and
    /// marks the rest to be sent again (R4). `at` is where its frame
    /// stands, `floor` is what [`Sequencer::highest`] was when the
    /// tail was asked for. Nothing changes when the tail is not ours.
    pub(in crate::machine) fn settle(
        &mut self,
        tail: &Tail,
        at: StreamSequence,
        floor: StreamSequence,
    ) -> TailVerdict {
        let known = &self.acknowledged;
        if tail.sequence < floor {
            return TailVerdict::Lost;
        }
        if tail.sequence < self.highest() {
            return TailVerdict::Overtaken;
        }
        let is_it = |sequence, digest| sequence == at && digest == tail.digest;
        let mut frames = self.window.iter();
        if at < tail.sequence
            && (is_it(known.sequence, known.digest)
                || frames.any(|waiting| is_it(waiting.sequence, waiting.digest)))
        {
            return TailVerdict::Shifted;
        }
        if tail.sequence == known.sequence {
            if tail.digest != known.digest {
                return TailVerdict::Other;
            }
        } else {
            let ours = self
                .window
                .iter()
                .find(|waiting| waiting.sequence == tail.sequence)
                .is_some_and(|waiting| waiting.digest == tail.digest);
            if !ours {
                return TailVerdict::Other;
            }
        }
        for waiting in &mut self.window {
            waiting.acknowledged = waiting.sequence <= tail.sequence;
            waiting.unsent = !waiting.acknowledged;
        }
        TailVerdict::Ours
    }

    /// Forgets the frames that were never sent, as if they had not been built; a restart reads
    /// them again. Returns the sequence of the last frame that was sent.
    pub(in crate::machine) fn drop_unsent(&mut self) -> StreamSequence {
        while let Some(last) = self.window.back() {
            if last.attempt > 0 {
                break;
            }
            self.window_bytes -= last.payload.len();
            self.window.pop_back();
        }
        self.head = match self.window.back() {
            None => self.acknowledged.clone(),
            Some(last) => Tail {
                sequence: last.sequence,
                ordinal: last.ordinal,
                digest: last.digest,
                position: last.position,
                incarnation: self.incarnation,
            },
        };
        self.head.sequence
    }
}
