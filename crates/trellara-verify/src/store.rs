//! What is kept of a run in the target: `trellara.verify_run`, and how far each table is in
//! `trellara.verify_table`. A run whose session here has ended can be gone on with.

use tokio::sync::{Mutex, MutexGuard};
use tokio_postgres::Row;
use tokio_postgres::types::ToSql;
use trellara_envelope::{FlowName, Lsn};
use trellara_postgres::{ConnectOptions, Session, fault};

use crate::error::{Side, VerifyError};
use crate::report::{Outcome, TableName, TableReport, Verdict};

/// Finished runs of a flow that are kept.
const KEPT: i64 = 100;

/// Whoever holds it is at the run.
const LOCK: &str = "SELECT pg_try_advisory_lock(hashtextextended('trellara verify ' || $1, 0))";

/// A run's record. Whoever holds it holds a lock by the run's name until its session ends.
pub struct Store {
    connect: ConnectOptions,
    session: Mutex<Session>,
    flow: FlowName,
    run: String,
}

/// A run that begins.
#[derive(Debug, Clone)]
pub struct NewRun<'a> {
    /// Its name.
    pub run: &'a str,
    /// `exact`, `rolling`, `watch` or `quick`.
    pub mode: &'a str,
    /// What rows are digested by: `row64` or `blake3`.
    pub lane: &'a str,
    /// Of the digests.
    pub seed: i64,
    /// What it was asked for, and what a run that goes on with it must be asked for too.
    pub options: &'a str,
    /// The program's version.
    pub version: &'a str,
}

/// A run that ended before it was through.
#[derive(Debug, Clone)]
pub struct OldRun {
    /// Its mode.
    pub mode: String,
    /// Seed of its digests.
    pub seed: i64,
    /// What it was asked for.
    pub options: String,
    /// What it was about: the publication and both databases, if it came so far.
    pub definition: Option<String>,
    /// The tables it had begun with.
    pub tables: Vec<TableState>,
}

/// How far a table is.
#[derive(Debug, Clone, Default)]
pub struct TableState {
    /// Which.
    pub table: Option<TableName>,
    /// What it was by definition, on both sides, as a digest; empty: as it was written down before.
    pub fingerprint: String,
    /// Where the next range begins; none: at the beginning, or behind the end.
    pub next_from: Option<Vec<String>>,
    /// Whether all of it was looked at.
    pub done: bool,
    /// Pieces compared.
    pub pieces: u32,
    /// Rows compared on the source and on the target.
    pub rows: [u64; 2],
    /// Sums of their digests.
    pub sums: [String; 2],
    /// Rows that differ: missing, extra, changed, duplicate.
    pub differing: [u64; 4],
    /// Its outcome, when it is over.
    pub outcome: Option<String>,
    /// The oldest position that a piece was compared at.
    pub verified_through: Option<Lsn>,
}

impl Store {
    async fn connect(
        target: &ConnectOptions,
        flow: &FlowName,
        run: &str,
    ) -> Result<Self, VerifyError> {
        const EXISTS: &str = "SELECT to_regclass('trellara.verify_run') IS NOT NULL";
        let connect = target
            .clone()
            .with_application_name(&format!("trellara-verify/{run}"));
        let session = Session::connect(&connect).await;
        let session = session.map_err(|error| VerifyError::connect(Side::Target, &error))?;
        let store = Self {
            connect,
            session: Mutex::new(session),
            flow: flow.clone(),
            run: run.to_owned(),
        };
        if !store.one(EXISTS, &[]).await?.get::<_, bool>(0) {
            return Err(unusable(
                "the target keeps no runs".into(),
                "its schema \"trellara\" was made by an older build, or not at all: trellara setup \
                 --print-sql has the statements, each of which makes only what is not there",
            ));
        }
        if !store.one(LOCK, &[&run]).await?.get::<_, bool>(0) {
            return Err(unusable(
                format!("run {run} is still going on"),
                "wait for it, or end it",
            ));
        }
        Ok(store)
    }

    /// Writes down that the run begins.
    ///
    /// # Errors
    /// The target keeps no runs, or cannot be reached. It takes nothing from a verdict.
    pub async fn begin(
        target: &ConnectOptions,
        flow: &FlowName,
        new: &NewRun<'_>,
    ) -> Result<Self, VerifyError> {
        const INSERT: &str = "\
            INSERT INTO trellara.verify_run \
                   (run, flow, mode, lane, seed, options, operator, version) \
            VALUES ($1, $2, $3, $4, $5, $6, \
                    session_user || coalesce('@' || host(inet_client_addr()), ''), $7)";
        // Whoever is at a run holds a lock by its name.
        const KILLED: &str = "\
            UPDATE trellara.verify_run AS r \
               SET state = 'failed', reason = 'its session ended', \
                   finished_at = clock_timestamp(), changed_at = clock_timestamp() \
             WHERE flow = $1 AND state = 'running' AND NOT EXISTS ( \
                   SELECT FROM pg_locks AS l JOIN pg_database AS d ON d.oid = l.database \
                    WHERE d.datname = current_database() AND l.locktype = 'advisory' \
                      AND l.objsubid = 1 AND (l.classid::bigint << 32 | l.objid::bigint) \
                        = hashtextextended('trellara verify ' || r.run, 0))";
        let store = Self::connect(target, flow, new.run).await?;
        let flow = flow.as_str();
        store.execute(KILLED, &[&flow]).await?;
        store
            .execute(
                INSERT,
                &[
                    &new.run,
                    &flow,
                    &new.mode,
                    &new.lane,
                    &new.seed,
                    &new.options,
                    &new.version,
                ],
            )
            .await?;
        Ok(store)
    }

    /// Takes over a run that ended before it was through.
    ///
    /// # Errors
    /// There is no such run of this flow, it is finished, or somebody is at it.
    pub async fn resume(
        target: &ConnectOptions,
        flow: &FlowName,
        run: &str,
    ) -> Result<(Self, OldRun), VerifyError> {
        const RUN: &str = "\
            UPDATE trellara.verify_run \
               SET state = 'running', finished_at = NULL, reason = NULL, changed_at = clock_timestamp() \
             WHERE run = $1 AND flow = $2 AND state <> 'finished' \
            RETURNING mode, seed, options, definition";
        const TABLES: &str = "\
            SELECT schema_name, table_name, next_from, done, pieces, source_rows, target_rows, \
                   source_sum, target_sum, missing, extra, changed, duplicate, outcome, \
                   verified_through::text, coalesce(fingerprint, '') \
              FROM trellara.verify_table WHERE run = $1 ORDER BY 1, 2";
        let store = Self::connect(target, flow, run).await?;
        let session = store.session().await?;
        let client = &session.client;
        let row = client.query_opt(RUN, &[&run, &flow.as_str()]).await;
        let row = row.map_err(failed)?.ok_or_else(|| {
            unusable(
                format!("flow {flow} has no run {run} that could be gone on with"),
                "trellara.verify_run in the target lists them; one that is finished is over",
            )
        })?;
        let tables = client.query(TABLES, &[&run]).await.map_err(failed)?;
        let old = OldRun {
            mode: row.get(0),
            seed: row.get(1),
            options: row.get(2),
            definition: row.get(3),
            tables: tables.iter().map(state).collect(),
        };
        drop(session);
        Ok((store, old))
    }

    /// Writes down what the run is about: a watch is about another publication after a while.
    ///
    /// # Errors
    /// The target refused, or was lost.
    pub async fn define(&self, definition: &str) -> Result<(), VerifyError> {
        // Somebody may have taken a watch whose session was lost for dead.
        const UPDATE: &str = "\
            UPDATE trellara.verify_run \
               SET definition = $2, state = 'running', reason = NULL, finished_at = NULL, \
                   changed_at = clock_timestamp() \
             WHERE run = $1";
        self.execute(UPDATE, &[&self.run, &definition]).await
    }

    /// Writes down how far a table is. One that was looked at as a whole before stays verified
    /// through what it was then, until it is so again.
    ///
    /// # Errors
    /// The target refused, or was lost.
    pub async fn table(&self, table: &TableName, state: &TableState) -> Result<(), VerifyError> {
        const UPSERT: &str = "\
            INSERT INTO trellara.verify_table \
                   (run, schema_name, table_name, next_from, done, pieces, source_rows, \
                    target_rows, source_sum, target_sum, missing, extra, changed, duplicate, \
                    outcome, verified_through, verified_at, fingerprint) \
            VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, \
                    $16::text::pg_lsn, CASE WHEN $5 THEN clock_timestamp() END, $17) \
            ON CONFLICT (run, schema_name, table_name) DO UPDATE \
               SET next_from = excluded.next_from, done = excluded.done, \
                   pieces = excluded.pieces, source_rows = excluded.source_rows, \
                   target_rows = excluded.target_rows, source_sum = excluded.source_sum, \
                   target_sum = excluded.target_sum, missing = excluded.missing, \
                   extra = excluded.extra, changed = excluded.changed, \
                   duplicate = excluded.duplicate, \
                   fingerprint = coalesce(nullif(excluded.fingerprint, ''), \
                                          verify_table.fingerprint), \
                   outcome = coalesce(excluded.outcome, verify_table.outcome), \
                   verified_through = CASE \
                       WHEN excluded.done OR verify_table.verified_at IS NULL \
                       THEN excluded.verified_through ELSE verify_table.verified_through END, \
                   verified_at = coalesce(excluded.verified_at, verify_table.verified_at)";
        let [missing, extra, changed, duplicate] = state.differing.map(u64::cast_signed);
        let pieces = i64::from(state.pieces);
        let [source_rows, target_rows] = state.rows.map(u64::cast_signed);
        let [source_sum, target_sum] = &state.sums;
        let through = state.verified_through.map(|lsn| lsn.to_string());
        self.execute(
            UPSERT,
            &[
                &self.run,
                &table.schema,
                &table.name,
                &state.next_from,
                &state.done,
                &pieces,
                &source_rows,
                &target_rows,
                source_sum,
                target_sum,
                &missing,
                &extra,
                &changed,
                &duplicate,
                &state.outcome,
                &through,
                &state.fingerprint,
            ],
        )
        .await
    }

    /// Writes the result down, `json` being the document that is printed, without values of rows.
    /// Takes the oldest runs of the flow away.
    ///
    /// # Errors
    /// The target refused, or was lost.
    pub async fn finish(
        &self,
        verdict: Verdict,
        (point, tables): (Lsn, &[TableReport]),
        json: &str,
    ) -> Result<(), VerifyError> {
        const UPDATE: &str = "\
            UPDATE trellara.verify_run \
               SET state = 'finished', reason = NULL, verdict = $2, consistent_point = $3::text::pg_lsn, \
                   report = $4::text::jsonb, finished_at = clock_timestamp(), \
                   changed_at = clock_timestamp() \
             WHERE run = $1";
        const DELETE: &str = "\
            DELETE FROM trellara.verify_run WHERE flow = $1 AND state <> 'running' AND run NOT IN \
               (SELECT run FROM trellara.verify_run WHERE flow = $1 \
                 ORDER BY started_at DESC LIMIT $2)";
        for report in tables {
            self.table(&report.table, &TableState::of(report)).await?;
        }
        // jsonb knows no NUL, and a name or key in the document can hold one only as this escape.
        let json = json.replace("\\u0000", "\\ufffd");
        let point = point.to_string();
        self.execute(UPDATE, &[&self.run, &verdict.word(), &point, &json])
            .await?;
        self.execute(DELETE, &[&self.flow.as_str(), &KEPT]).await
    }

    /// Writes down that there is no result, and why.
    ///
    /// # Errors
    /// The target refused, or was lost.
    pub async fn fail(&self, reason: &str) -> Result<(), VerifyError> {
        const UPDATE: &str = "\
            UPDATE trellara.verify_run \
               SET state = 'failed', reason = $2, finished_at = clock_timestamp(), \
                   changed_at = clock_timestamp() \
             WHERE run = $1";
        self.execute(UPDATE, &[&self.run, &reason]).await
    }

    /// The session; another one where it was lost, because a watch outlives its servers.
    async fn session(&self) -> Result<MutexGuard<'_, Session>, VerifyError> {
        let mut session = self.session.lock().await;
        if session.is_closed() {
            let again = Session::connect(&self.connect).await;
            *session = again.map_err(|error| VerifyError::connect(Side::Target, &error))?;
            // The old one may still hold it for a moment; then nobody else has it either.
            let lock = session.client.query_one(LOCK, &[&self.run]).await;
            lock.map_err(failed)?;
        }
        Ok(session)
    }

    async fn one(&self, sql: &str, with: &[&(dyn ToSql + Sync)]) -> Result<Row, VerifyError> {
        let row = self.session().await?.client.query_one(sql, with).await;
        row.map_err(failed)
    }

    async fn execute(&self, sql: &str, with: &[&(dyn ToSql + Sync)]) -> Result<(), VerifyError> {
        let done = self.session().await?.client.execute(sql, with).await;
        done.map(drop).map_err(failed)
    }
}

impl TableState {
    /// Of a table that was looked at.
    pub fn of(report: &TableReport) -> Self {
        Self {
            table: Some(report.table.clone()),
            fingerprint: String::new(),
            next_from: None,
            done: report.coverage.is_whole()
                && !matches!(report.outcome, Outcome::NotComparable { .. }),
            pieces: report.coverage.compared,
            rows: [report.rows_compared, report.target_rows],
            sums: [report.source_sum.clone(), report.target_sum.clone()],
            differing: [
                report.missing,
                report.extra,
                report.changed,
                report.duplicate,
            ],
            outcome: Some(report.outcome.word().to_owned()),
            verified_through: report.verified_through,
        }
    }
}

fn state(row: &Row) -> TableState {
    let count = |at: usize| row.get::<_, i64>(at).cast_unsigned();
    TableState {
        table: Some(TableName {
            schema: row.get(0),
            name: row.get(1),
        }),
        next_from: row.get(2),
        done: row.get(3),
        pieces: u32::try_from(row.get::<_, i64>(4)).unwrap_or(u32::MAX),
        rows: [count(5), count(6)],
        sums: [row.get(7), row.get(8)],
        differing: [count(9), count(10), count(11), count(12)],
        outcome: row.get(13),
        verified_through: row
            .get::<_, Option<&str>>(14)
            .and_then(|text| text.parse().ok()),
        fingerprint: row.get(15),
    }
}

fn failed(error: tokio_postgres::Error) -> VerifyError {
    let fault = fault(&error);
    let reason = format!("the run cannot be written down in the target: {fault}");
    let hint = match fault.sqlstate.as_str() {
        "42501" => "grant the role of target.url what config/postgres/target.sql gives it",
        "42P01" | "42703" => "the target's schema \"trellara\" was made by another build",
        _ => "",
    };
    unusable(reason, hint)
}

fn unusable(reason: String, hint: &str) -> VerifyError {
    VerifyError::unusable(Side::Target, reason, hint)
}
