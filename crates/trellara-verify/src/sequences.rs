//! Whether the target's sequences stand where the source's do: a verdict of its own, about a
//! cut-over and not about rows.
//!
//! Sequences are no part of any transaction, so no snapshot holds them: both sides are read as they
//! are now, behind the position that the rows are compared at. The source may hand out more in the
//! meantime; what is ready has to be looked at again when nothing writes there any more.

use std::collections::BTreeMap;

use trellara_postgres::quote;

use crate::error::{Failure, Side};
use crate::inventory::{Cells, values};
use crate::reader::Reader;
use crate::report::TableName;

/// Sequences read by one statement.
const BATCH: usize = 200;

/// Where a sequence stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SequencePosition {
    /// The number handed out last, or to be handed out first.
    pub last_value: i64,
    /// Whether that number has been handed out.
    pub is_called: bool,
    /// The step; counts down when below zero.
    pub increment: i64,
    /// Where it begins again when it is used up, if it does.
    pub restart: Option<i64>,
    /// The last number that it may hand out in its direction.
    pub end: i64,
}

impl SequencePosition {
    fn counts_up(self) -> bool {
        self.increment > 0
    }

    /// The next number that it hands out.
    fn next(self) -> i128 {
        let step = if self.is_called { self.increment } else { 0 };
        let next = i128::from(self.last_value) + i128::from(step);
        let over = match self.counts_up() {
            true => next > i128::from(self.end),
            false => next < i128::from(self.end),
        };
        match self.restart {
            Some(restart) if over => i128::from(restart),
            // Used up: it hands out nothing any more.
            _ => next,
        }
    }

    /// The first number in its direction that it has not handed out; numbers that its step leaves
    /// out are free.
    fn free_from(self) -> i128 {
        let handed_out = match (self.is_called, self.counts_up()) {
            (false, _) => 0,
            (true, true) => 1,
            (true, false) => -1,
        };
        i128::from(self.last_value) + handed_out
    }

    /// Hands out no number that `source` has handed out already.
    fn is_beyond(self, source: Self) -> bool {
        match (self.counts_up(), source.counts_up()) {
            (true, true) => self.next() >= source.free_from(),
            (false, false) => self.next() <= source.free_from(),
            // One counts towards the other.
            _ => false,
        }
    }
}

/// What a sequence of the target is to a cut-over.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SequenceState {
    /// The target would hand out nothing that the source has handed out.
    Ready,
    /// The target would hand out numbers again.
    Behind,
    /// The target has no sequence of this name.
    Missing,
    /// One side does not let us read it.
    NotReadable(Side),
}

/// A sequence that fills a column of a published table.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SequenceReport {
    /// Its name.
    pub sequence: TableName,
    /// What it is to a cut-over.
    pub state: SequenceState,
    /// The source's, where it could be read.
    pub source: Option<SequencePosition>,
    /// The target's.
    pub target: Option<SequencePosition>,
}

/// A sequence on one side; without a position it may not be read.
type Positions = BTreeMap<TableName, Option<SequencePosition>>;

/// Looks at the sequences of these tables, as they are now.
pub(crate) async fn look(
    source: &Reader,
    target: &Reader,
    tables: &[TableName],
) -> Result<Vec<SequenceReport>, Failure> {
    let names = used(source, tables).await?;
    let here = positions(source, &names).await?;
    let mut there = positions(target, &names).await?;
    let judged = here.into_iter().map(|(sequence, source)| {
        let target = there.remove(&sequence);
        SequenceReport {
            state: judge(source, target),
            sequence,
            source,
            target: target.flatten(),
        }
    });
    Ok(judged.collect())
}

fn judge(
    source: Option<SequencePosition>,
    target: Option<Option<SequencePosition>>,
) -> SequenceState {
    match (source, target) {
        (_, None) => SequenceState::Missing,
        (None, Some(_)) => SequenceState::NotReadable(Side::Source),
        (Some(_), Some(None)) => SequenceState::NotReadable(Side::Target),
        (Some(source), Some(Some(target))) if target.is_beyond(source) => SequenceState::Ready,
        (Some(_), Some(Some(_))) => SequenceState::Behind,
    }
}

/// The sequences that columns of these tables own or take their defaults from; partitions use those
/// of their roots, and roots those of their partitions.
async fn used(source: &Reader, tables: &[TableName]) -> Result<Vec<TableName>, Failure> {
    if tables.is_empty() {
        return Ok(Vec::new());
    }
    let sql = format!(
        "WITH named AS (SELECT c.oid FROM (VALUES {}) w(i, s, n) \
           JOIN pg_namespace n ON n.nspname = w.s \
           JOIN pg_class c ON c.relnamespace = n.oid AND c.relname = w.n), \
         tree AS (SELECT oid FROM named \
           UNION SELECT t.relid FROM named CROSS JOIN LATERAL pg_partition_tree(oid) t \
           UNION SELECT a.relid FROM named CROSS JOIN LATERAL pg_partition_ancestors(oid) a), \
         used AS (SELECT d.objid AS oid FROM pg_depend d JOIN tree t ON t.oid = d.refobjid \
             WHERE d.classid = 'pg_class'::regclass AND d.refclassid = 'pg_class'::regclass \
               AND d.refobjsubid > 0 AND d.deptype IN ('a', 'i') \
           UNION SELECT d.refobjid FROM pg_attrdef f JOIN tree t ON t.oid = f.adrelid \
             JOIN pg_depend d ON d.classid = 'pg_attrdef'::regclass AND d.objid = f.oid \
               AND d.refclassid = 'pg_class'::regclass) \
         SELECT n.nspname, c.relname FROM used u JOIN pg_class c ON c.oid = u.oid AND c.relkind = 'S' \
         JOIN pg_namespace n ON n.oid = c.relnamespace ORDER BY 1, 2",
        values(tables)
    );
    let rows = source.rows(&sql).await?.into_iter();
    rows.map(|row| {
        let mut row = Cells(row.into_iter());
        Ok(TableName {
            schema: row.text()?,
            name: row.text()?,
        })
    })
    .collect()
}

/// Where those of these sequences stand that this side has.
async fn positions(reader: &Reader, names: &[TableName]) -> Result<Positions, Failure> {
    let mut all = BTreeMap::new();
    for batch in names.chunks(BATCH) {
        let wanted = values(batch);
        let sql = format!(
            "SELECT w.i, has_sequence_privilege(c.oid, 'SELECT') \
               AND has_schema_privilege(n.oid, 'USAGE'), \
               s.seqincrement, CASE WHEN s.seqincrement > 0 THEN s.seqmax ELSE s.seqmin END, \
               CASE WHEN s.seqcycle THEN \
                 CASE WHEN s.seqincrement > 0 THEN s.seqmin ELSE s.seqmax END END \
             FROM (VALUES {wanted}) w(i, s, n) JOIN pg_namespace n ON n.nspname = w.s \
             JOIN pg_class c ON c.relnamespace = n.oid AND c.relname = w.n \
             JOIN pg_sequence s ON s.seqrelid = c.oid ORDER BY w.i"
        );
        let mut open = Vec::new();
        for row in reader.rows(&sql).await? {
            let mut row = Cells(row.into_iter());
            let Some(name) = batch.get(row.number()?) else {
                continue;
            };
            let readable = row.flag()?;
            let (increment, end) = (row.whole()?, row.whole()?);
            let restart = row.optional().and_then(|text| text.parse().ok());
            all.insert(name.clone(), None);
            if readable {
                open.push((name, (increment, restart, end)));
            }
        }
        for (at, last_value, is_called) in values_of(reader, &open).await? {
            let Some((name, (increment, restart, end))) = open.get(at) else {
                continue;
            };
            let position = SequencePosition {
                last_value,
                is_called,
                increment: *increment,
                restart: *restart,
                end: *end,
            };
            all.insert((*name).clone(), Some(position));
        }
    }
    Ok(all)
}

/// Place in the list, number and whether it was handed out, of the sequences that can be read.
async fn values_of<T>(
    reader: &Reader,
    open: &[(&TableName, T)],
) -> Result<Vec<(usize, i64, bool)>, Failure> {
    let selects: Vec<String> = open
        .iter()
        .enumerate()
        .map(|(i, (name, _))| {
            let from = quote::qualified(&name.schema, &name.name);
            format!("SELECT {i}, last_value, is_called FROM {from}")
        })
        .collect();
    if selects.is_empty() {
        return Ok(Vec::new());
    }
    let rows = match reader.rows(&selects.join(" UNION ALL ")).await {
        Ok(rows) => rows,
        // One of them was dropped or locked just now; the others can be read.
        Err(Failure::Refused { .. }) => {
            let mut rows = Vec::new();
            for select in &selects {
                match reader.rows(select).await {
                    Ok(found) => rows.extend(found),
                    Err(Failure::Refused { .. }) => {}
                    Err(failure) => return Err(failure),
                }
            }
            rows
        }
        Err(failure) => return Err(failure),
    };
    rows.into_iter()
        .map(|row| {
            let mut row = Cells(row.into_iter());
            Ok((row.number()?, row.whole()?, row.flag()?))
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(last_value: i64, is_called: bool, increment: i64) -> SequencePosition {
        SequencePosition {
            last_value,
            is_called,
            increment,
            restart: None,
            end: if increment > 0 { i64::MAX } else { i64::MIN },
        }
    }

    #[test]
    fn ready_is_what_hands_out_nothing_twice() {
        let cases = [
            // source, target, ready
            (at(1, false, 1), at(1, false, 1), true),
            (at(1, true, 1), at(1, false, 1), false),
            (at(1, true, 1), at(1, true, 1), true),
            (at(1, true, 1), at(2, false, 1), true),
            (at(100, true, 10), at(91, true, 10), true),
            (at(100, true, 10), at(90, true, 10), false),
            (at(100, false, 1), at(99, true, 1), true),
            (at(100, false, 1), at(98, true, 1), false),
            (at(-1, true, -1), at(-1, false, -1), false),
            (at(-5, true, -1), at(-5, true, -1), true),
            (at(-5, true, -1), at(-4, true, -1), false),
            (at(-5, false, -1), at(-5, false, -1), true),
            (at(1, true, 1), at(1000, true, -1), false),
            (at(i64::MAX, true, 1), at(i64::MAX, true, 1), true),
            (at(i64::MIN, true, -1), at(i64::MIN, true, -1), true),
        ];
        for (source, target, ready) in cases {
            assert_eq!(target.is_beyond(source), ready, "{source:?} {target:?}");
        }
        let mut round = at(5, true, 1);
        round.end = 5;
        assert!(round.is_beyond(at(5, true, 1)), "used up");
        round.restart = Some(1);
        assert!(!round.is_beyond(at(5, true, 1)), "begins again");
    }

    #[test]
    fn what_cannot_be_seen_is_not_ready() {
        let some = Some(at(1, false, 1));
        assert_eq!(judge(some, None), SequenceState::Missing);
        assert_eq!(judge(None, None), SequenceState::Missing);
        let unread = SequenceState::NotReadable;
        assert_eq!(judge(None, Some(some)), unread(Side::Source));
        assert_eq!(judge(some, Some(None)), unread(Side::Target));
        assert_eq!(judge(some, Some(some)), SequenceState::Ready);
    }
}
