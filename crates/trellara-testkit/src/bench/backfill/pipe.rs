//! `psql COPY OUT | psql COPY IN`.

use std::collections::VecDeque;
use std::process::Stdio;
use std::sync::{Arc, Mutex, PoisonError};

use anyhow::{Context, Result, ensure};
use tokio::process::Command;
use tokio::task::JoinSet;

use super::TABLES;

/// Copies every table over so many pipes at once; the largest first.
pub(super) async fn copy(version: u32, from: &str, into: &str, pipes: usize) -> Result<()> {
    let tables: VecDeque<u64> = (0..TABLES).collect();
    let tables = Arc::new(Mutex::new(tables));
    let mut running = JoinSet::new();
    for _ in 0..pipes {
        let (from, into) = (from.to_owned(), into.to_owned());
        let tables = Arc::clone(&tables);
        running.spawn(async move {
            let next = || {
                let mut tables = tables.lock().unwrap_or_else(PoisonError::into_inner);
                tables.pop_front()
            };
            while let Some(table) = next() {
                one(version, &from, &into, table).await?;
            }
            anyhow::Ok(())
        });
    }
    while let Some(ended) = running.join_next().await {
        ended??;
    }
    Ok(())
}

async fn one(version: u32, from: &str, into: &str, table: u64) -> Result<()> {
    let program = trellara_local::postgres_bin(version)?.join("psql");
    let psql = |url: &str, sql: String| {
        let mut command = Command::new(&program);
        command.args(["-X", "-q", "-v", "ON_ERROR_STOP=1", "-d", url, "-c", &sql]);
        command.kill_on_drop(true);
        command
    };
    let mut out = psql(from, format!("COPY public.t{table} TO STDOUT"))
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .spawn()?;
    let text: Stdio = out.stdout.take().context("its output")?.try_into()?;
    let mut copied = psql(into, format!("COPY public.t{table} FROM STDIN"))
        .stdin(text)
        .stdout(Stdio::null())
        .spawn()?;
    let (read, written) = (out.wait().await?, copied.wait().await?);
    ensure!(
        read.success() && written.success(),
        "t{table}: {read}, {written}"
    );
    Ok(())
}
