//! Tables by their names: how they are written in the file, and which are meant by it now.

use trellara_postgres::{Session, quote};

use super::Partitions;

/// A table by name.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TableName {
    /// Schema.
    pub schema: String,
    /// Table.
    pub name: String,
}

/// What to publish: `schema.table`, or `schema.*` for all tables that are there now (C61: a later
/// match is listed, never added by itself).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TablePattern {
    /// Schema.
    pub schema: String,
    /// Table; `None` means all.
    pub table: Option<String>,
}

/// The text is neither `schema.table` nor `schema.*`.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("not a table pattern (write schema.table or schema.*): {0:?}")]
pub struct InvalidPattern(pub String);

/// No table of that name, or none in that schema.
#[derive(Debug, thiserror::Error)]
pub enum ExpandError {
    /// Nothing matches.
    #[error("no table matches {0}")]
    NoMatch(TablePattern),
    /// The catalogues could not be read.
    #[error(transparent)]
    Query(#[from] tokio_postgres::Error),
}

/// The tables that the patterns name now, sorted, each once. Partitions are left out (they come
/// with their root), and so is what cannot be published: unlogged and temporary tables, and those
/// of PostgreSQL's own schemas.
pub async fn expand(
    session: &Session,
    patterns: &[TablePattern],
) -> Result<Vec<TableName>, ExpandError> {
    let mut tables = Vec::new();
    for pattern in patterns {
        let rows = session
            .client
            .query(
                "SELECT n.nspname::text, c.relname::text FROM pg_catalog.pg_class c \
                 JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace \
                 WHERE n.nspname = $1 AND ($2::text IS NULL OR c.relname = $2) \
                   AND c.relkind IN ('r', 'p') AND c.relpersistence = 'p' \
                   AND (NOT c.relispartition OR $2::text IS NOT NULL) \
                   AND n.nspname NOT IN ('pg_catalog', 'information_schema', 'pg_toast', 'trellara')",
                &[&pattern.schema, &pattern.table],
            )
            .await?;
        if rows.is_empty() {
            return Err(ExpandError::NoMatch(pattern.clone()));
        }
        tables.extend(rows.iter().map(|row| TableName {
            schema: row.get(0),
            name: row.get(1),
        }));
    }
    tables.sort();
    tables.dedup();
    Ok(tables)
}

/// The tables as changes name them: by [`Partitions::Leaf`] a partitioned table stands for the
/// leaves that it has now. Sorted, each once.
pub async fn named_by_changes(
    session: &Session,
    tables: &[TableName],
    partitions: Partitions,
) -> Result<Vec<TableName>, tokio_postgres::Error> {
    if partitions == Partitions::Root {
        return Ok(tables.to_vec());
    }
    let schemas: Vec<&str> = tables.iter().map(|table| table.schema.as_str()).collect();
    let names: Vec<&str> = tables.iter().map(|table| table.name.as_str()).collect();
    // pg_partition_tree knows only partitioned tables and partitions.
    let rows = session
        .client
        .query(
            "SELECT DISTINCT ln.nspname::text, l.relname::text \
             FROM unnest($1::text[], $2::text[]) AS t(s, n) \
             JOIN pg_catalog.pg_namespace rn ON rn.nspname = t.s \
             JOIN pg_catalog.pg_class r ON r.relnamespace = rn.oid AND r.relname = t.n \
             CROSS JOIN LATERAL (SELECT r.oid WHERE r.relkind = 'r' UNION \
               SELECT relid FROM pg_catalog.pg_partition_tree(r.oid) WHERE isleaf) AS p(oid) \
             JOIN pg_catalog.pg_class l ON l.oid = p.oid AND l.relkind = 'r' \
             JOIN pg_catalog.pg_namespace ln ON ln.oid = l.relnamespace ORDER BY 1, 2",
            &[&schemas, &names],
        )
        .await?;
    Ok(rows
        .iter()
        .map(|row| TableName {
            schema: row.get(0),
            name: row.get(1),
        })
        .collect())
}

impl std::str::FromStr for TablePattern {
    type Err = InvalidPattern;

    /// `schema.table` or `schema.*`; a part with dots, capitals or spaces may stand in double
    /// quotes, in which a quote is written twice.
    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let invalid = || InvalidPattern(text.chars().take(200).collect());
        let (schema, rest) = part(text).ok_or_else(invalid)?;
        let rest = rest.strip_prefix('.').ok_or_else(invalid)?;
        if rest == "*" {
            return Ok(TablePattern {
                schema,
                table: None,
            });
        }
        match part(rest) {
            Some((table, "")) => Ok(TablePattern {
                schema,
                table: Some(table),
            }),
            _ => Err(invalid()),
        }
    }
}

/// One name at the start of `text`, and what is behind it.
fn part(text: &str) -> Option<(String, &str)> {
    let Some(quoted) = text.strip_prefix('"') else {
        let end = text.find('.').unwrap_or(text.len());
        let name = &text[..end];
        let plain = !name.is_empty() && !name.contains(['"', '*', ' ']);
        return plain.then(|| (name.to_owned(), &text[end..]));
    };
    let mut name = String::new();
    let mut rest = quoted;
    loop {
        let at = rest.find('"')?;
        name.push_str(&rest[..at]);
        rest = &rest[at + 1..];
        match rest.strip_prefix('"') {
            Some(after) => {
                name.push('"');
                rest = after;
            }
            None => return (!name.is_empty()).then_some((name, rest)),
        }
    }
}

impl std::fmt::Display for TableName {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&quote::qualified(&self.schema, &self.name))
    }
}

impl std::fmt::Display for TablePattern {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let schema = quote::identifier(&self.schema);
        match &self.table {
            Some(table) => write!(f, "{schema}.{}", quote::identifier(table)),
            None => write!(f, "{schema}.*"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(text: &str, expected: Option<(&str, Option<&str>)>) {
        let parsed = text.parse::<TablePattern>().ok();
        let expected = expected.map(|(schema, table)| TablePattern {
            schema: schema.to_owned(),
            table: table.map(str::to_owned),
        });
        assert_eq!(parsed, expected, "{text}");
    }

    #[test]
    fn patterns() {
        check("public.*", Some(("public", None)));
        check("public.orders", Some(("public", Some("orders"))));
        check(
            "\"My.Schema\".\"a \"\"b\"\"\"",
            Some(("My.Schema", Some("a \"b\""))),
        );
        check("\"*\".\"*\"", Some(("*", Some("*"))));
        check("orders", None);
        check("*.*", None);
        check("a.b.c", None);
        check("\"a", None);
        check(".b", None);
        check("a.", None);
    }
}
