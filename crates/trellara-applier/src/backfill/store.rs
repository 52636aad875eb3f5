//! `trellara.backfill` as values.

use tokio_postgres::{Client, GenericClient, Row};
use trellara_envelope::{CopyTable, FlowName, Incarnation, Lane, LaneEpoch, Lsn, SourceId, Xid};
use trellara_postgres::settle::Snapshot;

use crate::ledger;

/// How far a table's copy is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CopyState {
    /// The table joins the flow; it is ordered when transactions that began before are over, whose
    /// earlier changes of it the stream does not have.
    Announced,
    /// Asked for, not begun.
    Wanted,
    /// Rows are coming.
    Copying,
    /// All rows are in; the lane has not passed what the snapshot saw.
    Loaded,
    /// And it has.
    Done,
    /// An operator is needed.
    Failed,
    /// The rows that were there are taken for those of the source.
    Kept,
    /// The table left the flow.
    Removed,
}

impl CopyState {
    const ALL: [CopyState; 8] = [
        CopyState::Announced,
        CopyState::Wanted,
        CopyState::Copying,
        CopyState::Loaded,
        CopyState::Done,
        CopyState::Failed,
        CopyState::Kept,
        CopyState::Removed,
    ];

    /// As the table says it.
    pub fn as_str(self) -> &'static str {
        match self {
            CopyState::Announced => "announced",
            CopyState::Wanted => "wanted",
            CopyState::Copying => "copying",
            CopyState::Loaded => "loaded",
            CopyState::Done => "done",
            CopyState::Failed => "failed",
            CopyState::Kept => "kept",
            CopyState::Removed => "removed",
        }
    }

    /// Whether nothing is waited for any more.
    pub fn is_in(self) -> bool {
        match self {
            CopyState::Announced | CopyState::Wanted | CopyState::Copying | CopyState::Failed => {
                false
            }
            CopyState::Loaded | CopyState::Done | CopyState::Kept | CopyState::Removed => true,
        }
    }

    fn parse(text: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|state| state.as_str() == text)
    }
}

/// A row of `trellara.backfill`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TableCopy {
    /// The table.
    pub table: CopyTable,
    /// Which copy of it.
    pub generation: u32,
    /// How far it is.
    pub state: CopyState,
    /// Whether the lane stands still until it is in.
    pub initial: bool,
    /// Whether the lane has said of this copy that it applies nothing of the table before it is in.
    pub noticed: bool,
    /// Oid on the source.
    pub relation: Option<u32>,
    /// Who writes it.
    pub writer: Option<Incarnation>,
    /// Cluster and timeline that it was read from; `None` until it begins.
    pub source: Option<SourceId>,
    /// The columns that are copied, in the order of the rows' values; empty until it begins.
    pub columns: Vec<String>,
    /// What its rows were read under.
    pub snapshot: Option<Snapshot>,
    /// Whatever the snapshot saw committed before this.
    pub converges_at: Option<Lsn>,
    /// What the source estimated, in rows and bytes.
    pub estimated: (u64, u64),
    /// Parts of all of it, once all are in.
    pub parts: Option<u32>,
    /// Rows and bytes that are in.
    pub loaded: (u64, u64),
    /// How many copies since it was asked for came to nothing.
    pub in_vain: u32,
    /// It left the flow before it was in.
    pub abandoned: Option<Abandoned>,
    /// Why it failed, or was begun anew last.
    pub reason: Option<String>,
    /// What may be done about it.
    pub hint: Option<String>,
}

/// A table that left the flow before it was in: what the stream still has of it is left out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Abandoned {
    /// The first transaction id that the source gave out when the table was out of the publication;
    /// `None` while nobody knows whether it is.
    pub below: Option<u64>,
}

impl Abandoned {
    /// Whether a transaction may have changed the table while it was published. By its 32-bit id,
    /// understood within two thousand million of the limit, as the server does.
    pub fn covers(&self, xid: Xid) -> bool {
        self.below.is_none_or(|below| {
            #[expect(clippy::cast_possible_truncation, reason = "ids wrap around by design")]
            let behind = (below as u32).wrapping_sub(xid.0).cast_signed();
            behind > 0
        })
    }
}

impl TableCopy {
    /// A copy that was just asked for.
    pub fn wanted(table: CopyTable, initial: bool) -> Self {
        Self {
            table,
            generation: 1,
            state: CopyState::Wanted,
            initial,
            noticed: false,
            relation: None,
            writer: None,
            source: None,
            columns: Vec::new(),
            snapshot: None,
            converges_at: None,
            estimated: (0, 0),
            parts: None,
            loaded: (0, 0),
            in_vain: 0,
            abandoned: None,
            reason: None,
            hint: None,
        }
    }

    /// Whether its rows may be read on the source and the table be emptied.
    ///
    /// What the lane applied of the table before it noticed the copy is emptied with the rest, and
    /// comes again only if it was committed before the rows are read. Any applier's word is enough:
    /// the next one reads what is wanted before it applies. For a flow's first copy the lane stands
    /// still from the beginning.
    pub fn may_begin(&self) -> bool {
        self.initial || self.noticed
    }

    /// Whether all rows are in, and indexes that were put off are being made.
    pub fn is_whole(&self) -> bool {
        self.state == CopyState::Copying && self.parts.is_some()
    }

    /// The same without what changes while its rows come: of no account to whoever applies.
    #[must_use]
    pub(crate) fn without_progress(self) -> Self {
        Self {
            estimated: (0, 0),
            parts: None,
            loaded: (0, 0),
            in_vain: 0,
            reason: None,
            hint: None,
            ..self
        }
    }

    /// The same in another state.
    #[must_use]
    pub fn in_state(self, state: CopyState) -> Self {
        Self { state, ..self }
    }
}

const NOTICE: &str = "\
WITH noticed AS ( \
  UPDATE trellara.backfill AS b SET noticed_epoch = $3 \
    FROM unnest($4::text[], $5::text[], $6::integer[]) AS n (schema_name, table_name, generation) \
   WHERE b.flow = $1 AND b.schema_name = n.schema_name AND b.table_name = n.table_name \
     AND b.generation = n.generation \
     AND b.state IN ('announced', 'wanted', 'copying') \
     AND b.noticed_epoch IS DISTINCT FROM $3 \
     AND EXISTS (SELECT FROM trellara.lane AS l \
                  WHERE l.flow = $1 AND l.lane = $2 AND l.epoch = $3) \
  RETURNING 1) \
SELECT pg_notify($7, '') FROM (SELECT count(*) AS tables FROM noticed) AS c WHERE c.tables > 0";
const CONVERGED: &str = "\
WITH done AS ( \
  UPDATE trellara.backfill SET state = 'done', changed_at = clock_timestamp() \
   WHERE flow = $1 AND state = 'loaded' AND converges_at <= $4 \
     AND EXISTS (SELECT FROM trellara.lane AS l \
                  WHERE l.flow = $1 AND l.lane = $2 AND l.epoch = $3) \
  RETURNING 1) \
SELECT c.tables, pg_notify($5, '')::text FROM (SELECT count(*) AS tables FROM done) AS c";

/// The channel on which an applier says that it has noticed a table that is not in, or that tables have
/// converged.
pub fn answer_channel(flow: &FlowName) -> String {
    format!("trellara_{flow}_backfill")
}

/// Says under our epoch that these copies are obeyed: nothing of their tables is applied any more.
pub(crate) async fn notice(
    client: &Client,
    (flow, lane): (&FlowName, Lane),
    epoch: LaneEpoch,
    copies: &[&TableCopy],
) -> Result<(), tokio_postgres::Error> {
    let schemas: Vec<&str> = copies.iter().map(|copy| &*copy.table.schema).collect();
    let names: Vec<&str> = copies.iter().map(|copy| &*copy.table.name).collect();
    let generations: Vec<i32> = copies
        .iter()
        .map(|copy| copy.generation.cast_signed())
        .collect();
    let (channel, flow, lane) = (answer_channel(flow), flow.as_str(), ledger::lane(lane));
    client
        .query(
            NOTICE,
            &[
                &flow,
                &lane,
                &epoch.0,
                &schemas,
                &names,
                &generations,
                &channel,
            ],
        )
        .await
        .map(drop)
}

/// Writes down under our epoch that the lane has come to `at`: what was copied and read before that
/// is done. How many tables.
pub(crate) async fn converged(
    client: &Client,
    (flow, lane): (&FlowName, Lane),
    epoch: LaneEpoch,
    at: Lsn,
) -> Result<i64, tokio_postgres::Error> {
    let (channel, flow, lane) = (answer_channel(flow), flow.as_str(), ledger::lane(lane));
    let row = client
        .query_one(
            CONVERGED,
            &[&flow, &lane, &epoch.0, &ledger::pg(at), &channel],
        )
        .await?;
    Ok(row.get(0))
}

/// Says under our epoch that these copies are void, because the source lost what they may have
/// brought: they are begun anew, a table that the lane went on with as if it had been asked for.
pub(crate) async fn lost(
    client: &Client,
    (flow, lane): (&FlowName, Lane),
    epoch: LaneEpoch,
    (copies, reason): (&[&TableCopy], &str),
) -> Result<(), tokio_postgres::Error> {
    let (flow, lane) = (flow.as_str(), ledger::lane(lane));
    for copy in copies {
        let generation = copy.generation.cast_signed();
        let (schema, name) = (&copy.table.schema, &copy.table.name);
        client
            .execute(
                include_str!("../sql/backfill_lost.sql"),
                &[&flow, &lane, &epoch.0, schema, name, &generation, &reason],
            )
            .await?;
    }
    Ok(())
}

const READ: &str = "\
SELECT schema_name, table_name, generation, state, initial, relation, writer, snapshot, \
       converges_at::text, estimated_rows, estimated_bytes, parts, rows, bytes, reason, hint, columns, \
       noticed_epoch IS NOT NULL, source_system, source_timeline, in_vain, abandoned, \
       abandoned_below \
  FROM trellara.backfill WHERE flow = $1 ORDER BY schema_name, table_name";

/// All copies of a flow, by table.
///
/// # Errors
/// The server's; a row that this build cannot read is one too.
pub async fn read(
    client: &impl GenericClient,
    flow: &FlowName,
) -> Result<Vec<TableCopy>, tokio_postgres::Error> {
    let rows = client.query(READ, &[&flow.as_str()]).await?;
    rows.iter().map(copy).collect()
}

fn copy(row: &Row) -> Result<TableCopy, tokio_postgres::Error> {
    let number = |at: usize| Ok(row.try_get::<_, i64>(at)?.cast_unsigned());
    let text = |at: usize| row.try_get::<_, Option<String>>(at);
    // The table's own checks leave nothing else in these columns.
    let state = CopyState::parse(row.try_get(3)?).unwrap_or(CopyState::Failed);
    let source = row
        .try_get::<_, Option<i64>>(18)?
        .zip(row.try_get::<_, Option<i64>>(19)?);
    let below = row.try_get::<_, Option<i64>>(22)?.map(i64::cast_unsigned);
    let abandoned: bool = row.try_get(21)?;
    Ok(TableCopy {
        table: CopyTable {
            schema: row.try_get(0)?,
            name: row.try_get(1)?,
        },
        generation: row.try_get::<_, i32>(2)?.cast_unsigned(),
        state,
        initial: row.try_get(4)?,
        noticed: row.try_get(17)?,
        relation: row
            .try_get::<_, Option<i64>>(5)?
            .and_then(|oid| u32::try_from(oid).ok()),
        writer: row
            .try_get::<_, Option<i64>>(6)?
            .map(|writer| Incarnation(writer.cast_unsigned())),
        source: source.map(|(system, timeline)| ledger::source(system, timeline)),
        snapshot: text(7)?.and_then(|text| text.parse().ok()),
        converges_at: text(8)?.and_then(|text| text.parse().ok()),
        estimated: (number(9)?, number(10)?),
        parts: row.try_get::<_, Option<i32>>(11)?.map(i32::cast_unsigned),
        loaded: (number(12)?, number(13)?),
        in_vain: row.try_get::<_, i32>(20)?.cast_unsigned(),
        abandoned: abandoned.then_some(Abandoned { below }),
        reason: text(14)?,
        hint: text(15)?,
        columns: row
            .try_get::<_, Option<Vec<String>>>(16)?
            .unwrap_or_default(),
    })
}
