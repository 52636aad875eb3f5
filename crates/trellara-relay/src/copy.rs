//! The copy of what tables held: read under one snapshot by several sessions, written by one.
//!
//! It runs beside the incarnations and remembers nothing beyond its life: the target says what it
//! wants ([`trellara_envelope::CopyOrder`]), at which generation, and says so again until it has it.
//! What is begun and cannot be ended is said to have failed, and is ordered anew under the next
//! generation and read under another snapshot; tables that are in stay in, because the transaction
//! stream goes on from their snapshot. A fault of the copy never stops the transaction stream.
//!
//! Each reader collects whole parts and hands them over one at a time, so a part stands in the
//! stream in one piece: the stream is trimmed in whole parts, and a reader that is slow cannot keep
//! what others wrote from being trimmed. (With parts mixed, the first chunk of a slow one would pin
//! all behind it, and a full stream could take no more of any.)

mod book;
mod copier;
mod numbers;
mod orders;
mod outlet;
mod parts;
mod reading;
mod report;
mod run;
mod window;

use std::time::{Duration, Instant};

pub(crate) use copier::spawn;

/// Settings of the copy. Sizes are in bytes.
#[derive(Debug, Clone)]
pub struct CopyOptions {
    /// Sessions that read at once.
    pub workers: usize,
    /// What the copy stream may hold; when it is full, reading waits for loading.
    pub max_bytes: u64,
    /// A part is closed at this size, or at what the stream's limit leaves to it. It is loaded in
    /// one transaction, and collected in memory.
    pub part_bytes: usize,
    /// A table larger than this is read in ranges of this size, which several sessions read at
    /// once.
    pub item_bytes: u64,
    /// Without an order for this long a copy that waits for room is given up, so that the source
    /// need not keep what died since its snapshot for a target that may never come back.
    pub silence: Duration,
}

impl Default for CopyOptions {
    fn default() -> Self {
        Self {
            workers: 2,
            max_bytes: 256 << 20,
            part_bytes: 16 << 20,
            // Enough to make what a piece costs beside its rows invisible, and so little that the
            // last one of a table is soon over.
            item_bytes: 64 << 20,
            // A restart of the target is over by then.
            silence: Duration::from_secs(15 * 60),
        }
    }
}

/// The incarnation of this process that holds the slot.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Serving {
    pub(crate) incarnation: trellara_envelope::Incarnation,
    pub(crate) source: trellara_envelope::SourceId,
}

/// A copy's status at one moment.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct CopySnapshot {
    /// Tables read under the present snapshot, or the last one while its copy is not in; 0 when
    /// nothing is copied.
    pub tables: usize,
    /// How many of them are over: read to their end, failed, or not wanted any more.
    pub tables_over: usize,
    /// Rows handed to the broker under the present snapshot.
    pub rows: u64,
    /// Bytes in them.
    pub bytes: u64,
    /// Bytes of these tables, as the source estimates them.
    pub estimated_bytes: u64,
    /// Over the last seconds.
    pub bytes_per_second: u64,
    /// When the present snapshot was taken: the source keeps all rows that died since.
    pub snapshot_since: Option<Instant>,
    /// What the copy waits for, in words; empty when it does not.
    pub waiting_for: String,
}
