//! Whether the rows that are there can be copied: what the source's role may read, what the target
//! holds already, what stands in the way of the slot, and what no copy carries.

use trellara_postgres::writers::{self, Who, Writer};
use trellara_postgres::{Session, fault, quote};
use trellara_source::publication::TableName;
use trellara_source::settled;

use super::{Findings, published};
use crate::config::{Config, Existing};
use crate::exit::Failure;

/// A transaction that is older holds up the slot's creation long enough to be named.
const OLD_SECONDS: f64 = 30.0;
/// And that many of a kind at most.
const NAMED: usize = 5;

/// The published tables, as the role that copies may read them.
pub(super) async fn source(
    config: &Config,
    session: &Session,
    (tables, slot_exists): (&[TableName], bool),
    findings: &mut Findings,
) -> Result<(), Failure> {
    rights(config, session, tables, findings).await?;
    if !slot_exists {
        in_the_way(session, findings).await?;
    }
    not_carried(config, session, tables, findings).await
}

/// Rows are read from each table alone: of a partitioned one, from its partitions.
pub(super) async fn rights(
    config: &Config,
    session: &Session,
    tables: &[TableName],
    findings: &mut Findings,
) -> Result<(), Failure> {
    let (schemas, names) = published::columns(tables);
    let role = config.source.role.as_str();
    let publication = config.source.publication.as_str();
    let rows = session
        .client
        .query(
            include_str!("copy_rights.sql"),
            &[&schemas, &names, &role, &publication],
        )
        .await?;
    let who = quote::identifier(role);
    for row in &rows {
        let (schema, name): (&str, &str) = (row.get(0), row.get(1));
        let table = quote::qualified(schema, name);
        let (schema_usage, readable, filtered): (bool, bool, bool) =
            (row.get(2), row.get(3), row.get(4));
        if !schema_usage {
            let schema = quote::identifier(schema);
            let reason = format!(
                "role {role} may not look into schema {schema}, so it cannot copy the table"
            );
            let cure = format!("GRANT USAGE ON SCHEMA {schema} TO {who}");
            findings.right("SOURCE_SCHEMA_RIGHT", &table, reason, cure);
        }
        if !readable {
            let reason = format!("role {role} may not read it, so it cannot copy the rows");
            let cure = format!("GRANT SELECT ON {table} TO {who}");
            findings.right("SOURCE_TABLE_RIGHT", &table, reason, cure);
        }
        if filtered {
            let reason = format!(
                "row security would hide rows of it from role {role}, and the copy would miss them"
            );
            let cure = format!("ALTER ROLE {who} BYPASSRLS");
            findings.right("SOURCE_ROW_SECURITY", &table, reason, cure);
        }
    }
    Ok(())
}

/// The slot is there only when every transaction that writes now is over.
async fn in_the_way(session: &Session, findings: &mut Findings) -> Result<(), Failure> {
    let writers = writers::writers(session).await?;
    let is_prepared = |writer: &&Writer| matches!(writer.who, Who::Prepared { .. });
    for writer in writers.iter().filter(is_prepared).take(NAMED) {
        let age = writer.age.unwrap_or_default().as_secs();
        let reason =
            format!("it was prepared {age} s ago, and the slot is not there before it is over");
        let cure = "COMMIT PREPARED or ROLLBACK PREPARED it";
        let about = writer.who.to_string();
        findings.warning("SOURCE_PREPARED_TRANSACTION", about, reason, cure);
    }
    // Whose age cannot be seen may be old as well.
    let is_old = |writer: &&Writer| {
        !is_prepared(writer) && writer.age.is_none_or(|age| age.as_secs_f64() > OLD_SECONDS)
    };
    for writer in writers.iter().filter(is_old).take(NAMED) {
        let since = match writer.age {
            Some(age) => format!("has been writing for {} s", age.as_secs()),
            None => "is writing, and this role may not see since when".to_owned(),
        };
        let reason =
            format!("its transaction {since}, and the slot is not there before it is over");
        let cure = "wait for it, or end it; setup gives up after a while and names it again";
        let about = writer.who.to_string();
        findings.warning("SOURCE_LONG_TRANSACTION", about, reason, cure);
    }
    Ok(())
}

/// What neither the copy nor the stream carries (B118, B119).
async fn not_carried(
    config: &Config,
    session: &Session,
    tables: &[TableName],
    findings: &mut Findings,
) -> Result<(), Failure> {
    let patterns = &config.source.tables;
    let schemas: Vec<&str> = patterns
        .iter()
        .map(|pattern| pattern.schema.as_str())
        .collect();
    let names: Vec<Option<&str>> = patterns
        .iter()
        .map(|pattern| pattern.table.as_deref())
        .collect();
    let left_out = session
        .client
        .query(
            "SELECT DISTINCT n.nspname::text, c.relname::text, \
                    CASE c.relkind WHEN 'f' THEN 'a foreign table' WHEN 'm' THEN 'a materialized view' \
                                   ELSE 'unlogged' END \
               FROM unnest($1::text[], $2::text[]) AS t(s, n) \
               JOIN pg_namespace AS n ON n.nspname = t.s \
               JOIN pg_class AS c ON c.relnamespace = n.oid AND (t.n IS NULL OR c.relname = t.n) \
              WHERE c.relkind IN ('f', 'm') OR (c.relkind = 'r' AND c.relpersistence = 'u') \
              ORDER BY 1, 2",
            &[&schemas, &names],
        )
        .await?;
    for row in &left_out {
        let (schema, name, what): (&str, &str, &str) = (row.get(0), row.get(1), row.get(2));
        let about = quote::qualified(schema, name);
        let reason = format!("it is {what}, which PostgreSQL cannot publish: it is not carried");
        let cure = "carry it by other means if the target needs it";
        findings.warning("SOURCE_NOT_CARRIED", about, reason, cure);
    }
    let row = session
        .client
        .query_one(
            "SELECT EXISTS (SELECT FROM pg_largeobject_metadata), \
                    (SELECT count(*) FROM pg_class AS c JOIN pg_namespace AS n ON n.oid = c.relnamespace \
                      WHERE c.relkind = 'S' AND n.nspname = ANY ($1))",
            &[&tables.iter().map(|table| table.schema.as_str()).collect::<Vec<_>>()],
        )
        .await?;
    if row.get(0) {
        let reason = "the database has some, and logical replication does not carry them";
        let cure = "carry them by other means, or move them into bytea columns";
        findings.warning("SOURCE_LARGE_OBJECTS", "large objects", reason, cure);
    }
    let sequences: i64 = row.get(1);
    if sequences > 0 {
        let reason = format!(
            "where the {sequences} sequence(s) of these schemas stand is not carried: `trellara table sequences` sets the target's at a cut-over"
        );
        findings.note("SOURCE_SEQUENCES", "sequences", reason);
    }
    Ok(())
}

/// Tables of the target that hold rows which nobody asked to keep or to delete.
pub(super) async fn target(
    config: &Config,
    session: &Session,
    tables: &[TableName],
    findings: &mut Findings,
) -> Result<(), Failure> {
    if config.backfill.defer_indexes {
        indexes(config, session, tables, findings).await?;
    }
    let found = match config.backfill.existing {
        Existing::Refuse => holding_rows(session, tables).await?,
        // What they hold is no matter.
        Existing::Truncate | Existing::Keep => Vec::new(),
    };
    for (table, sure) in found {
        let reason = match sure {
            true => "it holds rows, which the copy would meet",
            false => "it may hold rows, which the copy would meet",
        };
        let cure = "`trellara setup --truncate` deletes them when the table is copied, `--adopt` takes them for \
                    those of the source and copies nothing (or backfill.existing: truncate, keep)";
        findings.error("TARGET_TABLE_HAS_ROWS", table.to_string(), reason, cure);
    }
    Ok(())
}

/// Tables whose indexes stay during the copy, as the applier's role may not make them again.
async fn indexes(
    config: &Config,
    session: &Session,
    tables: &[TableName],
    findings: &mut Findings,
) -> Result<(), Failure> {
    const STAY: &str = "\
        SELECT n.nspname::text, c.relname::text, pg_get_userbyid(c.relowner)::text, \
               pg_has_role(r.oid, c.relowner, 'USAGE') \
          FROM unnest($1::text[], $2::text[]) AS t(s, n) \
          JOIN pg_namespace AS n ON n.nspname = t.s \
          JOIN pg_class AS c ON c.relnamespace = n.oid AND c.relname = t.n AND c.relkind IN ('r', 'p') \
         CROSS JOIN (SELECT to_regrole(quote_ident($3))::oid) AS r(oid) \
         WHERE r.oid IS NOT NULL \
           AND NOT (pg_has_role(r.oid, c.relowner, 'USAGE') \
                    AND has_schema_privilege(r.oid, n.oid, 'CREATE')) \
           AND EXISTS (SELECT FROM pg_index AS i WHERE i.indrelid = c.oid AND NOT i.indisprimary) \
         ORDER BY 1, 2";
    let (schemas, names) = published::columns(tables);
    let role = config.target.role.as_str();
    let rows = session
        .client
        .query(STAY, &[&schemas, &names, &role])
        .await?;
    for row in &rows {
        let (schema, name, owner, owns): (&str, &str, &str, bool) =
            (row.get(0), row.get(1), row.get(2), row.get(3));
        let who = quote::identifier(role);
        let (reason, cure) = match owns {
            true => (
                format!(
                    "role {role} may not create in its schema, so its indexes stay during the copy"
                ),
                format!(
                    "GRANT CREATE ON SCHEMA {} TO {who}",
                    quote::identifier(schema)
                ),
            ),
            false => (
                format!("role {role} does not own it, so its indexes stay during the copy"),
                format!("GRANT {} TO {who}", quote::identifier(owner)),
            ),
        };
        let about = quote::qualified(schema, name);
        findings.warning("TARGET_INDEXES_STAY", about, reason, cure);
    }
    Ok(())
}

/// Those of these tables that hold rows, and whether that is sure. Tables that are not there hold
/// none.
async fn holding_rows(
    session: &Session,
    tables: &[TableName],
) -> Result<Vec<(TableName, bool)>, Failure> {
    let mut found = Vec::new();
    for table in tables {
        // As setup asks, so that what is refused here is what is refused there.
        let (holds, sure) = match settled::has_rows(session, table).await {
            Ok(holds) => (holds, true),
            Err(error) if is_missing(&error) => (false, true),
            // Without the right to read, the size on disk has to do.
            Err(_) => (occupies_disk(session, table).await?, false),
        };
        if holds {
            found.push((table.clone(), sure));
        }
    }
    Ok(found)
}

fn is_missing(error: &tokio_postgres::Error) -> bool {
    matches!(fault(error).sqlstate.as_str(), "42P01" | "3F000")
}

async fn occupies_disk(session: &Session, table: &TableName) -> Result<bool, Failure> {
    // By oid: looking a name up takes USAGE on its schema.
    let sql = "SELECT coalesce(sum(pg_relation_size(p.oid)), 0) > 0 \
                 FROM pg_class AS c JOIN pg_namespace AS n ON n.oid = c.relnamespace \
                CROSS JOIN LATERAL (SELECT c.oid UNION SELECT relid FROM pg_partition_tree(c.oid)) AS p(oid) \
                WHERE n.nspname = $1 AND c.relname = $2";
    Ok(session
        .client
        .query_one(sql, &[&table.schema, &table.name])
        .await?
        .get(0))
}
