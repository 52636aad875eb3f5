//! The `trellara` schema in the target: its SQL, its version, the rights on it.

use tokio_postgres::Client;
use trellara_postgres::{Fault, fault, quote};

/// The version that this build writes and reads.
pub const SCHEMA_VERSION: i32 = 1;

/// Migrations, each bringing the schema from the version before to its own.
const MIGRATIONS: &[(i32, &str)] = &[(1, include_str!("sql/0001_schema.sql"))];

/// Serialises two setups against each other; ASCII "trellara".
const INSTALL_LOCK: i64 = 0x7472_656c_6c61_7261;

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
    match version(client).await? {
        None => return Err(SchemaError::Missing),
        Some(found) if found > SCHEMA_VERSION => return Err(SchemaError::Newer { found }),
        Some(found) if found < SCHEMA_VERSION => return Err(SchemaError::Older { found }),
        Some(_) => {}
    }
    let row = client
        .query_one(
            "SELECT v.version, v.target_id::text, c.system_identifier \
               FROM trellara.state_version AS v, pg_control_system() AS c",
            &[],
        )
        .await?;
    Ok(TargetIdentity {
        version: row.get(0),
        target_id: row.get(1),
        system_id: row.get::<_, i64>(2).cast_unsigned(),
    })
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

/// What the role that applies needs on our own schema, beside its rights on the tables it writes:
/// nothing that could remove or rewrite what was recorded.
pub fn grants(role: &str) -> String {
    let role = quote::identifier(role);
    format!(
        "GRANT USAGE ON SCHEMA trellara TO {role};\n\
         GRANT SELECT ON trellara.state_version TO {role};\n\
         GRANT SELECT, UPDATE ON trellara.lane TO {role};\n\
         GRANT SELECT, INSERT ON trellara.applied TO {role};\n\
         GRANT SET ON PARAMETER session_replication_role TO {role};\n"
    )
}

/// Takes one flow's rows away, and the schema with them when it was the last flow. Returns whether
/// the schema went.
pub async fn remove(client: &mut Client, flow: &str) -> Result<bool, SchemaError> {
    if version(client).await?.is_none() {
        return Ok(false);
    }
    let transaction = client.transaction().await?;
    transaction
        .execute("SELECT pg_advisory_xact_lock($1)", &[&INSTALL_LOCK])
        .await?;
    transaction
        .execute("DELETE FROM trellara.applied WHERE flow = $1", &[&flow])
        .await?;
    transaction
        .execute("DELETE FROM trellara.lane WHERE flow = $1", &[&flow])
        .await?;
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
