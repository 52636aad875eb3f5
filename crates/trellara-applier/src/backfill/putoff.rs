//! Drops what makes a copy slow, and writes down in the same transaction how it is made again: what
//! is in `trellara.backfill_definition` and not restored is not in the catalogue, and the other way
//! round, whoever is killed when. [`super::restore`] makes it again.
//!
//! Nobody is waited for long: what is in use stays where it is.

use tokio_postgres::{Client, Error, Row};
use trellara_envelope::{CopyTable, FlowName};
use trellara_postgres::fault;

/// Others wait behind us as long as we wait for a table.
const PATIENCE: &str = "SAVEPOINT put_off; SET LOCAL lock_timeout = '2s'";
const NOTE: &str = "\
INSERT INTO trellara.backfill_definition AS d \
       (flow, schema_name, table_name, kind, relation_schema, relation_name, name, \
        refers_schema, refers_name, position, definition) \
VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11) \
ON CONFLICT (flow, schema_name, table_name, kind, relation_schema, relation_name, name) DO UPDATE \
   SET refers_schema = excluded.refers_schema, refers_name = excluded.refers_name, \
       position = excluded.position, definition = excluded.definition, reason = NULL, hint = NULL, \
       noted_at = clock_timestamp(), restored_at = NULL";

/// One row of `trellara.backfill_definition`.
struct Note<'a> {
    table: (&'a str, &'a str),
    kind: &'a str,
    relation: (&'a str, &'a str),
    name: &'a str,
    refers: Option<(&'a str, &'a str)>,
    position: usize,
    definition: &'a str,
}

/// In the open transaction, before the table is emptied: puts its secondary indexes and unique
/// constraints off, and the foreign keys of every table that is not in. How many.
pub(super) async fn put_off(
    client: &Client,
    flow: &FlowName,
    table: &CopyTable,
) -> Result<usize, Error> {
    let foreign = foreign_keys(client, flow).await?;
    Ok(foreign + indexes(client, flow, table).await?)
}

async fn indexes(client: &Client, flow: &FlowName, table: &CopyTable) -> Result<usize, Error> {
    let sql = include_str!("../sql/putoff_indexes.sql");
    let rows = client.query(sql, &[&table.schema, &table.name]).await?;
    let mut put_off = 0;
    // Each family ends with the one that is dropped.
    let ends_family = |row: &Row| row.get::<_, Option<&str>>(4).is_some();
    for family in rows.split_inclusive(ends_family) {
        let Some(last) = family.last() else { continue };
        let Some(drop) = last.try_get::<_, Option<&str>>(4)? else {
            continue;
        };
        if !dropped(client, drop).await? {
            continue;
        }
        for (position, row) in family.iter().enumerate() {
            let note = Note {
                table: (&table.schema, &table.name),
                kind: row.try_get(0)?,
                relation: (row.try_get(1)?, row.try_get(2)?),
                name: row.try_get(3)?,
                refers: None,
                position,
                definition: row.try_get(5)?,
            };
            note_down(client, flow, &note).await?;
        }
        put_off += family.len();
    }
    Ok(put_off)
}

async fn foreign_keys(client: &Client, flow: &FlowName) -> Result<usize, Error> {
    let sql = include_str!("../sql/putoff_foreign_keys.sql");
    let mut put_off = 0;
    for row in &client.query(sql, &[&flow.as_str()]).await? {
        if !dropped(client, row.try_get(7)?).await? {
            continue;
        }
        let mut note = Note {
            table: (row.try_get(0)?, row.try_get(1)?),
            kind: "foreign key",
            relation: (row.try_get(2)?, row.try_get(3)?),
            name: row.try_get(4)?,
            refers: Some((row.try_get(5)?, row.try_get(6)?)),
            position: 0,
            definition: row.try_get(8)?,
        };
        note_down(client, flow, &note).await?;
        if let Some(validation) = row.try_get::<_, Option<&str>>(9)? {
            (note.kind, note.position, note.definition) = ("validation", 1, validation);
            note_down(client, flow, &note).await?;
        }
        put_off += 1;
    }
    Ok(put_off)
}

async fn note_down(client: &Client, flow: &FlowName, note: &Note<'_>) -> Result<(), Error> {
    let position = i32::try_from(note.position).unwrap_or(i32::MAX);
    let (refers_schema, refers_name) = note.refers.unzip();
    let (table, relation) = (note.table, note.relation);
    client
        .execute(
            NOTE,
            &[
                &flow.as_str(),
                &table.0,
                &table.1,
                &note.kind,
                &relation.0,
                &relation.1,
                &note.name,
                &refers_schema,
                &refers_name,
                &position,
                &note.definition,
            ],
        )
        .await
        .map(drop)
}

/// Whether it is dropped now; what the server refuses to drop stays, and nothing is lost but time.
async fn dropped(client: &Client, sql: &str) -> Result<bool, Error> {
    client.batch_execute(PATIENCE).await?;
    match client.batch_execute(sql).await {
        Ok(()) => {
            let go_on = "RELEASE put_off; SET LOCAL lock_timeout = 0";
            client.batch_execute(go_on).await?;
            Ok(true)
        }
        Err(error) if error.as_db_error().is_none() => Err(error),
        Err(error) => {
            tracing::info!(error = %fault(&error), statement = sql, "it stays during the copy");
            client.batch_execute("ROLLBACK TO put_off").await?;
            Ok(false)
        }
    }
}
