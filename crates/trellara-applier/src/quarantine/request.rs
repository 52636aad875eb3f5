//! What an operator asks of whoever holds the lane, and the answer: rows of `trellara.request`,
//! with a notification each way so that nobody waits for a poll.
//!
//! A request is begun only while its lease runs, by the target's clock: a command that was killed
//! asks for nothing any more.

use serde_json::{Map, Value, json};
use tokio_postgres::types::ToSql;
use tokio_postgres::{Client, Error};
use trellara_envelope::{FlowName, Lane};

use super::audit::Operator;
use super::{Cause, HeldId, text};
use crate::ledger::lane as lane_number;
use crate::rewind::answer_channel;
use crate::session::channel;

/// Payload of the notification that makes the applier look into `trellara.request`.
pub const DESK: &str = "desk";
/// In front of the token in the notification that a request was answered.
const ANSWERED: &str = "desk ";
/// How long a request may be begun after its lease was renewed the last time.
const LEASE_SECONDS: f64 = 10.0;
/// Requests are forgotten after this long, answered or not.
const KEPT: &str = "1 day";

const INSERT: &str = "\
INSERT INTO trellara.request (token, flow, lane, action, ids, force, reason, operator, host, version, \
                              lease_until) \
VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, \
        clock_timestamp() + make_interval(secs => $11))";
const RENEW: &str = "\
UPDATE trellara.request SET lease_until = clock_timestamp() + make_interval(secs => $2) \
 WHERE token = $1 RETURNING answer::text, begun_at IS NOT NULL";
const NEXT: &str = "\
UPDATE trellara.request AS r SET begun_at = coalesce(r.begun_at, clock_timestamp()) \
 WHERE r.token = (SELECT n.token FROM trellara.request AS n \
                   WHERE n.flow = $1 AND n.lane = $2 AND n.answered_at IS NULL \
                     AND n.lease_until > clock_timestamp() \
                   ORDER BY n.asked_at, n.token LIMIT 1) \
RETURNING r.token, r.action, r.ids, r.force, r.reason, r.operator, r.host, r.version";
const ANSWER: &str = "\
UPDATE trellara.request SET answered_at = clock_timestamp(), answer = $2::text::jsonb \
 WHERE token = $1";
const FORGET: &str = "\
DELETE FROM trellara.request \
 WHERE flow = $1 AND lane = $2 AND asked_at < clock_timestamp() - $3::text::interval";

/// What is to be done.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Task {
    /// Apply them.
    Replay,
    /// They are not to be applied.
    Discard,
}

impl Task {
    /// The word in the table.
    pub fn as_str(self) -> &'static str {
        match self {
            Task::Replay => "replay",
            Task::Discard => "discard",
        }
    }

    fn parse(word: &str) -> Option<Self> {
        match word {
            "replay" => Some(Task::Replay),
            "discard" => Some(Task::Discard),
            _ => None,
        }
    }
}

/// What an operator wants.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Order {
    /// What is to be done.
    pub task: Task,
    /// To which; `None`: to all that are open, in order.
    pub ids: Option<Vec<HeldId>>,
    /// Although later transactions that touch the same were applied before.
    pub force: bool,
    /// Why, in the operator's words.
    pub reason: String,
    /// Who.
    pub operator: Operator,
}

/// What became of one held transaction.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Item {
    /// Which.
    pub id: HeldId,
    /// The transaction's identity; empty when there is no such one.
    pub transaction: String,
    /// How it ended.
    pub end: End,
}

/// How it ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum End {
    /// It is in, with this many changes.
    Replayed {
        /// Changes of rows.
        changes: u64,
    },
    /// It was in before.
    AlreadyReplayed,
    /// It is closed and not applied.
    Discarded,
    /// It was closed before.
    AlreadyDiscarded,
    /// The flow holds nothing of that number.
    Unknown,
    /// It was not tried.
    Refused {
        /// Why.
        reason: String,
        /// What to do instead.
        hint: String,
    },
    /// It was tried, and the target refused it.
    Failed {
        /// Why; the detail, which may hold values, is in the store alone.
        cause: Cause,
    },
}

impl End {
    /// The word in the answer.
    pub fn as_str(&self) -> &'static str {
        match self {
            End::Replayed { .. } => "replayed",
            End::AlreadyReplayed => "already replayed",
            End::Discarded => "discarded",
            End::AlreadyDiscarded => "already discarded",
            End::Unknown => "unknown",
            End::Refused { .. } => "refused",
            End::Failed { .. } => "failed",
        }
    }
}

/// What came of a request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Answer {
    /// Each of them, in the order in which they were taken.
    Done(Vec<Item>),
    /// Nothing was begun.
    NotNow {
        /// Why.
        reason: String,
    },
}

impl Answer {
    fn to_json(&self) -> Value {
        match self {
            Answer::Done(items) => json!({"items": items.iter().map(item).collect::<Vec<_>>()}),
            Answer::NotNow { reason } => json!({"not_now": reason}),
        }
    }

    fn from_json(text: &str) -> Option<Self> {
        let value: Value = serde_json::from_str(text).ok()?;
        if let Some(reason) = value.get("not_now") {
            let reason = reason.as_str()?.to_owned();
            return Some(Answer::NotNow { reason });
        }
        let items = value.get("items")?.as_array()?;
        let items: Option<Vec<Item>> = items.iter().map(item_of).collect();
        Some(Answer::Done(items?))
    }
}

fn item(item: &Item) -> Value {
    let mut out = json!({
        "id": item.id.0,
        "transaction": item.transaction,
        "end": item.end.as_str(),
    });
    let more = match &item.end {
        End::Replayed { changes } => json!({"changes": changes}),
        End::Refused { reason, hint } => json!({"reason": reason, "hint": hint}),
        End::Failed { cause } => json!({
            "sqlstate": cause.sqlstate,
            "message": cause.message,
            "hint": cause.hint,
            "schema": cause.schema,
            "table": cause.table,
            "object": cause.object,
            "change": cause.change,
        }),
        End::AlreadyReplayed | End::Discarded | End::AlreadyDiscarded | End::Unknown => json!({}),
    };
    if let (Value::Object(out), Value::Object(more)) = (&mut out, more) {
        out.extend(more);
    }
    out
}

fn item_of(value: &Value) -> Option<Item> {
    let fields = value.as_object()?;
    Some(Item {
        id: HeldId(fields.get("id")?.as_i64()?),
        transaction: text(fields, "transaction"),
        end: end_of(fields)?,
    })
}

fn end_of(fields: &Map<String, Value>) -> Option<End> {
    let number = |name: &str| fields.get(name).and_then(Value::as_u64).unwrap_or_default();
    Some(match fields.get("end")?.as_str()? {
        "replayed" => End::Replayed {
            changes: number("changes"),
        },
        "already replayed" => End::AlreadyReplayed,
        "discarded" => End::Discarded,
        "already discarded" => End::AlreadyDiscarded,
        "unknown" => End::Unknown,
        "refused" => End::Refused {
            reason: text(fields, "reason"),
            hint: text(fields, "hint"),
        },
        "failed" => End::Failed {
            cause: Cause {
                sqlstate: text(fields, "sqlstate"),
                message: text(fields, "message"),
                detail: String::new(),
                hint: text(fields, "hint"),
                schema: text(fields, "schema"),
                table: text(fields, "table"),
                object: text(fields, "object"),
                change: number("change"),
            },
        },
        _ => return None,
    })
}

fn text(fields: &Map<String, Value>, name: &str) -> String {
    let value = fields.get(name).and_then(Value::as_str);
    value.unwrap_or_default().to_owned()
}

/// What a request has come to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Standing {
    /// Nobody has begun it.
    Waiting,
    /// The applier is at it.
    Begun,
    /// It was answered.
    Answered(Answer),
    /// Somebody took it away.
    Gone,
}

/// A new token.
pub fn token() -> String {
    format!("{:032x}", rand::random::<u128>())
}

/// Puts a request down and wakes the applier.
///
/// # Errors
/// When the server refuses.
pub async fn ask(
    client: &Client,
    (flow, lane): (&FlowName, Lane),
    token: &str,
    order: &Order,
) -> Result<(), Error> {
    let ids: Option<Vec<i64>> = order
        .ids
        .as_ref()
        .map(|ids| ids.iter().map(|id| id.0).collect());
    let Operator { name, host, .. } = &order.operator;
    let [reason, name, host] = text::storable(client, [&order.reason, name, host]).await?;
    let parameters: [&(dyn ToSql + Sync); 11] = [
        &token,
        &flow.as_str(),
        &lane_number(lane),
        &order.task.as_str(),
        &ids,
        &order.force,
        &reason,
        &name,
        &host,
        &order.operator.version,
        &LEASE_SECONDS,
    ];
    client.execute(INSERT, &parameters).await?;
    wake(client, flow).await
}

/// Tells the applier to look, in case that it began to listen only after the request was put down.
///
/// # Errors
/// When the server refuses.
pub async fn wake(client: &Client, flow: &FlowName) -> Result<(), Error> {
    client
        .execute("SELECT pg_notify($1, $2)", &[&channel(flow), &DESK])
        .await
        .map(drop)
}

/// Renews the lease, and says what the request has come to.
///
/// # Errors
/// When the server refuses.
pub async fn renew(client: &Client, token: &str) -> Result<Standing, Error> {
    let row = client.query_opt(RENEW, &[&token, &LEASE_SECONDS]).await?;
    let Some(row) = row else {
        return Ok(Standing::Gone);
    };
    let answer: Option<&str> = row.get(0);
    Ok(match (answer.and_then(Answer::from_json), row.get(1)) {
        (Some(answer), _) => Standing::Answered(answer),
        (None, true) => Standing::Begun,
        (None, false) => Standing::Waiting,
    })
}

/// Takes a request away.
///
/// # Errors
/// When the server refuses.
pub async fn withdraw(client: &Client, token: &str) -> Result<(), Error> {
    client
        .execute("DELETE FROM trellara.request WHERE token = $1", &[&token])
        .await
        .map(drop)
}

/// Whether a notification on [`answer_channel`] says that this request was answered.
pub fn is_answer(payload: &str, token: &str) -> bool {
    payload.strip_prefix(ANSWERED) == Some(token)
}

/// The oldest request that somebody still waits for; it counts as begun.
pub(crate) async fn next(
    client: &Client,
    flow: &FlowName,
    lane: Lane,
) -> Result<Option<(String, Order)>, Error> {
    let row = client
        .query_opt(NEXT, &[&flow.as_str(), &lane_number(lane)])
        .await?;
    Ok(row.and_then(|row| {
        let ids: Option<Vec<i64>> = row.get(2);
        let order = Order {
            task: Task::parse(row.get(1))?,
            ids: ids.map(|ids| ids.into_iter().map(HeldId).collect()),
            force: row.get(3),
            reason: row.get(4),
            operator: Operator {
                name: row.get(5),
                host: row.get(6),
                version: row.get(7),
            },
        };
        Some((row.get(0), order))
    }))
}

/// Writes the answer down and wakes whoever waits for it.
pub(crate) async fn answer(
    client: &Client,
    flow: &FlowName,
    token: &str,
    answer: &Answer,
) -> Result<(), Error> {
    let text = answer.to_json().to_string();
    let [text] = text::storable(client, [&text]).await?;
    client.execute(ANSWER, &[&token, &text]).await?;
    let payload = format!("{ANSWERED}{token}");
    client
        .execute(
            "SELECT pg_notify($1, $2)",
            &[&answer_channel(flow), &payload],
        )
        .await
        .map(drop)
}

/// Forgets what nobody can wait for any more.
pub(crate) async fn forget_old(client: &Client, flow: &FlowName, lane: Lane) -> Result<(), Error> {
    client
        .execute(FORGET, &[&flow.as_str(), &lane_number(lane), &KEPT])
        .await
        .map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_survives_its_way() {
        let ends = [
            End::Replayed { changes: 7 },
            End::AlreadyReplayed,
            End::Discarded,
            End::AlreadyDiscarded,
            End::Unknown,
            End::Refused {
                reason: "it waits behind 3".to_owned(),
                hint: "replay 3 first".to_owned(),
            },
            End::Failed {
                cause: Cause {
                    sqlstate: "23505".to_owned(),
                    message: "a \"key\" is there".to_owned(),
                    detail: String::new(),
                    hint: "look".to_owned(),
                    schema: "public".to_owned(),
                    table: "t".to_owned(),
                    object: "t_pkey".to_owned(),
                    change: 3,
                },
            },
        ];
        let items = (1..).zip(ends).map(|(id, end)| Item {
            id: HeldId(id),
            transaction: "1:0/8:7:9".to_owned(),
            end,
        });
        for answer in [
            Answer::Done(items.collect()),
            Answer::NotNow {
                reason: "a verify run holds the lane".to_owned(),
            },
        ] {
            let text = answer.to_json().to_string();
            assert_eq!(Answer::from_json(&text), Some(answer));
        }
        assert_eq!(Answer::from_json("{}"), None);
    }

    #[test]
    fn a_detail_with_values_stays_in_the_store() {
        let failed = Answer::Done(vec![Item {
            id: HeldId(1),
            transaction: String::new(),
            end: End::Failed {
                cause: Cause {
                    detail: "Key (id)=(secret)".to_owned(),
                    ..Cause::default()
                },
            },
        }]);
        assert!(!failed.to_json().to_string().contains("secret"));
    }

    #[test]
    fn a_token_fits_its_column() {
        let token = token();
        assert_eq!(token.len(), 32);
        assert!(is_answer(&format!("desk {token}"), &token));
        assert!(!is_answer(&token, &token));
    }
}
