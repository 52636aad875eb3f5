//! Reading a lane's newest identities, oldest first: what the cache is born from.

use futures_util::TryStreamExt;
use tokio_postgres::Client;
use tokio_postgres::types::{PgLsn, ToSql};
use trellara_envelope::{FlowName, Lane, LedgerOrdinal, Lsn, SystemId, TransactionHash};

use super::probe::{Piece, unreadable};
use super::{LedgerError, lane, lsn, microseconds};

pub(super) const SQL: &str = include_str!("../sql/hydrate.sql");

/// One row of the ledger behind the first.
#[derive(Debug)]
pub struct Entry<'i> {
    /// Its first ordinal.
    pub first: LedgerOrdinal,
    /// Empty for progress without transactions, which takes one ordinal.
    pub identities: &'i [TransactionHash],
    /// The system that its position belongs to.
    pub system: SystemId,
    /// Where the lane stood behind it.
    pub end_lsn: Lsn,
    /// The target's clock when it was written: microseconds since the Unix epoch.
    pub applied_at_us: i64,
}

/// Where the rows that were read begin: no transaction that ends above `end_lsn` in this system can
/// stand at or below `ordinal`, because a lane's position never falls.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Floor {
    /// The last ordinal of the row.
    pub ordinal: LedgerOrdinal,
    /// The system that its position belongs to.
    pub system: SystemId,
    /// Where the lane stood behind it.
    pub end_lsn: Lsn,
}

/// What was read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Hydrated {
    /// The first row: nothing of it or before it was handed out.
    pub floor: Floor,
    /// The last ordinal.
    pub through: LedgerOrdinal,
    /// How many were handed out.
    pub identities: u64,
}

/// Which rows of which lane.
#[derive(Debug, Clone, Copy)]
pub struct Span<'a> {
    /// The flow.
    pub flow: &'a FlowName,
    /// The lane.
    pub lane: Lane,
    /// The row that holds it is the first; the oldest one where it was pruned.
    pub cut: LedgerOrdinal,
    /// Rows that begin behind it are not read.
    pub newest: LedgerOrdinal,
}

/// Hands every row behind the first of `span` to `take`, oldest first, and says where it began and
/// ended.
///
/// # Errors
/// STATE when a row is missing, when its ordinals do not fit its identities, or when the position
/// falls.
pub async fn read(
    client: &Client,
    span: Span<'_>,
    mut take: impl FnMut(Entry<'_>),
) -> Result<Hydrated, LedgerError> {
    let (flow, lane) = (span.flow.as_str(), lane(span.lane));
    let parameters: [&(dyn ToSql + Sync); 4] = [&flow, &lane, &span.cut.0, &span.newest.0];
    let rows = client.query_raw(SQL, parameters).await?;
    let mut rows = std::pin::pin!(rows);
    let mut reading: Option<Reading> = None;
    let mut identities = Vec::with_capacity(super::IDENTITIES_PER_ROW);
    let mut count = 0;
    while let Some(row) = rows.try_next().await? {
        let piece = Piece::read(&row, 7)?;
        let end = Place {
            system: SystemId(row.get::<_, i64>(2).cast_unsigned()),
            end_lsn: lsn(row.get(3)),
            lowest: row.get::<_, Option<PgLsn>>(4).map(lsn),
            highest: row.get::<_, Option<PgLsn>>(5).map(lsn),
        };
        end.check(&piece)?;
        let Some(before) = &mut reading else {
            reading = Some(Reading::begin(&piece, &end));
            continue;
        };
        before.follow(&piece, &end)?;
        identities.clear();
        identities.extend(piece.identities().map(|(_, hash)| hash));
        count += identities.len() as u64;
        take(Entry {
            first: LedgerOrdinal(piece.first),
            identities: &identities,
            system: end.system,
            end_lsn: end.end_lsn,
            applied_at_us: microseconds(row.get(6)),
        });
    }
    let Some(reading) = reading else {
        return Err(unreadable(span.cut, "there is none").into());
    };
    Ok(Hydrated {
        floor: reading.floor,
        through: LedgerOrdinal(reading.last),
        identities: count,
    })
}

/// What a row says of its ends.
struct Place {
    system: SystemId,
    end_lsn: Lsn,
    lowest: Option<Lsn>,
    highest: Option<Lsn>,
}

impl Place {
    /// The index finds a row by its ends: they must be there when it holds transactions.
    fn check(&self, piece: &Piece<'_>) -> Result<(), LedgerError> {
        let fits = match (self.lowest, self.highest) {
            (None, None) => piece.is_progress(),
            (Some(lowest), Some(highest)) => {
                !piece.is_progress() && lowest <= highest && highest <= self.end_lsn
            }
            (Some(_), None) | (None, Some(_)) => false,
        };
        if fits {
            return Ok(());
        }
        let what = "the ends of its transactions do not fit its position";
        Err(unreadable(LedgerOrdinal(piece.first), what).into())
    }
}

/// Where the reading stands.
struct Reading {
    floor: Floor,
    last: i64,
    system: SystemId,
    end_lsn: Lsn,
}

impl Reading {
    fn begin(piece: &Piece<'_>, end: &Place) -> Self {
        Self {
            floor: Floor {
                ordinal: LedgerOrdinal(piece.last),
                system: end.system,
                end_lsn: end.end_lsn,
            },
            last: piece.last,
            system: end.system,
            end_lsn: end.end_lsn,
        }
    }

    /// Ordinals have no holes, and the position of one system never falls.
    fn follow(&mut self, piece: &Piece<'_>, end: &Place) -> Result<(), LedgerError> {
        if piece.first != self.last + 1 {
            let what = format!("the one before it ends at {}", self.last);
            return Err(unreadable(LedgerOrdinal(piece.first), &what).into());
        }
        if end.system == self.system && end.end_lsn < self.end_lsn {
            let what = format!(
                "it stands at {}, the one before it at {}",
                end.end_lsn, self.end_lsn
            );
            return Err(unreadable(LedgerOrdinal(piece.first), &what).into());
        }
        (self.last, self.system, self.end_lsn) = (piece.last, end.system, end.end_lsn);
        Ok(())
    }
}
