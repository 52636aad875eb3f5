//! Looking into a held transaction: its changes, the statement that would run, both definitions of
//! its tables.

use std::collections::BTreeMap;
use std::sync::Arc;

use tokio_postgres::Client;
use tokio_util::sync::CancellationToken;
use trellara_envelope::Oid;
use trellara_jetstream::Broker;
use trellara_jetstream::read::Reader;
use trellara_pgoutput::{ChangeReader, Message, OldTuple, Relation, RelationMap, TupleRef, Value};

use super::desk::DeskError;
use super::frames::Head;
use super::{Held, HeldStorage};
use crate::apply::Source;
use crate::options::{ApplierOptions, RoleReplica};
use crate::plan::{Change, Move, Planner};
use crate::status::ApplierStatus;
use crate::target::{Catalog, source_type_name};
use crate::trouble::Trouble;

/// A column of a change.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Field {
    /// The source's name of it.
    pub column: String,
    /// Its value.
    pub value: FieldValue,
}

/// What a change says of a column.
#[derive(Clone, PartialEq, Eq)]
pub enum FieldValue {
    /// NULL.
    Null,
    /// A large value that was not touched and not sent.
    Unchanged,
    /// Its text, as the source printed it.
    Text(String),
}

/// Values of rows reach nobody's log.
impl std::fmt::Debug for FieldValue {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            FieldValue::Null => f.write_str("Null"),
            FieldValue::Unchanged => f.write_str("Unchanged"),
            FieldValue::Text(text) => write!(f, "Text({} bytes)", text.len()),
        }
    }
}

/// One surviving change.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Shown {
    /// Its place among the transaction's surviving changes, from 1.
    pub number: u64,
    /// `insert`, `update`, `delete` or `truncate`.
    pub verb: &'static str,
    /// Schema and name of the table on the source; several only of a TRUNCATE.
    pub tables: Vec<(String, String)>,
    /// What was sent of the old row: the key, or all of it.
    pub old: Vec<Field>,
    /// The new row.
    pub new: Vec<Field>,
}

/// A statement that would run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WouldRun {
    /// With `$1` and so on for its values.
    pub sql: String,
    /// Its values as text; `None` for NULL.
    pub values: Vec<Option<Redacted>>,
}

/// A value that its `Debug` does not show.
#[derive(Clone, PartialEq, Eq)]
pub struct Redacted(pub String);

impl std::fmt::Debug for Redacted {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "({} bytes)", self.0.len())
    }
}

/// One table as source and target have it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Definitions {
    /// Schema on the source.
    pub schema: String,
    /// Name on the source.
    pub table: String,
    /// As the transaction describes it.
    pub source: Vec<(String, String)>,
    /// As the target's catalogue has it now, name and type; `None` when there is no such table.
    pub target: Option<Vec<(String, String)>>,
}

impl Definitions {
    /// Whether names and types are not the same ones, in whatever order.
    pub fn differ(&self) -> bool {
        let sorted = |columns: &[(String, String)]| {
            let mut columns = columns.to_vec();
            columns.sort();
            columns
        };
        self.target
            .as_ref()
            .is_none_or(|target| sorted(target) != sorted(&self.source))
    }
}

/// What was found beside the changes.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Found {
    /// For the change that failed the last time, if it is known and its table fits.
    pub statement: Option<WouldRun>,
    /// Why there is no statement although the change is known.
    pub no_statement: Option<String>,
    /// Of every table that the transaction changes, as it describes them last.
    pub definitions: Vec<Definitions>,
}

/// Reads a held transaction from its first change to its last, on a session of its own: the
/// session's search path is set to what the applier's is.
///
/// # Errors
/// When its bytes are damaged, or not to be had without a broker; when a server does not answer.
pub async fn read(
    client: &Client,
    held: &Held,
    (options, broker): (&ApplierOptions, Option<&Broker>),
    each: &mut dyn FnMut(Shown),
) -> Result<Found, DeskError> {
    let (status, cancel) = (ApplierStatus::default(), CancellationToken::new());
    let reader = broker.map(|broker| Reader::new(broker, &options.flow.stream()));
    let source = broker.zip(reader.as_ref()).map(|(broker, reader)| Source {
        broker,
        reader,
        options,
        cancel: &cancel,
        status: &status,
    });
    let source = source
        .as_ref()
        .filter(|_| held.storage == HeldStorage::Stream);
    client
        .batch_execute("SET search_path = pg_catalog")
        .await
        .map_err(Trouble::from)?;
    let head = Head::read(client, held, source).await?;
    let mut viewing = Viewing {
        client,
        held,
        catalog: Catalog::new(),
        replica: options.role_replica != RoleReplica::Off,
        tables: BTreeMap::new(),
        found: Found::default(),
    };
    let mut pieces = head.bytes(client, source).await?;
    let mut records = ChangeReader::new(head.streamed(), head.aborted());
    while let Some(piece) = pieces.next().await? {
        records.feed(piece);
        loop {
            let next = records.next_change();
            let next = next.map_err(|error| Trouble::from(head.unreadable(&error)))?;
            let Some(change) = next else { break };
            if let Some(number) = change.total_order {
                viewing
                    .change(number, &change.message, change.relations, each)
                    .await?;
            }
        }
    }
    pieces.finish().map_err(Trouble::from)?;
    viewing.compare().await?;
    Ok(viewing.found)
}

struct Viewing<'a> {
    client: &'a Client,
    held: &'a Held,
    catalog: Catalog,
    replica: bool,
    /// As described last, with the source's types by name.
    tables: BTreeMap<Oid, (Arc<Relation>, Vec<Typed>)>,
    found: Found,
}

/// A column's name and its type.
type Typed = (String, TypeOf);

/// A type of the source.
#[derive(Debug, Clone)]
enum TypeOf {
    /// Built in: the target prints it as its own.
    BuiltIn(u32, i32),
    /// By its name.
    Named(String),
}

impl Viewing<'_> {
    async fn change(
        &mut self,
        number: u64,
        message: &Message<'_>,
        relations: &RelationMap,
        each: &mut dyn FnMut(Shown),
    ) -> Result<(), Trouble> {
        let Some((verb, oids, old, new)) = parts(message) else {
            return Ok(());
        };
        let mut tables = Vec::with_capacity(oids.len());
        for oid in &oids {
            if let Some(relation) = relations.get(*oid) {
                self.see(*oid, relation, relations);
                tables.push((relation.namespace.clone(), relation.name.clone()));
            }
        }
        let relation = oids.first().and_then(|oid| relations.get(*oid));
        let fields = |tuple: Option<TupleRef<'_>>, key_only: bool| {
            relation.map_or(Vec::new(), |relation| fields(relation, tuple, key_only))
        };
        let key_only = !matches!(old, Some(OldTuple::Full(_)));
        each(Shown {
            number,
            verb,
            tables,
            old: fields(old.map(|old| old.tuple()), key_only),
            new: fields(new, false),
        });
        if number == self.held.cause.change
            && let Some(change) = as_change(message)
            && let Some(relation) = relation
        {
            self.statement(relation, relations, &change).await?;
        }
        Ok(())
    }

    fn see(&mut self, oid: Oid, relation: &Arc<Relation>, relations: &RelationMap) {
        if let Some((known, _)) = self.tables.get(&oid)
            && Arc::ptr_eq(known, relation)
        {
            return;
        }
        let columns = relation.columns.iter().map(|column| {
            let of = match relations.type_name(column.type_oid) {
                Some(_) => TypeOf::Named(source_type_name(column, relations)),
                None => TypeOf::BuiltIn(column.type_oid.0, column.type_modifier),
            };
            (column.name.clone(), of)
        });
        let columns = columns.collect();
        self.tables.insert(oid, (Arc::clone(relation), columns));
    }

    async fn statement(
        &mut self,
        relation: &Arc<Relation>,
        relations: &RelationMap,
        change: &Change<'_>,
    ) -> Result<(), Trouble> {
        let mapping = self.catalog.mapping(self.client, relation, relations).await;
        let planned = mapping.and_then(|mapping| {
            let mut planner = Planner::new(self.replica, false);
            planner.count();
            let alone = planner.change(&mapping, change)?;
            planner.emit_all();
            let ready = planner.take_ready();
            let sql = alone.as_ref().map(|step| &step.sql);
            let sql = sql.or(ready.first().map(|step| &step.sql));
            let moved = Move::of(&mapping, change)?;
            let values = moved.values().map(|value| {
                value.map(|bytes| Redacted(String::from_utf8_lossy(bytes).into_owned()))
            });
            Ok(sql.map(|sql| WouldRun {
                sql: sql.to_string(),
                values: values.collect(),
            }))
        });
        match planned {
            Ok(statement) => self.found.statement = statement,
            Err(error) => self.found.no_statement = Some(error.to_string()),
        }
        Ok(())
    }

    /// The tables as the target has them now.
    async fn compare(&mut self) -> Result<(), Trouble> {
        let tables = std::mem::take(&mut self.tables);
        for (relation, columns) in tables.into_values() {
            let mut source = Vec::with_capacity(columns.len());
            for (name, of) in columns {
                let text = match of {
                    TypeOf::Named(text) => text,
                    TypeOf::BuiltIn(oid, modifier) => self.printed(oid, modifier).await?,
                };
                source.push((name, text));
            }
            self.found.definitions.push(Definitions {
                target: self.columns(&relation).await?,
                schema: relation.namespace.clone(),
                table: relation.name.clone(),
                source,
            });
        }
        let by_name =
            |a: &Definitions, b: &Definitions| (&a.schema, &a.table).cmp(&(&b.schema, &b.table));
        self.found.definitions.sort_by(by_name);
        Ok(())
    }

    async fn printed(&self, oid: u32, modifier: i32) -> Result<String, Trouble> {
        let row = self
            .client
            .query_one("SELECT pg_catalog.format_type($1, $2)", &[&oid, &modifier])
            .await?;
        Ok(row.get(0))
    }

    async fn columns(&self, relation: &Relation) -> Result<Option<Vec<(String, String)>>, Trouble> {
        let rows = self
            .client
            .query(
                "SELECT a.attname::text, pg_catalog.format_type(a.atttypid, a.atttypmod) \
                   FROM pg_catalog.pg_class AS c \
                   JOIN pg_catalog.pg_namespace AS n ON n.oid = c.relnamespace \
                   LEFT JOIN pg_catalog.pg_attribute AS a \
                     ON a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped \
                    AND a.attgenerated = '' \
                  WHERE n.nspname = $1 AND c.relname = $2 AND c.relkind IN ('r', 'p') \
                  ORDER BY a.attnum",
                &[&relation.namespace, &relation.name],
            )
            .await?;
        if rows.is_empty() {
            return Ok(None);
        }
        let column =
            |row: &tokio_postgres::Row| Some((row.get::<_, Option<String>>(0)?, row.get(1)));
        Ok(Some(rows.iter().filter_map(column).collect()))
    }
}

type Parts<'m> = (
    &'static str,
    Vec<Oid>,
    Option<OldTuple<'m>>,
    Option<TupleRef<'m>>,
);

fn parts<'m>(message: &Message<'m>) -> Option<Parts<'m>> {
    Some(match *message {
        Message::Insert { relation, new, .. } => ("insert", vec![relation], None, Some(new)),
        Message::Update {
            relation, old, new, ..
        } => ("update", vec![relation], old, Some(new)),
        Message::Delete { relation, old, .. } => ("delete", vec![relation], Some(old), None),
        Message::Truncate { relations, .. } => ("truncate", relations.collect(), None, None),
        Message::Begin { .. }
        | Message::Commit { .. }
        | Message::Origin { .. }
        | Message::Relation(_)
        | Message::Type(_)
        | Message::Logical(_)
        | Message::StreamStart { .. }
        | Message::StreamStop
        | Message::StreamCommit { .. }
        | Message::StreamAbort { .. } => return None,
    })
}

fn as_change<'m>(message: &Message<'m>) -> Option<Change<'m>> {
    let (_, _, old, new) = parts(message)?;
    match (message, old, new) {
        (Message::Insert { .. }, _, Some(new)) => Some(Change::Insert { new }),
        (Message::Update { .. }, old, Some(new)) => Some(Change::Update { old, new }),
        (Message::Delete { .. }, Some(old), _) => Some(Change::Delete { old }),
        _ => None,
    }
}

/// Of an old key row, every column that is not part of the key is NULL on the wire and says nothing.
fn fields(relation: &Relation, tuple: Option<TupleRef<'_>>, key_only: bool) -> Vec<Field> {
    let Some(tuple) = tuple else {
        return Vec::new();
    };
    let columns = relation.columns.iter().zip(tuple);
    columns
        .filter(|(column, _)| column.key || !key_only)
        .map(|(column, value)| Field {
            column: column.name.clone(),
            value: match value {
                Value::Null => FieldValue::Null,
                Value::Unchanged => FieldValue::Unchanged,
                Value::Text(bytes) | Value::Binary(bytes) => {
                    FieldValue::Text(String::from_utf8_lossy(bytes).into_owned())
                }
            },
        })
        .collect()
}
