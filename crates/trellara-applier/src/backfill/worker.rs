//! One part into the target: rows and ledger row in one transaction, or nothing of it.

use std::pin::pin;
use std::sync::Arc;

use bytes::Bytes;
use futures_util::SinkExt;
use tokio::sync::mpsc;
use tokio_postgres::{Client, Error};
use trellara_crashpoints as crashpoints;
use trellara_envelope::{CopyTable, RunningDigest};
use trellara_postgres::{fault, quote};

use super::books::{Books, CopyKey, Taken};
use super::load::{PartKey, PartManifest};
use super::session::LoadSession;
use super::strip::Strip;
use crate::disposition::{self, Disposition};
use crate::execute::ApplyError;
use crate::lane::Held;
use crate::options::ApplierOptions;
use crate::status::ApplierStatus;
use crate::trouble::Trouble;

/// Pieces that may wait for a part's session: enough that it never waits, and no more.
pub(super) const WAITING_PIECES: usize = 4;

const COMPUTED: &str = "\
SELECT a.attname::text FROM pg_catalog.pg_attribute AS a \
  JOIN pg_catalog.pg_class AS c ON c.oid = a.attrelid \
  JOIN pg_catalog.pg_namespace AS n ON n.oid = c.relnamespace \
 WHERE n.nspname = $1 AND c.relname = $2 AND a.attgenerated <> '' AND NOT a.attisdropped";

/// What a part is made of, in this order.
#[derive(Debug)]
pub(super) enum Piece {
    Chunk(Bytes),
    /// All chunks came.
    Whole(PartManifest),
}

/// A part to be copied.
pub(super) struct Part {
    pub(super) key: PartKey,
    pub(super) copy: CopyKey,
    /// The columns of its rows.
    pub(super) columns: Arc<[String]>,
    pub(super) pieces: mpsc::Receiver<Piece>,
}

/// What all parts have in common.
pub(super) struct Common {
    pub(super) options: ApplierOptions,
    pub(super) held: Held,
    pub(super) books: Books,
    pub(super) status: Arc<ApplierStatus>,
}

/// What became of a part.
pub(super) struct PartEnd {
    pub(super) key: PartKey,
    pub(super) copy: CopyKey,
    pub(super) outcome: Outcome,
    /// Its session, when that can be used again.
    pub(super) session: Option<LoadSession>,
}

/// What became of a part.
#[derive(Debug)]
pub(super) enum Outcome {
    /// It is committed.
    In { rows: u64, bytes: u64 },
    /// Nothing of it was wanted any more.
    Dropped,
    /// What came is not what was sent.
    Differs(String),
    /// The target does not take its rows, and will not.
    Refused { reason: String, hint: String },
    /// Another copy of the table is wanted now, or another applier has the lane.
    NotOurs,
    /// The attempt is over.
    Trouble(Trouble),
}

/// Copies a part. With a session that is at rest, none has to be made.
pub(super) async fn run(
    common: Arc<Common>,
    mut part: Part,
    session: Option<LoadSession>,
) -> PartEnd {
    let session = match session {
        Some(session) => Ok(session),
        None => LoadSession::connect(&common.options).await,
    };
    let (outcome, session) = match session {
        Ok(mut session) => {
            session.rests(false);
            let outcome = match take(&common, &mut part, &session).await {
                Ok(outcome) => outcome,
                Err(trouble) => Outcome::Trouble(trouble),
            };
            let session = at_rest(session, &outcome).await;
            (outcome, session)
        }
        Err(trouble) => (Outcome::Trouble(trouble), None),
    };
    PartEnd {
        key: part.key,
        copy: part.copy,
        outcome,
        session,
    }
}

/// The session when nothing is open on it.
async fn at_rest(mut session: LoadSession, outcome: &Outcome) -> Option<LoadSession> {
    if matches!(outcome, Outcome::In { .. }) {
        // Its COMMIT was answered.
        session.rests(true);
        return Some(session);
    }
    let rolled_back = tokio::time::timeout(
        crate::session::FITTING,
        session.client().batch_execute("ROLLBACK"),
    );
    match rolled_back.await {
        Ok(Ok(())) => {
            session.rests(true);
            Some(session)
        }
        Ok(Err(_)) | Err(_) => None,
    }
}

async fn take(common: &Common, part: &mut Part, session: &LoadSession) -> Result<Outcome, Trouble> {
    let (client, status) = (session.client(), &common.status);
    session
        .watched(status, client.batch_execute(&common.held.begin()))
        .await??;
    let computed = computed(client, &part.key.table);
    let computed = session.watched(status, computed).await??;
    let keep: Vec<bool> = part
        .columns
        .iter()
        .map(|column| !computed.contains(column))
        .collect();
    let copied = if keep.contains(&true) {
        copy(status, part, session, keep).await?
    } else {
        rows_without_columns(status, part, session).await?
    };
    let taken = match copied {
        Ok(taken) => taken,
        Err(outcome) => return Ok(outcome),
    };
    let written = async {
        common.books.part(client, &part.copy, &taken).await?;
        if crashpoints::reached(crashpoints::COPY_PART_LOADED) {
            return Ok(false);
        }
        client.batch_execute("COMMIT").await.map(|()| true)
    };
    match session.watched(status, written).await? {
        Ok(false) => Err(Trouble::crash_point()),
        Ok(true) if crashpoints::reached(crashpoints::COPY_PART_COMMITTED) => {
            Err(Trouble::crash_point())
        }
        Ok(true) => Ok(Outcome::In {
            rows: taken.rows,
            bytes: taken.bytes,
        }),
        Err(error) if is_not_ours(&error) => Ok(Outcome::NotOurs),
        Err(error) => refused(&error, &part.key),
    }
}

/// The columns that the target computes by itself.
async fn computed(client: &Client, table: &CopyTable) -> Result<Vec<String>, Error> {
    let rows = client
        .query(COMPUTED, &[&table.schema, &table.name])
        .await?;
    rows.iter().map(|row| row.try_get(0)).collect()
}

/// Copies rows as they come, and compares them with what was sent.
async fn copy(
    status: &ApplierStatus,
    part: &mut Part,
    session: &LoadSession,
    keep: Vec<bool>,
) -> Result<Result<Taken, Outcome>, Trouble> {
    let client = session.client();
    let sql = copy_statement(part, &keep);
    let mut strip = keep.contains(&false).then(|| Strip::new(keep));
    let sink = match session.watched(status, client.copy_in(&sql)).await? {
        Ok(sink) => sink,
        Err(error) => return refused(&error, &part.key).map(Err),
    };
    let mut sink = pin!(sink);
    let mut came = Came::default();
    let manifest = loop {
        match part.pieces.recv().await {
            Some(Piece::Chunk(bytes)) => {
                came.chunk(&bytes);
                let bytes = match &mut strip {
                    Some(strip) => strip.piece(&bytes),
                    None => bytes,
                };
                if let Err(error) = session.watched(status, sink.send(bytes)).await? {
                    // What the server said against it comes at the end.
                    let finished = session.watched(status, sink.as_mut().finish()).await?;
                    let error = finished.err().unwrap_or(error);
                    return refused(&error, &part.key).map(Err);
                }
            }
            Some(Piece::Whole(manifest)) => break manifest,
            // Dropping the sink makes the server give the COPY up.
            None => return Ok(Err(Outcome::Dropped)),
        }
    };
    if let Some(differs) = came.differs(&manifest) {
        return Ok(Err(Outcome::Differs(differs)));
    }
    let rows = match session.watched(status, sink.as_mut().finish()).await? {
        Ok(rows) => rows,
        Err(error) => return refused(&error, &part.key).map(Err),
    };
    Ok(taken(part, &manifest, rows))
}

/// A table without a column that is copied has rows all the same, which COPY cannot write.
async fn rows_without_columns(
    status: &ApplierStatus,
    part: &mut Part,
    session: &LoadSession,
) -> Result<Result<Taken, Outcome>, Trouble> {
    let mut came = Came::default();
    let manifest = loop {
        match part.pieces.recv().await {
            Some(Piece::Chunk(bytes)) => came.chunk(&bytes),
            Some(Piece::Whole(manifest)) => break manifest,
            None => return Ok(Err(Outcome::Dropped)),
        }
    };
    if let Some(differs) = came.differs(&manifest) {
        return Ok(Err(Outcome::Differs(differs)));
    }
    let table = &part.key.table;
    let sql = format!(
        "INSERT INTO {} SELECT FROM pg_catalog.generate_series(1, $1::bigint)",
        quote::qualified(&table.schema, &table.name)
    );
    let client = session.client();
    let rows = manifest.rows.cast_signed();
    let parameters: [&(dyn tokio_postgres::types::ToSql + Sync); 1] = [&rows];
    let inserted = client.execute(&sql, &parameters);
    match session.watched(status, inserted).await? {
        Ok(rows) => Ok(taken(part, &manifest, rows)),
        Err(error) => refused(&error, &part.key).map(Err),
    }
}

/// What came of a part.
#[derive(Default)]
struct Came {
    chunks: u32,
    digest: RunningDigest,
}

impl Came {
    fn chunk(&mut self, bytes: &Bytes) {
        self.chunks += 1;
        self.digest.update(bytes);
    }

    fn differs(&self, manifest: &PartManifest) -> Option<String> {
        let came = (self.chunks, self.digest.bytes(), self.digest.current());
        if came == (manifest.chunks, manifest.bytes, manifest.digest) {
            return None;
        }
        Some(format!(
            "{} bytes in {} chunks came with digest {}, and {} in {} with digest {} were sent",
            came.1, came.0, came.2, manifest.bytes, manifest.chunks, manifest.digest
        ))
    }
}

fn taken(part: &Part, manifest: &PartManifest, rows: u64) -> Result<Taken, Outcome> {
    if rows != manifest.rows {
        let sent = manifest.rows;
        // What was sent came, byte for byte: another copy would end just so.
        let number = part.key.part;
        return Err(Outcome::Refused {
            reason: format!("part {number}: the target counts {rows} rows, and {sent} were sent"),
            hint: format!(
                "take away what adds or drops rows of {table} in the target, a trigger that is \
                 ENABLE ALWAYS or REPLICA or a rule, then run trellara table recopy {table}",
                table = part.key.table
            ),
        });
    }
    Ok(Taken {
        part: part.key.part,
        rows,
        bytes: manifest.bytes,
        digest: manifest.digest,
    })
}

fn copy_statement(part: &Part, keep: &[bool]) -> String {
    let table = &part.key.table;
    let columns = part.columns.iter().zip(keep);
    let columns: Vec<&String> = columns
        .filter_map(|(column, keep)| keep.then_some(column))
        .collect();
    format!(
        "COPY {} ({}) FROM STDIN",
        quote::qualified(&table.schema, &table.name),
        quote::identifier_list(&columns)
    )
}

/// Whether the ledger row found the copy replaced, or the lane taken.
fn is_not_ours(error: &Error) -> bool {
    let Some(error) = error.as_db_error() else {
        return false;
    };
    error.code().code() == "23502" && error.table() == Some("backfill_part")
}

/// What follows from rows, or a table, that the target did not take.
pub(super) fn refused(error: &Error, key: &PartKey) -> Result<Outcome, Trouble> {
    let refused = ApplyError::from_server(error).on(&key.table.schema, &key.table.name);
    match passes(&refused) {
        true => Err(Trouble::from(fault(error))),
        false => Ok(Outcome::Refused {
            reason: reason(error, &refused),
            hint: refused.hint.clone(),
        }),
    }
}

/// Whether it may go better by itself.
pub(super) fn passes(refused: &ApplyError) -> bool {
    match disposition::of_change(refused.kind, &refused.sqlstate) {
        Disposition::Retry
        | Disposition::RetryNamed
        | Disposition::Probe
        | Disposition::AskLedger => true,
        Disposition::HaltAndProbe
        | Disposition::Quarantine
        | Disposition::Stop
        | Disposition::Operator => false,
    }
}

/// Which table, column and constraint, and the SQLSTATE; no value.
fn reason(error: &Error, refused: &ApplyError) -> String {
    let column = error
        .as_db_error()
        .and_then(|error| error.where_())
        .and_then(column_of_context);
    let about = match (&refused.object, column) {
        (Some(object), _) if !refused.message.contains(object.as_str()) => format!(", {object}"),
        (None, Some(column)) => format!(", column {column}"),
        _ => String::new(),
    };
    format!("{refused}{about}")
}

/// The column that COPY's context names in front of the value: `COPY t, line 1, column id: "x"`.
fn column_of_context(context: &str) -> Option<&str> {
    let (before, behind) = context.split_once(", column ")?;
    if before.contains(": \"") {
        // Of a whole line: what follows is a value.
        return None;
    }
    let end = behind.find(": ")?;
    Some(&behind[..end])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_context_gives_its_column_and_no_value() {
        let context = "COPY t, line 3, column id: \"sec: ret\"";
        assert_eq!(column_of_context(context), Some("id"));
        assert_eq!(
            column_of_context("COPY t, line 3, column v: null input"),
            Some("v")
        );
        assert_eq!(column_of_context("COPY t, line 3: \"secret\""), None);
        let line = "COPY t, line 3: \"a, column secret: b\"";
        assert_eq!(column_of_context(line), None);
        assert_eq!(column_of_context(""), None);
    }
}
