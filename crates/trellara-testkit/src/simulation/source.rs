//! A simulated source: a log of committed transactions, a slot, and a walsender that sends them as
//! pgoutput has them.

use trellara_envelope::{
    CommitTime, Lsn, SourceHistory, SourceId, SystemId, Timeline, TransactionIdentity, Xid,
};
use trellara_pgoutput::{ChangeReader, Message, Value};

use super::dice::Dice;

/// One committed transaction.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Committed {
    pub(super) identity: TransactionIdentity,
    pub(super) end: Lsn,
    pub(super) rows: Vec<String>,
}

/// What a walsender sends at once.
pub(super) enum Sent {
    /// The messages of one transaction; whether it was sent before.
    Transaction(Vec<Vec<u8>>, bool),
    /// The source's position.
    Keepalive(Vec<u8>),
}

#[derive(Debug)]
pub(super) struct Source {
    pub(super) history: SourceHistory,
    pub(super) log: Vec<Committed>,
    /// End of what is written, transactions or not.
    pub(super) flush: Lsn,
    /// The slot, as far as it is on disk, and as the last feedback had it.
    pub(super) saved: Lsn,
    pub(super) confirmed: Lsn,
    /// Of the walsender: the next transaction, and whether the table was described.
    next: usize,
    described: bool,
    sent_up_to: usize,
    xid: u32,
}

/// Where the slot began.
pub(super) const BEGIN: Lsn = Lsn(0x1000);

impl Source {
    pub(super) fn new() -> Self {
        Self {
            history: SourceHistory {
                system: SystemId(7),
                timeline: Timeline(1),
                switches: Vec::new(),
            },
            log: Vec::new(),
            flush: BEGIN,
            saved: BEGIN,
            confirmed: BEGIN,
            next: 0,
            described: false,
            sent_up_to: 0,
            xid: 700,
        }
    }

    /// A transaction commits: mostly small ones, some that need chunks.
    pub(super) fn commit(&mut self, dice: &mut Dice) {
        self.xid += 1;
        let commit = self.flush;
        // Its end is where the next one may begin, and unpublished WAL may lie between.
        let end = Lsn(commit.0 + 0x20 + 8 * dice.roll(20));
        let count = match dice.roll(8) {
            0 => 20 + dice.roll(40),
            _ => 1 + dice.roll(4),
        };
        let rows = (0..count)
            .map(|at| {
                let filler = "x".repeat(dice.roll(24) as usize);
                format!("{}.{at}.{filler}", self.xid)
            })
            .collect();
        self.log.push(Committed {
            identity: TransactionIdentity {
                source: SourceId {
                    system: self.history.system,
                    timeline: self.history.timeline,
                },
                commit_lsn: commit,
                xid: Xid(self.xid),
                commit_time: CommitTime(i64::from(self.xid) * 1000),
            },
            end,
            rows,
        });
        self.flush = end;
    }

    /// WAL that the publication has nothing of.
    pub(super) fn write_other(&mut self, dice: &mut Dice) {
        self.flush = Lsn(self.flush.0 + 8 * (1 + dice.roll(50)));
    }

    /// START_REPLICATION: from the slot's own position.
    pub(super) fn start(&mut self) {
        self.described = false;
        self.next = self
            .log
            .partition_point(|transaction| transaction.end <= self.confirmed);
    }

    /// Whether there is something to send besides the position.
    pub(super) fn has_more(&self) -> bool {
        self.next < self.log.len()
    }

    pub(super) fn send(&mut self) -> Sent {
        let Some(transaction) = self.log.get(self.next) else {
            return Sent::Keepalive(keepalive(self.flush));
        };
        let mut messages = vec![begin(transaction)];
        if !self.described {
            messages.push(xlog(transaction.identity.commit_lsn, relation()));
            self.described = true;
        }
        for row in &transaction.rows {
            messages.push(xlog(transaction.identity.commit_lsn, insert(row)));
        }
        messages.push(commit(transaction));
        self.next += 1;
        let again = self.next <= self.sent_up_to;
        self.sent_up_to = self.sent_up_to.max(self.next);
        Sent::Transaction(messages, again)
    }

    /// The relay's feedback.
    pub(super) fn confirm(&mut self, flush: Lsn) -> Result<(), String> {
        if flush < self.confirmed {
            return Err(format!("R1: {flush} after {}", self.confirmed));
        }
        self.confirmed = flush;
        Ok(())
    }

    /// A checkpoint writes the slot down.
    pub(super) fn save_slot(&mut self) {
        self.saved = self.confirmed;
    }

    /// An immediate stop: the slot is what was written down.
    pub(super) fn crash(&mut self) -> bool {
        let fell_back = self.saved < self.confirmed;
        self.confirmed = self.saved;
        fell_back
    }

    /// A standby that has everything takes over, with a slot that is a little behind.
    pub(super) fn fail_over(&mut self) {
        self.history
            .switches
            .push((self.history.timeline, self.flush));
        self.history.timeline = Timeline(self.history.timeline.0 + 1);
        self.confirmed = self.saved;
    }
}

fn put64(message: &mut Vec<u8>, value: u64) {
    message.extend(value.to_be_bytes());
}

fn put32(message: &mut Vec<u8>, value: u32) {
    message.extend(value.to_be_bytes());
}

fn xlog(at: Lsn, payload: Vec<u8>) -> Vec<u8> {
    let mut message = vec![b'w'];
    put64(&mut message, at.0);
    put64(&mut message, at.0);
    put64(&mut message, 0);
    message.extend(payload);
    message
}

fn keepalive(end: Lsn) -> Vec<u8> {
    let mut message = vec![b'k'];
    put64(&mut message, end.0);
    put64(&mut message, 0);
    message.push(0);
    message
}

fn time(transaction: &Committed) -> u64 {
    transaction.identity.commit_time.0.cast_unsigned()
}

fn begin(transaction: &Committed) -> Vec<u8> {
    let at = transaction.identity.commit_lsn;
    let mut message = vec![b'B'];
    put64(&mut message, at.0);
    put64(&mut message, time(transaction));
    put32(&mut message, transaction.identity.xid.0);
    xlog(at, message)
}

fn commit(transaction: &Committed) -> Vec<u8> {
    let at = transaction.identity.commit_lsn;
    let mut message = vec![b'C', 0];
    put64(&mut message, at.0);
    put64(&mut message, transaction.end.0);
    put64(&mut message, time(transaction));
    xlog(at, message)
}

fn relation() -> Vec<u8> {
    let mut message = vec![b'R'];
    put32(&mut message, 16_384);
    message.extend(b"public\0t\0d");
    message.extend(1u16.to_be_bytes());
    message.push(1);
    message.extend(b"id\0");
    put32(&mut message, 25);
    put32(&mut message, u32::MAX);
    message
}

fn insert(row: &str) -> Vec<u8> {
    let mut message = vec![b'I'];
    put32(&mut message, 16_384);
    message.push(b'N');
    message.extend(1u16.to_be_bytes());
    message.push(b't');
    put32(&mut message, u32::try_from(row.len()).unwrap_or(u32::MAX));
    message.extend(row.bytes());
    message
}

/// The rows in what a reader was fed, as the program's own reader finds them. Descriptions come by
/// as well.
pub(super) fn rows_of(reader: &mut ChangeReader<'_>) -> Result<Vec<String>, String> {
    let mut rows = Vec::new();
    while let Some(change) = reader.next_change().map_err(|error| error.to_string())? {
        let Message::Insert { new, .. } = change.message else {
            continue;
        };
        for value in new.iter() {
            let Value::Text(text) = value else {
                return Err("a value that nobody wrote".to_owned());
            };
            rows.push(String::from_utf8_lossy(text).into_owned());
        }
    }
    Ok(rows)
}
