//! What is compared is what the flow carries, and nobody is held by a judge who gets nowhere.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use trellara_testkit::compare::connect;

use super::{SCHEMA, equal, verify};
use crate::scenario::{run, started, value};

/// A judge who meets a lock must have gone by then.
const SOON: Duration = Duration::from_secs(30);

/// Another database of the same cluster has the source's identity and its positions, and a smaller
/// publication is a publication too: neither is what the flow carries.
#[tokio::test]
async fn only_what_the_flow_carries_can_be_equal() -> Result<()> {
    let flow = started(18, "tied", &[SCHEMA], "").await?;
    let as_it_was = std::fs::read_to_string(flow.config())?;
    let carried = value(&flow.target_admin, "SELECT publication FROM trellara.lane").await?;
    let modes: [&[&str]; 2] = [&[], &["--mode", "rolling"]];

    run(
        &flow.source_admin,
        &["CREATE PUBLICATION smaller FOR TABLE kept"],
    )
    .await?;
    let smaller = as_it_was.replacen("source: {", "source: {publication: smaller, ", 1);
    std::fs::write(flow.config(), smaller)?;
    for mode in modes {
        let (code, document, stderr) = verify(&flow, mode).await?;
        ensure!(
            code == 4,
            "{mode:?} ended with {code}: {document:?} {stderr}"
        );
        ensure!(stderr.contains("set up with publication"), "{stderr}");
    }

    let database = value(&flow.source_admin, "SELECT current_database()").await?;
    let clone = format!("{database}_clone");
    run(&flow.source_admin, &[&format!("CREATE DATABASE {clone}")]).await?;
    let (here, there) = (format!("/{database}"), format!("/{clone}"));
    let admin = flow.source_admin.replacen(&here, &there, 1);
    ensure!(admin != flow.source_admin, "no database in the URL");
    let publication = format!("CREATE PUBLICATION {carried} FOR ALL TABLES");
    let grant = "GRANT SELECT ON ALL TABLES IN SCHEMA public TO PUBLIC";
    run(&admin, &[SCHEMA, grant, &publication]).await?;
    std::fs::write(flow.config(), as_it_was.replacen(&here, &there, 1))?;
    for mode in modes {
        let (code, document, stderr) = verify(&flow, mode).await?;
        ensure!(
            code == 4,
            "{mode:?} ended with {code}: {document:?} {stderr}"
        );
        ensure!(stderr.contains("decodes database"), "{stderr}");
    }
    let gone = format!("DROP DATABASE {clone} WITH (FORCE)");
    run(&flow.source_admin, &[&gone]).await?;

    std::fs::write(flow.config(), as_it_was)?;
    equal(&flow).await.map(drop)
}

/// A judge who waits for a lock on the ledger says so and goes, and the flow with him.
#[tokio::test]
async fn a_lock_on_the_ledger_ends_the_judge_and_not_the_flow() -> Result<()> {
    let flow = started(18, "locked", &[SCHEMA], "").await?;
    let locking = connect(&flow.target_admin).await?;
    let lock = "BEGIN; LOCK TABLE trellara.applied IN ACCESS EXCLUSIVE MODE";
    locking.batch_execute(lock).await?;
    let judged = tokio::time::timeout(SOON, verify(&flow, &[])).await;
    let (code, document, stderr) = judged.context("it waited for the lock")??;
    ensure!(code == 4 && document.is_none(), "{code}: {stderr}");
    ensure!(stderr.contains("holds a lock"), "{stderr}");
    locking.batch_execute("COMMIT").await?;
    equal(&flow).await.map(drop)
}
