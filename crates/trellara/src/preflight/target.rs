//! The target: version, state, rights on the database, the replica role.

use trellara_applier::lane::{self, FlowState};
use trellara_applier::schema;
use trellara_envelope::Lane;
use trellara_postgres::{Session, quote};

use super::{Findings, Severity, source};
use crate::config::Config;
use crate::exit::{Exit, Failure};

/// Whether the flow was set up with this target before.
pub(super) async fn knows_flow(config: &Config, session: &Session) -> bool {
    match schema::identity(&session.client).await {
        // An older schema has the same row of the flow; setup is about to bring it up to date.
        Ok(_) | Err(schema::SchemaError::Older { .. }) => {}
        Err(
            schema::SchemaError::Missing
            | schema::SchemaError::Newer { .. }
            | schema::SchemaError::Server(_),
        ) => return false,
    }
    let intent = lane::read_intent(&session.client, &config.flow, Lane(0)).await;
    matches!(intent, Ok(Some(intent)) if intent.state == FlowState::Ready)
}

pub(super) async fn examine(
    config: &Config,
    session: &Session,
    findings: &mut Findings,
) -> Result<(), Failure> {
    if !source::version(session.server_version(), "target", findings) {
        return Ok(());
    }
    let row = session
        .client
        .query_one(
            "SELECT pg_is_in_recovery(), current_setting('default_transaction_read_only') = 'on', \
                    has_database_privilege(current_database(), 'CREATE'), \
                    has_parameter_privilege(r.oid, 'session_replication_role', 'SET'), \
                    current_setting('server_encoding') \
               FROM (SELECT to_regrole(quote_ident($1))::oid) AS r(oid)",
            &[&config.target.role],
        )
        .await?;
    if row.get(0) {
        let cure =
            "name the primary in target.url (several hosts with target_session_attrs=read-write)";
        findings.error(
            "TARGET_IN_RECOVERY",
            "target",
            "the server is a standby",
            cure,
        );
    }
    if row.get(1) {
        let cure = "ALTER ROLE … SET default_transaction_read_only = off";
        findings.error(
            "TARGET_READ_ONLY",
            "target",
            "transactions are read-only by default",
            cure,
        );
    }
    let user = quote::identifier(config.target.connect.user());
    match schema::identity(&session.client).await {
        Ok(_) => state_rights(config, session, findings).await?,
        Err(schema::SchemaError::Server(fault)) if fault.sqlstate == "42501" => {
            state_rights(config, session, findings).await?;
        }
        Err(schema::SchemaError::Missing | schema::SchemaError::Older { .. }) => {
            if !row.get::<_, bool>(2) {
                let database = quote::identifier(config.target.connect.database());
                let cure = format!(
                    "GRANT CREATE ON DATABASE {database} TO {user}; or run what `trellara setup --print-sql` prints"
                );
                findings.right(
                    "TARGET_CREATE_RIGHT",
                    "target",
                    "the role may not create schema trellara",
                    cure,
                );
            }
        }
        Err(error @ schema::SchemaError::Newer { .. }) => {
            findings.error(
                "TARGET_SCHEMA",
                "schema trellara",
                error.to_string(),
                "use the newer trellara",
            );
        }
        Err(error @ schema::SchemaError::Server(_)) => {
            return Err(Failure::from_error(Exit::Unexpected, &error));
        }
    }
    match row.get(3) {
        Some(may) => replica_role(config, may, findings),
        None => {
            let role = quote::identifier(&config.target.role);
            let cure =
                format!("CREATE ROLE {role} LOGIN, with the grants of config/postgres/target.sql");
            let reason = "the role of target.url does not exist";
            findings.right("TARGET_ROLE_MISSING", format!("role {role}"), reason, cure);
        }
    }
    let encoding: String = row.get(4);
    if encoding != "UTF8" {
        let cure = "characters that it does not know will stop the flow";
        findings.warning(
            "TARGET_ENCODING",
            "target",
            format!("the database's encoding is {encoding}"),
            cure,
        );
    }
    Ok(())
}

/// The rights on our own records: of the role that applies, and of whoever asks, since they would
/// set up a flow that the target does not know yet.
async fn state_rights(
    config: &Config,
    session: &Session,
    findings: &mut Findings,
) -> Result<(), Failure> {
    let role = config.target.role.as_str();
    // Without the right to look nobody knows whether there is something left to set up.
    let intent = lane::read_intent(&session.client, &config.flow, Lane(0)).await;
    let sets_up = match intent {
        Ok(Some(intent)) => intent.state != FlowState::Ready,
        Ok(None) => true,
        Err(_) => false,
    };
    let asks: String = session
        .client
        .query_one("SELECT current_user::text", &[])
        .await?
        .get(0);
    let mut found = async |who: &str, sets_up: bool, severity: Severity| {
        let missing = schema::missing_rights(&session.client, who, sets_up)
            .await
            .map_err(|error| Failure::from_error(Exit::Unexpected, &error))?;
        if !missing.is_empty() {
            let reason = format!("role {who} lacks rights on Trellara's own records");
            let cure = missing.join("; ");
            match severity {
                Severity::Error => {
                    findings.right("TARGET_STATE_RIGHT", "schema trellara", reason, cure);
                }
                _ => findings.warning("TARGET_STATE_RIGHT", "schema trellara", reason, cure),
            }
        }
        Ok::<(), Failure>(())
    };
    found(&asks, sets_up, Severity::Error).await?;
    // Whoever sets up in the role's place is not held up by grants that come after setup.
    if asks != role {
        found(role, false, Severity::Warning).await?;
    }
    Ok(())
}

fn replica_role(config: &Config, may: bool, findings: &mut Findings) {
    if may || config.process.role_replica == Some(false) {
        return;
    }
    let reason = "the role may not set session_replication_role: triggers and foreign keys of the target act a second time";
    let user = quote::identifier(&config.target.role);
    let cure = format!("GRANT SET ON PARAMETER session_replication_role TO {user}");
    match config.process.role_replica {
        Some(true) => findings.right("TARGET_REPLICA_ROLE", "target", reason, cure),
        _ => findings.warning("TARGET_REPLICA_ROLE", "target", reason, cure),
    }
}
