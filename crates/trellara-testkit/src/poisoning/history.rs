//! What the target's tables went through, commit by commit, as PostgreSQL's own `test_decoding`
//! tells it.

use std::collections::BTreeMap;

use anyhow::{Context, Result, ensure};
use futures_util::TryStreamExt;
use tokio_postgres::Client;

use super::load::Key;

/// A slot on the target that has seen everything since it was made.
#[derive(Debug, Default)]
pub(super) struct History {
    slot: String,
    /// The version that each key had last.
    versions: BTreeMap<Key, i64>,
    /// Changes seen.
    pub(super) changes: u64,
}

impl History {
    pub(super) async fn begin(target: &Client, name: &str) -> Result<Self> {
        let slot = format!("witness_{name}");
        target
            .execute(
                "SELECT pg_create_logical_replication_slot($1, 'test_decoding')",
                &[&slot],
            )
            .await?;
        Ok(Self {
            slot,
            ..Self::default()
        })
    }

    /// Reads on. Fails when a key ever went back to a version that it had before, or stayed at one.
    pub(super) async fn read_on(&mut self, target: &Client) -> Result<()> {
        let rows = target
            .query_raw(
                "SELECT data FROM pg_logical_slot_get_changes($1, NULL, NULL) \
                  WHERE data LIKE 'table public.t%'",
                [&self.slot],
            )
            .await?;
        tokio::pin!(rows);
        while let Some(row) = rows.try_next().await? {
            self.line(row.get(0)).context("in the target's history")?;
        }
        Ok(())
    }

    fn line(&mut self, data: &str) -> Result<()> {
        let rest = data.strip_prefix("table public.t").context("no table")?;
        let (table, rest) = rest.split_once(": ").context("no verb")?;
        let (verb, columns) = rest.split_once(": ").context("no columns")?;
        let id = number(columns, "id[bigint]:")?;
        let key = Key {
            table: table.parse()?,
            id,
        };
        self.changes += 1;
        if verb == "DELETE" {
            return Ok(());
        }
        let version = number(columns, "version[bigint]:")?;
        let before = self.versions.insert(key, version).unwrap_or(0);
        ensure!(
            version > before,
            "{key:?} went from version {before} to {version}"
        );
        Ok(())
    }
}

fn number(columns: &str, name: &str) -> Result<i64> {
    let mut parts = columns.split(' ');
    let text = parts.find_map(|part| part.strip_prefix(name));
    Ok(text.with_context(|| format!("no {name}"))?.parse()?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_version_that_goes_back_or_stays_is_noticed() {
        let mut history = History::default();
        let mut update = |id: i64, version: i64| {
            history.line(&format!(
                "table public.t1: UPDATE: id[bigint]:{id} version[bigint]:{version} amount[bigint]:5"
            ))
        };
        update(1, 1).expect("the first");
        update(2, 9).expect("another key");
        update(1, 3).expect("a later one");
        assert!(update(1, 3).is_err());
        assert!(update(1, 2).is_err());
    }
}
