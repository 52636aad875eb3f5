//! Crash points: named places between every two durable effects, where a test has the process die,
//! fail or stand still.
//!
//! Only with the feature `crashpoints`, which the black-box tests switch on for the program that
//! they start; in the shipped program [`reached`] is `false`, known to the compiler. The variable
//! [`VARIABLE`] says which point, what happens there, and at which time it is come by:
//! `relay.stored=abort`, `applier.committed=pause@3`. Each process has one, and it happens once.

/// `POINT=ACTION` or `POINT=ACTION@TIME`, with an action of `abort`, `panic`, `error` or `pause`.
pub const VARIABLE: &str = "TRELLARA_CRASHPOINT";

/// A place in the program.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Point(&'static str);

impl Point {
    /// Its name, as in [`VARIABLE`].
    pub const fn name(self) -> &'static str {
        self.0
    }
}

macro_rules! points {
    ($($constant:ident = $name:literal: $what:literal,)+) => {
        $(#[doc = $what] pub const $constant: Point = Point($name);)+

        /// Every point.
        pub const ALL: &[Point] = &[$($constant,)+];
    };
}

points! {
    RELAY_SLOT_TAKEN = "relay.slot_taken": "The slot is the relay's, and nothing was published.",
    RELAY_MARKER_SENT = "relay.marker_sent": "The marker was handed to the connection.",
    RELAY_CHUNK_SENT = "relay.chunk_sent": "A chunk was handed to the connection.",
    RELAY_BEFORE_TRANSACTION = "relay.before_transaction": "A bundle or a manifest is about to be handed to the connection.",
    RELAY_TRANSACTION_SENT = "relay.transaction_sent": "It was handed to the connection.",
    RELAY_HEARTBEAT_SENT = "relay.heartbeat_sent": "A heartbeat was handed to the connection.",
    RELAY_STORED = "relay.stored": "The broker has acknowledged a frame, and the source was told nothing.",
    RELAY_CONFIRMED = "relay.confirmed": "The source was told a position.",
    APPLIER_LANE_TAKEN = "applier.lane_taken": "The epoch was raised, and the checkpoint was not read.",
    APPLIER_POSITIONED = "applier.positioned": "The consumer was moved behind the checkpoint.",
    APPLIER_FETCHED = "applier.fetched": "A frame was delivered.",
    APPLIER_CHUNK_APPLIED = "applier.chunk_applied": "A chunk was applied inside the transaction that stays open.",
    APPLIER_BEFORE_COMMIT = "applier.before_commit": "Rows (or what is held of them), ledger and checkpoint are written, and not committed.",
    APPLIER_COMMITTED = "applier.committed": "They are committed, and nobody was told.",
    APPLIER_ACKNOWLEDGED = "applier.acknowledged": "Broker and relay were told.",
    APPLIER_BEFORE_TRIM = "applier.before_trim": "What is applied is about to be taken away.",
    APPLIER_TRIMMED = "applier.trimmed": "It was taken away.",
    COPY_PART_LOADED = "copy.part_loaded": "A part of a copy is written, and not committed.",
    COPY_PART_COMMITTED = "copy.part_committed": "It is committed, and nobody was told.",
    SETUP_BETWEEN = "setup.between": "One of setup's steps is done, and the next not begun.",
    REMOVE_SOURCE = "remove.source": "Slot and publication are gone, the stream is there.",
    REMOVE_STREAM = "remove.stream": "The stream is gone, the target still knows the flow.",
}

/// Comes by a point: true when what follows is to fail there. It may not return at all.
#[cfg(not(feature = "crashpoints"))]
#[inline(always)]
pub fn reached(_point: Point) -> bool {
    false
}

#[cfg(feature = "crashpoints")]
pub use armed::reached;

#[cfg(feature = "crashpoints")]
mod armed {
    use std::sync::OnceLock;
    use std::sync::atomic::{AtomicU64, Ordering};

    use super::{Point, VARIABLE};

    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    enum Action {
        Abort,
        Panic,
        Error,
        Pause,
    }

    #[derive(Debug)]
    struct Armed {
        point: String,
        action: Action,
        at: u64,
        passed: AtomicU64,
    }

    /// Comes by a point: true when what follows is to fail there. It may not return at all.
    pub fn reached(point: Point) -> bool {
        static ARMED: OnceLock<Option<Armed>> = OnceLock::new();
        let armed = ARMED.get_or_init(|| std::env::var(VARIABLE).ok().map(|text| parse(&text)));
        match armed {
            Some(armed) if armed.point == point.name() => armed.pass(),
            _ => false,
        }
    }

    /// # Panics
    /// A test that names something else would prove nothing.
    fn parse(text: &str) -> Armed {
        let (point, action) = text.split_once('=').expect("POINT=ACTION");
        let (action, at) = action.split_once('@').unwrap_or((action, "1"));
        assert!(
            super::ALL.iter().any(|known| known.name() == point),
            "there is no crash point {point}"
        );
        Armed {
            point: point.to_owned(),
            action: match action {
                "abort" => Action::Abort,
                "panic" => Action::Panic,
                "error" => Action::Error,
                "pause" => Action::Pause,
                other => panic!("there is no action {other}"),
            },
            at: at.parse().expect("a number"),
            passed: AtomicU64::new(0),
        }
    }

    impl Armed {
        #[expect(clippy::print_stderr, reason = "the test waits for it")]
        fn pass(&self) -> bool {
            if self.passed.fetch_add(1, Ordering::SeqCst) + 1 != self.at {
                return false;
            }
            eprintln!("crash point {} reached: {:?}", self.point, self.action);
            match self.action {
                Action::Abort => std::process::abort(),
                Action::Panic => panic!("a crash point"),
                Action::Error => true,
                Action::Pause => {
                    // The whole process, as when its machine stands still.
                    let stopped = nix::sys::signal::raise(nix::sys::signal::Signal::SIGSTOP);
                    stopped.expect("a process may stop itself");
                    false
                }
            }
        }
    }

    #[cfg(test)]
    mod tests {
        use super::*;

        #[test]
        fn what_happens_where_and_when_is_read() {
            let armed = parse("relay.stored=error@2");
            assert_eq!((armed.action, armed.at), (Action::Error, 2));
            assert!(!armed.pass());
            assert!(armed.pass());
            assert!(!armed.pass(), "it happens once");
            assert_eq!(parse("applier.committed=abort").at, 1);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::ALL;

    #[test]
    fn each_point_has_a_name_of_its_own() {
        for (at, point) in ALL.iter().enumerate() {
            assert!(!ALL[..at].contains(point), "{}", point.name());
        }
    }
}
