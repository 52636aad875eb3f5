//! The publication and its tables: what is published, who may publish it, how rows are found.

use trellara_postgres::{Session, quote};
use trellara_source::publication::{self, Partitions, PublicationFacts, TableName};

use super::{Findings, lists};
use crate::config::Config;
use crate::exit::Failure;

/// Where the target of a flow has its tables; a database may be one flow's target and the source of
/// another.
const OWN_SCHEMA: &str = "trellara";

/// The tables that are or would be published, by the names that their changes carry.
pub(super) async fn tables(
    config: &Config,
    session: &Session,
    findings: &mut Findings,
) -> Result<Vec<TableName>, Failure> {
    match publication::describe(session, &config.source.publication).await? {
        Some(facts) => existing_publication(config, session, &facts, findings).await,
        None => new_publication(config, session, findings).await,
    }
}

async fn existing_publication(
    config: &Config,
    session: &Session,
    facts: &PublicationFacts,
    findings: &mut Findings,
) -> Result<Vec<TableName>, Failure> {
    let name = &config.source.publication;
    let about = format!("publication {name}");
    if !(facts.inserts && facts.updates && facts.deletes && facts.truncates) {
        let cure = format!(
            "ALTER PUBLICATION {} SET (publish = 'insert, update, delete, truncate')",
            quote::identifier(name)
        );
        findings.error(
            "PUBLICATION_PARTIAL",
            &about,
            "it leaves out some kinds of changes",
            cure,
        );
    }
    if facts.members.is_empty() {
        let cure = format!("ALTER PUBLICATION {} ADD TABLE …", quote::identifier(name));
        findings.error("PUBLICATION_EMPTY", &about, "it holds no table", cure);
    }
    let members: Vec<TableName> = facts
        .members
        .iter()
        .map(|member| member.table.clone())
        .collect();
    if members.iter().any(|member| member.schema == OWN_SCHEMA) {
        let reason = "it holds the tables of schema trellara, in which a flow into this database \
                      keeps its books: they would overwrite those of the target";
        let cure = "name tables or schemas in it (FOR ALL TABLES leaves none out), or let setup \
                    make one: source.tables";
        findings.error("PUBLICATION_OWN_TABLES", &about, reason, cure);
    }
    lists::identities(config, session, findings).await?;
    if let Ok(wanted) = publication::expand(session, &config.source.tables).await {
        let partitions = facts.partitions();
        let wanted = publication::named_by_changes(session, &wanted, partitions).await?;
        for table in wanted.iter().filter(|table| !members.contains(table)) {
            findings.warning(
                "TABLE_NOT_PUBLISHED",
                table.to_string(),
                "source.tables names it and the publication does not hold it",
                format!("it is not carried; `trellara table add {table}` brings it in"),
            );
        }
    }
    if facts.partitions() != config.source.partitions && partitioned(session, &members).await? {
        let (is, not) = match facts.partitions() {
            Partitions::Root => ("roots", "leaf"),
            Partitions::Leaf => ("partitions themselves", "root"),
        };
        findings.note(
            "PUBLICATION_PARTITIONS",
            &about,
            format!(
                "it names changes of partitioned tables after the {is}, and that counts; source.partitions says {not}"
            ),
        );
    }
    Ok(members)
}

/// Whether any of these is a partition or has some.
async fn partitioned(session: &Session, tables: &[TableName]) -> Result<bool, Failure> {
    let (schemas, names) = columns(tables);
    let sql = "SELECT EXISTS (SELECT FROM unnest($1::text[], $2::text[]) AS t(s, n) \
                 JOIN pg_namespace AS ns ON ns.nspname = t.s \
                 JOIN pg_class AS c ON c.relnamespace = ns.oid AND c.relname = t.n \
                WHERE c.relkind = 'p' OR c.relispartition)";
    Ok(session
        .client
        .query_one(sql, &[&schemas, &names])
        .await?
        .get(0))
}

async fn new_publication(
    config: &Config,
    session: &Session,
    findings: &mut Findings,
) -> Result<Vec<TableName>, Failure> {
    let name = &config.source.publication;
    if config.source.tables.is_empty() {
        let cure = "create it, or list tables in source.tables";
        findings.error(
            "PUBLICATION_MISSING",
            format!("publication {name}"),
            "it does not exist",
            cure,
        );
        return Ok(Vec::new());
    }
    let mut tables = Vec::new();
    for pattern in &config.source.tables {
        match publication::expand(session, std::slice::from_ref(pattern)).await {
            Ok(matching) => tables.extend(matching),
            Err(publication::ExpandError::NoMatch(_)) => findings.error(
                "SOURCE_TABLE_MISSING",
                pattern.to_string(),
                "no ordinary table of the source matches",
                "check source.tables; unlogged, temporary and foreign tables cannot be published",
            ),
            Err(publication::ExpandError::Query(error)) => return Err(error.into()),
        }
    }
    tables.sort();
    tables.dedup();
    publication_rights(config, session, &tables, findings).await?;
    let partitions = config.source.partitions;
    Ok(publication::named_by_changes(session, &tables, partitions).await?)
}

async fn publication_rights(
    config: &Config,
    session: &Session,
    tables: &[TableName],
    findings: &mut Findings,
) -> Result<(), Failure> {
    let may_create: bool = session
        .client
        .query_one(
            "SELECT has_database_privilege(current_database(), 'CREATE')",
            &[],
        )
        .await?
        .get(0);
    let user = quote::identifier(config.source.connect.user());
    let dba = "or let the owner create the publication: `trellara setup --print-sql`";
    if !may_create {
        let database = quote::identifier(config.source.connect.database());
        let cure = format!("GRANT CREATE ON DATABASE {database} TO {user}; {dba}");
        findings.right(
            "SOURCE_CREATE_RIGHT",
            "source",
            "the role may not create a publication",
            cure,
        );
    }
    let (schemas, names) = columns(tables);
    let foreign = session
        .client
        .query(
            "SELECT t.s, t.n FROM unnest($1::text[], $2::text[]) AS t(s, n) \
               JOIN pg_namespace AS ns ON ns.nspname = t.s \
               JOIN pg_class AS c ON c.relnamespace = ns.oid AND c.relname = t.n \
              WHERE NOT pg_has_role(c.relowner, 'USAGE') ORDER BY 1, 2",
            &[&schemas, &names],
        )
        .await?;
    for row in &foreign {
        let table = quote::qualified(row.get(0), row.get(1));
        let cure = format!("ALTER TABLE {table} OWNER TO {user}; {dba}");
        findings.right(
            "SOURCE_TABLE_OWNER",
            table,
            "only the owner may publish it",
            cure,
        );
    }
    Ok(())
}

/// Tables of which UPDATE and DELETE would be refused.
pub(super) async fn replica_identities(
    config: &Config,
    session: &Session,
    tables: &[TableName],
    findings: &mut Findings,
) -> Result<(), Failure> {
    let (schemas, names) = columns(tables);
    let without = session
        .client
        .query(
            "SELECT DISTINCT t.s, t.n FROM unnest($1::text[], $2::text[]) AS t(s, n) \
               JOIN pg_namespace AS ns ON ns.nspname = t.s \
               JOIN pg_class AS root ON root.relnamespace = ns.oid AND root.relname = t.n \
               CROSS JOIN LATERAL (SELECT root.oid UNION SELECT relid FROM pg_partition_tree(root.oid)) AS p(oid) \
               JOIN pg_class AS c ON c.oid = p.oid \
              WHERE c.relreplident = 'n' \
                 OR (c.relreplident = 'd' AND NOT EXISTS \
                      (SELECT FROM pg_index AS i WHERE i.indrelid = c.oid AND i.indisprimary AND i.indisvalid AND i.indimmediate)) \
                 OR (c.relreplident = 'i' AND NOT EXISTS \
                      (SELECT FROM pg_index AS i WHERE i.indrelid = c.oid AND i.indisreplident AND i.indisvalid AND i.indimmediate)) \
              ORDER BY 1, 2",
            &[&schemas, &names],
        )
        .await?;
    for row in &without {
        let (schema, name): (&str, &str) = (row.get(0), row.get(1));
        if is_insert_only(config, schema, name) {
            continue;
        }
        let table = quote::qualified(schema, name);
        let cure = format!(
            "ALTER TABLE {table} REPLICA IDENTITY FULL (or add a primary key that is not deferrable); list it in source.insert_only if it is never updated"
        );
        let reason = "it has no usable replica identity, so the source will refuse every UPDATE and DELETE of it";
        findings.error("SOURCE_NO_REPLICA_IDENTITY", table, reason, cure);
    }
    Ok(())
}

/// Whether the operator's word is that this table is never updated.
pub(super) fn is_insert_only(config: &Config, schema: &str, name: &str) -> bool {
    config.source.insert_only.iter().any(|pattern| {
        pattern.schema == schema && pattern.table.as_ref().is_none_or(|table| table == name)
    })
}

/// Schemas and names as two arrays for `unnest`.
pub(super) fn columns(tables: &[TableName]) -> (Vec<&str>, Vec<&str>) {
    tables
        .iter()
        .map(|table| (table.schema.as_str(), table.name.as_str()))
        .unzip()
}
