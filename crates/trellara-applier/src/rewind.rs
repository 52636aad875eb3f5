//! What a `trellara rewind` and the running applier say to each other, over NOTIFY on the target.
//!
//! The request goes to the flow's channel ([`crate::channel`]), the answers come on
//! [`answer_channel`]. Nothing of it is stored: a request that nobody hears did nothing.

use std::fmt;

use trellara_envelope::{FlowName, Lsn, StreamSequence};

const REQUEST: &str = "rewind ";

/// The channel on which an applier answers.
pub fn answer_channel(flow: &FlowName) -> String {
    format!("trellara_{flow}_answer")
}

/// Where to read from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Place {
    /// The oldest frame of the stream.
    Oldest,
    /// The frame at this sequence, or the next one behind it.
    Sequence(StreamSequence),
    /// The first frame whose position is at or beyond this one: what ends behind it comes again.
    Lsn(Lsn),
}

impl Place {
    /// `oldest`, a sequence in digits, or an LSN with its slash.
    pub fn parse(text: &str) -> Option<Self> {
        match text {
            "oldest" => Some(Place::Oldest),
            lsn if lsn.contains('/') => lsn.parse().ok().map(Place::Lsn),
            digits if digits.bytes().all(|b| b.is_ascii_digit()) => {
                let number = digits.parse().ok().filter(|number| *number > 0)?;
                Some(Place::Sequence(StreamSequence(number)))
            }
            _ => None,
        }
    }
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Place::Oldest => f.write_str("oldest"),
            Place::Sequence(sequence) => sequence.fmt(f),
            Place::Lsn(lsn) => lsn.fmt(f),
        }
    }
}

/// Read the stream again from a place that was passed before.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Request {
    /// Where from.
    pub to: Place,
    /// Names the request in the answers.
    pub token: String,
}

impl Request {
    /// The payload of the notification.
    pub fn payload(&self) -> String {
        format!("{REQUEST}{} {}", self.to, self.token)
    }

    /// A request, if the payload is one.
    pub fn parse(payload: &str) -> Option<Self> {
        let (to, token) = payload.strip_prefix(REQUEST)?.split_once(' ')?;
        let to = Place::parse(to)?;
        let legal = |b: u8| b.is_ascii_alphanumeric() || b == b'-';
        let well_formed = (1..=64).contains(&token.len()) && token.bytes().all(legal);
        well_formed.then(|| Self {
            to,
            token: token.to_owned(),
        })
    }
}

/// What the applier answers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Answer {
    /// It reads again from the first sequence, up to where it stood.
    Began {
        /// The first frame's sequence.
        first: StreamSequence,
        /// Where it stood.
        until: StreamSequence,
    },
    /// It has passed its old place.
    Done(Report),
    /// It will not begin: there is no such place.
    Refused {
        /// Why, naming the place.
        reason: String,
    },
    /// It could not begin or not end; the reason is for people.
    Failed {
        /// Why.
        reason: String,
    },
}

/// What a rewind found.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Report {
    /// Sequence of the first frame read again.
    pub first: u64,
    /// Sequence of the last one: where it stood.
    pub until: u64,
    /// Frames delivered again.
    pub frames: u64,
    /// Transactions in them.
    pub transactions: u64,
    /// Those that the ledger holds.
    pub confirmed: u64,
    /// Those whose rows were pruned: their place says that they were applied.
    pub below_watermark: u64,
    /// Questions asked of the ledger.
    pub probes: u64,
    /// Ledger rows that they read.
    pub rows_read: u64,
    /// Rows written in the target meanwhile, the ledger's included.
    pub rows_written: u64,
    /// How long it took.
    pub milliseconds: u64,
}

impl Answer {
    /// The payload of the notification.
    pub fn payload(&self, token: &str) -> String {
        match self {
            Answer::Began { first, until } => format!("{token} began {first} {until}"),
            Answer::Done(report) => {
                let mut report = *report;
                let words = report.fields().map(|number| number.to_string());
                format!("{token} done {}", words.join(" "))
            }
            Answer::Refused { reason } => format!("{token} refused {}", short(reason)),
            Answer::Failed { reason } => format!("{token} failed {}", short(reason)),
        }
    }

    /// The answer to this token, if the payload is one.
    pub fn parse(payload: &str, token: &str) -> Option<Self> {
        let rest = payload.strip_prefix(token)?.strip_prefix(' ')?;
        let (word, rest) = rest.split_once(' ')?;
        match word {
            "began" => {
                let (first, until) = rest.split_once(' ')?;
                Some(Answer::Began {
                    first: StreamSequence(first.parse().ok()?),
                    until: StreamSequence(until.parse().ok()?),
                })
            }
            "done" => {
                let mut report = Report::default();
                let mut words = rest.split(' ');
                for field in report.fields() {
                    *field = words.next()?.parse().ok()?;
                }
                words.next().is_none().then_some(Answer::Done(report))
            }
            "refused" => Some(Answer::Refused {
                reason: rest.to_owned(),
            }),
            "failed" => Some(Answer::Failed {
                reason: rest.to_owned(),
            }),
            _ => None,
        }
    }
}

/// A notification carries less than 8000 bytes.
fn short(reason: &str) -> String {
    reason.chars().take(1500).collect()
}

impl Report {
    /// In the order of the payload.
    fn fields(&mut self) -> [&mut u64; 10] {
        let Report {
            first,
            until,
            frames,
            transactions,
            confirmed,
            below_watermark,
            probes,
            rows_read,
            rows_written,
            milliseconds,
        } = self;
        [
            first,
            until,
            frames,
            transactions,
            confirmed,
            below_watermark,
            probes,
            rows_read,
            rows_written,
            milliseconds,
        ]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_and_answers_survive_their_way() {
        for (to, written) in [
            (Place::Oldest, "oldest"),
            (Place::Sequence(StreamSequence(900)), "900"),
            (Place::Lsn(Lsn(0x1_0000_0b48)), "1/B48"),
        ] {
            let token = "4f-00".to_owned();
            let request = Request { to, token };
            assert_eq!(request.payload(), format!("rewind {written} 4f-00"));
            assert_eq!(Request::parse(&request.payload()), Some(request));
        }
        for wrong in [
            "checkpoint",
            "rewind oldest ",
            "rewind oldest a b",
            "rewind newest a",
            "rewind 0 a",
            "rewind -1 a",
            "rewind 0/ a",
            "rewind 99999999999999999999 a",
            "rewind  a",
        ] {
            assert_eq!(Request::parse(wrong), None, "{wrong}");
        }
        let answers = [
            Answer::Began {
                first: StreamSequence(2),
                until: StreamSequence(900),
            },
            Answer::Done(Report {
                first: 2,
                until: 900,
                frames: 899,
                transactions: 1_000_000,
                confirmed: 999_990,
                below_watermark: 10,
                probes: 250,
                rows_read: 9000,
                rows_written: 3,
                milliseconds: 1500,
            }),
            Answer::Refused {
                reason: "sequence 7 is beyond".to_owned(),
            },
            Answer::Failed {
                reason: "GAP: a frame is missing".to_owned(),
            },
        ];
        for answer in answers {
            let payload = answer.payload("4f-00");
            assert_eq!(Answer::parse(&payload, "4f-00"), Some(answer));
            assert_eq!(Answer::parse(&payload, "4f-01"), None);
        }
    }

    #[test]
    fn a_long_reason_fits_a_notification() {
        let failed = Answer::Failed {
            reason: "ü".repeat(9000),
        };
        assert!(failed.payload(&"t".repeat(64)).len() < 8000);
    }
}
