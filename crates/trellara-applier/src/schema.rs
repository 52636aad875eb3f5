//! The `trellara` schema in the target: its SQL, its version, the rights on it.

use tokio_postgres::Client;
use trellara_postgres::{Fault, fault, quote};

use crate::lane;

/// The version that this build writes and reads.
pub const SCHEMA_VERSION: i32 = 3;

/// Migrations, each bringing the schema from the version before to its own.
const MIGRATIONS: &[(i32, &str)] = &[
    (1, include_str!("sql/0001_schema.sql")),
    (2, include_str!("sql/0002_quarantine.sql")),
    (3, include_str!("sql/0003_backfill.sql")),
];

/// Serialises two setups against each other; ASCII "trellara".
const INSTALL_LOCK: i64 = 0x7472_656c_6c61_7261;

/// The one way in which the role that applies can take rows of the ledger away.
const PRUNE: &str = "trellara.prune(text, integer, bigint, interval, pg_lsn, bigint, integer)";

/// What the schema says of this target.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TargetIdentity {
    /// The schema's version.
    pub version: i32,
    /// Random id of this target; a restored copy keeps it.
    pub target_id: String,
    /// System identifier of the target's cluster; a restored copy on another cluster has its own.
    pub system_id: u64,
}

impl TargetIdentity {
    /// `{target id}@{system id}`: the name under which a stream knows its one target (C24).
    pub fn registration(&self) -> String {
        format!("{}@{}", self.target_id, self.system_id)
    }
}

/// The schema cannot be used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SchemaError {
    /// It is not there: `setup` was not run on this database.
    #[error("the target has no schema \"trellara\"")]
    Missing,
    /// A newer build made it.
    #[error(
        "the target's schema \"trellara\" has version {found}; this build knows {SCHEMA_VERSION}"
    )]
    Newer {
        /// The version found.
        found: i32,
    },
    /// The schema of an older build that `setup` must bring up to date first.
    #[error(
        "the target's schema \"trellara\" has version {found}, this build needs {SCHEMA_VERSION}"
    )]
    Older {
        /// The version found.
        found: i32,
    },
    /// The server refused or the connection was lost.
    #[error("{} ({})", .0.message, .0.sqlstate)]
    Server(Fault),
}

impl From<tokio_postgres::Error> for SchemaError {
    fn from(error: tokio_postgres::Error) -> Self {
        SchemaError::Server(fault(&error))
    }
}

/// Creates the schema or brings it up to this build's version. Changes nothing when it is there
/// already, so that a role without the right to create may call it.
pub async fn install(client: &mut Client) -> Result<TargetIdentity, SchemaError> {
    match identity(client).await {
        Err(SchemaError::Missing | SchemaError::Older { .. }) => {}
        done_or_failed => return done_or_failed,
    }
    let transaction = client.transaction().await?;
    transaction
        .execute("SELECT pg_advisory_xact_lock($1)", &[&INSTALL_LOCK])
        .await?;
    // Somebody else may have installed it while we waited for the lock.
    let found = version(transaction.client()).await?.unwrap_or(0);
    for (number, sql) in MIGRATIONS {
        if *number > found {
            transaction.batch_execute(sql).await?;
        }
    }
    if found > 0 {
        transaction
            .execute(
                "UPDATE trellara.state_version SET version = $1, changed_at = clock_timestamp()",
                &[&SCHEMA_VERSION],
            )
            .await?;
    }
    transaction.commit().await?;
    identity(client).await
}

/// Reads version and identity; an error when there is no schema or another version of it.
pub async fn identity(client: &Client) -> Result<TargetIdentity, SchemaError> {
    let identity = installed(client).await?.ok_or(SchemaError::Missing)?;
    match identity.version {
        found if found < SCHEMA_VERSION => Err(SchemaError::Older { found }),
        _ => Ok(identity),
    }
}

/// The same of a schema that [`install`] may still have to bring up to date: it is this target
/// whatever its version. `None` where there is no schema.
pub async fn installed(client: &Client) -> Result<Option<TargetIdentity>, SchemaError> {
    match version(client).await? {
        None => return Ok(None),
        Some(found) if found > SCHEMA_VERSION => return Err(SchemaError::Newer { found }),
        Some(_) => {}
    }
    let row = client
        .query_one(
            "SELECT v.version, v.target_id::text, c.system_identifier \
               FROM trellara.state_version AS v, pg_control_system() AS c",
            &[],
        )
        .await?;
    Ok(Some(TargetIdentity {
        version: row.get(0),
        target_id: row.get(1),
        system_id: row.get::<_, i64>(2).cast_unsigned(),
    }))
}

async fn version(client: &Client) -> Result<Option<i32>, SchemaError> {
    let exists: bool = client
        .query_one(
            "SELECT to_regclass('trellara.state_version') IS NOT NULL",
            &[],
        )
        .await?
        .get(0);
    if !exists {
        return Ok(None);
    }
    let row = client
        .query_opt("SELECT version FROM trellara.state_version", &[])
        .await?;
    Ok(row.map(|row| row.get(0)))
}

/// The statements that [`install`] would run on an empty target, for `setup --print-sql`.
pub fn sql() -> String {
    MIGRATIONS.iter().map(|(_, sql)| *sql).collect()
}

/// What the role that applies needs on the tables of our own schema: nothing that could remove or
/// rewrite what was recorded. Pruning from the oldest end is a function's work. A fence records
/// nothing, and a verify run that sets one up may have the same role.
const RIGHTS: &[(&str, &[&str])] = &[
    ("state_version", &["SELECT"]),
    ("lane", &["SELECT", "UPDATE"]),
    ("applied", &["SELECT", "INSERT"]),
    ("watermark", &["SELECT"]),
    ("fence", &["SELECT", "INSERT", "UPDATE", "DELETE"]),
    ("verify_run", &["SELECT", "INSERT", "UPDATE", "DELETE"]),
    ("verify_table", &["SELECT", "INSERT", "UPDATE", "DELETE"]),
    // What is held is closed, never taken away (C42); the audit is neither changed nor taken away.
    ("held", &["SELECT", "INSERT", "UPDATE"]),
    ("held_frame", &["SELECT", "INSERT"]),
    ("held_key", &["SELECT", "INSERT"]),
    ("held_tie", &["SELECT", "INSERT"]),
    ("held_dependency", &["SELECT", "INSERT"]),
    ("skipped", &["SELECT", "INSERT"]),
    ("request", &["SELECT", "INSERT", "UPDATE", "DELETE"]),
    ("pause", &["SELECT", "INSERT", "UPDATE", "DELETE"]),
    ("audit", &["SELECT", "INSERT"]),
    ("backfill", &["SELECT", "INSERT", "UPDATE"]),
    // What came of a copy that is begun anew is void.
    ("backfill_part", &["SELECT", "INSERT", "DELETE"]),
    ("backfill_definition", &["SELECT", "INSERT", "UPDATE"]),
];
/// What a role needs that sets a flow up in a schema that somebody else made.
const RIGHTS_OF_SETUP: &[(&str, &[&str])] = &[
    ("state_version", &["SELECT"]),
    ("lane", &["SELECT", "INSERT", "UPDATE"]),
    ("applied", &["SELECT", "INSERT"]),
    // What an interrupted setup wrote goes.
    ("backfill", &["SELECT", "INSERT", "UPDATE", "DELETE"]),
    ("backfill_definition", &["SELECT", "INSERT", "UPDATE"]),
];

/// What the role that applies needs, beside its rights on the tables it writes.
pub fn grants(role: &str) -> String {
    let role = quote::identifier(role);
    let mut sql = format!("GRANT USAGE ON SCHEMA trellara TO {role};\n");
    for (table, rights) in RIGHTS {
        let rights = rights.join(", ");
        sql.push_str(&format!("GRANT {rights} ON trellara.{table} TO {role};\n"));
    }
    sql.push_str(&format!("GRANT EXECUTE ON FUNCTION {PRUNE} TO {role};\n"));
    sql.push_str(&format!(
        "GRANT SET ON PARAMETER session_replication_role TO {role};\n"
    ));
    sql
}

/// The statements that give `role` what it lacks on our own schema, to apply or to set a flow up;
/// none when it lacks nothing, or there is no such role. Asks the catalogues alone, so that a role
/// that may not even look into the schema can ask.
pub async fn missing_rights(
    client: &Client,
    role: &str,
    sets_up: bool,
) -> Result<Vec<String>, SchemaError> {
    let needed = if sets_up { RIGHTS_OF_SETUP } else { RIGHTS };
    let (tables, rights): (Vec<&str>, Vec<&str>) = needed
        .iter()
        .flat_map(|(table, rights)| rights.iter().map(|right| (*table, *right)))
        .unzip();
    let rows = client
        .query(
            "SELECT 'SCHEMA trellara', 'USAGE' FROM pg_namespace AS ns, pg_roles AS r \
              WHERE ns.nspname = 'trellara' AND r.rolname = $1 \
                AND NOT has_schema_privilege(r.oid, ns.oid, 'USAGE') \
             UNION ALL \
             SELECT 'trellara.' || t.name, string_agg(t.privilege, ', ' ORDER BY t.n) \
               FROM unnest($2::text[], $3::text[]) WITH ORDINALITY AS t(name, privilege, n) \
               JOIN pg_class AS c ON c.relname = t.name \
               JOIN pg_namespace AS ns ON ns.oid = c.relnamespace AND ns.nspname = 'trellara' \
               JOIN pg_roles AS r ON r.rolname = $1 \
              WHERE NOT has_table_privilege(r.oid, c.oid, t.privilege) GROUP BY t.name \
             UNION ALL \
             SELECT 'FUNCTION ' || $5::text, 'EXECUTE' FROM pg_roles AS r, pg_proc AS p \
               JOIN pg_namespace AS ns ON ns.oid = p.pronamespace AND ns.nspname = 'trellara' \
              WHERE NOT $4::boolean AND r.rolname = $1 AND p.proname = 'prune' \
                AND NOT has_function_privilege(r.oid, p.oid, 'EXECUTE')",
            &[&role, &tables, &rights, &sets_up, &PRUNE],
        )
        .await?;
    let role = quote::identifier(role);
    let grant = |row: &tokio_postgres::Row| {
        let (object, rights): (&str, &str) = (row.get(0), row.get(1));
        format!("GRANT {rights} ON {object} TO {role}")
    };
    Ok(rows.iter().map(grant).collect())
}

/// Takes one flow's rows away, and the schema with them when it was the last flow. Returns whether
/// the schema went. As long as it is there, so is what was done to the flow: rows of the audit say
/// the number of what they were about.
pub async fn remove(client: &mut Client, flow: &str) -> Result<bool, SchemaError> {
    if version(client).await?.is_none() {
        return Ok(false);
    }
    let transaction = client.transaction().await?;
    transaction
        .execute("SELECT pg_advisory_xact_lock($1)", &[&INSTALL_LOCK])
        .await?;
    // A row of a target transaction still open would stay behind, and the next flow of that name
    // would go on from it. Whoever begins later finds no row to stand on.
    let lanes = transaction
        .query("SELECT lane FROM trellara.lane WHERE flow = $1", &[&flow])
        .await?;
    transaction
        .batch_execute("SET LOCAL lock_timeout = '30s'")
        .await?;
    for row in lanes {
        let lock = lane::apply_lock(flow, row.get::<_, i32>(0));
        transaction
            .execute("SELECT pg_advisory_xact_lock($1)", &[&lock])
            .await?;
    }
    for table in ["held_frame", "held_key", "held_tie", "held_dependency"] {
        let of_flow = "SELECT id FROM trellara.held WHERE flow = $1";
        let delete = format!("DELETE FROM trellara.{table} WHERE held_id IN ({of_flow})");
        transaction.execute(&delete, &[&flow]).await?;
    }
    transaction
        .execute(
            "UPDATE trellara.audit \
                SET arguments = arguments || jsonb_build_object('held', held_id), held_id = NULL \
              WHERE flow = $1 AND held_id IS NOT NULL",
            &[&flow],
        )
        .await?;
    for table in [
        "skipped",
        "request",
        "pause",
        "held",
        "applied",
        "watermark",
        "fence",
        "verify_run",
        "backfill",
        "backfill_definition",
        "lane",
    ] {
        let delete = format!("DELETE FROM trellara.{table} WHERE flow = $1");
        transaction.execute(&delete, &[&flow]).await?;
    }
    let others: bool = transaction
        .query_one("SELECT EXISTS (SELECT FROM trellara.lane)", &[])
        .await?
        .get(0);
    if !others {
        transaction
            .batch_execute("DROP SCHEMA trellara CASCADE")
            .await?;
    }
    transaction.commit().await?;
    Ok(!others)
}
