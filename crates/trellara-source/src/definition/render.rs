//! From definitions to the statements that make what is missing. Pure.

use std::collections::BTreeSet;

use trellara_postgres::quote;

use super::{
    Column, ColumnValue, Constraint, ConstraintKind, Definitions, Options, Present, Sequence,
    SequenceOwner, Statement, Table, Type, TypeKind,
};
use crate::publication::TableName;

/// What the role that writes needs on a table.
const RIGHTS: &str = "SELECT, INSERT, UPDATE, DELETE, TRUNCATE";

impl Constraint {
    /// The table that a foreign key refers to.
    pub(super) fn refers_to(&self) -> Option<&TableName> {
        match &self.kind {
            ConstraintKind::Foreign(table) => Some(table),
            ConstraintKind::Primary | ConstraintKind::Unique | ConstraintKind::Check => None,
        }
    }
}

impl Definitions {
    /// The types that are not there and that nothing here can make: composites, ranges, those of
    /// extensions. Only those of tables that are missing count.
    pub fn unmade_types<'a>(&'a self, present: &'a Present) -> impl Iterator<Item = &'a TableName> {
        self.types
            .iter()
            .filter(|one| one.kind == TypeKind::Other && !present.types.contains(&one.name))
            .map(|one| &one.name)
    }

    /// The statements that make what is missing, in an order in which they can run; none when
    /// nothing is. What is there already is left as it is.
    pub fn statements(&self, present: &Present, options: &Options) -> Vec<Statement> {
        let mut making = Making {
            definitions: self,
            present,
            options,
            statements: Vec::new(),
        };
        making.schemas();
        for missing in self.types.iter() {
            making.type_of(missing);
        }
        for sequence in &self.sequences {
            making.sequence(sequence);
        }
        let missing: Vec<&Table> = self
            .tables
            .iter()
            .filter(|table| !present.relations.contains(&table.name))
            .collect();
        for table in &missing {
            making.table(table);
        }
        for sequence in &self.sequences {
            making.owner(sequence);
        }
        // Behind the tables, so that a key or an index of a partitioned one makes those of its
        // partitions, and a foreign key finds the key that it refers to.
        for table in &missing {
            making.keys_and_indexes(table);
        }
        for table in &missing {
            making.foreign_keys(table);
        }
        making.statements
    }
}

struct Making<'a> {
    definitions: &'a Definitions,
    present: &'a Present,
    options: &'a Options,
    statements: Vec<Statement>,
}

impl Making<'_> {
    fn essential(&mut self, about: &str, sql: String) {
        self.statements.push(Statement {
            sql,
            about: about.to_owned(),
            essential: true,
        });
    }

    fn optional(&mut self, about: &str, sql: String) {
        self.statements.push(Statement {
            sql,
            about: about.to_owned(),
            essential: false,
        });
    }

    fn schemas(&mut self) {
        let definitions = self.definitions;
        let types = definitions
            .types
            .iter()
            .filter(|one| one.kind != TypeKind::Other)
            .map(|one| &one.name);
        let sequences = definitions.sequences.iter().map(|one| &one.name);
        let tables = definitions.tables.iter().map(|one| &one.name);
        let needed: BTreeSet<&str> = types
            .chain(sequences)
            .chain(tables)
            .map(|name| name.schema.as_str())
            .collect();
        for schema in needed {
            if self.present.schemas.contains(schema) {
                continue;
            }
            let quoted = quote::identifier(schema);
            let about = format!("schema {quoted}");
            self.essential(&about, format!("CREATE SCHEMA {quoted}"));
            if let Some(writer) = &self.options.writer {
                let writer = quote::identifier(writer);
                self.essential(
                    &about,
                    format!("GRANT USAGE ON SCHEMA {quoted} TO {writer}"),
                );
            }
        }
    }

    fn type_of(&mut self, missing: &Type) {
        if self.present.types.contains(&missing.name) {
            return;
        }
        let name = &missing.name;
        let about = format!("type {name}");
        match &missing.kind {
            TypeKind::Enum(labels) => {
                let labels: Vec<String> = labels.iter().map(|one| quote::literal(one)).collect();
                let labels = labels.join(", ");
                self.essential(&about, format!("CREATE TYPE {name} AS ENUM ({labels})"));
            }
            TypeKind::Domain(definition) => {
                self.essential(&about, format!("CREATE DOMAIN {name} AS {definition}"));
            }
            TypeKind::Other => {}
        }
    }

    fn is_missing(&self, name: &TableName) -> bool {
        !self.present.relations.contains(name)
    }

    /// An identity's comes with its column.
    fn sequence(&mut self, sequence: &Sequence) {
        let identity = sequence.owner.as_ref().is_some_and(|owner| owner.identity);
        if identity || !self.is_missing(&sequence.name) {
            return;
        }
        let name = &sequence.name;
        let about = format!("sequence {name}");
        let sql = format!(
            "CREATE SEQUENCE {name} AS {} {}",
            sequence.type_name, sequence.options
        );
        self.essential(&about, sql);
        self.grant_sequence(name, &about);
    }

    /// For a cut-over, and for TRUNCATE … RESTART IDENTITY.
    fn grant_sequence(&mut self, name: &TableName, about: &str) {
        if let Some(writer) = &self.options.writer {
            let writer = quote::identifier(writer);
            let sql = format!("GRANT SELECT, UPDATE ON SEQUENCE {name} TO {writer}");
            self.essential(about, sql);
        }
    }

    fn owner(&mut self, sequence: &Sequence) {
        let name = &sequence.name;
        let Some(SequenceOwner {
            table,
            column,
            identity,
        }) = &sequence.owner
        else {
            return;
        };
        if !self.is_missing(name) || !self.is_missing(table) {
            return;
        }
        let about = format!("sequence {name}");
        if *identity {
            self.grant_sequence(name, &about);
            return;
        }
        let column = quote::identifier(column);
        self.optional(
            &about,
            format!("ALTER SEQUENCE {name} OWNED BY {table}.{column}"),
        );
    }

    fn table(&mut self, table: &Table) {
        let name = &table.name;
        let about = format!("table {name}");
        let columns: Vec<String> = table
            .columns
            .iter()
            .map(|column| format!("\n    {}", self.column(table, column)))
            .collect();
        let mut sql = format!("CREATE TABLE {name} ({}\n)", columns.join(","));
        if !table.inherits.is_empty() {
            let parents: Vec<String> = table.inherits.iter().map(TableName::to_string).collect();
            // What it inherits from may be no part of the flow; its rows are its own all the same.
            let there = table.inherits.iter().all(|parent| {
                let made = self.definitions.tables.iter();
                !self.is_missing(parent) || made.into_iter().any(|one| one.name == *parent)
            });
            if there {
                sql.push_str(&format!(" INHERITS ({})", parents.join(", ")));
            }
        }
        if let Some(key) = &table.partition_key {
            sql.push_str(&format!(" PARTITION BY {key}"));
        }
        self.essential(&about, sql);
        if let Some((parent, bound)) = &table.partition_of {
            let sql = format!("ALTER TABLE ONLY {parent} ATTACH PARTITION {name} {bound}");
            self.essential(&about, sql);
        }
        if let Some(writer) = &self.options.writer {
            let writer = quote::identifier(writer);
            self.essential(&about, format!("GRANT {RIGHTS} ON {name} TO {writer}"));
        }
        for column in &table.columns {
            if let ColumnValue::Default {
                expression,
                foreign: true,
            } = &column.value
            {
                let column = quote::identifier(&column.name);
                let sql = format!(
                    "ALTER TABLE ONLY {name} ALTER COLUMN {column} SET DEFAULT {expression}"
                );
                self.optional(&about, sql);
            }
        }
    }

    fn column(&self, table: &Table, column: &Column) -> String {
        let mut sql = format!("{} {}", quote::identifier(&column.name), column.type_name);
        if let Some(collation) = &column.collation {
            sql.push_str(&format!(" COLLATE {collation}"));
        }
        match &column.value {
            ColumnValue::None | ColumnValue::Default { foreign: true, .. } => {}
            ColumnValue::Default { expression, .. } => {
                sql.push_str(&format!(" DEFAULT {expression}"));
            }
            ColumnValue::Generated { expression, stored } => {
                // Older servers compute it when a row is written.
                let kept = match *stored || self.options.server_major < 18 {
                    true => "STORED",
                    false => "VIRTUAL",
                };
                sql.push_str(&format!(" GENERATED ALWAYS AS ({expression}) {kept}"));
            }
            ColumnValue::Identity { always } => {
                let when = if *always { "ALWAYS" } else { "BY DEFAULT" };
                sql.push_str(&format!(" GENERATED {when} AS IDENTITY"));
                sql.push_str(&self.identity_options(table, column));
            }
        }
        if column.not_null {
            if let Some(name) = &column.not_null_name {
                sql.push_str(&format!(" CONSTRAINT {}", quote::identifier(name)));
            }
            sql.push_str(" NOT NULL");
        }
        sql
    }

    fn identity_options(&self, table: &Table, column: &Column) -> String {
        let ours = self.definitions.sequences.iter().find(|sequence| {
            let owner = sequence.owner.as_ref();
            owner.is_some_and(|owner| owner.table == table.name && owner.column == column.name)
        });
        match ours {
            // A name that is taken is left to the server to choose.
            Some(sequence) if self.is_missing(&sequence.name) => {
                format!(" (SEQUENCE NAME {} {})", sequence.name, sequence.options)
            }
            Some(sequence) => format!(" ({})", sequence.options),
            None => String::new(),
        }
    }

    fn keys_and_indexes(&mut self, table: &Table) {
        let name = &table.name;
        for constraint in &table.constraints {
            if constraint.refers_to().is_some() {
                continue;
            }
            let key = quote::identifier(&constraint.name);
            let about = format!("constraint {key} of {name}");
            let sql = format!(
                "ALTER TABLE {name} ADD CONSTRAINT {key} {}",
                constraint.definition
            );
            match constraint.kind {
                ConstraintKind::Primary => self.essential(&about, sql),
                _ => self.optional(&about, sql),
            }
        }
        let mut identity = None;
        for index in &table.indexes {
            let quoted = quote::identifier(&index.name);
            let about = format!("index {quoted} of {name}");
            self.optional(&about, index.definition.clone());
            if index.replica_identity {
                identity = Some(format!("USING INDEX {quoted}"));
            }
        }
        let identity = match table.replica_identity {
            'f' => Some("FULL".to_owned()),
            'n' => Some("NOTHING".to_owned()),
            'i' => identity,
            _ => None,
        };
        if let Some(identity) = identity {
            let about = format!("replica identity of {name}");
            let sql = format!("ALTER TABLE ONLY {name} REPLICA IDENTITY {identity}");
            self.optional(&about, sql);
        }
    }

    fn foreign_keys(&mut self, table: &Table) {
        if !self.options.foreign_keys {
            return;
        }
        let name = &table.name;
        for constraint in &table.constraints {
            let Some(referred) = constraint.refers_to() else {
                continue;
            };
            let made = self.definitions.tables.iter();
            let there =
                !self.is_missing(referred) || made.into_iter().any(|one| one.name == *referred);
            if !there {
                continue;
            }
            let key = quote::identifier(&constraint.name);
            let about = format!("foreign key {key} of {name}");
            let sql = format!(
                "ALTER TABLE {name} ADD CONSTRAINT {key} {}",
                constraint.definition
            );
            self.optional(&about, sql);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn name(schema: &str, name: &str) -> TableName {
        TableName {
            schema: schema.to_owned(),
            name: name.to_owned(),
        }
    }

    fn sql(definitions: &Definitions, present: &Present, options: &Options) -> Vec<String> {
        let statements = definitions.statements(present, options).into_iter();
        statements.map(|statement| statement.sql).collect()
    }

    fn definitions() -> Definitions {
        let id = Column {
            name: "i\"d".to_owned(),
            type_name: "integer".to_owned(),
            collation: None,
            not_null: true,
            not_null_name: None,
            value: ColumnValue::None,
        };
        let refers = Constraint {
            name: "to".to_owned(),
            kind: ConstraintKind::Foreign(name("b", "away")),
            definition: "FOREIGN KEY (x) REFERENCES b.away(x)".to_owned(),
        };
        Definitions {
            tables: vec![Table {
                name: name("a", "t; --"),
                columns: vec![id],
                partition_key: None,
                partition_of: None,
                inherits: Vec::new(),
                replica_identity: 'f',
                constraints: vec![refers],
                indexes: Vec::new(),
            }],
            ..Definitions::default()
        }
    }

    const OPTIONS: Options = Options {
        server_major: 15,
        writer: None,
        foreign_keys: true,
    };

    #[test]
    fn what_is_there_is_left_as_it_is() {
        let definitions = definitions();
        let mut present = Present::default();
        let all = sql(&definitions, &present, &OPTIONS);
        assert_eq!(all[0], "CREATE SCHEMA \"a\"");
        assert_eq!(
            all[1],
            "CREATE TABLE \"a\".\"t; --\" (\n    \"i\"\"d\" integer NOT NULL\n)"
        );
        present.schemas.insert("a".to_owned());
        present.relations.insert(name("a", "t; --"));
        assert!(sql(&definitions, &present, &OPTIONS).is_empty());
    }

    #[test]
    fn a_foreign_key_waits_for_the_table_that_it_refers_to() {
        let definitions = definitions();
        let mut present = Present::default();
        let keys = |present: &Present, foreign_keys: bool| {
            let options = Options {
                foreign_keys,
                ..OPTIONS
            };
            let all = sql(&definitions, present, &options);
            all.iter().filter(|sql| sql.contains("FOREIGN KEY")).count()
        };
        assert_eq!(keys(&present, true), 0);
        present.relations.insert(name("b", "away"));
        assert_eq!(keys(&present, true), 1);
        assert_eq!(keys(&present, false), 0, "where it would be checked");
    }

    #[test]
    fn whoever_writes_gets_the_rights_for_it() {
        let options = Options {
            writer: Some("ap\"ply".to_owned()),
            ..OPTIONS
        };
        let all = sql(&definitions(), &Present::default(), &options);
        for grant in [
            "GRANT USAGE ON SCHEMA \"a\" TO \"ap\"\"ply\"",
            "GRANT SELECT, INSERT, UPDATE, DELETE, TRUNCATE ON \"a\".\"t; --\" TO \"ap\"\"ply\"",
        ] {
            assert!(all.iter().any(|sql| sql == grant), "{all:?}");
        }
    }
}
