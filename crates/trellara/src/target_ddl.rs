//! The tables that the target lacks, as the source defines them.

use trellara_postgres::{Session, fault, quote};
use trellara_source::definition::{self, Options, Present, Statement};
use trellara_source::publication::TableName;

use crate::config::Config;
use crate::exit::Failure;
use crate::output::Output;
use crate::{link, visible};

/// What would have to be made in the target.
pub(crate) struct Missing {
    /// In an order in which they can run.
    pub(crate) statements: Vec<Statement>,
    /// Types that have to be there and that nothing here can make.
    pub(crate) types: Vec<TableName>,
    /// Schemas that are there and in which the role of this session may create nothing.
    pub(crate) closed_schemas: Vec<String>,
}

/// A part that was left out, and why.
struct LeftOut {
    about: String,
    reason: String,
}

/// What the target lacks of these tables. Reads only.
pub(crate) async fn missing(
    config: &Config,
    source: &Session,
    target: &Session,
    tables: &[TableName],
) -> Result<Missing, Failure> {
    let definitions = definition::read(source, tables).await?;
    let present = Present::read(target, &definitions).await?;
    let statements = definitions.statements(&present, &options(config, target).await?);
    let schemas: Vec<&str> = present.schemas.iter().map(String::as_str).collect();
    let closed = match statements.is_empty() {
        true => Vec::new(),
        false => {
            let sql = "SELECT nspname::text FROM pg_namespace WHERE nspname = ANY ($1) \
                          AND NOT has_schema_privilege(oid, 'CREATE') ORDER BY 1";
            target.client.query(sql, &[&schemas]).await?
        }
    };
    Ok(Missing {
        statements,
        types: definitions.unmade_types(&present).cloned().collect(),
        closed_schemas: closed.iter().map(|row| row.get(0)).collect(),
    })
}

/// The same for a target that nobody can ask: as if it had nothing.
pub(crate) async fn everything(
    config: &Config,
    source: &Session,
    tables: &[TableName],
) -> Result<Vec<Statement>, Failure> {
    let definitions = definition::read(source, tables).await?;
    let options = Options {
        server_major: source.server_version().major(),
        writer: Some(config.target.role.clone()),
        foreign_keys: config.process.role_replica != Some(false),
    };
    Ok(definitions.statements(&Present::default(), &options))
}

async fn options(config: &Config, target: &Session) -> Result<Options, Failure> {
    let role = &config.target.role;
    let row = target
        .client
        .query_one(
            "SELECT current_user::text = $1, \
                    coalesce(has_parameter_privilege(to_regrole(quote_ident($1))::oid, \
                                                     'session_replication_role', 'SET'), false)",
            &[role],
        )
        .await?;
    let (ourselves, may_replicate): (bool, bool) = (row.get(0), row.get(1));
    Ok(Options {
        server_major: target.server_version().major(),
        writer: (!ourselves).then(|| role.clone()),
        // Where they would be checked, rows would have to come in their order.
        foreign_keys: may_replicate && config.process.role_replica != Some(false),
    })
}

/// Runs the statements in one transaction: the tables are there whole, or nothing of them is. What
/// only makes them more alike and cannot be made is left out, and told.
async fn create(target: &mut Session, statements: &[Statement]) -> Result<Vec<LeftOut>, Failure> {
    let mut left_out = Vec::new();
    let transaction = target.client.transaction().await?;
    for statement in statements {
        if statement.essential {
            let made = transaction.batch_execute(&statement.sql).await;
            made.map_err(|error| {
                Failure::from(error)
                    .doing(format!("cannot create {}", statement.about))
                    .hint("nothing was created; `trellara setup --print-sql` prints the statements")
            })?;
            continue;
        }
        transaction.batch_execute("SAVEPOINT part").await?;
        match transaction.batch_execute(&statement.sql).await {
            Ok(()) => transaction.batch_execute("RELEASE part").await?,
            Err(error) => {
                transaction.batch_execute("ROLLBACK TO part").await?;
                let fault = fault(&error);
                left_out.push(LeftOut {
                    about: statement.about.clone(),
                    reason: format!("{} (SQLSTATE {})", fault.message, fault.sqlstate),
                });
            }
        }
    }
    transaction.commit().await?;
    Ok(left_out)
}

/// Creates what the target lacks of these tables, and says so. Once it is there nothing is done.
pub(crate) async fn create_missing(
    config: &Config,
    source: &Session,
    tables: &[TableName],
    output: Output,
) -> Result<(), Failure> {
    let mut target = link::target(config).await?;
    let missing = missing(config, source, &target, tables).await?;
    if missing.statements.is_empty() {
        return Ok(());
    }
    let left_out = create(&mut target, &missing.statements).await?;
    let made = missing.statements.len() - left_out.len();
    output.note(format!(
        "tables: {made} statement(s) created what the target lacked"
    ));
    for part in left_out {
        output.note(format!(
            "warning: {} was left out: {}",
            visible::inline(&part.about),
            visible::inline(&part.reason)
        ));
    }
    Ok(())
}

/// The statements as somebody else may run them.
pub(crate) fn script(statements: &[Statement]) -> String {
    let lines = statements.iter().map(|one| format!("{};\n", one.sql));
    lines.collect()
}

/// What lets a role create the tables, where it may not.
pub(crate) fn create_right(schema: &str, user: &str) -> String {
    format!(
        "GRANT CREATE ON SCHEMA {} TO {}",
        quote::identifier(schema),
        quote::identifier(user)
    )
}
