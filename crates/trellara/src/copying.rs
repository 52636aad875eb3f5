//! How far the copy of what the source held before is, as target, source and daemons say it.

use std::collections::BTreeMap;
use std::time::Duration;

use serde::Serialize;
use trellara_applier::backfill::{CopyState, LOOK};
use trellara_jetstream::{Broker, topology};
use trellara_postgres::{Session, fault, insert_position};
use trellara_source::publication::TableName;
use trellara_source::slot;

use crate::command::status::{age, bytes_text};
use crate::config::Config;
use crate::exit::{Exit, Failure};
use crate::{broker, daemon_reports, link, visible};

/// Tells the applier to look at what the target remembers of copies.
pub(crate) async fn tell(config: &Config, target: &Session) -> Result<(), Failure> {
    let notify = "SELECT pg_notify($1, $2)";
    let channel = trellara_applier::channel(&config.flow);
    target.client.execute(notify, &[&channel, &LOOK]).await?;
    Ok(())
}

/// Does something in one transaction of the target, and tells the applier: whoever types a command
/// may be gone between an order, its row in the audit and the notification. After an error the
/// session goes with the command, and the transaction with it.
pub(crate) async fn at_once<T>(
    config: &Config,
    target: &Session,
    work: impl Future<Output = Result<T, Failure>>,
) -> Result<T, Failure> {
    target.client.batch_execute("BEGIN").await?;
    let done = work.await?;
    tell(config, target).await?;
    target.client.batch_execute("COMMIT").await?;
    Ok(done)
}

/// Everything known of a flow's copies at one moment.
#[derive(Debug, Clone, Default, Serialize)]
pub(crate) struct CopyFacts {
    /// The flow.
    pub(crate) id: String,
    /// `none`, `copying`, `converging`, `done`, or `failed` as soon as one table is.
    pub(crate) state: String,
    pub(crate) tables_in: usize,
    pub(crate) rows: u64,
    pub(crate) bytes: u64,
    pub(crate) estimated_rows: u64,
    pub(crate) bytes_per_second: Option<f64>,
    /// Until all rows are in, if it goes on like this.
    pub(crate) eta_seconds: Option<f64>,
    /// WAL that the source keeps for the flow meanwhile; absent when it does not answer.
    pub(crate) wal_retained_bytes: Option<u64>,
    /// What the copy's stream holds that is not in yet; absent when there is none, or the broker does
    /// not answer.
    pub(crate) stream_bytes: Option<u64>,
    /// What the daemons that can be reached say of it.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub(crate) daemons: BTreeMap<String, String>,
    pub(crate) tables: Vec<TableFacts>,
    /// Indexes and foreign keys that are not there yet.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(crate) put_off: Vec<PutOff>,
}

/// Something that was put off until the rows are in.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct PutOff {
    /// `index "x" of "public"."t"`.
    pub(crate) id: String,
    /// Why the target did not take it; an operator is needed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) reason: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) hint: Option<String>,
}

/// One table's copy.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct TableFacts {
    /// `schema.table`, quoted where it has to be.
    pub(crate) id: String,
    #[serde(skip)]
    pub(crate) name: TableName,
    pub(crate) state: String,
    pub(crate) generation: i32,
    /// Whether the target stands still until it is in.
    pub(crate) initial: bool,
    pub(crate) rows: u64,
    pub(crate) bytes: u64,
    /// The source's guess; 0 where it has none, as before the first ANALYZE.
    pub(crate) estimated_rows: u64,
    /// What the table takes on the source's disk; 0 before its copy begins.
    pub(crate) estimated_bytes: u64,
    pub(crate) parts_in: u64,
    /// Of all, once they are known.
    pub(crate) parts: Option<u64>,
    /// Since it began, or how long it took.
    pub(crate) seconds: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) reason: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) hint: Option<String>,
}

const READ: &str = "\
SELECT b.schema_name, b.table_name, b.state, b.generation, b.initial, b.rows, b.bytes, \
       greatest(b.estimated_rows, 0), b.parts, \
       (SELECT count(*) FROM trellara.backfill_part AS p WHERE p.flow = b.flow \
           AND p.schema_name = b.schema_name AND p.table_name = b.table_name), \
       extract(epoch FROM coalesce(b.loaded_at, clock_timestamp()) - b.started_at)::float8, \
       b.reason, b.hint, greatest(b.estimated_bytes, 0) \
  FROM trellara.backfill AS b WHERE b.flow = $1 ORDER BY b.schema_name, b.table_name";

const PUT_OFF: &str = "\
SELECT kind, relation_schema, relation_name, name, reason, hint \
  FROM trellara.backfill_definition WHERE flow = $1 AND restored_at IS NULL \
 ORDER BY reason IS NULL, kind IN ('foreign key', 'validation'), schema_name, table_name, position, \
          relation_schema, relation_name, name";

/// What was put off and is not there yet, what was refused first.
async fn put_off(config: &Config, target: &Session) -> Result<Vec<PutOff>, Failure> {
    let rows = target
        .client
        .query(PUT_OFF, &[&config.flow.as_str()])
        .await?;
    let one = |row: &tokio_postgres::Row| {
        let (kind, name): (&str, &str) = (row.get(0), row.get(3));
        let table = visible::table(row.get(1), row.get(2));
        PutOff {
            id: format!("{kind} {} of {table}", visible::inline(name)),
            reason: row.get(4),
            hint: row.get(5),
        }
    };
    Ok(rows.iter().map(one).collect())
}

impl TableFacts {
    /// Whether nothing is waited for any more.
    pub(crate) fn is_over(&self) -> bool {
        self.is(CopyState::Done) || self.is(CopyState::Kept) || self.is(CopyState::Removed)
    }

    pub(crate) fn is(&self, state: CopyState) -> bool {
        self.state == state.as_str()
    }

    /// Whether nothing says how much is to come.
    fn is_unknown(&self) -> bool {
        let expected = self.estimated_rows > 0 || self.estimated_bytes > 0;
        !self.is_in() && !self.is(CopyState::Failed) && !expected
    }

    fn is_in(&self) -> bool {
        self.is_over() || self.is(CopyState::Loaded)
    }
}

/// The rows of `trellara.backfill`.
pub(crate) async fn tables(config: &Config, target: &Session) -> Result<Vec<TableFacts>, Failure> {
    let rows = target
        .client
        .query(READ, &[&config.flow.as_str()])
        .await
        .map_err(|error| match fault(&error).sqlstate.as_str() {
            "42P01" | "3F000" => link::not_set_up(config),
            _ => error.into(),
        })?;
    let number = |row: &tokio_postgres::Row, at: usize| row.get::<_, i64>(at).cast_unsigned();
    let facts = rows.iter().map(|row| TableFacts {
        id: visible::table(row.get(0), row.get(1)),
        name: TableName {
            schema: row.get(0),
            name: row.get(1),
        },
        state: row.get(2),
        generation: row.get(3),
        initial: row.get(4),
        rows: number(row, 5),
        bytes: number(row, 6),
        estimated_rows: number(row, 7),
        parts: row
            .get::<_, Option<i32>>(8)
            .map(|parts| u64::from(parts.cast_unsigned())),
        parts_in: number(row, 9),
        seconds: row.get(10),
        reason: row.get(11),
        hint: row.get(12),
        estimated_bytes: number(row, 13),
    });
    Ok(facts.collect())
}

/// A broker that does not answer at once only leaves out what it knows.
const BROKER_PATIENCE: Duration = Duration::from_secs(2);

/// The broker, where it can be reached.
pub(crate) async fn broker(config: &Config) -> Option<Broker> {
    let connecting = broker::connect(config, broker::Role::Status);
    tokio::time::timeout(BROKER_PATIENCE, connecting)
        .await
        .ok()?
        .ok()
}

/// Looks at everything; source, broker and daemons may be silent.
pub(crate) async fn take(
    config: &Config,
    target: &Session,
    broker: Option<&Broker>,
) -> Result<CopyFacts, Failure> {
    let mut facts = summed(config.flow.as_str(), tables(config, target).await?);
    facts.put_off = put_off(config, target).await?;
    if let Ok(source) = link::source(config).await {
        facts.wal_retained_bytes = retained(config, &source).await;
    }
    if let Some(broker) = broker {
        let stream = topology::facts(broker, &config.flow.copy_stream()).await;
        facts.stream_bytes = stream.ok().map(|stream| stream.bytes);
    }
    for daemon in daemon_reports::reachable(config).await {
        let about = |(name, value): (&String, &String)| {
            let copy = name.starts_with("copy") || name.starts_with("backfill");
            copy.then(|| (format!("{} {name}", daemon.role), value.clone()))
        };
        facts
            .daemons
            .extend(daemon.details.iter().filter_map(about));
    }
    Ok(facts)
}

/// What is said of the copies to somebody who waits for everything to be in the target.
pub(crate) enum Standing {
    /// All are in.
    In,
    /// This one is not, and may be soon.
    Coming(String),
    /// One needs an operator.
    Stuck(Failure),
}

/// Whether what was copied is in; an older target has no copies.
pub(crate) async fn standing(config: &Config, target: &Session) -> Result<Standing, Failure> {
    let there = "SELECT to_regclass('trellara.backfill') IS NOT NULL";
    if !target.client.query_one(there, &[]).await?.get::<_, bool>(0) {
        return Ok(Standing::In);
    }
    let facts = summed(config.flow.as_str(), tables(config, target).await?);
    if let Some(failure) = facts.failed() {
        return Ok(Standing::Stuck(failure));
    }
    let missing = facts.tables.iter().find(|table| !table.is_in());
    Ok(missing.map_or(Standing::In, |table| {
        let (id, state) = (&table.id, &table.state);
        Standing::Coming(format!("the copy of {id} is not in ({state})"))
    }))
}

/// WAL that the source keeps for the flow's slot.
async fn retained(config: &Config, source: &Session) -> Option<u64> {
    let slot = slot::read(source, &config.source.slot).await.ok()??;
    let head = insert_position(source).await.ok()?;
    slot.restart_lsn.map(|lsn| head.bytes_since(lsn))
}

/// What the tables come to together.
fn summed(flow: &str, tables: Vec<TableFacts>) -> CopyFacts {
    let copied = tables
        .iter()
        .filter(|table| !table.is(CopyState::Removed) && !table.is(CopyState::Kept));
    let any = |state: CopyState| tables.iter().any(|table| table.is(state));
    let state = match () {
        () if any(CopyState::Failed) => "failed",
        () if tables.iter().any(|table| !table.is_in()) => "copying",
        () if any(CopyState::Loaded) => "converging",
        () if copied.clone().next().is_some() => "done",
        () => "none",
    };
    let rows = copied.clone().map(|table| table.rows).sum();
    let bytes = copied.clone().map(|table| table.bytes).sum();
    let estimated_rows = copied.clone().map(expected_rows).sum();
    let mut facts = CopyFacts {
        id: flow.to_owned(),
        state: state.to_owned(),
        tables_in: tables.iter().filter(|table| table.is_in()).count(),
        rows,
        bytes,
        estimated_rows,
        ..CopyFacts::default()
    };
    let running = copied.filter(|table| table.is(CopyState::Copying));
    let rates = running.filter_map(|table| {
        let seconds = table.seconds.filter(|seconds| *seconds >= 1.0)?;
        Some((table.bytes as f64 / seconds, table.rows as f64 / seconds))
    });
    let (bytes_rate, rows_rate) = rates.fold((0.0, 0.0), |sum, one| (sum.0 + one.0, sum.1 + one.1));
    if bytes_rate > 0.0 {
        facts.bytes_per_second = Some(bytes_rate);
        let left = estimated_rows.saturating_sub(rows) as f64;
        let known = tables.iter().all(|table| !table.is_unknown());
        facts.eta_seconds = (rows_rate > 0.0 && known).then(|| left / rows_rate);
    }
    facts.tables = tables;
    facts
}

/// The source's guess, until there are more, or all of them are known. A source that was never
/// analyzed has none: then it is as many as would fill the table at the size of those that came.
fn expected_rows(table: &TableFacts) -> u64 {
    let TableFacts { rows, bytes, .. } = *table;
    let size = table.estimated_bytes;
    match table.estimated_rows {
        _ if table.is_in() => rows,
        0 if bytes > 0 && size > bytes => (rows as f64 * (size as f64 / bytes as f64)) as u64,
        estimated => estimated.max(rows),
    }
}

impl CopyFacts {
    /// The first index that an operator is needed for, as the end of a command.
    pub(crate) fn refused(&self) -> Option<Failure> {
        let refused = self.put_off.iter().find(|one| one.reason.is_some())?;
        let reason = refused.reason.as_deref().unwrap_or_default();
        let hint = refused.hint.as_deref().unwrap_or_default();
        Some(Failure::new(
            Exit::Unfit,
            format!(
                "{} cannot be made again: {}",
                refused.id,
                visible::inline(reason)
            ),
            visible::inline(hint),
        ))
    }

    /// The first table that an operator is needed for, as the end of a command.
    pub(crate) fn failed(&self) -> Option<Failure> {
        let table = self
            .tables
            .iter()
            .find(|table| table.is(CopyState::Failed))?;
        let reason = table.reason.as_deref().unwrap_or("it does not say why");
        let again = format!("then `trellara table recopy {}`", table.id);
        let failure = Failure::new(
            Exit::Unfit,
            format!(
                "the copy of {} failed: {}",
                table.id,
                visible::inline(reason)
            ),
            visible::inline(table.hint.as_deref().unwrap_or_default()),
        );
        Some(failure.hint(again))
    }

    /// For people.
    pub(crate) fn text(&self) -> String {
        let mut lines = vec![format!("copy of flow {}: {}", self.id, self.state)];
        if self.tables.is_empty() {
            lines.push("  nothing is copied, and nothing was".to_owned());
            return lines.join("\n");
        }
        lines.push(format!(
            "  {} of {} table(s) in; {} of about {} rows, {}",
            self.tables_in,
            self.tables.len(),
            self.rows,
            self.estimated_rows.max(self.rows),
            bytes_text(self.bytes)
        ));
        if let Some(rate) = self.bytes_per_second {
            let eta = self.eta_seconds.map_or(String::new(), |seconds| {
                format!("; about {} to go", age(seconds))
            });
            lines.push(format!("  {} a second{eta}", bytes_text(rate as u64)));
        }
        if let Some(bytes) = self.wal_retained_bytes {
            lines.push(format!("  the slot keeps {} of WAL", bytes_text(bytes)));
        }
        if let Some(bytes) = self.stream_bytes {
            lines.push(format!("  the copy's stream holds {}", bytes_text(bytes)));
        }
        for (what, value) in &self.daemons {
            lines.push(format!(
                "  {}: {}",
                what.replace('_', " "),
                visible::inline(value)
            ));
        }
        for one in &self.put_off {
            let state = match one.reason.as_deref() {
                Some(reason) => format!("refused: {}", visible::inline(reason)),
                None => "made again when the rows are in".to_owned(),
            };
            lines.push(format!("  put off: {}, {state}", one.id));
            let hint = one.hint.as_deref();
            lines.extend(hint.map(|hint| format!("    hint: {}", visible::inline(hint))));
        }
        for table in &self.tables {
            lines.push(table.line());
            let reason = table.reason.as_deref();
            lines.extend(reason.map(|reason| format!("    {}", visible::inline(reason))));
            if table.is(CopyState::Failed) {
                let hint = table.hint.as_deref();
                lines.extend(hint.map(|hint| format!("    hint: {}", visible::inline(hint))));
            }
        }
        lines.join("\n")
    }
}

impl TableFacts {
    fn line(&self) -> String {
        let parts = match (self.parts, self.parts_in) {
            (Some(all), done) => format!(", {done} of {all} part(s)"),
            (None, 0) => String::new(),
            (None, done) => format!(", {done} part(s)"),
        };
        let anew = match self.generation {
            1 => String::new(),
            generation => format!(", copy number {generation}"),
        };
        format!(
            "  {:<9} {}: {} rows, {}{parts}{anew}",
            self.state,
            self.id,
            self.rows,
            bytes_text(self.bytes)
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn table(state: CopyState, rows: u64, seconds: f64) -> TableFacts {
        TableFacts {
            id: "public.t".to_owned(),
            name: TableName {
                schema: "public".to_owned(),
                name: "t".to_owned(),
            },
            state: state.as_str().to_owned(),
            generation: 1,
            initial: true,
            rows,
            bytes: rows * 10,
            estimated_rows: 100,
            estimated_bytes: 2000,
            parts_in: 1,
            parts: None,
            seconds: Some(seconds),
            reason: None,
            hint: None,
        }
    }

    #[test]
    fn the_least_that_can_be_said_of_all_tables_is_said() {
        use CopyState::{Announced, Copying, Done, Failed, Kept, Loaded, Removed, Wanted};
        for (states, expected) in [
            (&[][..], "none"),
            (&[Kept, Removed], "none"),
            (&[Done, Kept], "done"),
            (&[Done, Loaded], "converging"),
            (&[Done, Wanted], "copying"),
            (&[Loaded, Announced], "copying"),
            (&[Copying, Failed], "failed"),
        ] {
            let tables = states.iter().map(|state| table(*state, 0, 1.0)).collect();
            assert_eq!(summed("f", tables).state, expected, "{states:?}");
        }
    }

    #[test]
    fn what_is_to_go_is_guessed_from_what_has_come() {
        let tables = vec![
            table(CopyState::Copying, 50, 5.0),
            table(CopyState::Done, 300, 1.0),
        ];
        let facts = summed("f", tables);
        assert_eq!((facts.rows, facts.estimated_rows), (350, 400));
        assert_eq!(facts.bytes_per_second, Some(100.0));
        assert_eq!(facts.eta_seconds, Some(5.0));
        // A source that has no guess: twice as many bytes are on its disk as came.
        let mut unguessed = table(CopyState::Copying, 100, 5.0);
        unguessed.estimated_rows = 0;
        let mut unbegun = table(CopyState::Wanted, 0, 0.0);
        (unbegun.estimated_rows, unbegun.estimated_bytes) = (0, 0);
        let facts = summed("f", vec![unguessed.clone()]);
        assert_eq!((facts.rows, facts.estimated_rows), (100, 200));
        assert_eq!(facts.eta_seconds, Some(5.0));
        let facts = summed("f", vec![unguessed, unbegun]);
        assert_eq!(facts.eta_seconds, None, "of one nothing is known");
        let waiting = summed("f", vec![table(CopyState::Wanted, 0, 0.0)]);
        assert_eq!(
            (waiting.bytes_per_second, waiting.eta_seconds),
            (None, None)
        );
    }
}
