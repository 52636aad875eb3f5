//! Who did what: rows of `trellara.audit`, written in the target transaction of the deed itself.

use tokio_postgres::types::ToSql;
use tokio_postgres::{Client, Error};
use trellara_envelope::{FlowName, Lane, Lsn};

use super::{HeldId, text};
use crate::ledger::{lane as lane_number, pg};

const INSERT: &str = "\
INSERT INTO trellara.audit (flow, lane, action, held_id, operator, host, version, arguments, reason, \
                            lsn, digest) \
VALUES ($1, $2, $3, $4, $5, $6, $7, $8::text::jsonb, $9, $10, $11)";
/// A row of `trellara.held` as it is before the deed.
const DIGEST: &str = "SELECT decode(md5(h::text), 'hex') FROM trellara.held AS h WHERE h.id = $1";

/// Who does it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Operator {
    /// The person, or `trellara applier`.
    pub name: String,
    /// The machine.
    pub host: String,
    /// The build.
    pub version: String,
}

impl Operator {
    /// The applier itself, on a machine.
    pub fn applier(host: &str) -> Self {
        Self {
            name: "trellara applier".to_owned(),
            host: host.to_owned(),
            version: env!("CARGO_PKG_VERSION").to_owned(),
        }
    }
}

/// What was done.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Action {
    /// A transaction was set aside.
    Held,
    /// A held one was applied.
    Replayed,
    /// It was tried, and refused again.
    ReplayFailed,
    /// It is not to be applied.
    Discarded,
    /// The lane stood in front of it, and a new process could apply it.
    RetriedAtStart,
    /// The lane was made to stand still.
    Paused,
    /// The lane was let go.
    Resumed,
    /// A conflict rule let changes of a transaction go by, or wrote over rows.
    Skipped,
    /// A later transaction that touches the same was applied before it (C46).
    Overtaken,
}

impl Action {
    /// The words in the table.
    pub fn as_str(self) -> &'static str {
        match self {
            Action::Held => "held",
            Action::Replayed => "replayed",
            Action::ReplayFailed => "replay failed",
            Action::Discarded => "discarded",
            Action::RetriedAtStart => "retried at start",
            Action::Paused => "paused",
            Action::Resumed => "resumed",
            Action::Skipped => "skipped (conflict rule)",
            Action::Overtaken => "overtaken",
        }
    }
}

/// One deed.
#[derive(Debug, Clone, Copy)]
pub struct Deed<'a> {
    /// What was done.
    pub action: Action,
    /// To which held transaction.
    pub held: Option<HeldId>,
    /// By whom.
    pub operator: &'a Operator,
    /// A JSON object: the command's arguments, or what came of it. No values of rows.
    pub arguments: &'a str,
    /// In their words.
    pub reason: &'a str,
    /// Where the lane stood.
    pub lsn: Lsn,
    /// Of the held row before, from [`digest`]; none where there was none.
    pub digest: Option<[u8; 16]>,
}

/// The digest of a held row as it is now; `None` when there is none.
///
/// # Errors
/// When the server refuses.
pub async fn digest(client: &Client, id: HeldId) -> Result<Option<[u8; 16]>, Error> {
    let row = client.query_opt(DIGEST, &[&id.0]).await?;
    Ok(row.and_then(|row| row.get::<_, &[u8]>(0).try_into().ok()))
}

/// Writes a deed down, in the target transaction that is open on `client`.
///
/// # Errors
/// When the server refuses; the target transaction can then only be rolled back.
pub async fn write(
    client: &Client,
    (flow, lane): (&FlowName, Lane),
    deed: Deed<'_>,
) -> Result<(), Error> {
    let digest = deed.digest.as_ref().map(|digest| &digest[..]);
    let Operator { name, host, .. } = deed.operator;
    let texts = [&**name, &**host, deed.arguments, deed.reason];
    let [name, host, arguments, reason] = text::storable(client, texts).await?;
    let parameters: [&(dyn ToSql + Sync); 11] = [
        &flow.as_str(),
        &lane_number(lane),
        &deed.action.as_str(),
        &deed.held.map(|id| id.0),
        &name,
        &host,
        &deed.operator.version,
        &arguments,
        &reason,
        &pg(deed.lsn),
        &digest,
    ];
    client.execute(INSERT, &parameters).await.map(drop)
}

/// A row of the audit.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Entry {
    /// Its number; later ones are higher.
    pub id: i64,
    /// When: microseconds since the Unix epoch, by the target's clock.
    pub at_us: i64,
    /// What was done.
    pub action: String,
    /// To which held transaction.
    pub held: Option<HeldId>,
    /// By whom.
    pub operator: Operator,
    /// Under which role of the target.
    pub role: String,
    /// A JSON object.
    pub arguments: String,
    /// In their words.
    pub reason: String,
    /// Where the lane stood.
    pub lsn: Lsn,
    /// Of the held row before.
    pub digest: Option<Vec<u8>>,
}

/// The newest deeds of a flow, oldest of them first; `held` alone, or all; at most `limit`.
///
/// # Errors
/// When the server refuses.
pub async fn read(
    client: &Client,
    flow: &FlowName,
    held: Option<HeldId>,
    limit: i64,
) -> Result<Vec<Entry>, Error> {
    const READ: &str = "\
        SELECT a.id, a.at, a.action, a.held_id, a.operator, a.host, a.version, a.role, \
               a.arguments::text, a.reason, a.lsn, a.digest \
          FROM trellara.audit AS a \
         WHERE a.flow = $1 AND ($2::bigint IS NULL OR a.held_id = $2) \
         ORDER BY a.id DESC LIMIT $3";
    let parameters: [&(dyn ToSql + Sync); 3] = [&flow.as_str(), &held.map(|id| id.0), &limit];
    let rows = client.query(READ, &parameters).await?;
    let entry = |row: &tokio_postgres::Row| Entry {
        id: row.get(0),
        at_us: crate::ledger::microseconds(row.get(1)),
        action: row.get(2),
        held: row.get::<_, Option<i64>>(3).map(HeldId),
        operator: Operator {
            name: row.get(4),
            host: row.get(5),
            version: row.get(6),
        },
        role: row.get(7),
        arguments: row.get(8),
        reason: row.get(9),
        lsn: crate::ledger::lsn(row.get(10)),
        digest: row.get(11),
    };
    Ok(rows.iter().rev().map(entry).collect())
}
