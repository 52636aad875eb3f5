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
use super::worker;
use crate::execute::ApplyError;
use crate::options::ApplierOptions;
use crate::status::ApplierStatus;
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
const ANY: &str = "\
SELECT EXISTS (SELECT FROM trellara.backfill_definition \
                WHERE flow = $1 AND restored_at IS NULL AND reason IS NULL)";
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

/// Whether anything was put off that nobody has to decide about first.
pub(super) async fn is_anything(client: &Client, flow: &FlowName) -> Result<bool, Error> {
    client.query_one(ANY, &[&flow.as_str()]).await?.try_get(0)
}

/// The task that makes definitions again; ends with this value.
///
/// It belongs to the applier and not to an attempt: an index that takes hours outlives a broker that
/// blinks. Nor does it ask whose the lane is: definitions are claimed by locks of their rows, so
/// that two appliers never make the same one, and one that is made is there whoever made it.
#[derive(Debug)]
pub(crate) struct Restorer {
    work: Arc<Notify>,
    made: Arc<Notify>,
    _task: AbortOnDropHandle<()>,
}

impl Restorer {
    /// Waits for work.
    pub(crate) fn start(options: ApplierOptions, status: Arc<ApplierStatus>) -> Self {
        let (work, made) = (Arc::new(Notify::new()), Arc::new(Notify::new()));
        let (asked, done) = (Arc::clone(&work), Arc::clone(&made));
        let task = tokio::spawn(async move {
            loop {
                asked.notified().await;
                while let Err(trouble) = restore(&options, &status, &done).await {
                    let flow = &options.flow;
                    tracing::warn!(%flow, error = ?trouble, "what was put off is tried again");
                    tokio::time::sleep(AGAIN).await;
                }
            }
        });
        Self {
            work,
            made,
            _task: AbortOnDropHandle::new(task),
        }
    }

    /// Something may be there to be made.
    pub(super) fn look(&self) {
        self.work.notify_one();
    }

    /// Resolves when something was made, or refused. Cancel safe.
    pub(super) async fn made(&self) {
        self.made.notified().await;
    }
}

/// Makes what can be made; what is in the way of one table does not stop the others.
async fn restore(
    options: &ApplierOptions,
    status: &ApplierStatus,
    done: &Notify,
) -> Result<(), Trouble> {
    let mut session = LoadSession::connect(options).await?;
    session.rests(false);
    let flow = &options.flow;
    let mut waiting = Vec::new();
    let mut first = None;
    loop {
        let one = one(session.client(), flow, (false, &waiting));
        match session.watched(status, one).await?? {
            Made::Nothing => break,
            Made::Restored(..) | Made::Refused(_) => done.notify_one(),
            Made::NotNow { table, reason } => {
                waiting.push(table);
                status.set_restoring_waits(first.get_or_insert(reason));
            }
        }
    }
    session.rests(true);
    match first {
        Some(reason) => Err(Trouble::passing(reason)),
        None => {
            status.set_restoring_waits("");
            Ok(())
        }
    }
}

/// What became of a definition.
enum Made {
    /// There is none.
    Nothing,
    Restored(String),
    Refused(String),
    /// It passes by itself, and with it what is in the way of all others of the table.
    NotNow {
        table: String,
        reason: String,
    },
}

/// Makes the next one; `all` whatever the copies say, and none of the tables that wait or of those
/// that refer to them.
async fn one(
    client: &Client,
    flow: &FlowName,
    (all, waiting): (bool, &[String]),
) -> Result<Made, Error> {
    client.batch_execute(BEGIN).await?;
    let next = client
        .query_opt(
            include_str!("../sql/restore_next.sql"),
            &[&flow.as_str(), &all, &waiting],
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
        return Ok(Made::NotNow {
            table: row.try_get(9)?,
            reason: format!("{what}: {refused}"),
        });
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
        match one(client, flow, (true, &[])).await? {
            Made::Nothing => return Ok((made, refused)),
            Made::Restored(what) => made.push(what),
            Made::Refused(what) => refused.push(what),
            Made::NotNow { reason, .. } => {
                refused.push(reason);
                return Ok((made, refused));
            }
        }
    }
}
