//! Reading and caching tables of the target.

use std::collections::HashMap;
use std::sync::Arc;

use tokio_postgres::types::{ToSql, Type};
use tokio_postgres::{Client, Row};
use trellara_envelope::{FrameDigest, Oid};
use trellara_pgoutput::{Relation, RelationMap};
use trellara_postgres::quote;

use super::{
    DeferrableConstraint, Mapping, TargetColumn, TargetTable, TextReading, Ties, UniqueIndex,
    definition, ties,
};
use crate::execute::{ApplyError, ApplyErrorKind, Statements};

/// More relations than this at once are forgotten together; a cache, not a limit of tables.
const CACHED_RELATIONS: usize = 8192;

/// Tables of the target as this session knows them, and the statements prepared for them. One per
/// target session; dropped with it.
///
/// A table is read when the first change for it comes, and again when the source describes it
/// anew or when the target refused a statement because of its definition.
#[derive(Debug, Default)]
pub struct Catalog {
    tables: HashMap<(String, String), Arc<TargetTable>>,
    mappings: HashMap<(Oid, FrameDigest), Arc<Mapping>>,
    /// With the table that they were read for: another description of it has others.
    ties: HashMap<u32, (Arc<TargetTable>, Arc<Ties>)>,
    /// How often something that was known was forgotten.
    forgotten: u64,
    pub(crate) statements: Statements,
}

impl Catalog {
    /// Nothing read yet.
    pub fn new() -> Self {
        Self::default()
    }

    /// Forgets what is known of the tables. A trigger, a constraint or an index that was added on
    /// the target alone makes no statement fail, yet changes which may be sent.
    pub(crate) fn reread(&mut self) {
        self.forgotten += 1;
        self.tables.clear();
        self.mappings.clear();
        self.ties.clear();
    }

    /// How often tables were forgotten: what was concluded from them under another number may not
    /// hold any more.
    pub(crate) fn forgotten(&self) -> u64 {
        self.forgotten
    }

    /// Forgets all tables and statements, so that they are read and prepared again.
    pub fn forget(&mut self) {
        self.reread();
        self.statements.forget();
    }

    /// The table with that name, read from the target when it is not known yet; `None` when there
    /// is no such table.
    ///
    /// # Errors
    /// When the catalogue cannot be read, or the name belongs to something without rows of its own.
    pub async fn table(
        &mut self,
        client: &Client,
        schema: &str,
        name: &str,
    ) -> Result<Option<Arc<TargetTable>>, ApplyError> {
        let key = (schema.to_owned(), name.to_owned());
        if let Some(table) = self.tables.get(&key) {
            return Ok(Some(Arc::clone(table)));
        }
        let read = read_table(client, schema, name).await;
        let read = read.map_err(|error| error.on(schema, name))?;
        Ok(read.map(|table| {
            let table = Arc::new(table);
            self.tables.insert(key, Arc::clone(&table));
            table
        }))
    }

    /// How the changes of `relation` go into the target.
    pub(crate) async fn mapping(
        &mut self,
        client: &Client,
        relation: &Arc<Relation>,
        relations: &RelationMap,
    ) -> Result<Arc<Mapping>, ApplyError> {
        let key = (relation.oid, relation.fingerprint());
        if let Some(mapping) = self.mappings.get(&key) {
            return Ok(Arc::clone(mapping));
        }
        // A relation described anew is the sign that the target's table changes too; what was
        // known of it under another description is not to be believed again.
        self.mappings.retain(|(oid, _), _| *oid != relation.oid);
        let name = (relation.namespace.clone(), relation.name.clone());
        if self.tables.remove(&name).is_some() {
            self.forgotten += 1;
        }
        let table = self.existing(client, relation, relations).await?;
        let mapping = Mapping::new(table, Arc::clone(relation), relations)?;
        if self.mappings.len() >= CACHED_RELATIONS {
            self.mappings.clear();
            self.tables.clear();
            self.forgotten += 1;
        }
        let mapping = Arc::new(mapping);
        self.mappings.insert(key, Arc::clone(&mapping));
        Ok(mapping)
    }

    /// What ties the table's rows to others; read when it is not known yet.
    ///
    /// # Errors
    /// When the catalogue cannot be read.
    pub async fn ties(
        &mut self,
        client: &Client,
        table: &Arc<TargetTable>,
    ) -> Result<Arc<Ties>, ApplyError> {
        if let Some((of, ties)) = self.ties.get(&table.oid)
            && Arc::ptr_eq(of, table)
        {
            return Ok(Arc::clone(ties));
        }
        let ties = Arc::new(ties::read(client, table).await?);
        if self.ties.len() >= CACHED_RELATIONS {
            self.ties.clear();
        }
        let known = (Arc::clone(table), Arc::clone(&ties));
        self.ties.insert(table.oid, known);
        Ok(ties)
    }

    /// The target's table of that name; that there is none is an error with the statement that
    /// makes one (B100).
    pub(crate) async fn existing(
        &mut self,
        client: &Client,
        relation: &Relation,
        relations: &RelationMap,
    ) -> Result<Arc<TargetTable>, ApplyError> {
        let (schema, name) = (&relation.namespace, &relation.name);
        self.table(client, schema, name).await?.ok_or_else(|| {
            ApplyError::new(ApplyErrorKind::Schema, "the target has no such table")
                .on(schema, name)
                .hint(definition::create_table(relation, relations))
        })
    }
}

async fn read_table(
    client: &Client,
    schema: &str,
    name: &str,
) -> Result<Option<TargetTable>, ApplyError> {
    // The name is compared, never resolved: to_regclass would look along the search path.
    let found = rows(
        client,
        "SELECT c.oid FROM pg_catalog.pg_class c \
         JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace \
         WHERE n.nspname = $1 AND c.relname = $2",
        &[(&schema, Type::TEXT), (&name, Type::TEXT)],
    )
    .await?;
    let Some(found) = found.first() else {
        return Ok(None);
    };
    let oid: u32 = get(found, 0)?;
    let oid_parameter: [(&(dyn ToSql + Sync), Type); 1] = [(&oid, Type::OID)];
    let (facts, columns, uniques, deferrable) = futures_util::try_join!(
        rows(client, include_str!("table.sql"), &oid_parameter),
        rows(client, include_str!("columns.sql"), &oid_parameter),
        rows(client, include_str!("uniques.sql"), &oid_parameter),
        rows(client, include_str!("deferrable.sql"), &oid_parameter),
    )?;
    let Some(facts) = facts.first() else {
        return Ok(None);
    };
    let kind: &str = get(facts, 0)?;
    if !matches!(kind, "r" | "p") {
        return Err(ApplyError::new(
            ApplyErrorKind::Schema,
            "the target has something with this name that is not a table",
        ));
    }
    let numbers = columns
        .iter()
        .map(|row| get::<i16>(row, 0))
        .collect::<Result<Vec<_>, _>>()?;
    let position = |number: &i16| numbers.iter().position(|known| known == number);
    Ok(Some(TargetTable {
        oid,
        root: get(facts, 1)?,
        schema: schema.to_owned(),
        name: name.to_owned(),
        partitioned: kind == "p",
        columns: columns.iter().map(column).collect::<Result<_, _>>()?,
        uniques: uniques
            .iter()
            .map(|row| unique(row, position))
            .collect::<Result<_, _>>()?,
        deferrable: deferrable
            .iter()
            .map(|row| constraint(row, position))
            .collect::<Result<_, _>>()?,
        fires_as_replica: get(facts, 3)?,
        fires_as_origin: get(facts, 4)?,
        row_security: get(facts, 2)?,
    }))
}

async fn rows(
    client: &Client,
    sql: &str,
    parameters: &[(&(dyn ToSql + Sync), Type)],
) -> Result<Vec<Row>, ApplyError> {
    client
        .query_typed(sql, parameters)
        .await
        .map_err(|error| ApplyError::from_server(&error))
}

fn get<'r, T: tokio_postgres::types::FromSql<'r>>(
    row: &'r Row,
    at: usize,
) -> Result<T, ApplyError> {
    row.try_get(at)
        .map_err(|error| ApplyError::from_server(&error))
}

fn column(row: &Row) -> Result<TargetColumn, ApplyError> {
    let operator: Option<&str> = get(row, 8)?;
    let schema: Option<&str> = get(row, 7)?;
    Ok(TargetColumn {
        name: get(row, 1)?,
        base_type: quote::qualified(get(row, 2)?, get(row, 3)?),
        not_null: get(row, 4)?,
        generated: !get::<&str>(row, 5)?.is_empty(),
        identity_always: get::<&str>(row, 6)? == "a",
        equality: schema
            .zip(operator)
            .map(|(schema, name)| qualified_operator(schema, name)),
        leads_index: get(row, 9)?,
        reading: reading(row)?,
    })
}

fn reading(row: &Row) -> Result<Option<TextReading>, ApplyError> {
    let (before, after): (Option<String>, Option<String>) = (get(row, 10)?, get(row, 11)?);
    Ok(before
        .zip(after)
        .map(|(before, after)| TextReading { before, after }))
}

fn unique(row: &Row, position: impl Fn(&i16) -> Option<usize>) -> Result<UniqueIndex, ApplyError> {
    let numbers: Vec<i16> = get(row, 5)?;
    Ok(UniqueIndex {
        name: get(row, 0)?,
        primary: get(row, 1)?,
        immediate: get(row, 3)?,
        finds_rows: get(row, 4)?,
        columns: numbers.iter().map(position).collect(),
    })
}

fn constraint(
    row: &Row,
    position: impl Fn(&i16) -> Option<usize>,
) -> Result<DeferrableConstraint, ApplyError> {
    let numbers: Vec<i16> = get(row, 3)?;
    let schemas: Vec<&str> = get(row, 5)?;
    let names: Vec<&str> = get(row, 6)?;
    Ok(DeferrableConstraint {
        name: get(row, 0)?,
        exclusion: get(row, 1)?,
        nulls_not_distinct: get(row, 2)?,
        columns: numbers.iter().filter_map(position).collect(),
        expressions: get(row, 4)?,
        operators: schemas
            .iter()
            .zip(names)
            .map(|(s, name)| qualified_operator(s, name))
            .collect(),
        predicate: get(row, 7)?,
    })
}

/// Operators are named with their schema: `=` alone would be looked up along the search path, and
/// citext's would not be found.
fn qualified_operator(schema: &str, name: &str) -> String {
    format!("OPERATOR({}.{name})", quote::identifier(schema))
}
