//! What a flow's first copy has to bring, written down before the flow is ready.

use tokio_postgres::Client;
use tokio_postgres::types::PgLsn;
use trellara_envelope::FlowName;

use super::store::TableCopy;
use crate::ledger;

/// Nobody has applied anything yet: what an interrupted setup wrote goes.
const FORGET: &str = "\
DELETE FROM trellara.backfill \
 WHERE flow = $1 AND NOT EXISTS (SELECT FROM trellara.applied WHERE flow = $1)";
const INSERT: &str = "\
INSERT INTO trellara.backfill (flow, schema_name, table_name, state, initial, relation, snapshot, \
                               converges_at, source_system, source_timeline, parts, started_at, \
                               loaded_at) \
SELECT $1, schema_name, table_name, state, true, relation, snapshot, converges_at::pg_lsn, \
       source_system, source_timeline, \
       CASE WHEN snapshot IS NOT NULL THEN 0 END, \
       CASE WHEN snapshot IS NOT NULL THEN clock_timestamp() END, \
       CASE WHEN snapshot IS NOT NULL THEN clock_timestamp() END \
  FROM unnest($2::text[], $3::text[], $4::text[], $5::bigint[], $6::text[], $7::pg_lsn[], \
              $8::bigint[], $9::bigint[]) \
    AS c (schema_name, table_name, state, relation, snapshot, converges_at, source_system, \
          source_timeline) \
ON CONFLICT DO NOTHING";
/// Whether an applier has already found the flow ready to apply.
const BEGUN: &str = "SELECT EXISTS (SELECT FROM trellara.applied WHERE flow = $1)";

/// Of a writer that nobody can follow any more: another copy is asked for. Where all parts are in, no
/// writer is needed.
const WITHOUT_WRITER: &str = "\
UPDATE trellara.backfill \
   SET state = 'wanted', generation = generation + 1, writer = NULL, parts = NULL, rows = 0, \
       bytes = 0, reason = 'the flow has another stream', hint = NULL, \
       changed_at = clock_timestamp() \
 WHERE flow = $1 AND state = 'copying' AND parts IS NULL";

/// The flow gets another stream, and the numbers of those who write begin anew with it: none would
/// be above that of a copy's writer, so the copies that are under way begin anew as well.
///
/// # Errors
/// The server's.
pub async fn forget_writers(client: &Client, flow: &FlowName) -> Result<(), tokio_postgres::Error> {
    let done = client.execute(WITHOUT_WRITER, &[&flow.as_str()]).await;
    done.map(drop)
}

/// Whether an applier may have acted on what was written down of a flow's copies.
///
/// # Errors
/// The server's.
pub async fn has_begun(client: &Client, flow: &FlowName) -> Result<bool, tokio_postgres::Error> {
    Ok(client.query_one(BEGUN, &[&flow.as_str()]).await?.get(0))
}

/// Writes down the tables of a flow's first copy, all or none. What an applier may have acted on
/// already stays as it is.
///
/// # Errors
/// The server's.
pub async fn record_initial(
    client: &mut Client,
    flow: &FlowName,
    tables: &[TableCopy],
) -> Result<(), tokio_postgres::Error> {
    let transaction = client.transaction().await?;
    let flow = flow.as_str();
    let begun: bool = transaction.query_one(BEGUN, &[&flow]).await?.get(0);
    if !begun {
        transaction.execute(FORGET, &[&flow]).await?;
        let text = |of: fn(&TableCopy) -> String| tables.iter().map(of).collect::<Vec<_>>();
        let relations: Vec<Option<i64>> = tables
            .iter()
            .map(|copy| copy.relation.map(i64::from))
            .collect();
        let snapshots: Vec<Option<String>> = tables
            .iter()
            .map(|copy| copy.snapshot.as_ref().map(ToString::to_string))
            .collect();
        let positions: Vec<Option<PgLsn>> = tables
            .iter()
            .map(|copy| copy.converges_at.map(|at| PgLsn::from(at.0)))
            .collect();
        let systems: Vec<Option<i64>> = tables
            .iter()
            .map(|copy| copy.source.map(ledger::system))
            .collect();
        let timelines: Vec<Option<i64>> = tables
            .iter()
            .map(|copy| copy.source.map(ledger::timeline))
            .collect();
        transaction
            .execute(
                INSERT,
                &[
                    &flow,
                    &text(|copy| copy.table.schema.clone()),
                    &text(|copy| copy.table.name.clone()),
                    &text(|copy| copy.state.as_str().to_owned()),
                    &relations,
                    &snapshots,
                    &positions,
                    &systems,
                    &timelines,
                ],
            )
            .await?;
    }
    transaction.commit().await
}
