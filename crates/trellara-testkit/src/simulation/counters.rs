//! What has to happen sometimes: a window that no seed ever hit proves nothing.

use std::fmt;

macro_rules! sometimes {
    ($($name:ident: $text:literal,)+) => {
        /// One thing that has to happen in some of the seeds.
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        pub enum Sometimes {
            $(#[doc = $text] $name,)+
        }

        impl Sometimes {
            /// All of them.
            pub const ALL: &[Sometimes] = &[$(Sometimes::$name,)+];

            /// In words.
            pub fn text(self) -> &'static str {
                match self {
                    $(Sometimes::$name => $text,)+
                }
            }
        }
    };
}

sometimes! {
    Converged: "a flow that had everything in the end",
    HaltedLostTail: "a `published` flow that halted because the broker had lost what was confirmed",
    HaltedUndecided: "a flow that halted because nothing was left to tell a broker's loss from a source that was set back",
    RelayRestarted: "a relay that began again",
    FramesInFlight: "a relay that died with frames on their way",
    PublishLost: "a frame that was lost before it was stored",
    AnswerLost: "a frame that was stored, and nobody heard of it",
    ArrivedTwice: "a frame that arrived a second time",
    Zombie: "a frame of a dead relay that arrived behind its successor's marker, and was refused",
    StreamFull: "a broker that had no room",
    NoLeader: "a broker that did not answer",
    TailLost: "a broker that forgot what it had acknowledged",
    AppliedTailLost: "one that forgot what the target had applied",
    SequenceReused: "a sequence that was given out again",
    VoidMarker: "a marker that stands on another frame than it names",
    BeganAtMarker: "an applier that found its frame gone and began at a marker",
    Rewritten: "an applier that noticed while it ran that the stream had been written anew",
    NotDelivered: "a frame that was not delivered although the stream has it",
    Redelivered: "a frame that was delivered again",
    Duplicate: "a transaction that came again and was found in the ledger",
    Chunked: "a transaction in chunks",
    ChunksGone: "chunks that were not there when their manifest was read",
    CommitAnswered: "a commit that was answered",
    InDoubtCommitted: "a commit without an answer that had happened",
    InDoubtLost: "a commit without an answer that had not",
    Retried: "an error of the target that passes",
    RetriedNamed: "one that somebody does to us",
    Probed: "a target that takes no writes",
    NotMyPredecessor: "an applier that was taken over from, refused at its commit",
    TakenOver: "an applier that took the lane from a living one",
    TargetRestored: "a target that was put back to an earlier state",
    SourceCrashed: "a source that crashed, and its slot fell back",
    SentAgain: "a transaction that the source sent again",
    FailedOver: "a source that failed over to another timeline",
    Trimmed: "applied frames that were taken away",
    Reported: "a position that the relay believed",
}

/// How often each happened.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Counters {
    counts: Vec<u64>,
    /// Seeds run.
    pub seeds: u64,
    /// Steps of all of them.
    pub steps: u64,
    /// Commits of targets that were held against the source.
    pub commits: u64,
}

impl Counters {
    /// It happened.
    pub fn count(&mut self, what: Sometimes) {
        self.counts.resize(Sometimes::ALL.len(), 0);
        self.counts[what as usize] += 1;
    }

    /// How often it did.
    pub fn of(&self, what: Sometimes) -> u64 {
        self.counts.get(what as usize).copied().unwrap_or(0)
    }

    /// What never happened, of what is not too rare to be asked of some thousands of seeds.
    pub fn never(&self) -> Vec<&'static str> {
        let rare = |what: Sometimes| what == Sometimes::HaltedUndecided;
        let never = Sometimes::ALL
            .iter()
            .filter(|what| !rare(**what) && self.of(**what) == 0);
        never.map(|what| what.text()).collect()
    }

    /// Takes over what another part of the seeds counted.
    pub fn add(&mut self, other: &Counters) {
        self.counts.resize(Sometimes::ALL.len(), 0);
        for (mine, theirs) in self.counts.iter_mut().zip(&other.counts) {
            *mine += theirs;
        }
        self.seeds += other.seeds;
        self.steps += other.steps;
        self.commits += other.commits;
    }
}

impl fmt::Display for Counters {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            f,
            "{} seeds, {} steps, {} commits held against the source",
            self.seeds, self.steps, self.commits
        )?;
        for what in Sometimes::ALL {
            writeln!(f, "{:>12}  {}", self.of(*what), what.text())?;
        }
        Ok(())
    }
}
