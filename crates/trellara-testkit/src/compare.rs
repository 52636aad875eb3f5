//! Compares two databases row by row, sharing no code with what it judges.
//!
//! Each ordinary table becomes a multiset of rows as text; differences are reported as counts and
//! keys, never assumed away. Meant for tests: everything is read into memory.

use std::collections::BTreeMap;

use anyhow::{Context, Result};
use tokio_postgres::{Client, NoTls, SimpleQueryMessage};

/// Connects with the settings that make text comparable.
pub async fn connect(url: &str) -> Result<Client> {
    let (client, connection) = tokio_postgres::connect(url, NoTls)
        .await
        .with_context(|| format!("connecting to {url}"))?;
    tokio::spawn(connection);
    client
        .batch_execute(
            "SET datestyle = 'ISO'; SET intervalstyle = 'postgres'; SET timezone = 'UTC';
             SET extra_float_digits = 3; SET bytea_output = 'hex'; SET search_path = ''",
        )
        .await?;
    Ok(client)
}

/// Every ordinary table outside of the system schemas and `trellara`, quoted.
pub async fn tables(client: &Client) -> Result<Vec<String>> {
    let rows = client
        .query(
            "SELECT format('%I.%I', n.nspname, c.relname) FROM pg_catalog.pg_class c
             JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
             WHERE c.relkind IN ('r', 'p') AND NOT c.relispartition
               AND n.nspname NOT IN ('pg_catalog', 'information_schema', 'trellara')
             ORDER BY 1",
            &[],
        )
        .await?;
    Ok(rows.iter().map(|row| row.get(0)).collect())
}

/// The multiset of a table's rows: text of the row → how often. Columns in the order of their
/// names, so that another column order on one side does not matter.
pub async fn rows(client: &Client, table: &str) -> Result<BTreeMap<String, u64>> {
    let columns = client
        .query_one(
            "SELECT coalesce(string_agg(format('%I', attname), ', ' ORDER BY attname), '')
             FROM pg_catalog.pg_attribute
             WHERE attrelid = $1::text::regclass AND attnum > 0 AND NOT attisdropped",
            &[&table],
        )
        .await?;
    let columns: String = columns.get(0);
    answers(client, &format!("SELECT ROW({columns})::text FROM {table}")).await
}

/// The multiset of the first column of a query's rows: its text → how often.
pub async fn answers(client: &Client, sql: &str) -> Result<BTreeMap<String, u64>> {
    let mut found = BTreeMap::new();
    for message in client.simple_query(sql).await? {
        if let SimpleQueryMessage::Row(row) = message {
            *found
                .entry(row.get(0).unwrap_or_default().to_owned())
                .or_insert(0) += 1;
        }
    }
    Ok(found)
}

/// How many row versions of a table satisfy a condition, and a sum over where they stand and who
/// wrote them: whatever writes one of them, even the same values again, changes it.
pub async fn row_versions(client: &Client, table: &str, condition: &str) -> Result<(i64, String)> {
    let sql = format!(
        "SELECT count(*), \
                coalesce(sum(hashtextextended(ctid::text || ' ' || xmin::text, 0)), 0)::text \
           FROM {table} WHERE {condition}"
    );
    let row = client.query_one(&sql, &[]).await?;
    Ok((row.get(0), row.get(1)))
}

/// Differences between all tables of two databases; empty means equal. A table that exists on one
/// side only is a difference.
pub async fn differences(source_url: &str, target_url: &str) -> Result<Vec<String>> {
    let source = connect(source_url).await?;
    let target = connect(target_url).await?;
    let (left, right) = (tables(&source).await?, tables(&target).await?);
    let mut found = Vec::new();
    for table in left.iter().filter(|table| !right.contains(table)) {
        found.push(format!("{table}: missing on the target"));
    }
    for table in right.iter().filter(|table| !left.contains(table)) {
        found.push(format!("{table}: only on the target"));
    }
    for table in left.iter().filter(|table| right.contains(table)) {
        let (here, there) = (rows(&source, table).await?, rows(&target, table).await?);
        found.extend(difference(table, &here, &there));
    }
    Ok(found)
}

/// What two multisets of rows differ in, for people; `None` when they are equal.
pub fn difference(
    table: &str,
    source: &BTreeMap<String, u64>,
    target: &BTreeMap<String, u64>,
) -> Option<String> {
    let shorten = |row: &str| row.chars().take(120).collect::<String>();
    let missing: Vec<_> = source
        .iter()
        .filter(|(row, n)| target.get(*row).is_none_or(|m| m < n))
        .collect();
    let extra: Vec<_> = target
        .iter()
        .filter(|(row, n)| source.get(*row).is_none_or(|m| m < n))
        .collect();
    if missing.is_empty() && extra.is_empty() {
        return None;
    }
    let example = |rows: &[(&String, &u64)]| {
        rows.first().map_or_else(
            || "-".to_owned(),
            |(row, n)| format!("{} (×{n})", shorten(row)),
        )
    };
    Some(format!(
        "{table}: {} distinct rows missing on the target, e.g. {}; {} extra, e.g. {}",
        missing.len(),
        example(&missing),
        extra.len(),
        example(&extra)
    ))
}
