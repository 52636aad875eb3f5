//! `trellara rewind`, judged by what the target itself says of its rows.

use anyhow::{Result, ensure};
use serde_json::Value;
use trellara_testkit::compare;

use crate::scenario::{WITHIN, run, started};

const SCHEMA: &str = "CREATE TABLE t (id bigint PRIMARY KEY, v text)";

#[tokio::test]
async fn a_rewind_leaves_every_row_version_of_the_target_as_it_was() -> Result<()> {
    for version in [15, 18] {
        let flow = started(version, "rewound", &[SCHEMA], "").await?;
        let mut script: Vec<String> = (0..150)
            .map(|id| format!("INSERT INTO t VALUES ({id}, 'x')"))
            .collect();
        script.extend((0..150).map(|id| format!("UPDATE t SET v = 'y' WHERE id = {id}")));
        script.extend((0..50).map(|id| format!("DELETE FROM t WHERE id = {id}")));
        let script: Vec<&str> = script.iter().map(String::as_str).collect();
        run(&flow.source_admin, &script).await?;
        flow.caught_up(WITHIN).await?;

        let target = compare::connect(&flow.target_admin).await?;
        let written = async || {
            // Progress without transactions is written down every ten seconds, whatever happens.
            let ledger =
                compare::row_versions(&target, "trellara.applied", "length(hashes) > 0").await?;
            let rows = compare::row_versions(&target, "public.t", "true").await?;
            Ok::<_, anyhow::Error>((rows, ledger))
        };
        let before = written().await?;
        let words = ["rewind", "--to", "oldest", "--output", "json"];
        let done = flow.command(&words).await?;
        ensure!(done.code == 0, "{done:?}");
        ensure!(written().await? == before, "rows were written");
        let report: Value = serde_json::from_str(&done.stdout)?;
        for (field, wanted) in [
            ("transactions", 350),
            ("skipped", 350),
            ("confirmed_in_ledger", 350),
            ("below_watermark", 0),
            ("rows_written", 0),
        ] {
            ensure!(report[field] == wanted, "{field} in {report}");
        }
        flow.converges(WITHIN).await?;
    }
    Ok(())
}
