//! Least-privilege roles for a flow, made by the very scripts that `config/` ships.

use anyhow::{Context, Result};

use crate::compare;

const SOURCE_SQL: &str = include_str!("../../../config/postgres/source.sql");
const TARGET_SQL: &str = include_str!("../../../config/postgres/target.sql");

/// Every character that somebody's connection string once broke on (B128), so that each flow of
/// the tests tries it on each of its connections.
pub const PASSWORD: &str = "a@b:c/d?e#f[g]%h\\i{j} k'l\"mü$ Canary7 ";

/// Roles belong to the whole cluster, and so do rights on parameters; two flows that are granted
/// them at once would meet in "tuple concurrently updated".
const GRANT_LOCK: i64 = 0x6772_616e_7473;

/// What a flow's roles are called: the shipped names, with the flow's behind them, or that of the flow
/// it shares them with.
#[derive(Debug, Clone)]
pub struct Roles {
    flow: String,
    owner: String,
}

impl Roles {
    /// The roles of that flow.
    pub fn of(flow: &str) -> Self {
        Self {
            flow: flow.to_owned(),
            owner: flow.to_owned(),
        }
    }

    /// The same roles for another flow.
    pub fn beside(&self, flow: &str) -> Self {
        Self {
            flow: flow.to_owned(),
            owner: self.owner.clone(),
        }
    }

    /// The relay's role on the source.
    pub fn capture(&self) -> String {
        format!("trellara_capture_{}", self.owner)
    }

    /// The applier's role on the target.
    pub fn apply(&self) -> String {
        format!("trellara_apply_{}", self.owner)
    }

    /// The role of `setup` and `remove` on both.
    pub fn admin(&self) -> String {
        format!("trellara_admin_{}", self.owner)
    }

    /// The superuser's connection string with one of the roles in it.
    pub fn url(superuser: &str, role: &str) -> String {
        let login = format!("//{role}:{}@", percent_encoded(PASSWORD));
        superuser.replacen("//postgres@", &login, 1)
    }

    /// Runs `source.sql` in the database of `superuser`; the publication holds the tables that
    /// are there now.
    pub async fn grant_on_source(&self, superuser: &str) -> Result<()> {
        self.grant(superuser, SOURCE_SQL, &[self.capture(), self.admin()])
            .await
            .context("running config/postgres/source.sql")
    }

    /// Runs `target.sql` in the database of `superuser`; once before setup and once after.
    pub async fn grant_on_target(&self, superuser: &str) -> Result<()> {
        self.grant(superuser, TARGET_SQL, &[self.apply(), self.admin()])
            .await
            .context("running config/postgres/target.sql")
    }

    async fn grant(&self, superuser: &str, script: &str, roles: &[String]) -> Result<()> {
        let (server, _) = superuser
            .rsplit_once('/')
            .context("a connection string ends in its database")?;
        // Advisory locks are per database, so that of another flow's would not be seen.
        let lock = compare::connect(&format!("{server}/postgres")).await?;
        lock.batch_execute(&format!("SELECT pg_catalog.pg_advisory_lock({GRANT_LOCK})"))
            .await?;
        let client = compare::connect(superuser).await?;
        let schemas: String = client
            .query_one(
                "SELECT pg_catalog.array_agg(nspname)::text FROM pg_catalog.pg_namespace
                  WHERE nspname !~ '^pg_' AND nspname NOT IN ('information_schema', 'trellara')",
                &[],
            )
            .await?
            .get(0);
        // The scripts mean what they say whatever the database's settings are.
        client
            .batch_execute("SET standard_conforming_strings = on")
            .await?;
        let mut script = script
            .replace("'{public}'", &literal(&schemas))
            .replace("trellara_shop", &format!("trellara_{}", self.flow));
        for role in ["trellara_capture", "trellara_apply", "trellara_admin"] {
            script = script.replace(role, &format!("{role}_{}", self.owner));
        }
        client.batch_execute(&script).await?;
        // Not there: a database of another encoding would hash other bytes than a client sends.
        for role in roles {
            let password = literal(PASSWORD);
            lock.batch_execute(&format!("ALTER ROLE {role} PASSWORD {password}"))
                .await?;
        }
        Ok(())
    }
}

/// A string for SQL; backslashes are ordinary in it (`standard_conforming_strings`).
fn literal(text: &str) -> String {
    format!("'{}'", text.replace('\'', "''"))
}

/// For the user or password of a URL.
pub fn percent_encoded(text: &str) -> String {
    text.bytes()
        .map(|byte| match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'_' => char::from(byte).to_string(),
            other => format!("%{other:02X}"),
        })
        .collect()
}
