//! Drops what makes a copy slow, and writes down in the same transaction how it is made again: what
//! is in `trellara.backfill_definition` and not restored is not in the catalogue, and the other way
//! round, whoever is killed when. [`super::restore`] makes it again.
//!
//! Nobody is waited for long: what is in use stays where it is. And nobody waits for us: each has a
//! transaction of its own, as dropping a foreign key locks the table that it refers to as well.

use tokio_postgres::{Client, Error, Row};
use trellara_envelope::FlowName;
use trellara_postgres::fault;

use super::books::CopyKey;
use super::worker::Common;

/// Others wait behind us as long as we wait for a table.
const PATIENCE: &str = "SET LOCAL lock_timeout = '2s'";
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
#[derive(Clone, Copy)]
struct Note<'a> {
    table: (&'a str, &'a str),
    kind: &'a str,
    relation: (&'a str, &'a str),
    name: &'a str,
    refers: Option<(&'a str, &'a str)>,
    position: usize,
    definition: &'a str,
}

/// Before the table is emptied, and only if a copy of it may begin: puts its secondary indexes and
/// unique constraints off, and the foreign keys of every table that is not in. How many.
///
/// No transaction may be open. Whatever is put off for a copy that does not begin after all is made
/// again when another one is in, or none is wanted.
pub(super) async fn put_off(
    client: &Client,
    common: &Common,
    copy: &CopyKey,
) -> Result<usize, Error> {
    let foreign = foreign_keys(client, common, copy).await?;
    Ok(foreign + indexes(client, common, copy).await?)
}

async fn indexes(client: &Client, common: &Common, copy: &CopyKey) -> Result<usize, Error> {
    let sql = include_str!("../sql/putoff_indexes.sql");
    let table = &copy.table;
    let rows = client.query(sql, &[&table.schema, &table.name]).await?;
    let mut put_off = 0;
    // Each family ends with the one that is dropped.
    let ends_family = |row: &Row| row.get::<_, Option<&str>>(4).is_some();
    for family in rows.split_inclusive(ends_family) {
        let Some(last) = family.last() else { continue };
        let Some(drop) = last.try_get::<_, Option<&str>>(4)? else {
            continue;
        };
        let mut notes = Vec::with_capacity(family.len());
        for (position, row) in family.iter().enumerate() {
            notes.push(Note {
                table: (&table.schema, &table.name),
                kind: row.try_get(0)?,
                relation: (row.try_get(1)?, row.try_get(2)?),
                name: row.try_get(3)?,
                refers: None,
                position,
                definition: row.try_get(5)?,
            });
        }
        if instead(client, common, copy, (drop, &notes)).await? {
            put_off += notes.len();
        }
    }
    Ok(put_off)
}

async fn foreign_keys(client: &Client, common: &Common, copy: &CopyKey) -> Result<usize, Error> {
    let sql = include_str!("../sql/putoff_foreign_keys.sql");
    let mut put_off = 0;
    for row in &client.query(sql, &[&common.options.flow.as_str()]).await? {
        let key = Note {
            table: (row.try_get(0)?, row.try_get(1)?),
            kind: "foreign key",
            relation: (row.try_get(2)?, row.try_get(3)?),
            name: row.try_get(4)?,
            refers: Some((row.try_get(5)?, row.try_get(6)?)),
            position: 0,
            definition: row.try_get(8)?,
        };
        let validation = row.try_get::<_, Option<&str>>(9)?;
        let validation = validation.map(|definition| Note {
            kind: "validation",
            position: 1,
            definition,
            ..key
        });
        let notes: Vec<Note<'_>> = std::iter::once(key).chain(validation).collect();
        put_off += usize::from(instead(client, common, copy, (row.try_get(7)?, &notes)).await?);
    }
    Ok(put_off)
}

/// In a transaction of its own: drops something and notes it down. Whether it did; what the server
/// refuses to drop stays, and nothing is lost but time.
async fn instead(
    client: &Client,
    common: &Common,
    copy: &CopyKey,
    (drop, notes): (&str, &[Note<'_>]),
) -> Result<bool, Error> {
    client.batch_execute(&common.held.begin()).await?;
    if !common.books.may_begin(client, copy).await? {
        client.batch_execute("ROLLBACK").await?;
        return Ok(false);
    }
    client.batch_execute(PATIENCE).await?;
    match client.batch_execute(drop).await {
        Ok(()) => {
            client.batch_execute("SET LOCAL lock_timeout = 0").await?;
            for note in notes {
                note_down(client, &common.options.flow, note).await?;
            }
            client.batch_execute("COMMIT").await?;
            Ok(true)
        }
        Err(error) if error.as_db_error().is_none() => Err(error),
        Err(error) => {
            let error = fault(&error);
            tracing::info!(%error, statement = drop, "it stays during the copy");
            client.batch_execute("ROLLBACK").await?;
            Ok(false)
        }
    }
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
