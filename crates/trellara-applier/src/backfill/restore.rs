//! Makes again what [`super::putoff`] dropped, one definition after the other: each is made and
//! ticked off in one transaction. What the target refuses is written down with the reason, keeps its
//! definition, and holds nothing else up; an operator has it tried again.

use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::sync::Notify;
use tokio_postgres::{Client, Error};
use tokio_util::task::AbortOnDropHandle;
use trellara_envelope::{CopyTable, FlowName};
use trellara_postgres::quote;

use super::session::LoadSession;
use super::worker::{self, Common};
use crate::execute::ApplyError;
use crate::trouble::Trouble;

/// Until it is tried again after something that passes by itself, a table in use among them.
const AGAIN: Duration = Duration::from_secs(5);

/// The plans of a session that applies are for single rows, and a foreign key is looked at by one
/// join of both tables.
const BEGIN: &str = "\
BEGIN ISOLATION LEVEL READ COMMITTED; SET LOCAL lock_timeout = '10s'; \
SET LOCAL search_path = pg_catalog; SET LOCAL statement_timeout = 0; \
SET LOCAL enable_seqscan = on; SET LOCAL enable_hashjoin = on; SET LOCAL enable_mergejoin = on; \
SET LOCAL enable_bitmapscan = on";
const PENDING: &str = "\
SELECT EXISTS (SELECT FROM trellara.backfill_definition \
                WHERE flow = $1 AND schema_name = $2 AND table_name = $3 \
                  AND kind IN ('index', 'constraint') AND restored_at IS NULL AND reason IS NULL)";
const TICK_OFF: &str = "\
UPDATE trellara.backfill_definition SET restored_at = clock_timestamp(), reason = NULL, hint = NULL \
 WHERE flow = $1 AND schema_name = $2 AND table_name = $3 AND kind = $4 \
   AND relation_schema = $5 AND relation_name = $6 AND name = $7";
const REFUSED: &str = "\
UPDATE trellara.backfill_definition SET reason = $8, hint = $9 \
 WHERE flow = $1 AND schema_name = $2 AND table_name = $3 AND kind = $4 \
   AND relation_schema = $5 AND relation_name = $6 AND name = $7 AND restored_at IS NULL";
const FORGIVE: &str = "\
UPDATE trellara.backfill_definition SET reason = NULL, hint = NULL \
 WHERE flow = $1 AND restored_at IS NULL AND reason IS NOT NULL";

/// Whether a table that is in waits for indexes of its own.
pub(super) async fn is_pending(
    client: &Client,
    flow: &FlowName,
    table: &CopyTable,
) -> Result<bool, Error> {
    let key: [&(dyn tokio_postgres::types::ToSql + Sync); 3] =
        [&flow.as_str(), &table.schema, &table.name];
    client.query_one(PENDING, &key).await?.try_get(0)
}

/// The task that makes definitions again; ends with this value.
pub(super) struct Restorer {
    work: Arc<Notify>,
    _task: AbortOnDropHandle<()>,
}

impl Restorer {
    /// Waits for work. `done` is notified when something was made or refused.
    pub(super) fn start(common: Arc<Common>, done: Arc<Notify>) -> Self {
        let work = Arc::new(Notify::new());
        let asked = Arc::clone(&work);
        let task = tokio::spawn(async move {
            loop {
                asked.notified().await;
                while let Err(trouble) = restore(&common, &done).await {
                    let flow = &common.options.flow;
                    tracing::warn!(%flow, error = ?trouble, "what was put off is tried again");
                    tokio::time::sleep(AGAIN).await;
                }
            }
        });
        Self {
            work,
            _task: AbortOnDropHandle::new(task),
        }
    }

    /// Something may be there to be made.
    pub(super) fn look(&self) {
        self.work.notify_one();
    }
}

async fn restore(common: &Common, done: &Notify) -> Result<(), Trouble> {
    let mut session = LoadSession::connect(&common.options).await?;
    session.rests(false);
    let flow = &common.options.flow;
    loop {
        let one = one(session.client(), flow, false);
        match session.watched(&common.status, one).await?? {
            Made::Nothing => break,
            Made::Restored(..) | Made::Refused(_) => done.notify_one(),
            Made::NotNow(reason) => return Err(Trouble::passing(reason)),
        }
    }
    session.rests(true);
    Ok(())
}

/// What became of a definition.
enum Made {
    /// There is none.
    Nothing,
    Restored(String),
    Refused(String),
    /// It passes by itself.
    NotNow(String),
}

/// Makes the next one.
async fn one(client: &Client, flow: &FlowName, all: bool) -> Result<Made, Error> {
    client.batch_execute(BEGIN).await?;
    let next = client
        .query_opt(
            include_str!("../sql/restore_next.sql"),
            &[&flow.as_str(), &all],
        )
        .await?;
    let Some(row) = next else {
        client.batch_execute("COMMIT").await?;
        return Ok(Made::Nothing);
    };
    let (relation_schema, relation, name): (&str, &str, &str) =
        (row.try_get(3)?, row.try_get(4)?, row.try_get(5)?);
    let (schema, table, kind): (&str, &str, &str) =
        (row.try_get(0)?, row.try_get(1)?, row.try_get(2)?);
    let (definition, gone, there): (&str, bool, bool) =
        (row.try_get(6)?, row.try_get(7)?, row.try_get(8)?);
    let (owner, index) = (
        quote::qualified(relation_schema, relation),
        quote::identifier(name),
    );
    let what = format!("{kind} {index} of {owner}");
    let flow_name = flow.as_str();
    let key: [&(dyn tokio_postgres::types::ToSql + Sync); 7] = [
        &flow_name,
        &schema,
        &table,
        &kind,
        &relation_schema,
        &relation,
        &name,
    ];
    let began = Instant::now();
    let made = async {
        if !gone && !there {
            client.batch_execute(definition).await?;
        }
        client.execute(TICK_OFF, &key).await?;
        client.batch_execute("COMMIT").await
    };
    let error = match made.await {
        Ok(()) => {
            let seconds = began.elapsed().as_secs_f64();
            tracing::info!(%flow, what, seconds, gone, there, "what was put off is there again");
            return Ok(Made::Restored(what));
        }
        Err(error) if error.as_db_error().is_none() => return Err(error),
        Err(error) => error,
    };
    client.batch_execute("ROLLBACK").await?;
    let refused = ApplyError::from_server(&error).on(relation_schema, relation);
    if worker::passes(&refused) {
        return Ok(Made::NotNow(format!("{what}: {refused}")));
    }
    let (reason, hint) = (refused.to_string(), hint(&refused.sqlstate));
    tracing::error!(%flow, what, error = reason, hint, "an index cannot be made again");
    let more: [&(dyn tokio_postgres::types::ToSql + Sync); 2] = [&reason, &hint];
    client.execute(REFUSED, &[&key[..], &more].concat()).await?;
    Ok(Made::Refused(format!("{what}: {reason}")))
}

fn hint(sqlstate: &str) -> &'static str {
    match sqlstate {
        "23505" | "23503" | "23P01" => {
            "rows of the target contradict it: mend them, then run trellara backfill --rebuild"
        }
        "42501" => {
            "grant the owner's role to the role that applies and CREATE on the schema, then run \
             trellara backfill --rebuild"
        }
        _ => "mend the cause or make it by hand, then run trellara backfill --rebuild",
    }
}

/// Has everything that was refused tried again. How much that is.
///
/// # Errors
/// The server's.
pub async fn forgive(client: &Client, flow: &FlowName) -> Result<u64, Error> {
    client.execute(FORGIVE, &[&flow.as_str()]).await
}

/// Makes everything again that was put off, whatever became of the copies: the flow goes. What was
/// made, and what was refused.
///
/// # Errors
/// The server's; whatever passes by itself is one too.
pub async fn give_back(
    client: &Client,
    flow: &FlowName,
) -> Result<(Vec<String>, Vec<String>), Error> {
    forgive(client, flow).await?;
    let (mut made, mut refused) = (Vec::new(), Vec::new());
    loop {
        match one(client, flow, true).await? {
            Made::Nothing => return Ok((made, refused)),
            Made::Restored(what) => made.push(what),
            Made::Refused(what) => refused.push(what),
            Made::NotNow(what) => {
                refused.push(what);
                return Ok((made, refused));
            }
        }
    }
}
