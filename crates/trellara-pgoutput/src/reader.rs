//! Reading a transaction's records in order, in pieces cut anywhere.

use bytes::{Buf, Bytes};
use trellara_envelope::{AbortedSet, records::LENGTH_BYTES};

use crate::{Error, Kind, Message, Peek, RelationMap, TupleRef, decode, peek};

/// Larger messages do not exist: PostgreSQL builds them in a buffer of at most 1 GiB.
pub const MAX_RECORD_BYTES: usize = 1 << 30;

/// A larger gathered record is given back after use, so that one huge row costs its memory once.
const KEPT_CAPACITY: usize = 1 << 20;

/// Walks over the records of a transaction: skips what was rolled back, keeps the relation map
/// current and counts the surviving changes.
///
/// A chunked transaction can be read alone. In a bundle a table is described once, by the first
/// transaction that needs it, so its transactions are read in order with one reader, going on
/// with [`ChangeReader::next_transaction`]; one that begins behind the first is told the earlier
/// records with [`ChangeReader::describe`].
///
/// Pieces are fed as they come, a bundle's slice or one chunk after another; a record may span
/// any number of them. Records inside a piece are read where they are. One that spans pieces is
/// gathered in a buffer that grows with what has come, never with what is announced, and is
/// copied a constant number of times however many pieces it spans.
///
/// RELATION and TYPE records are never skipped, whatever their transaction id: the relay repeats
/// the right ones wherever a transaction needs them, so the reader takes each in order.
#[derive(Debug)]
pub struct ChangeReader<'a> {
    streamed: bool,
    aborted: &'a AbortedSet,
    relations: RelationMap,
    total_order: u64,
    piece: Bytes,
    gathered: Vec<u8>,
    /// The record last found, until the next one is asked for.
    found: Found,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Found {
    Nothing,
    /// `gathered` holds exactly one record, length included.
    Gathered,
    /// `piece` begins with a record of this many bytes, length included.
    InPiece(usize),
}

/// A surviving message and what is known where it stands.
#[derive(Debug, Clone, Copy)]
pub struct ReadChange<'r> {
    /// The message.
    pub message: Message<'r>,
    /// Its place among the transaction's surviving changes, from 1; `None` for messages that
    /// change no rows.
    pub total_order: Option<u64>,
    /// The tables and types described so far, this message included.
    pub relations: &'r RelationMap,
}

impl<'a> ChangeReader<'a> {
    /// A reader at the beginning of a transaction. `streamed` says whether its records carry
    /// transaction ids (as the manifest does); a bundle's never do.
    pub fn new(streamed: bool, aborted: &'a AbortedSet) -> Self {
        Self {
            streamed,
            aborted,
            relations: RelationMap::new(),
            total_order: 0,
            piece: Bytes::new(),
            gathered: Vec::new(),
            found: Found::Nothing,
        }
    }

    /// Adds the next piece of the transaction's bytes.
    ///
    /// # Panics
    /// When [`ChangeReader::next_change`] has not returned `None` for the piece before.
    pub fn feed(&mut self, piece: Bytes) {
        assert!(
            self.piece.is_empty() && self.found == Found::Nothing,
            "the piece before must be read to its end"
        );
        self.piece = piece;
    }

    /// The next surviving message; `None` when the next piece is needed.
    pub fn next_change(&mut self) -> Result<Option<ReadChange<'_>>, Error> {
        let kind = loop {
            if !self.find()? {
                return Ok(None);
            }
            let record = record_of(self.found, &self.gathered, &self.piece);
            let Peek { kind, xid, .. } = peek(record, self.streamed)?;
            if !kind.is_record() {
                return Err(Error::OutOfPlace(kind.as_str()));
            }
            if matches!(kind, Kind::Relation | Kind::Type) {
                self.relations.observe(&decode(record, self.streamed)?);
                break kind;
            }
            if xid.is_none_or(|xid| !self.aborted.contains(xid)) {
                break kind;
            }
        };
        let total_order = kind.is_change().then(|| {
            self.total_order += 1;
            self.total_order
        });
        let record = record_of(self.found, &self.gathered, &self.piece);
        let message = decode(record, self.streamed)?;
        check_shape(&message, &self.relations)?;
        Ok(Some(ReadChange {
            message,
            total_order,
            relations: &self.relations,
        }))
    }

    /// Surviving changes so far.
    pub fn changes(&self) -> u64 {
        self.total_order
    }

    /// The tables and types described so far.
    pub fn relations(&self) -> &RelationMap {
        &self.relations
    }

    /// Learns what earlier records of the same bundle describe, without reading their changes.
    pub fn describe(&mut self, earlier: &[u8]) -> Result<(), Error> {
        self.relations.observe_records(earlier)
    }

    /// Ends the transaction: nothing may be left over. Returns the number of surviving changes,
    /// which are counted from 1 again; what was described stays known.
    pub fn next_transaction(&mut self) -> Result<u64, Error> {
        self.release();
        if self.piece.is_empty() && self.gathered.is_empty() {
            Ok(std::mem::take(&mut self.total_order))
        } else {
            Err(Error::TruncatedRecord)
        }
    }

    /// Ends the last transaction: nothing may be left over. Returns the number of its surviving
    /// changes.
    pub fn finish(mut self) -> Result<u64, Error> {
        self.next_transaction()
    }

    /// Lets go of the record last found.
    fn release(&mut self) {
        match std::mem::replace(&mut self.found, Found::Nothing) {
            Found::Nothing => {}
            Found::InPiece(bytes) => self.piece.advance(bytes),
            Found::Gathered => {
                self.gathered.clear();
                self.gathered.shrink_to(KEPT_CAPACITY);
            }
        }
    }

    /// Finds the next complete record; `false` when the piece is used up.
    fn find(&mut self) -> Result<bool, Error> {
        self.release();
        if self.gathered.is_empty()
            && let Some(total) = announced(&self.piece)?
            && total <= self.piece.len()
        {
            self.found = Found::InPiece(total);
            return Ok(true);
        }
        if announced(&self.gathered)?.is_none() {
            self.gather(LENGTH_BYTES);
        }
        if let Some(total) = announced(&self.gathered)? {
            self.gather(total);
            if self.gathered.len() == total {
                self.found = Found::Gathered;
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Moves bytes out of the piece until `total` are gathered or the piece is used up.
    fn gather(&mut self, total: usize) {
        let wanted = total
            .saturating_sub(self.gathered.len())
            .min(self.piece.len());
        if wanted == 0 {
            return;
        }
        let needed = self.gathered.len() + wanted;
        if needed > self.gathered.capacity() {
            // Doubling keeps the copying linear; the record's own length caps it, and what has
            // come drives it, so that a damaged length allocates nothing.
            let capacity = needed
                .max(self.gathered.capacity() * 2)
                .min(total)
                .max(needed);
            self.gathered.reserve_exact(capacity - self.gathered.len());
        }
        self.gathered
            .extend_from_slice(&self.piece.split_to(wanted));
    }
}

fn record_of<'r>(found: Found, gathered: &'r [u8], piece: &'r [u8]) -> &'r [u8] {
    let whole = match found {
        Found::Nothing => return &[],
        Found::Gathered => gathered,
        Found::InPiece(bytes) => piece.get(..bytes).unwrap_or_default(),
    };
    whole.get(LENGTH_BYTES..).unwrap_or_default()
}

/// Bytes of the record at the beginning of `bytes`, its length included; `None` when not even the
/// length is there.
fn announced(bytes: &[u8]) -> Result<Option<usize>, Error> {
    let Some((length, _)) = bytes.split_first_chunk::<LENGTH_BYTES>() else {
        return Ok(None);
    };
    let length = u32::from_be_bytes(*length) as usize;
    if length > MAX_RECORD_BYTES {
        return Err(Error::RecordTooLarge(length));
    }
    Ok(Some(LENGTH_BYTES + length))
}

/// Every change belongs to a described table and has as many columns as it.
fn check_shape(message: &Message<'_>, relations: &RelationMap) -> Result<(), Error> {
    let check = |relation, tuples: &[TupleRef<'_>]| {
        let known = relations
            .get(relation)
            .ok_or(Error::UnknownRelation(relation))?;
        let need = known.columns.len();
        match tuples.iter().find(|tuple| tuple.len() != need) {
            None => Ok(()),
            Some(tuple) => Err(Error::ColumnCount {
                relation,
                have: tuple.len(),
                need,
            }),
        }
    };
    match message {
        Message::Insert { relation, new, .. } => check(*relation, &[*new]),
        Message::Update {
            relation,
            old: Some(old),
            new,
            ..
        } => check(*relation, &[old.tuple(), *new]),
        Message::Update { relation, new, .. } => check(*relation, &[*new]),
        Message::Delete { relation, old, .. } => check(*relation, &[old.tuple()]),
        Message::Truncate { relations: all, .. } => {
            let mut all = *all;
            all.try_for_each(|relation| check(relation, &[]))
        }
        _ => Ok(()),
    }
}
