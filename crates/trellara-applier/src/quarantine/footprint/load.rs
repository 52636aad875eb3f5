//! Footprints as the target keeps them.

use std::collections::{HashMap, HashSet};
use std::pin::pin;

use futures_util::TryStreamExt;
use tokio_postgres::Client;
use trellara_envelope::{FlowName, Halt, HaltCode, Lane};

use super::digest::digest;
use super::ground::Ground;
use super::{Columns, Footprints, Standing, Touch};
use crate::execute::ApplyError;
use crate::ledger::{LedgerError, lane as lane_number};
use crate::quarantine::HeldId;
use crate::target::{Catalog, TableName};

/// The footprints could not be read.
#[derive(Debug, thiserror::Error)]
pub enum LoadError {
    /// What is written down of them could not be.
    #[error(transparent)]
    Ledger(#[from] LedgerError),
    /// The tables that they are about could not be looked at.
    #[error("{0}")]
    Catalog(ApplyError),
}

impl From<tokio_postgres::Error> for LoadError {
    fn from(error: tokio_postgres::Error) -> Self {
        LoadError::Ledger(error.into())
    }
}

/// Held transactions that later ones are tested against. One that the lane stands in front of is
/// before all later ones; a discarded one that was overtaken has been noted.
const THOSE: &str = "h.flow = $1 AND h.lane = $2 AND h.reason <> 'blocking' \
    AND (h.state IN ('held', 'replaying') OR h.state = 'discarded' AND h.overtaken_by IS NULL)";

/// Entries of discarded transactions that are kept one by one, of the newest; about 4 MB. They hold
/// nothing up, and nothing else ends them than a later transaction that touches the same.
const DISCARDED_KEYS: i64 = 100_000;

/// Reads the footprints of a lane's held transactions. Rows are taken as they come: what is in
/// memory is what [`Footprints`] takes.
///
/// The catalogue is read again for it, so that the footprints and those tested against them are of
/// the same tables.
///
/// # Errors
/// When the server refuses, or a row holds what this build never wrote.
pub async fn load(
    client: &Client,
    (catalog, role_replica): (&mut Catalog, bool),
    flow: &FlowName,
    lane: Lane,
) -> Result<Footprints, LoadError> {
    let lane = lane_number(lane);
    let mut footprints = Footprints::new();
    let held = format!(
        "SELECT h.id, h.state = 'discarded', \
                h.state = 'discarded' AND $3::bigint < sum(h.keys) \
                   FILTER (WHERE h.state = 'discarded') OVER (ORDER BY h.id DESC) \
           FROM trellara.held AS h WHERE {THOSE} ORDER BY 1"
    );
    let mut widened: Vec<i64> = Vec::new();
    for row in client
        .query(&held, &[&flow.as_str(), &lane, &DISCARDED_KEYS])
        .await?
    {
        if row.get(2) {
            widened.push(row.get(0));
        }
        let standing = if row.get(1) {
            Standing::Discarded
        } else {
            Standing::Open
        };
        footprints.slot(HeldId(row.get(0)), standing);
    }
    if footprints.is_empty() {
        return Ok(footprints);
    }
    waiting(client, flow, lane, &mut footprints).await?;
    catalog.reread();
    let target = (catalog, role_replica);
    new_ties(client, target, (flow, lane), &mut footprints).await?;
    let roots = roots(client, flow, lane).await?;
    let tables = "SELECT DISTINCT held_id, schema, \"table\" FROM trellara.held_key \
                  WHERE held_id = ANY ($1)";
    for row in client.query(tables, &[&widened]).await? {
        let table = TableName::new(row.get::<_, String>(1), row.get::<_, String>(2));
        let slot = footprints.slot(HeldId(row.get(0)), Standing::Discarded);
        footprints.grounds.touches(&table, roots.get(&table));
        let root = roots.get(&table).unwrap_or(&table);
        footprints.add_whole(slot, root, Touch::Table);
    }
    // Whole tables first: beside them no key needs to be remembered.
    let keys = format!(
        "SELECT k.held_id, k.schema, k.\"table\", k.touch, \
                ARRAY(SELECT j FROM jsonb_object_keys(k.key) AS j ORDER BY j COLLATE \"C\"), \
                ARRAY(SELECT e.value FROM jsonb_each_text(k.key) AS e ORDER BY e.key COLLATE \"C\") \
           FROM trellara.held AS h JOIN trellara.held_key AS k ON k.held_id = h.id \
          WHERE {THOSE} AND (k.key IS NULL) = $3 \
            AND (k.key IS NULL OR h.id <> ALL ($4))"
    );
    for whole in [true, false] {
        let parameters: [&(dyn tokio_postgres::types::ToSql + Sync); 4] =
            [&flow.as_str(), &lane, &whole, &widened];
        let mut rows = pin!(client.query_raw(&keys, parameters).await?);
        let mut known: Option<(Vec<String>, Columns)> = None;
        while let Some(row) = rows.try_next().await? {
            let touch = Touch::parse(row.get(3))
                .ok_or_else(unknown)
                .map_err(LedgerError::from)?;
            let table = TableName::new(row.get::<_, String>(1), row.get::<_, String>(2));
            // Of a table that is not there by that name any more nobody knows who is behind it.
            let (root, touch) = match roots.get(&table) {
                Some(root) => (root, touch),
                None => (&table, Touch::Everything),
            };
            footprints.grounds.touches(&table, roots.get(&table));
            let slot = footprints.slot(HeldId(row.get(0)), Standing::Open);
            let names: Vec<String> = row.get(4);
            if names.is_empty() || touch == Touch::Everything {
                footprints.add_whole(slot, root, touch);
                continue;
            }
            let columns = match &known {
                Some((of, columns)) if *of == names => Columns::clone(columns),
                _ => Columns::from(names.clone()),
            };
            known = Some((names, Columns::clone(&columns)));
            let values: Vec<Option<&str>> = row.get(5);
            let digest = digest(values.into_iter().map(|value| value.map(str::as_bytes)));
            footprints.add_key(slot, root, touch, &columns, digest);
        }
    }
    Ok(footprints)
}

/// Widens what is held to what ties touch that a table was given since. They are looked for among
/// those written down with the keys.
async fn new_ties(
    client: &Client,
    (catalog, role_replica): (&mut Catalog, bool),
    (flow, lane): (&FlowName, i32),
    footprints: &mut Footprints,
) -> Result<(), LoadError> {
    let sql = format!(
        "SELECT t.schema, t.\"table\", h.id, array_agg(t.tie) \
           FROM trellara.held AS h JOIN trellara.held_tie AS t ON t.held_id = h.id \
          WHERE {THOSE} GROUP BY 1, 2, 3 ORDER BY 1, 2, 3"
    );
    let rows = client.query(&sql, &[&flow.as_str(), &lane]).await?;
    let mut of: Option<(TableName, Option<Ground>)> = None;
    for row in &rows {
        let name = TableName::new(row.get::<_, String>(0), row.get::<_, String>(1));
        if of.as_ref().is_none_or(|(known, _)| *known != name) {
            let ground = Ground::read(client, catalog, role_replica, &name).await;
            let ground = ground.map_err(LoadError::Catalog)?;
            footprints.grounds.writes(&name, ground.as_ref());
            of = Some((name, ground));
        }
        let Some((_, Some(ground))) = &of else {
            continue;
        };
        let then: HashSet<&str> = row.get::<_, Vec<&str>>(3).into_iter().collect();
        let slot = footprints.slot(HeldId(row.get(2)), Standing::Open);
        let ties = ground.ties.iter();
        for (_, widened) in ties.filter(|(tie, _)| !then.contains(tie.as_str())) {
            footprints.widen(slot, ground, widened);
        }
    }
    Ok(())
}

async fn waiting(
    client: &Client,
    flow: &FlowName,
    lane: i32,
    footprints: &mut Footprints,
) -> Result<(), LedgerError> {
    let sql = format!(
        "SELECT h.id, d.on_id FROM trellara.held AS h \
           JOIN trellara.held_dependency AS d ON d.held_id = h.id WHERE {THOSE}"
    );
    let parameters: [&(dyn tokio_postgres::types::ToSql + Sync); 2] = [&flow.as_str(), &lane];
    let mut rows = pin!(client.query_raw(&sql, parameters).await?);
    while let Some(row) = rows.try_next().await? {
        footprints.waits(HeldId(row.get(0)), &[HeldId(row.get(1))]);
    }
    Ok(())
}

/// The tables of the footprints that are there now, and the roots of their partition trees.
async fn roots(
    client: &Client,
    flow: &FlowName,
    lane: i32,
) -> Result<HashMap<TableName, TableName>, LedgerError> {
    let sql = format!(
        "SELECT t.schema, t.\"table\", m.nspname::text, r.relname::text \
           FROM (SELECT DISTINCT k.schema, k.\"table\" \
                   FROM trellara.held AS h JOIN trellara.held_key AS k ON k.held_id = h.id \
                  WHERE {THOSE}) AS t \
           JOIN pg_catalog.pg_namespace AS n ON n.nspname = t.schema \
           JOIN pg_catalog.pg_class AS c ON c.relnamespace = n.oid AND c.relname = t.\"table\" \
           JOIN pg_catalog.pg_class AS r \
             ON r.oid = coalesce(pg_catalog.pg_partition_root(c.oid), c.oid) \
           JOIN pg_catalog.pg_namespace AS m ON m.oid = r.relnamespace"
    );
    let rows = client.query(&sql, &[&flow.as_str(), &lane]).await?;
    let name = |row: &tokio_postgres::Row, at: usize| {
        TableName::new(row.get::<_, String>(at), row.get::<_, String>(at + 1))
    };
    Ok(rows
        .iter()
        .map(|row| (name(row, 0), name(row, 2)))
        .collect())
}

fn unknown() -> Halt {
    Halt::new(
        HaltCode::State,
        "a row of trellara.held_key holds a touch that this build does not know",
        "was it changed by hand, or written by a newer trellara? Run that one",
    )
}
