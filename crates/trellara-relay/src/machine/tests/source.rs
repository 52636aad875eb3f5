//! A model of what a walsender sends: pgoutput bytes for a script of transactions, sent again from
//! the slot's position after every restart.

use std::collections::BTreeSet;

use trellara_envelope::{AbortedRange, AbortedSet, Lsn, Xid};

/// One step of the script, in the order of the write-ahead log.
#[derive(Debug, Clone)]
pub(super) enum Step {
    /// A transaction sent after its commit.
    Commit { xid: u32, rows: Vec<Row> },
    /// A block of a transaction that is still open.
    Block {
        xid: u32,
        subxid: u32,
        rows: Vec<Row>,
    },
    /// A subtransaction of it is rolled back.
    Rollback { xid: u32, subxid: u32 },
    /// The same, and the walsender never says so.
    Forgotten { xid: u32, subxid: u32 },
    /// It commits, or rolls back as a whole.
    End { xid: u32, commits: bool },
    /// A transaction of nothing but a logical message.
    Logical { xid: u32 },
    /// The source reports its position.
    Keepalive,
}

/// A row that is inserted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Row {
    pub(super) table: u32,
    pub(super) value: String,
}

/// Every step takes this much of the log; a transaction's end is the next one's commit (B01).
const STEP: u64 = 0x40;
const BEGIN: u64 = 0x1000;

#[derive(Debug, Clone)]
pub(super) struct Script {
    pub(super) steps: Vec<Step>,
}

impl Script {
    pub(super) fn start(&self) -> Lsn {
        Lsn(BEGIN)
    }

    pub(super) fn at(&self, step: usize) -> Lsn {
        Lsn(BEGIN + step as u64 * STEP)
    }

    /// What a reader of the stream must find: each committed transaction's surviving rows, with
    /// its commit position, in commit order. Transactions without rows leave no trace.
    pub(super) fn committed(&self) -> Vec<(Lsn, Vec<String>)> {
        let mut all = Vec::new();
        for (at, step) in self.steps.iter().enumerate() {
            let rows = match step {
                Step::Commit { rows, .. } => rows.iter().map(Row::text).collect(),
                Step::End { xid, commits: true } => self.surviving(*xid),
                _ => continue,
            };
            if rows.is_empty() && !self.has_blocks(step) {
                continue;
            }
            all.push((self.at(at), rows));
        }
        all
    }

    fn has_blocks(&self, step: &Step) -> bool {
        let Step::End { xid, .. } = step else {
            return false;
        };
        self.steps.iter().any(
            |step| matches!(step, Step::Block { xid: of, rows, .. } if of == xid && !rows.is_empty()),
        )
    }

    fn surviving(&self, xid: u32) -> Vec<String> {
        self.surviving_rows(xid).iter().map(Row::text).collect()
    }

    fn surviving_rows(&self, xid: u32) -> Vec<Row> {
        let mut rows: Vec<(u32, Row)> = Vec::new();
        for step in &self.steps {
            match step {
                Step::Block {
                    xid: of,
                    subxid,
                    rows: more,
                } if *of == xid => rows.extend(more.iter().map(|row| (*subxid, row.clone()))),
                Step::Rollback { xid: of, subxid } | Step::Forgotten { xid: of, subxid }
                    if *of == xid =>
                {
                    rows.retain(|(of, _)| of != subxid);
                }
                _ => {}
            }
        }
        rows.into_iter().map(|(_, row)| row).collect()
    }

    /// What the commit log says when it is asked about subtransactions: only about those of which
    /// rows and no rollback were sent.
    pub(super) fn rolled_back(&self, xid: u32, asked: &[AbortedRange]) -> AbortedSet {
        let mut aborted = AbortedSet::new();
        for id in asked.iter().flat_map(|range| range.first.0..=range.last.0) {
            let of_it = |step: &Step| matches!(step, Step::Block { xid: of, subxid, rows } if (*of, *subxid) == (xid, id) && !rows.is_empty());
            assert!(self.steps.iter().any(of_it), "{id} is none of {xid}");
            for step in &self.steps {
                match step {
                    Step::Rollback { subxid, .. } => assert_ne!(*subxid, id, "it was told"),
                    Step::Forgotten { subxid, .. } if *subxid == id => aborted.insert(Xid(id)),
                    _ => {}
                }
            }
        }
        aborted
    }

    /// The commit position of a streamed transaction, if it commits.
    fn commit_of(&self, xid: u32) -> Option<Lsn> {
        let end = self
            .steps
            .iter()
            .position(|step| matches!(step, Step::End { xid: of, commits: true } if *of == xid));
        end.map(|at| self.at(at))
    }
}

impl Row {
    fn text(&self) -> String {
        format!("I t{} ({})", self.table, self.value)
    }
}

/// One connection: sends the script from the beginning, without what was confirmed.
#[derive(Debug, Clone)]
pub(super) struct Walsender<'a> {
    pub(super) script: &'a Script,
    confirmed: Lsn,
    next: usize,
    described: BTreeSet<u32>,
    /// Descriptions inside open transactions: transaction, subtransaction, table.
    own: Vec<(u32, u32, u32)>,
    streaming: bool,
}

impl<'a> Walsender<'a> {
    pub(super) fn new(script: &'a Script, confirmed: Lsn) -> Self {
        Self {
            script,
            confirmed,
            next: 0,
            described: BTreeSet::new(),
            own: Vec::new(),
            streaming: true,
        }
    }

    /// With streaming off: transactions come after their commit, without what was rolled back.
    pub(super) fn after_commit(mut self) -> Self {
        self.streaming = false;
        self
    }

    /// The next step as CopyData payloads; `None` at the end of the script.
    pub(super) fn next(&mut self) -> Option<Vec<Vec<u8>>> {
        let at = self.script.at(self.next);
        let step = self.script.steps.get(self.next)?.clone();
        self.next += 1;
        let end = Lsn(at.0 + STEP);
        Some(match step {
            Step::Commit { .. } if at < self.confirmed => Vec::new(),
            Step::Commit { xid, rows } => self.commit(xid, &rows, at, end),
            Step::Logical { .. } if at < self.confirmed => Vec::new(),
            Step::Logical { xid } => {
                vec![begin(xid, at), xlog(at, logical(at)), commit(xid, at, end)]
            }
            // What it had described inside, it holds for told.
            Step::Forgotten { .. } => Vec::new(),
            Step::Block { .. } | Step::Rollback { .. } if !self.streaming => Vec::new(),
            Step::Block { xid, subxid, rows } => {
                let done = self.script.commit_of(xid);
                if done.is_some_and(|commit| commit < self.confirmed) {
                    return Some(Vec::new());
                }
                self.block(xid, subxid, &rows, at)
            }
            Step::Rollback { xid, subxid } => {
                self.own.retain(|(of, sub, _)| (*of, *sub) != (xid, subxid));
                vec![xlog(at, abort(xid, subxid))]
            }
            Step::End { xid, commits } => {
                if commits && at < self.confirmed {
                    return Some(Vec::new());
                }
                if !self.streaming {
                    let rows = self.script.surviving_rows(xid);
                    return Some(match commits {
                        true => self.commit(xid, &rows, at, end),
                        false => Vec::new(),
                    });
                }
                let own = std::mem::take(&mut self.own);
                let (mine, others) = own.into_iter().partition(|(of, _, _)| *of == xid);
                self.own = others;
                if !commits {
                    return Some(vec![xlog(at, abort(xid, xid))]);
                }
                let mine: Vec<(u32, u32, u32)> = mine;
                self.described
                    .extend(mine.iter().map(|(_, _, table)| *table));
                let mut message = vec![b'c'];
                put32(&mut message, xid);
                message.push(0);
                put64(&mut message, at.0);
                put64(&mut message, end.0);
                put64(&mut message, time_of(xid));
                vec![xlog(at, message)]
            }
            Step::Keepalive => vec![keepalive(at, false)],
        })
    }

    fn commit(&mut self, xid: u32, rows: &[Row], at: Lsn, end: Lsn) -> Vec<Vec<u8>> {
        let mut messages = vec![begin(xid, at)];
        for row in rows {
            if self.described.insert(row.table) {
                messages.push(xlog(at, relation(row.table, None)));
            }
            messages.push(xlog(at, insert(row, None)));
        }
        messages.push(commit(xid, at, end));
        messages
    }

    fn block(&mut self, xid: u32, subxid: u32, rows: &[Row], at: Lsn) -> Vec<Vec<u8>> {
        let mut start = vec![b'S'];
        put32(&mut start, xid);
        start.push(1);
        let mut messages = vec![xlog(at, start)];
        for row in rows {
            let known = self.described.contains(&row.table)
                || self
                    .own
                    .iter()
                    .any(|(of, _, table)| (*of, *table) == (xid, row.table));
            if !known {
                self.own.push((xid, subxid, row.table));
                messages.push(xlog(at, relation(row.table, Some(subxid))));
            }
            messages.push(xlog(at, insert(row, Some(subxid))));
        }
        messages.push(xlog(at, vec![b'E']));
        messages
    }
}

fn begin(xid: u32, at: Lsn) -> Vec<u8> {
    let mut message = vec![b'B'];
    put64(&mut message, at.0);
    put64(&mut message, time_of(xid));
    put32(&mut message, xid);
    xlog(at, message)
}

fn commit(xid: u32, at: Lsn, end: Lsn) -> Vec<u8> {
    let mut message = vec![b'C', 0];
    put64(&mut message, at.0);
    put64(&mut message, end.0);
    put64(&mut message, time_of(xid));
    xlog(at, message)
}

/// A transactional logical message.
fn logical(at: Lsn) -> Vec<u8> {
    let mut message = vec![b'M', 1];
    put64(&mut message, at.0);
    message.extend(b"note\0");
    put32(&mut message, 2);
    message.extend(b"hi");
    message
}

fn time_of(xid: u32) -> u64 {
    u64::from(xid) * 1_000
}

pub(super) fn keepalive(end: Lsn, reply: bool) -> Vec<u8> {
    let mut message = vec![b'k'];
    put64(&mut message, end.0);
    put64(&mut message, 0);
    message.push(u8::from(reply));
    message
}

fn xlog(at: Lsn, payload: Vec<u8>) -> Vec<u8> {
    let mut message = vec![b'w'];
    put64(&mut message, at.0);
    put64(&mut message, at.0);
    put64(&mut message, 0);
    message.extend(payload);
    message
}

fn abort(xid: u32, subxid: u32) -> Vec<u8> {
    let mut message = vec![b'A'];
    put32(&mut message, xid);
    put32(&mut message, subxid);
    message
}

fn relation(table: u32, xid: Option<u32>) -> Vec<u8> {
    let mut message = vec![b'R'];
    message.extend(xid.map(u32::to_be_bytes).into_iter().flatten());
    put32(&mut message, table);
    message.extend(format!("public\0t{table}\0d").bytes());
    message.extend(1u16.to_be_bytes());
    message.push(1);
    message.extend(b"id\0");
    put32(&mut message, 25);
    put32(&mut message, u32::MAX);
    message
}

fn insert(row: &Row, xid: Option<u32>) -> Vec<u8> {
    let mut message = vec![b'I'];
    message.extend(xid.map(u32::to_be_bytes).into_iter().flatten());
    put32(&mut message, row.table);
    message.push(b'N');
    message.extend(1u16.to_be_bytes());
    message.push(b't');
    put32(&mut message, row.value.len() as u32);
    message.extend(row.value.bytes());
    message
}

fn put32(message: &mut Vec<u8>, value: u32) {
    message.extend(value.to_be_bytes());
}

fn put64(message: &mut Vec<u8>, value: u64) {
    message.extend(value.to_be_bytes());
}
