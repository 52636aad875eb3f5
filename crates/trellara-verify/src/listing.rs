//! From rows that differ to what is reported of them.

use std::collections::{HashMap, HashSet};

use futures_util::try_join;

use crate::digest::{Hash, Piece, SideTable};
use crate::drill::{Found, KeyText};
use crate::error::Failure;
use crate::mapping::Pair;
use crate::pool::Lane;
use crate::reader::Reader;
use crate::report::{Difference, Kind};

/// Cells of rows, by place and key.
type Cells = HashMap<(i64, KeyText), Vec<Option<String>>>;

/// What is asked for.
pub(crate) struct Asked {
    pub(crate) values: bool,
    pub(crate) hash: Hash,
}

/// How many rows one statement reads again: its text names each of them.
const PLACES_MAX: usize = 10_000;

/// Describes what was found, `bytes` being what values may still take.
pub(crate) async fn list(
    lane: &Lane,
    pair: &Pair,
    piece: &Piece,
    found: Vec<Found>,
    (asked, bytes): (Asked, &mut usize),
) -> Result<Vec<Difference>, Failure> {
    let mut differences = Vec::with_capacity(found.len());
    let mut found = found.into_iter();
    loop {
        let some: Vec<Found> = found.by_ref().take(PLACES_MAX).collect();
        if some.is_empty() {
            return Ok(differences);
        }
        differences.extend(describe(lane, pair, piece, some, (&asked, bytes)).await?);
    }
}

/// Describes so many at once. A row of a table without key is its own key: one that is not read,
/// because nobody asked for values or because it does not fit, has its digest alone.
async fn describe(
    lane: &Lane,
    pair: &Pair,
    piece: &Piece,
    found: Vec<Found>,
    (asked, bytes): (&Asked, &mut usize),
) -> Result<Vec<Difference>, Failure> {
    let keyed = !pair.key.is_empty();
    let changed: Vec<&Found> = found.iter().filter(|f| f.kind == Kind::Changed).collect();
    let read = |wanted: Vec<&Found>, values| Wanted {
        lane,
        pair,
        piece,
        found: wanted.iter().map(|f| (f.place, f.key.clone())).collect(),
        values,
        hash: asked.hash,
    };
    // Digests of columns are small, however large the values are.
    let (mut here, mut there) = (Cells::new(), Cells::new());
    if keyed && !changed.is_empty() {
        (here, there) = read(changed, false).cells(&mut usize::MAX.clone()).await?;
    }
    let (mut source_rows, mut target_rows) = (Cells::new(), Cells::new());
    if asked.values {
        let all = found.iter().collect();
        (source_rows, target_rows) = read(all, true).cells(bytes).await?;
    }
    let named = |cells: Vec<Option<String>>| pair.columns.iter().cloned().zip(cells).collect();
    let mut differences = Vec::with_capacity(found.len());
    for found in found {
        let at = (found.place, found.key);
        let columns = match (here.get(&at), there.get(&at)) {
            (Some(here), Some(there)) => differing_columns(pair, here, there),
            _ => Vec::new(),
        };
        let (source, target) = (source_rows.remove(&at), target_rows.remove(&at));
        let key: Vec<(String, Option<String>)> = if keyed {
            let names = pair
                .key
                .iter()
                .filter_map(|i| pair.columns.get(*i).cloned());
            names.zip(at.1).collect()
        } else {
            let row = source.as_ref().or(target.as_ref());
            row.cloned().map(named).unwrap_or_default()
        };
        differences.push(Difference {
            key,
            kind: found.kind,
            columns,
            source_count: found.source_count,
            target_count: found.target_count,
            source_digest: found.source_digest,
            target_digest: found.target_digest,
            source_row: source.map(named),
            target_row: target.map(named),
            explained_by: None,
        });
    }
    Ok(differences)
}

fn differing_columns(
    pair: &Pair,
    here: &[Option<String>],
    there: &[Option<String>],
) -> Vec<String> {
    let cells = here.iter().zip(there);
    let columns = pair.columns.iter().zip(cells);
    columns
        .filter(|(_, (here, there))| here != there)
        .map(|(name, _)| name.clone())
        .collect()
}

/// Rows to read again, on both sides.
struct Wanted<'a> {
    lane: &'a Lane,
    pair: &'a Pair,
    piece: &'a Piece,
    found: HashSet<(i64, KeyText)>,
    values: bool,
    hash: Hash,
}

impl Wanted<'_> {
    async fn cells(&self, bytes: &mut usize) -> Result<(Cells, Cells), Failure> {
        let half = *bytes / 2;
        let ((source, used), (target, also_used)) = try_join!(
            self.of(&self.lane.source, &self.pair.source, half),
            self.of(&self.lane.target, &self.pair.target, half)
        )?;
        *bytes = bytes.saturating_sub(used + also_used);
        Ok((source, target))
    }

    /// The rows of one side, and how many bytes they take. Of rows with one key, the first.
    async fn of(
        &self,
        reader: &Reader,
        table: &SideTable,
        bytes: usize,
    ) -> Result<(Cells, usize), Failure> {
        let places: Vec<i64> = self.found.iter().map(|(place, _)| *place).collect();
        let sql = table.cells(self.piece, &places, self.values, self.hash);
        let mut rows = reader.stream(&sql).await?;
        let (mut cells, mut used) = (Cells::new(), 0usize);
        while let Some(row) = rows.next().await? {
            let place = rows.number(&row, 0)?;
            let keys = 1 + table.keys.len();
            let texts = (1..row.len()).map(|i| Ok(rows.cell(&row, i)?.map(str::to_owned)));
            let mut key = texts.collect::<Result<Vec<_>, Failure>>()?;
            let values = key.split_off(keys - 1);
            let size: usize = values.iter().flatten().map(String::len).sum();
            let at = (place, key);
            if !self.found.contains(&at) || cells.contains_key(&at) || used + size > bytes {
                continue;
            }
            used += size;
            cells.insert(at, values);
        }
        Ok((cells, used))
    }
}
