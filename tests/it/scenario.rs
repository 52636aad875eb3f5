//! A scenario: a schema on both sides, SQL on the source, equality on the target.

use std::time::Duration;

use anyhow::{Context, Result};
use trellara_testkit::compare;
use trellara_testkit::flow::Flow;
use trellara_testkit::fresh::fresh_flow;

/// How long any scenario may take to converge.
pub(crate) const WITHIN: Duration = Duration::from_secs(40);

/// Runs SQL on a database; each element is sent as one simple query, so that a `BEGIN … COMMIT`
/// inside one element is one transaction.
pub(crate) async fn run(url: &str, script: &[&str]) -> Result<()> {
    let client = compare::connect(url).await?;
    client.batch_execute("SET search_path = public").await?;
    for sql in script {
        client
            .batch_execute(sql)
            .await
            .with_context(|| format!("running {sql}"))?;
    }
    Ok(())
}

/// One value from a database, as text.
pub(crate) async fn value(url: &str, sql: &str) -> Result<String> {
    let client = compare::connect(url).await?;
    client.batch_execute("SET search_path = public").await?;
    for message in client
        .simple_query(sql)
        .await
        .with_context(|| format!("running {sql}"))?
    {
        if let tokio_postgres::SimpleQueryMessage::Row(row) = message {
            return Ok(row.get(0).unwrap_or("NULL").to_owned());
        }
    }
    anyhow::bail!("no row from {sql}")
}

/// A started flow whose two databases got the same `schema`.
pub(crate) async fn started(
    version: u32,
    name: &str,
    schema: &[&str],
    extra: &str,
) -> Result<Flow> {
    let mut flow = prepared(version, name, schema, schema, extra).await?;
    flow.start().await?;
    Ok(flow)
}

/// A flow whose databases got their schemas, not yet set up.
pub(crate) async fn prepared(
    version: u32,
    name: &str,
    source_schema: &[&str],
    target_schema: &[&str],
    extra: &str,
) -> Result<Flow> {
    let flow = fresh_flow(version, name, extra).await?;
    run(&flow.source_admin, source_schema).await?;
    run(&flow.target_admin, target_schema).await?;
    Ok(flow)
}

/// The whole of a simple scenario: what the script leaves is copied by one flow, and all that it
/// does comes through the stream of another, which is the one to go on with.
pub(crate) async fn carried(
    version: u32,
    name: &str,
    schema: &[&str],
    script: &[&str],
) -> Result<Flow> {
    copied(version, name, schema, script).await?;
    let flow = started(version, name, schema, "").await?;
    run(&flow.source_admin, script).await?;
    flow.converges(WITHIN).await?;
    Ok(flow)
}

/// The script is over when the flow begins.
async fn copied(version: u32, name: &str, schema: &[&str], script: &[&str]) -> Result<()> {
    let mut flow = prepared(version, name, schema, schema, "").await?;
    run(&flow.source_admin, script).await?;
    flow.start().await?;
    flow.copied(WITHIN).await?;
    flow.converges(WITHIN).await
}
