//! Column lists and row filters of a publication: what of a table is published, and whether its
//! rows can still be found by it.

use std::collections::{BTreeMap, BTreeSet};

use trellara_postgres::{Session, quote};
use trellara_source::publication::TableName;

use super::Findings;
use super::published::is_insert_only;
use crate::config::Config;
use crate::exit::Failure;

/// The columns that an existing publication holds of each of its tables.
pub(super) type Published = BTreeMap<TableName, BTreeSet<String>>;

/// Empty when there is no such publication.
pub(super) async fn columns(session: &Session, publication: &str) -> Result<Published, Failure> {
    let rows = session
        .client
        .query(
            "SELECT schemaname::text, tablename::text, attnames::text[] \
               FROM pg_publication_tables WHERE pubname = $1 AND attnames IS NOT NULL",
            &[&publication],
        )
        .await?;
    let table = |row: &tokio_postgres::Row| {
        let (schema, name) = (row.get(0), row.get(1));
        let columns: Vec<String> = row.get(2);
        (TableName { schema, name }, columns.into_iter().collect())
    };
    Ok(rows.iter().map(table).collect())
}

/// Tables of which the source refuses UPDATE and DELETE because the column list leaves out a part
/// of the replica identity, or the row filter looks at something outside of it.
pub(super) async fn identities(
    config: &Config,
    session: &Session,
    findings: &mut Findings,
) -> Result<(), Failure> {
    let publication = &config.source.publication;
    let rows = session
        .client
        .query(include_str!("lists.sql"), &[publication])
        .await?;
    for row in &rows {
        let (schema, name): (&str, &str) = (row.get(0), row.get(1));
        if is_insert_only(config, schema, name) {
            continue;
        }
        let table = quote::qualified(schema, name);
        let (hidden, outside): (Vec<String>, Vec<String>) = (row.get(2), row.get(3));
        if !hidden.is_empty() {
            let hidden = quote::identifier_list(&hidden);
            let reason = format!(
                "its column list does not hold its whole replica identity ({hidden}), so the source refuses every UPDATE and DELETE of it"
            );
            let cure = format!(
                "publish {hidden} too: ALTER PUBLICATION {} SET TABLE … (REPLICA IDENTITY FULL goes with no column list at all)",
                quote::identifier(publication)
            );
            findings.error("PUBLICATION_COLUMN_LIST", &table, reason, cure);
        }
        if !outside.is_empty() {
            let outside = quote::identifier_list(&outside);
            let reason = format!(
                "its row filter looks at {outside}, outside of its replica identity, so the source refuses every UPDATE and DELETE of it"
            );
            let cure = format!(
                "ALTER TABLE {table} REPLICA IDENTITY FULL, or filter by columns of the identity alone"
            );
            findings.error("PUBLICATION_ROW_FILTER", &table, reason, cure);
        }
    }
    Ok(())
}
