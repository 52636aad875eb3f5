//! The published tables as the target has them.

use std::collections::BTreeMap;

use trellara_postgres::{Session, quote};
use trellara_source::publication::TableName;

use super::{Findings, lists, published};
use crate::config::Config;
use crate::exit::Failure;
use crate::target_ddl;

/// One column of one side.
#[derive(Debug, Clone)]
struct Column {
    type_name: String,
    /// Filled by the server, so that nothing may be written into it.
    generated: bool,
    /// Whether changes carry it; of the source's columns.
    published: bool,
    /// NOT NULL, without a default and not filled by the server.
    needed: bool,
}

/// One table of the target.
#[derive(Debug, Default)]
struct Table {
    columns: BTreeMap<String, Column>,
    kind: String,
    missing_rights: Vec<String>,
    /// Whether the role may look into the schema.
    schema_usage: bool,
    deferrable: Vec<String>,
}

/// What an applier needs on a table: UPDATE and DELETE find their rows by reading them.
const RIGHTS: [&str; 5] = ["SELECT", "INSERT", "UPDATE", "DELETE", "TRUNCATE"];

type Tables = BTreeMap<(String, String), Table>;

pub(super) async fn compare(
    config: &Config,
    source: &Session,
    target: &Session,
    members: &[TableName],
    findings: &mut Findings,
) -> Result<(), Failure> {
    let identity = "SELECT system_identifier, current_database()::text FROM pg_control_system()";
    let here = source.client.query_one(identity, &[]).await?;
    let there = target.client.query_one(identity, &[]).await?;
    if (here.get::<_, i64>(0), here.get::<_, String>(1)) == (there.get(0), there.get(1)) {
        let cure = "rows would be carried into the tables they come from; check both urls";
        findings.error(
            "TARGET_IS_SOURCE",
            "target",
            "source and target are the same database",
            cure,
        );
        return Ok(());
    }
    rules_without_table(config, members, findings);
    let applier = config.target.role.as_str();
    let mut ours = read(source, members, applier).await?;
    publish(config, source, &mut ours).await?;
    let theirs = read(target, members, applier).await?;
    let mut missing = Vec::new();
    for member in members {
        let key = (member.schema.clone(), member.name.clone());
        let Some(target) = theirs.get(&key) else {
            missing.push(member.clone());
            continue;
        };
        if let Some(source) = ours.get(&key) {
            compare_columns(member, source, target, findings);
        }
        about_table(member, target, applier, findings);
    }
    if missing.is_empty() {
        return Ok(());
    }
    missing_tables(config, (source, target), &missing, findings).await
}

/// Tables that the target lacks: setup makes them where it may, and where it is told to.
async fn missing_tables(
    config: &Config,
    (source, target): (&Session, &Session),
    missing: &[TableName],
    findings: &mut Findings,
) -> Result<(), Failure> {
    if !config.backfill.create_tables {
        let cure = "backfill.ddl: create lets setup create it as the source defines it; \
                    `trellara setup --print-sql` prints the statements for whoever creates it instead";
        for table in missing {
            let reason = "the target does not have it";
            findings.error("TARGET_TABLE_MISSING", table.to_string(), reason, cure);
        }
        return Ok(());
    }
    let lacks = target_ddl::missing(config, source, target, missing).await?;
    for table in missing {
        let reason = "the target does not have it, and setup creates it";
        findings.note("TARGET_TABLE_CREATED", table.to_string(), reason);
    }
    for name in &lacks.types {
        let reason = "a column has this type, which the target does not have";
        let cure = "create it there, or the extension that it comes with";
        findings.error("TARGET_TYPE_MISSING", name.to_string(), reason, cure);
    }
    for schema in &lacks.closed_schemas {
        let user = config.target.connect.user();
        let about = format!("schema {}", quote::identifier(schema));
        let reason = format!("role {user} may not create tables in it");
        let cure = target_ddl::create_right(schema, user);
        findings.right("TARGET_SCHEMA_CREATE", about, reason, cure);
    }
    Ok(())
}

/// A rule for a table that never comes is most likely one with a misspelt name: what it was meant
/// for keeps the flow's rule, which may stop it.
fn rules_without_table(config: &Config, members: &[TableName], findings: &mut Findings) {
    for (schema, name) in config.process.conflicts.tables.keys() {
        let (schema, name) = (schema.clone(), name.clone());
        let table = TableName { schema, name };
        if !members.contains(&table) {
            findings.warning(
                "CONFLICTS_TABLE",
                table.to_string(),
                "conflicts.tables has rules for it, and it is not published",
                "write its name as the source publishes it, or take it out",
            );
        }
    }
}

/// By its column list where there is one. A list may name a generated column only since 18.
async fn publish(config: &Config, source: &Session, tables: &mut Tables) -> Result<(), Failure> {
    let lists = lists::columns(source, &config.source.publication).await?;
    let may_be_generated = source.server_version().major() >= 18;
    for ((schema, name), table) in tables {
        let (schema, name) = (schema.clone(), name.clone());
        let Some(list) = lists.get(&TableName { schema, name }) else {
            continue;
        };
        for (column, facts) in &mut table.columns {
            facts.published = list.contains(column) && (may_be_generated || !facts.generated);
        }
    }
    Ok(())
}

fn compare_columns(name: &TableName, source: &Table, target: &Table, findings: &mut Findings) {
    for (column, ours) in source.columns.iter().filter(|(_, column)| column.published) {
        let identifier = quote::identifier(column);
        match target.columns.get(column) {
            None => {
                let cure = format!(
                    "ALTER TABLE {name} ADD COLUMN {identifier} {}",
                    ours.type_name
                );
                let reason = format!("the target's table lacks column {identifier}");
                findings.error("TARGET_COLUMN_MISSING", name.to_string(), reason, cure);
            }
            // What both compute is the target's own to compute.
            Some(theirs) if theirs.generated && ours.generated => {}
            Some(theirs) if theirs.generated => {
                let reason = format!(
                    "column {identifier} is generated in the target and ordinary in the source"
                );
                let cure = format!("ALTER TABLE {name} ALTER COLUMN {identifier} DROP EXPRESSION");
                findings.error("TARGET_COLUMN_GENERATED", name.to_string(), reason, cure);
            }
            Some(theirs) if theirs.type_name != ours.type_name => {
                let reason = format!(
                    "column {identifier} is {} in the source and {} in the target",
                    ours.type_name, theirs.type_name
                );
                let cure = "values that the target's type refuses will stop the flow";
                findings.warning("TARGET_COLUMN_TYPE", name.to_string(), reason, cure);
            }
            Some(_) => {}
        }
    }
    let published = |name: &str| source.columns.get(name).is_some_and(|c| c.published);
    let extra = target
        .columns
        .iter()
        .filter(|(name, column)| column.needed && !published(name));
    for (column, _) in extra {
        let identifier = quote::identifier(column);
        let not = match source.columns.contains_key(column) {
            true => "published by",
            false => "in",
        };
        let reason = format!(
            "column {identifier} of the target is NOT NULL, has no default and is not {not} the source"
        );
        let cure = format!("ALTER TABLE {name} ALTER COLUMN {identifier} SET DEFAULT …");
        findings.error("TARGET_COLUMN_NEEDED", name.to_string(), reason, cure);
    }
}

fn about_table(name: &TableName, table: &Table, applier: &str, findings: &mut Findings) {
    if !matches!(table.kind.as_str(), "r" | "p") {
        let cure = "only ordinary and partitioned tables can be applied to";
        findings.error(
            "TARGET_TABLE_KIND",
            name.to_string(),
            "it is not a table in the target",
            cure,
        );
    }
    if !table.schema_usage {
        let schema = quote::identifier(&name.schema);
        let cure = format!(
            "GRANT USAGE ON SCHEMA {schema} TO {}",
            quote::identifier(applier)
        );
        let reason = format!("role {applier} may not look into schema {schema}");
        findings.right("TARGET_SCHEMA_RIGHT", name.to_string(), reason, cure);
    }
    if !table.missing_rights.is_empty() {
        let rights = table.missing_rights.join(", ");
        let cure = format!("GRANT {rights} ON {name} TO {}", quote::identifier(applier));
        findings.right(
            "TARGET_TABLE_RIGHT",
            name.to_string(),
            format!("role {applier} lacks {rights}"),
            cure,
        );
    }
    if !table.deferrable.is_empty() {
        let constraints = table.deferrable.join(", ");
        findings.note(
            "TARGET_DEFERRABLE",
            name.to_string(),
            format!("PostgreSQL does not enforce {constraints} under the replica role; the applier checks the keys itself"),
        );
    }
}

/// The rights are those of role `applier`; where there is no such role, none is missing.
async fn read(session: &Session, members: &[TableName], applier: &str) -> Result<Tables, Failure> {
    let (schemas, names) = published::columns(members);
    let mut tables = Tables::new();
    let rows = session
        .client
        .query(
            "SELECT t.s, t.n, c.relkind::text, \
                    ARRAY(SELECT a.privilege FROM unnest($4::text[]) WITH ORDINALITY AS a(privilege, n) \
                           WHERE NOT has_table_privilege(r.oid, c.oid, a.privilege) ORDER BY a.n), \
                    ARRAY(SELECT conname::text FROM pg_constraint AS k WHERE k.conrelid = c.oid \
                            AND k.condeferrable AND k.contype IN ('u', 'p', 'x') ORDER BY 1), \
                    coalesce(has_schema_privilege(r.oid, ns.oid, 'USAGE'), true) \
               FROM unnest($1::text[], $2::text[]) AS t(s, n) \
               JOIN pg_namespace AS ns ON ns.nspname = t.s \
               JOIN pg_class AS c ON c.relnamespace = ns.oid AND c.relname = t.n \
               CROSS JOIN (SELECT to_regrole(quote_ident($3))::oid) AS r(oid)",
            &[&schemas, &names, &applier, &RIGHTS.as_slice()],
        )
        .await?;
    for row in &rows {
        let table = Table {
            columns: BTreeMap::new(),
            kind: row.get(2),
            missing_rights: row.get(3),
            deferrable: row.get(4),
            schema_usage: row.get(5),
        };
        tables.insert((row.get(0), row.get(1)), table);
    }
    let columns = session
        .client
        .query(
            "SELECT t.s, t.n, a.attname::text, format_type(a.atttypid, a.atttypmod), \
                    a.attgenerated <> '', \
                    a.attnotnull AND NOT a.atthasdef AND a.attidentity = '' AND a.attgenerated = '' \
               FROM unnest($1::text[], $2::text[]) AS t(s, n) \
               JOIN pg_namespace AS ns ON ns.nspname = t.s \
               JOIN pg_class AS c ON c.relnamespace = ns.oid AND c.relname = t.n \
               JOIN pg_attribute AS a ON a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped",
            &[&schemas, &names],
        )
        .await?;
    for row in &columns {
        if let Some(table) = tables.get_mut(&(row.get(0), row.get(1))) {
            let column = Column {
                type_name: row.get(3),
                generated: row.get(4),
                published: !row.get::<_, bool>(4),
                needed: row.get(5),
            };
            table.columns.insert(row.get(2), column);
        }
    }
    Ok(tables)
}
