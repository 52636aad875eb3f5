//! From a piece that differs to the rows that differ.
//!
//! Both sides are read in the order of a hash that does not depend on collations, and merged; so
//! nothing grows with the table, and the counts are whole however many rows differ.

use std::collections::BTreeMap;

use futures_util::try_join;

use crate::digest::{Hash, Piece, SUB_BUCKETS};
use crate::error::{Failure, Side};
use crate::mapping::Pair;
use crate::measure::{self, Digest};
use crate::pool::Lane;
use crate::reader::{Reader, Rows};
use crate::report::Kind;
use crate::sum::Sum;

/// Below so many rows a piece is merged at once.
const MERGED_AT_ONCE: u64 = 4000;

/// A place's key, as the values' texts; none in a table without key.
pub(crate) type KeyText = Vec<Option<String>>;

/// Something that differs, before its columns are looked at.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Found {
    /// The hash it was merged by.
    pub(crate) place: i64,
    pub(crate) key: KeyText,
    pub(crate) kind: Kind,
    pub(crate) source_count: u64,
    pub(crate) target_count: u64,
    pub(crate) source_digest: Option<i64>,
    pub(crate) target_digest: Option<i64>,
}

/// Rows of one key on one side.
#[derive(Debug, Clone, Copy, Default)]
struct Rank {
    digest: Digest,
    first: Option<i64>,
}

impl Rank {
    fn add(&mut self, row: Sum, count: u64) {
        self.digest.rows += count;
        self.digest.sum += row.times(count);
        self.first.get_or_insert(row.low());
    }
}

/// Merges two sides that come in order of their places. Pure.
#[derive(Debug, Default)]
pub(crate) struct Merge {
    /// How many rows of each kind differ.
    pub(crate) missing: u64,
    pub(crate) extra: u64,
    pub(crate) changed: u64,
    pub(crate) duplicate: u64,
    /// The first that differ.
    pub(crate) found: Vec<Found>,
    /// How many of them to keep.
    room: usize,
    group: BTreeMap<KeyText, [Rank; 2]>,
}

impl Merge {
    pub(crate) fn new(room: usize) -> Self {
        Self {
            room,
            ..Self::default()
        }
    }

    /// One line of one side, of the place that is open.
    fn add(&mut self, side: Side, line: Line) {
        let ranks = self.group.entry(line.key).or_default();
        ranks[side as usize].add(line.digest, line.count);
    }

    /// All lines of the place were added.
    fn close(&mut self, place: i64) {
        while let Some((key, [source, target])) = self.group.pop_first() {
            let Some(kind) = kind(&source.digest, &target.digest) else {
                continue;
            };
            let (s, t) = (source.digest.rows, target.digest.rows);
            match kind {
                Kind::Missing => self.missing += s,
                Kind::Extra => self.extra += t,
                Kind::Changed => self.changed += s,
                Kind::Duplicate => self.duplicate += s.abs_diff(t),
            }
            if self.found.len() < self.room {
                self.found.push(Found {
                    place,
                    key,
                    kind,
                    source_count: s,
                    target_count: t,
                    source_digest: source.first,
                    target_digest: target.first,
                });
            }
        }
    }
}

/// How the rows of one key differ.
fn kind(source: &Digest, target: &Digest) -> Option<Kind> {
    match (source.rows, target.rows) {
        _ if source == target => None,
        (_, 0) => Some(Kind::Missing),
        (0, _) => Some(Kind::Extra),
        (s, t) if s == t => Some(Kind::Changed),
        _ => Some(Kind::Duplicate),
    }
}

/// A row, or equal rows of a table without key.
#[derive(Debug)]
struct Line {
    place: i64,
    digest: Sum,
    count: u64,
    key: KeyText,
}

/// One side that is being merged.
struct Cursor<'a> {
    rows: Rows<'a>,
    hash: Hash,
    keyed: bool,
    head: Option<Line>,
}

impl<'a> Cursor<'a> {
    async fn open(
        reader: &'a Reader,
        sql: &str,
        (keyed, hash): (bool, Hash),
    ) -> Result<Self, Failure> {
        let mut cursor = Self {
            rows: reader.stream(sql).await?,
            hash,
            keyed,
            head: None,
        };
        cursor.advance().await?;
        Ok(cursor)
    }

    /// Takes the next line in; gives the one before.
    async fn advance(&mut self) -> Result<Option<Line>, Failure> {
        let next = match self.rows.next().await? {
            None => None,
            Some(row) => {
                let place = self.rows.number(&row, 0)?;
                let digest = match &self.hash.proof {
                    Some(key) => {
                        let text = self.rows.cell(&row, 1)?.unwrap_or_default();
                        measure::digest_of(key, text.as_bytes())
                    }
                    None if self.keyed => i128::from(self.rows.number(&row, 1)?).into(),
                    None => i128::from(place).into(),
                };
                let cell = |i| Ok::<_, Failure>(self.rows.cell(&row, i)?.map(str::to_owned));
                Some(Line {
                    place,
                    digest,
                    count: self.rows.number(&row, 2)?.unsigned_abs(),
                    key: (3..row.len()).map(cell).collect::<Result<_, _>>()?,
                })
            }
        };
        Ok(std::mem::replace(&mut self.head, next))
    }

    fn is_at(&self, place: i64) -> bool {
        self.head.as_ref().is_some_and(|line| line.place == place)
    }
}

/// Finds what differs in a piece that does; keeps no more than `room` of it.
pub(crate) async fn drill(
    lane: &Lane,
    pair: &Pair,
    piece: &Piece,
    (rows, room): (u64, usize),
    hash: Hash,
) -> Result<Merge, Failure> {
    let narrow = matches!(piece, Piece::Range { .. }) && rows > MERGED_AT_ONCE;
    let subs = match narrow {
        true => differing_subs(lane, pair, piece, hash).await?,
        false => None,
    };
    let keyed = !pair.key.is_empty();
    let source_sql = pair.source.merge(piece, subs.as_deref(), hash);
    let target_sql = pair.target.merge(piece, subs.as_deref(), hash);
    let (mut source, mut target) = try_join!(
        Cursor::open(&lane.source, &source_sql, (keyed, hash)),
        Cursor::open(&lane.target, &target_sql, (keyed, hash))
    )?;
    let mut merge = Merge::new(room);
    loop {
        let heads = [&source.head, &target.head];
        let Some(place) = heads.into_iter().flatten().map(|line| line.place).min() else {
            return Ok(merge);
        };
        for (side, cursor) in [(Side::Source, &mut source), (Side::Target, &mut target)] {
            while cursor.is_at(place) {
                if let Some(line) = cursor.advance().await? {
                    merge.add(side, line);
                }
            }
        }
        merge.close(place);
    }
}

/// Which sub-buckets differ; `None` when naming them would not save much.
async fn differing_subs(
    lane: &Lane,
    pair: &Pair,
    piece: &Piece,
    hash: Hash,
) -> Result<Option<Vec<u32>>, Failure> {
    let (source, target) = try_join!(
        measure::sub_buckets(&lane.source, &pair.source, piece, hash),
        measure::sub_buckets(&lane.target, &pair.target, piece, hash)
    )?;
    let differing: Vec<u32> = measure::differing(&source, &target)
        .map(|(number, _)| number)
        .collect();
    Ok((differing.len() < SUB_BUCKETS as usize / 2).then_some(differing))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Merges two lists of `(key, digest)` whose place is a hash that often collides.
    fn merged(source: &[(u8, i64)], target: &[(u8, i64)], room: usize) -> Merge {
        let mut merge = Merge::new(room);
        for place in 0..4 {
            for (side, rows) in [(Side::Source, source), (Side::Target, target)] {
                for (key, digest) in rows.iter().filter(|(key, _)| i64::from(key % 4) == place) {
                    let line = Line {
                        place,
                        digest: i128::from(*digest).into(),
                        count: 1,
                        key: vec![Some(key.to_string())],
                    };
                    merge.add(side, line);
                }
            }
            merge.close(place);
        }
        merge
    }

    fn of(rows: &[(u8, i64)], key: u8) -> Vec<i64> {
        let mut digests: Vec<i64> = rows.iter().filter(|r| r.0 == key).map(|r| r.1).collect();
        digests.sort_unstable();
        digests
    }

    proptest! {
        #[test]
        fn what_differs_is_what_a_plain_comparison_finds(
            source in prop::collection::vec((0u8..8, 0i64..1 << 40), 0..20),
            target in prop::collection::vec((0u8..8, 0i64..1 << 40), 0..20),
            copied in any::<bool>(),
        ) {
            let target = if copied { source.clone() } else { target };
            let merge = merged(&source, &target, 100);
            for key in 0..8 {
                let (s, t) = (of(&source, key), of(&target, key));
                let expected = match (s.len(), t.len()) {
                    _ if s == t => None,
                    (_, 0) => Some(Kind::Missing),
                    (0, _) => Some(Kind::Extra),
                    (a, b) if a == b => Some(Kind::Changed),
                    _ => Some(Kind::Duplicate),
                };
                let text = vec![Some(key.to_string())];
                let found = merge.found.iter().find(|found| found.key == text);
                prop_assert_eq!(found.map(|found| found.kind), expected);
            }
        }

        #[test]
        fn counting_goes_on_beyond_the_room(
            source in prop::collection::vec((0u8..8, any::<i64>()), 0..20),
            target in prop::collection::vec((0u8..8, any::<i64>()), 0..20),
            room in 0usize..3,
        ) {
            let (all, some) = (merged(&source, &target, 100), merged(&source, &target, room));
            prop_assert_eq!(some.found.len(), room.min(all.found.len()));
            prop_assert_eq!(
                (some.missing, some.extra, some.changed, some.duplicate),
                (all.missing, all.extra, all.changed, all.duplicate)
            );
        }
    }
}
