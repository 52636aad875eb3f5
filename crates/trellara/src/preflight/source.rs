//! The source: version, settings, rights, publication, slot, tables.

use trellara_postgres::{ServerVersion, Session, quote};
use trellara_source::publication::{self, Partitions, PublicationFacts, TableName};
use trellara_source::slot;

use super::Findings;
use crate::config::Config;
use crate::exit::Failure;
use crate::setup;

/// Oldest and newest PostgreSQL that the tests cover.
const OLDEST: u32 = 15;
const NEWEST: u32 = 18;

/// Examines the source; the tables that are or would be published. `set_up` says that the target
/// knows the flow.
pub(super) async fn examine(
    config: &Config,
    session: &Session,
    set_up: bool,
    findings: &mut Findings,
) -> Result<Vec<TableName>, Failure> {
    if !version(session.server_version(), "source", findings) {
        return Ok(Vec::new());
    }
    settings(config, session, findings).await?;
    role(config, session, findings).await?;
    let slot_exists = slot_facts(config, session, findings).await?;
    let facts = publication::describe(session, &config.source.publication).await?;
    let tables = match &facts {
        Some(facts) => existing_publication(config, session, facts, findings).await?,
        None => new_publication(config, session, findings).await?,
    };
    replica_identities(config, session, &tables, findings).await?;
    // Once the slot is there, whatever the tables hold has come or will come through it; and a
    // flow that lost its slot has worse to be told.
    if !slot_exists && !set_up && !config.process.rows_loaded_elsewhere {
        rows(session, &tables, findings).await?;
    }
    Ok(tables)
}

/// The version of either server; false when nothing else can be asked of it.
pub(super) fn version(version: ServerVersion, about: &str, findings: &mut Findings) -> bool {
    if version.major() < OLDEST {
        findings.error(
            "POSTGRES_TOO_OLD",
            about,
            format!("the server is PostgreSQL {version}"),
            format!("PostgreSQL {OLDEST} to {NEWEST} is needed"),
        );
        return false;
    }
    if version.major() > NEWEST {
        findings.warning(
            "POSTGRES_UNTESTED",
            about,
            format!("the server is PostgreSQL {version}"),
            format!("this version of trellara was tested with {OLDEST} to {NEWEST}"),
        );
    }
    true
}

async fn settings(
    config: &Config,
    session: &Session,
    findings: &mut Findings,
) -> Result<(), Failure> {
    let row = session
        .client
        .query_one(
            "SELECT current_setting('wal_level'), pg_is_in_recovery(), \
                    current_setting('max_replication_slots')::bigint, \
                    (SELECT count(*) FROM pg_replication_slots), \
                    current_setting('max_wal_senders')::bigint, \
                    current_setting('synchronous_standby_names'), \
                    current_setting('max_slot_wal_keep_size'), \
                    current_setting('server_encoding'), \
                    EXISTS (SELECT FROM pg_replication_slots WHERE slot_name = $1), \
                    (SELECT count(*) FROM pg_stat_get_wal_senders()), \
                    EXISTS (SELECT FROM pg_replication_slots WHERE slot_name = $1 AND active)",
            &[&config.source.slot],
        )
        .await?;
    let wal_level: String = row.get(0);
    if wal_level != "logical" {
        let cure = "ALTER SYSTEM SET wal_level = logical; then restart the server";
        findings.error(
            "SOURCE_WAL_LEVEL",
            "source",
            format!("wal_level is {wal_level}"),
            cure,
        );
    }
    if row.get(1) {
        let cure =
            "name the primary in source.url (several hosts with target_session_attrs=read-write)";
        findings.error(
            "SOURCE_IN_RECOVERY",
            "source",
            "the server is a standby",
            cure,
        );
    }
    let (slots, used, senders): (i64, i64, i64) = (row.get(2), row.get(3), row.get(4));
    let exists: bool = row.get(8);
    if !exists && used >= slots {
        let cure = "raise max_replication_slots and restart, or drop a slot nobody reads";
        findings.error(
            "SOURCE_NO_FREE_SLOT",
            "source",
            format!("all {slots} replication slots are taken"),
            cure,
        );
    }
    let (streaming, ours_streams): (i64, bool) = (row.get(9), row.get(10));
    // A relay holds one, and a second while it takes over from a dead one.
    if senders < 2 || (streaming >= senders && !ours_streams) {
        let cure = "raise max_wal_senders and restart the server, or end a replica nobody needs";
        findings.error(
            "SOURCE_NO_WALSENDER",
            "source",
            format!("max_wal_senders is {senders}, {streaming} of them are taken"),
            cure,
        );
    }
    let standbys: String = row.get(5);
    let ours = format!("trellara-{}", config.flow);
    if !exists && (standbys.contains(&ours) || standbys.contains('*')) {
        findings.error(
            "SOURCE_SYNCHRONOUS_STANDBY",
            "source",
            format!("synchronous_standby_names ({standbys}) makes commits wait for a relay that does not run yet"),
            "take it out, set up and start the relay, then put it back",
        );
    }
    let keep: String = row.get(6);
    if keep == "-1" {
        findings.note(
            "SOURCE_WAL_UNLIMITED",
            "source",
            "max_slot_wal_keep_size is -1: while nothing reads the slot, WAL grows until the disk is full",
        );
    }
    let encoding: String = row.get(7);
    if encoding == "SQL_ASCII" {
        let cure = "bytes that are not UTF-8 will stop the flow; convert the database";
        findings.warning(
            "SOURCE_ENCODING",
            "source",
            "the database has no encoding (SQL_ASCII)",
            cure,
        );
    }
    Ok(())
}

/// Both whoever asks, who makes the slot, and the relay's role, who reads it.
async fn role(config: &Config, session: &Session, findings: &mut Findings) -> Result<(), Failure> {
    let rows = session
        .client
        .query(
            "SELECT rolname::text FROM pg_roles \
              WHERE rolname IN (current_user, $1) AND NOT (rolreplication OR rolsuper)",
            &[&config.source.role],
        )
        .await?;
    for row in rows {
        let name: String = row.get(0);
        let cure = format!("ALTER ROLE {} REPLICATION", quote::identifier(&name));
        findings.right(
            "SOURCE_NO_REPLICATION",
            "source",
            format!("role {name} may not replicate"),
            cure,
        );
    }
    Ok(())
}

/// Whether the slot exists.
async fn slot_facts(
    config: &Config,
    session: &Session,
    findings: &mut Findings,
) -> Result<bool, Failure> {
    let name = &config.source.slot;
    let Some(slot) = slot::read(session, name).await? else {
        return Ok(false);
    };
    let drop = format!(
        "SELECT pg_drop_replication_slot({}), or name another in source.slot",
        quote::literal(name)
    );
    let about = format!("slot {name}");
    if slot.plugin.as_deref() != Some("pgoutput") {
        let plugin = slot.plugin.as_deref().unwrap_or("none, it is physical");
        findings.error(
            "SLOT_PLUGIN",
            &about,
            format!("its plugin is {plugin}"),
            &drop,
        );
    } else if slot.database.as_deref() != Some(config.source.connect.database()) {
        let database = slot.database.as_deref().unwrap_or("none");
        findings.error(
            "SLOT_DATABASE",
            &about,
            format!("it belongs to database {database}"),
            &drop,
        );
    }
    if slot.two_phase {
        findings.error(
            "SLOT_TWO_PHASE",
            &about,
            "it decodes prepared transactions (two_phase)",
            &drop,
        );
    }
    if slot.temporary {
        findings.error("SLOT_TEMPORARY", &about, "it ends with its session", &drop);
    }
    if let Some(why) = slot.lost() {
        let cure = "transactions are missing: `trellara remove`, load the target anew, set up";
        findings.error("SLOT_LOST", &about, format!("it is lost: {why}"), cure);
    }
    Ok(true)
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
    let patterns = setup::patterns(&config.source.tables)?;
    if let Ok(wanted) = publication::expand(session, &patterns).await {
        let partitions = facts.partitions();
        let wanted = publication::named_by_changes(session, &wanted, partitions).await?;
        for table in wanted.iter().filter(|table| !members.contains(table)) {
            findings.warning(
                "TABLE_NOT_PUBLISHED",
                table.to_string(),
                "source.tables names it and the publication does not hold it",
                "it is not carried; adding a table to a running flow is not available yet",
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
    let patterns = setup::patterns(&config.source.tables)?;
    let mut tables = Vec::new();
    for pattern in &patterns {
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

async fn replica_identities(
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
                      (SELECT FROM pg_index AS i WHERE i.indrelid = c.oid AND i.indisprimary AND i.indisvalid)) \
                 OR (c.relreplident = 'i' AND NOT EXISTS \
                      (SELECT FROM pg_index AS i WHERE i.indrelid = c.oid AND i.indisreplident AND i.indisvalid)) \
              ORDER BY 1, 2",
            &[&schemas, &names],
        )
        .await?;
    let insert_only = setup::patterns(&config.source.insert_only)?;
    for row in &without {
        let (schema, name): (String, String) = (row.get(0), row.get(1));
        let allowed = insert_only.iter().any(|pattern| {
            pattern.schema == schema && pattern.table.as_ref().is_none_or(|table| *table == name)
        });
        if allowed {
            continue;
        }
        let table = quote::qualified(&schema, &name);
        let cure = format!(
            "ALTER TABLE {table} REPLICA IDENTITY FULL (or add a primary key); list it in source.insert_only if it is never updated"
        );
        let reason = "it has no usable replica identity, so the source will refuse every UPDATE and DELETE of it";
        findings.error("SOURCE_NO_REPLICA_IDENTITY", table, reason, cure);
    }
    Ok(())
}

async fn rows(
    session: &Session,
    tables: &[TableName],
    findings: &mut Findings,
) -> Result<(), Failure> {
    let cure = "the initial copy is not available yet: load the target by other means and set backfill.mode: none";
    for table in tables {
        let sql = format!("SELECT EXISTS (SELECT FROM {table})");
        let (holds, reason) = match session.client.query_one(&sql, &[]).await {
            Ok(row) => (row.get(0), "it holds rows that nobody would copy"),
            // Without the right to read, the size on disk has to do.
            Err(_) => (
                occupies_disk(session, table).await?,
                "it may hold rows that nobody would copy",
            ),
        };
        if holds {
            findings.error("SOURCE_TABLE_HAS_ROWS", table.to_string(), reason, cure);
        }
    }
    Ok(())
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

/// Schemas and names as two arrays for `unnest`.
pub(super) fn columns(tables: &[TableName]) -> (Vec<&str>, Vec<&str>) {
    tables
        .iter()
        .map(|table| (table.schema.as_str(), table.name.as_str()))
        .unzip()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn old_servers_are_refused_and_new_ones_named() {
        for (number, goes_on, expected) in [
            (90_624, false, vec!["POSTGRES_TOO_OLD"]),
            (140_019, false, vec!["POSTGRES_TOO_OLD"]),
            (150_000, true, vec![]),
            (180_006, true, vec![]),
            (190_000, true, vec!["POSTGRES_UNTESTED"]),
        ] {
            let mut findings = Findings::default();
            let goes = version(ServerVersion { num: number }, "source", &mut findings);
            let found: Vec<&str> = findings.0.iter().map(|finding| finding.id).collect();
            assert_eq!((goes, found), (goes_on, expected), "{number}");
            assert!(findings.0.iter().all(|finding| !finding.cure.is_empty()));
        }
    }
}
