//! What of some definitions a server has already.

use std::collections::BTreeSet;

use trellara_postgres::Session;

use super::Definitions;
use crate::publication::TableName;

/// The parts that are there, by their names alone: whatever has the name is left as it is.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Present {
    /// Schemas.
    pub schemas: BTreeSet<String>,
    /// Tables, sequences and whatever else has a place in `pg_class`.
    pub relations: BTreeSet<TableName>,
    /// Types.
    pub types: BTreeSet<TableName>,
}

impl Present {
    /// Looks at a server.
    ///
    /// # Errors
    /// The server's.
    pub async fn read(
        session: &Session,
        definitions: &Definitions,
    ) -> Result<Self, tokio_postgres::Error> {
        let relations = relations(definitions);
        let types: Vec<&TableName> = definitions.types.iter().map(|one| &one.name).collect();
        let (schemas, names) = columns(&relations);
        let found = session
            .client
            .query(
                "SELECT n.nspname::text, c.relname::text \
                   FROM unnest($1::text[], $2::text[]) AS t(s, n) \
                   JOIN pg_catalog.pg_namespace AS n ON n.nspname = t.s \
                   JOIN pg_catalog.pg_class AS c ON c.relnamespace = n.oid AND c.relname = t.n",
                &[&schemas, &names],
            )
            .await?;
        let relations = found.iter().map(name).collect();
        let (type_schemas, type_names) = columns(&types);
        let found = session
            .client
            .query(
                "SELECT n.nspname::text, p.typname::text \
                   FROM unnest($1::text[], $2::text[]) AS t(s, n) \
                   JOIN pg_catalog.pg_namespace AS n ON n.nspname = t.s \
                   JOIN pg_catalog.pg_type AS p ON p.typnamespace = n.oid AND p.typname = t.n",
                &[&type_schemas, &type_names],
            )
            .await?;
        let types = found.iter().map(name).collect();
        let schemas = [schemas, type_schemas].concat();
        let found = session
            .client
            .query(
                "SELECT nspname::text FROM pg_catalog.pg_namespace WHERE nspname = ANY ($1)",
                &[&schemas],
            )
            .await?;
        Ok(Self {
            schemas: found.iter().map(|row| row.get(0)).collect(),
            relations,
            types,
        })
    }
}

/// Tables, what they refer to, and sequences.
fn relations(definitions: &Definitions) -> Vec<&TableName> {
    let tables = definitions.tables.iter();
    let referred = tables.clone().flat_map(|table| {
        let keys = table.constraints.iter();
        keys.filter_map(super::Constraint::refers_to)
            .chain(&table.inherits)
    });
    let sequences = definitions.sequences.iter().map(|sequence| &sequence.name);
    tables
        .map(|table| &table.name)
        .chain(referred)
        .chain(sequences)
        .collect()
}

fn columns<'a>(names: &[&'a TableName]) -> (Vec<&'a str>, Vec<&'a str>) {
    names
        .iter()
        .map(|name| (name.schema.as_str(), name.name.as_str()))
        .unzip()
}

fn name(row: &tokio_postgres::Row) -> TableName {
    TableName {
        schema: row.get(0),
        name: row.get(1),
    }
}
