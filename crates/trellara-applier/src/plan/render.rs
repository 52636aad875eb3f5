//! The SQL of each [`Shape`].
//!
//! Values are text parameters cast to the column's base type without modifier; the assignment to
//! the column then checks length and domain, where an explicit cast would cut silently. Aliases
//! are `t` (the table), `u` (the run's arrays), `s` (the row looked for) and `d` (the row taken
//! out); every column is qualified or stands where only the table's columns can.

use trellara_postgres::quote;

use crate::target::{Finding, Form, Mapping, Shape};

/// Renders `shape` in `form`.
pub(crate) fn render(mapping: &Mapping, shape: &Shape, form: Form) -> String {
    let sql = Sql { mapping, form };
    match shape {
        Shape::Insert => sql.insert(),
        Shape::Update(set) => sql.update(set),
        Shape::Replace(given) => sql.replace(given),
        Shape::Touch => format!(
            "SELECT 1 FROM {} AS t WHERE {} FOR UPDATE",
            mapping.table.only(),
            sql.found()
        ),
        Shape::Delete if form.run => format!(
            "DELETE FROM {} AS t USING {} WHERE {}",
            mapping.table.only(),
            arrays(mapping.matching.len()),
            sql.found()
        ),
        Shape::Delete => {
            format!(
                "DELETE FROM {} AS t WHERE {}",
                mapping.table.only(),
                sql.found()
            )
        }
    }
}

/// `unnest($1, $2) AS u(c1, c2)`: PostgreSQL takes several arrays only by the bare name, which it
/// then resolves in `pg_catalog` by itself.
pub(crate) fn arrays(count: usize) -> String {
    let list = |prefix: &str| {
        (1..=count)
            .map(|n| format!("{prefix}{n}"))
            .collect::<Vec<_>>()
            .join(", ")
    };
    format!("unnest({}) AS u({})", list("$"), list("c"))
}

struct Sql<'m> {
    mapping: &'m Mapping,
    form: Form,
}

impl Sql<'_> {
    /// The `number`th parameter (from 0) as a value of the source column's target type.
    fn value(&self, number: usize, source: u16) -> String {
        let place = if self.form.run { "u.c" } else { "$" };
        let text = format!("{place}{}", number + 1);
        self.mapping.target_column(source).value(&text)
    }

    fn name(&self, source: u16) -> String {
        quote::identifier(&self.mapping.target_column(source).name)
    }

    fn insert(&self) -> String {
        let table = self.mapping.table.quoted();
        let written = &self.mapping.written;
        if written.is_empty() {
            return format!("INSERT INTO {table} DEFAULT VALUES");
        }
        let names: Vec<String> = written.iter().map(|&c| self.name(c)).collect();
        let values: Vec<String> = written
            .iter()
            .enumerate()
            .map(|(n, &c)| self.value(n, c))
            .collect();
        let (names, values) = (names.join(", "), values.join(", "));
        let source = if self.form.run {
            format!("SELECT {values} FROM {}", arrays(written.len()))
        } else {
            format!("VALUES ({values})")
        };
        format!("INSERT INTO {table} ({names}) OVERRIDING SYSTEM VALUE {source}")
    }

    fn update(&self, set: &[u16]) -> String {
        let first = self.mapping.matching.len();
        let assignments: Vec<String> = set
            .iter()
            .enumerate()
            .map(|(n, &c)| format!("{} = {}", self.name(c), self.value(first + n, c)))
            .collect();
        let from = if self.form.run {
            format!(" FROM {}", arrays(first + set.len()))
        } else {
            String::new()
        };
        format!(
            "UPDATE {} AS t SET {}{from} WHERE {}",
            self.mapping.table.only(),
            assignments.join(", "),
            self.found()
        )
    }

    /// The row comes out whole and goes in again with what was given; a GENERATED ALWAYS identity
    /// column can be set in no other way.
    fn replace(&self, given: &[u16]) -> String {
        let table = &self.mapping.table;
        let first = self.mapping.matching.len();
        let (mut names, mut values) = (Vec::new(), Vec::new());
        for (position, column) in table
            .columns
            .iter()
            .enumerate()
            .filter(|(_, c)| !c.generated)
        {
            let name = quote::identifier(&column.name);
            let new = given
                .iter()
                .position(|&c| self.mapping.target[usize::from(c)] == position)
                .map(|n| self.value(first + n, given[n]));
            values.push(new.unwrap_or_else(|| format!("d.{name}")));
            names.push(name);
        }
        format!(
            "WITH d AS (DELETE FROM {} AS t WHERE {} RETURNING t.*) \
             INSERT INTO {} ({}) OVERRIDING SYSTEM VALUE SELECT {} FROM d",
            table.only(),
            self.found(),
            table.quoted(),
            names.join(", "),
            values.join(", ")
        )
    }

    /// The condition that finds the old row by the first parameters.
    fn found(&self) -> String {
        let conditions = |alias: &str, condition: fn(&Self, &str, usize, u16) -> String| {
            let all: Vec<String> = self
                .mapping
                .matching
                .iter()
                .enumerate()
                .map(|(n, &c)| condition(self, alias, n, c))
                .collect();
            if all.is_empty() {
                "true".to_owned()
            } else {
                all.join(" AND ")
            }
        };
        if self.mapping.finding == Finding::Key {
            return conditions("t", Self::key_is);
        }
        // One of the rows that look the same, by its place. Partitions count places on their own.
        let place = if self.mapping.table.partitioned {
            ["(t.tableoid, t.ctid)", "s.tableoid, s.ctid"]
        } else {
            ["t.ctid", "s.ctid"]
        };
        format!(
            "{} = (SELECT {} FROM {} AS s WHERE {} LIMIT 1)",
            place[0],
            place[1],
            self.mapping.table.only(),
            conditions("s", Self::looks_the_same)
        )
    }

    fn key_is(&self, alias: &str, number: usize, source: u16) -> String {
        match &self.mapping.target_column(source).equality {
            Some(equality) => {
                let value = self.value(number, source);
                format!("{alias}.{} {equality} {value}", self.name(source))
            }
            None => self.looks_the_same(alias, number, source),
        }
    }

    /// Compared as text, byte for byte: json, xml and point have no equality, and where there is
    /// one it may hold between values that print differently.
    fn looks_the_same(&self, alias: &str, number: usize, source: u16) -> String {
        const TEXT: &str = "::\"pg_catalog\".\"text\" COLLATE \"pg_catalog\".\"C\"";
        let value = self.value(number, source);
        let name = self.name(source);
        let same = format!("({alias}.{name}{TEXT}) IS NOT DISTINCT FROM ({value}{TEXT})");
        match &self.mapping.target_column(source).equality {
            // Says nothing new, but lets the index narrow the search.
            Some(equality) if self.mapping.narrows(self.form.narrow, source) => {
                format!("{alias}.{name} {equality} {value} AND {same}")
            }
            _ => same,
        }
    }
}
