//! What a frame of the copy stream asks for. Pure: the loop that acts is in `loader.rs`.
//!
//! The book knows which copies the target takes part in, which parts of them are in, and which are
//! on their way; it checks the chain, and knows up to where the stream may be trimmed: never beyond
//! the beginning of a part that is not in.

use std::collections::{BTreeSet, HashMap, HashSet};

use bytes::Bytes;
use trellara_envelope::{
    CopyBegin, CopyEvent, CopyFrame, CopyHeader, CopyTable, FrameDigest, Incarnation, SourceId,
    StreamSequence, SystemId,
};

use super::store::{CopyState, TableCopy};

/// A part of a table's copy.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) struct PartKey {
    pub(super) table: CopyTable,
    pub(super) part: u32,
}

/// What the writer says of a whole part.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct PartManifest {
    pub(super) chunks: u32,
    pub(super) rows: u64,
    pub(super) bytes: u64,
    pub(super) digest: FrameDigest,
}

/// What is to be done about a frame.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Step {
    /// It is of no copy that is wanted, or what it brings is in.
    Nothing,
    /// A copy begins: whatever the table holds is void. Then [`Book::begun`].
    Begin(CopyTable, SourceId, Box<CopyBegin>),
    /// A piece of a part; number 0 is its first.
    Chunk(PartKey, u32, Bytes),
    /// A part is whole. When it is committed, [`Book::part_in`].
    Part(PartKey, PartManifest),
    /// Everything of the table is in. Then [`Book::loaded`].
    Complete(CopyTable),
    /// The source cannot go on. Then [`Book::given_up`] or [`Book::again`].
    Failed {
        table: CopyTable,
        reason: String,
        hint: String,
        lasting: bool,
    },
    /// What came of the copy is void for this reason. Then [`Book::again`].
    Void(CopyTable, String),
}

/// A table's copy as the target has it.
#[derive(Debug)]
struct Entry {
    copy: TableCopy,
    /// Parts that are in.
    parts: HashSet<u32>,
    end: Option<End>,
}

#[derive(Debug, Clone, Copy)]
struct End {
    at: StreamSequence,
    parts: u32,
    rows: u64,
    bytes: u64,
}

/// A part on its way.
#[derive(Debug)]
struct Open {
    first: StreamSequence,
    /// The chunk that comes next.
    next: u32,
    closed: bool,
}

#[derive(Debug, Clone, Copy)]
struct Link {
    writer: Incarnation,
    ordinal: u64,
    digest: FrameDigest,
}

/// How a frame stands to the target's copy of its table.
enum Standing {
    Ours,
    /// Of a copy that was replaced, or that nobody waits for.
    Stale,
    /// Its beginning was not seen.
    Unbegun,
}

/// The loader's books.
#[derive(Debug)]
pub(super) struct Book {
    system: SystemId,
    tables: HashMap<CopyTable, Entry>,
    link: Option<Link>,
    open: HashMap<PartKey, Open>,
    /// Where parts that are not in, and ends that are not written down, begin.
    pins: BTreeSet<StreamSequence>,
    last: StreamSequence,
}

impl Book {
    /// Of the source with that system identifier.
    pub(super) fn new(system: SystemId) -> Self {
        Self {
            system,
            tables: HashMap::new(),
            link: None,
            open: HashMap::new(),
            pins: BTreeSet::new(),
            last: StreamSequence(0),
        }
    }

    /// What the target remembers now, with the parts that are in. Returns the tables whose parts on
    /// their way are void.
    pub(super) fn read(&mut self, rows: Vec<(TableCopy, HashSet<u32>)>) -> Vec<CopyTable> {
        let mut before = std::mem::take(&mut self.tables);
        let mut void = Vec::new();
        for (copy, parts) in rows {
            let table = copy.table.clone();
            let known = before.remove(&table);
            let same = known
                .as_ref()
                .is_some_and(|known| same_copy(&known.copy, &copy));
            let end = known.and_then(|known| known.end);
            if !same && self.forget_open(&table, end) {
                void.push(table.clone());
            }
            let end = end.filter(|_| same);
            self.tables.insert(table, Entry { copy, parts, end });
        }
        for (table, known) in before {
            if self.forget_open(&table, known.end) {
                void.push(table);
            }
        }
        void
    }

    /// The stream is read from its first message again: what is on its way comes again.
    pub(super) fn reread(&mut self) {
        self.link = None;
        self.open.clear();
        self.pins.clear();
        self.last = StreamSequence(0);
        for entry in self.tables.values_mut() {
            entry.end = None;
        }
    }

    /// All copies.
    pub(super) fn copies(&self) -> impl Iterator<Item = &TableCopy> + Clone {
        self.tables.values().map(|entry| &entry.copy)
    }

    pub(super) fn copy(&self, table: &CopyTable) -> Option<&TableCopy> {
        self.tables.get(table).map(|entry| &entry.copy)
    }

    /// Whether some part is on its way and not whole.
    pub(super) fn waits_for_chunks(&self) -> bool {
        self.open.values().any(|open| !open.closed)
    }

    /// Everything up to here, inclusive, may go from the stream.
    pub(super) fn trimmable(&self) -> StreamSequence {
        match self.pins.first() {
            Some(first) => StreamSequence(first.0 - 1),
            None => self.last,
        }
    }

    /// Compares a frame with the one before it. The tables whose copies lost something with what is
    /// missing, and why; the frame itself is good.
    pub(super) fn follow(
        &mut self,
        header: &CopyHeader,
        digest: FrameDigest,
    ) -> Option<(Vec<CopyTable>, String)> {
        let link = Link {
            writer: header.writer,
            ordinal: header.ordinal,
            digest,
        };
        let Some(before) = self.link else {
            // What is trimmed was all in.
            self.link = Some(link);
            return None;
        };
        if header.writer < before.writer {
            return None;
        }
        self.link = Some(link);
        let fits = if header.writer == before.writer {
            header.ordinal == before.ordinal + 1 && header.previous == before.digest
        } else {
            header.ordinal == 0 && header.previous == FrameDigest::default()
        };
        if fits {
            return None;
        }
        let reason = format!(
            "frames of the copy stream are missing: writer {} number {} came behind writer {} \
             number {}",
            header.writer, header.ordinal, before.writer, before.ordinal
        );
        Some((self.copying(), reason))
    }

    /// The tables of which rows are coming.
    pub(super) fn copying(&self) -> Vec<CopyTable> {
        let copying = self
            .copies()
            .filter(|copy| copy.state == CopyState::Copying && !copy.is_whole());
        copying.map(|copy| copy.table.clone()).collect()
    }

    /// What a frame asks for.
    pub(super) fn step(&mut self, sequence: StreamSequence, frame: CopyFrame) -> Step {
        self.last = sequence;
        let CopyFrame {
            header,
            event,
            payload,
        } = frame;
        if header.source.system != self.system {
            return self.foreign(header);
        }
        if let CopyEvent::Begin(begin) = event {
            if self.begins_twice(&header, &begin) {
                let reason = "its writer began it twice, under different snapshots".to_owned();
                return Step::Void(header.table, reason);
            }
            return match self.may_begin(&header) {
                true => Step::Begin(header.table, header.source, Box::new(begin)),
                false => Step::Nothing,
            };
        }
        let standing = self.standing(&header);
        match (event, standing) {
            (CopyEvent::Begin(_), _) | (_, Standing::Stale) => Step::Nothing,
            (
                CopyEvent::Failed {
                    reason,
                    hint,
                    lasting,
                },
                _,
            ) => Step::Failed {
                table: header.table,
                reason,
                hint,
                lasting,
            },
            (_, Standing::Unbegun) => {
                let reason = "its beginning is not in the copy stream".to_owned();
                Step::Void(header.table, reason)
            }
            (CopyEvent::Chunk { part, number }, Standing::Ours) => {
                let table = header.table;
                self.chunk(sequence, PartKey { table, part }, number, payload)
            }
            (
                CopyEvent::Part {
                    part,
                    chunks,
                    rows,
                    bytes,
                    digest,
                },
                Standing::Ours,
            ) => {
                let table = header.table;
                let manifest = PartManifest {
                    chunks,
                    rows,
                    bytes,
                    digest,
                };
                self.part(sequence, PartKey { table, part }, manifest)
            }
            (CopyEvent::End { parts, rows, bytes }, Standing::Ours) => {
                let at = sequence;
                let end = End {
                    at,
                    parts,
                    rows,
                    bytes,
                };
                self.end(header.table, end)
            }
        }
    }

    /// A copy was begun by that writer.
    pub(super) fn begun(
        &mut self,
        (table, writer): (&CopyTable, Incarnation),
        (source, begin): (SourceId, &CopyBegin),
    ) {
        self.forget(table);
        if let Some(entry) = self.tables.get_mut(table) {
            entry.copy = TableCopy {
                state: CopyState::Copying,
                writer: Some(writer),
                source: Some(source),
                relation: Some(begin.relation.0),
                columns: begin.columns.clone(),
                snapshot: begin.snapshot.parse().ok(),
                converges_at: Some(begin.converges_at),
                estimated: (begin.estimated_rows, begin.estimated_bytes),
                parts: None,
                loaded: (0, 0),
                ..entry.copy.clone()
            };
        }
    }

    /// Parts that are in.
    pub(super) fn parts_in(&self, table: &CopyTable) -> Option<u32> {
        let entry = self.tables.get(table)?;
        u32::try_from(entry.parts.len()).ok()
    }

    /// What stands there is of no use to anybody.
    pub(super) fn passed(&mut self, sequence: StreamSequence) {
        self.last = sequence;
    }

    /// A part is committed. What follows for its table.
    pub(super) fn part_in(&mut self, key: &PartKey, rows: u64, bytes: u64) -> Step {
        self.part_noted(key, rows, bytes);
        self.whole(&key.table)
    }

    /// The same while nothing may follow.
    pub(super) fn part_noted(&mut self, key: &PartKey, rows: u64, bytes: u64) {
        if let Some(open) = self.open.remove(key) {
            self.pins.remove(&open.first);
        }
        if let Some(entry) = self.tables.get_mut(&key.table)
            && entry.parts.insert(key.part)
        {
            entry.copy.loaded.0 += rows;
            entry.copy.loaded.1 += bytes;
        }
    }

    /// All parts are in, and that is written down; what was put off comes next.
    pub(super) fn whole_noted(&mut self, table: &CopyTable, parts: u32) {
        let end = self.tables.get_mut(table).and_then(|entry| {
            entry.copy.parts = Some(parts);
            entry.end.take()
        });
        self.forget_open(table, end);
    }

    /// The tables that only wait for what was put off.
    pub(super) fn wholes(&self) -> Vec<CopyTable> {
        let wholes = self.copies().filter(|copy| copy.is_whole());
        wholes.map(|copy| copy.table.clone()).collect()
    }

    /// The whole table is in, and that is written down.
    pub(super) fn loaded(&mut self, table: &CopyTable) {
        self.settle(table, CopyState::Loaded);
        if let Some(entry) = self.tables.get_mut(table) {
            entry.copy.in_vain = 0;
        }
    }

    /// An operator is needed, for this reason.
    pub(super) fn given_up(&mut self, table: &CopyTable, reason: &str, hint: &str) {
        self.settle(table, CopyState::Failed);
        if let Some(entry) = self.tables.get_mut(table) {
            entry.copy.reason = Some(reason.to_owned());
            entry.copy.hint = Some(hint.to_owned());
        }
    }

    /// The copy is to be begun anew, as that generation.
    pub(super) fn again(&mut self, table: &CopyTable, generation: u32, reason: &str) {
        self.settle(table, CopyState::Wanted);
        if let Some(entry) = self.tables.get_mut(table) {
            entry.copy.generation = generation;
            entry.copy.reason = Some(reason.to_owned());
            entry.copy.in_vain += 1;
            entry.copy.loaded = (0, 0);
            entry.copy.writer = None;
        }
    }

    fn settle(&mut self, table: &CopyTable, state: CopyState) {
        self.forget(table);
        if let Some(entry) = self.tables.get_mut(table) {
            entry.copy.state = state;
        }
    }

    /// Forgets what came of the table's copy.
    fn forget(&mut self, table: &CopyTable) {
        let end = self.tables.get_mut(table).and_then(|entry| {
            entry.parts.clear();
            entry.end.take()
        });
        self.forget_open(table, end);
    }

    /// Forgets what of the table's copy is on its way; whether there was something.
    fn forget_open(&mut self, table: &CopyTable, end: Option<End>) -> bool {
        let pins = &mut self.pins;
        if let Some(end) = end {
            pins.remove(&end.at);
        }
        let before = self.open.len();
        self.open.retain(|key, open| {
            let keep = key.table != *table;
            if !keep {
                pins.remove(&open.first);
            }
            keep
        });
        self.open.len() < before
    }

    /// Parts of the second would be taken for those of the first.
    fn begins_twice(&self, header: &CopyHeader, begin: &CopyBegin) -> bool {
        let Some(Entry { copy, .. }) = self.tables.get(&header.table) else {
            return false;
        };
        copy.state == CopyState::Copying
            && copy.generation == header.generation
            && copy.writer == Some(header.writer)
            && copy.snapshot.as_ref() != begin.snapshot.parse().ok().as_ref()
    }

    /// What comes from another cluster can never be this flow's: if it is what is waited for, somebody
    /// has to know.
    fn foreign(&self, header: CopyHeader) -> Step {
        match self.standing(&header) {
            Standing::Stale => Step::Nothing,
            Standing::Ours | Standing::Unbegun => Step::Failed {
                reason: format!(
                    "its rows come from cluster {}, and the flow's source is cluster {}",
                    header.source.system, self.system
                ),
                hint: format!(
                    "let the relay read from the flow's source, then run trellara table recopy {}",
                    header.table
                ),
                table: header.table,
                lasting: true,
            },
        }
    }

    fn may_begin(&self, header: &CopyHeader) -> bool {
        let Some(Entry { copy, .. }) = self.tables.get(&header.table) else {
            return false;
        };
        let newer = copy.writer.is_none_or(|writer| header.writer > writer);
        copy.generation == header.generation
            && (copy.state == CopyState::Wanted
                || (copy.state == CopyState::Copying && newer && !copy.is_whole()))
    }

    fn standing(&self, header: &CopyHeader) -> Standing {
        let Some(Entry { copy, .. }) = self.tables.get(&header.table) else {
            return Standing::Stale;
        };
        if copy.generation != header.generation {
            return Standing::Stale;
        }
        match copy.state {
            CopyState::Copying if copy.is_whole() => Standing::Stale,
            CopyState::Wanted => Standing::Unbegun,
            CopyState::Copying => match copy.writer.map(|writer| header.writer.cmp(&writer)) {
                Some(std::cmp::Ordering::Equal) => Standing::Ours,
                Some(std::cmp::Ordering::Less) => Standing::Stale,
                Some(std::cmp::Ordering::Greater) | None => Standing::Unbegun,
            },
            CopyState::Announced
            | CopyState::Loaded
            | CopyState::Done
            | CopyState::Failed
            | CopyState::Kept
            | CopyState::Removed => Standing::Stale,
        }
    }

    fn is_in(&self, key: &PartKey) -> bool {
        let entry = self.tables.get(&key.table);
        entry.is_some_and(|entry| entry.parts.contains(&key.part))
    }

    fn chunk(&mut self, at: StreamSequence, key: PartKey, number: u32, bytes: Bytes) -> Step {
        if self.is_in(&key) {
            return Step::Nothing;
        }
        let next = match self.open.get(&key) {
            Some(open) if open.closed => None,
            Some(open) => Some(open.next),
            None => Some(0),
        };
        if next != Some(number) {
            let reason = format!("part {} has chunk {number} where none belongs", key.part);
            return Step::Void(key.table, reason);
        }
        let open = self.open.entry(key.clone()).or_insert_with(|| Open {
            first: at,
            next: 0,
            closed: false,
        });
        open.next += 1;
        self.pins.insert(open.first);
        Step::Chunk(key, number, bytes)
    }

    fn part(&mut self, at: StreamSequence, key: PartKey, manifest: PartManifest) -> Step {
        if self.is_in(&key) {
            return Step::Nothing;
        }
        let came = self.open.get(&key).map_or(0, |open| open.next);
        let closed = self.open.get(&key).is_some_and(|open| open.closed);
        if closed || came != manifest.chunks {
            let chunks = manifest.chunks;
            let reason = format!("part {} has {chunks} chunks and {came} came", key.part);
            return Step::Void(key.table, reason);
        }
        let open = self.open.entry(key.clone()).or_insert_with(|| Open {
            first: at,
            next: 0,
            closed: false,
        });
        open.closed = true;
        self.pins.insert(open.first);
        Step::Part(key, manifest)
    }

    fn end(&mut self, table: CopyTable, end: End) -> Step {
        if let Some(entry) = self.tables.get_mut(&table) {
            entry.end = Some(end);
            self.pins.insert(end.at);
        }
        self.whole(&table)
    }

    fn whole(&self, table: &CopyTable) -> Step {
        let Some(entry) = self.tables.get(table) else {
            return Step::Nothing;
        };
        let Some(end) = entry.end else {
            return Step::Nothing;
        };
        let on_their_way = self.open.keys().any(|key| key.table == *table);
        if on_their_way {
            return Step::Nothing;
        }
        let (rows, bytes) = entry.copy.loaded;
        if entry.parts.len() == end.parts as usize && (rows, bytes) == (end.rows, end.bytes) {
            return Step::Complete(table.clone());
        }
        let reason = format!(
            "the source sent {} parts with {} rows, and {} parts with {rows} rows are in",
            end.parts,
            end.rows,
            entry.parts.len()
        );
        Step::Void(table.clone(), reason)
    }
}

/// Whether what is known of one copy holds for the other.
fn same_copy(one: &TableCopy, other: &TableCopy) -> bool {
    one.generation == other.generation
        && one.writer == other.writer
        && (one.state == CopyState::Copying) == (other.state == CopyState::Copying)
}

#[cfg(test)]
#[path = "load/tests.rs"]
mod tests;
