//! A flow that an older build set up goes on under this one.

use anyhow::{Result, ensure};

use crate::scenario::{WITHIN, run, started, value};

const SCHEMA: &str = "CREATE TABLE t (id bigint PRIMARY KEY, v text)";
/// What versions 2 and 3 of the schema added goes, and the two tables of version 1 come back.
const BACK: &str = "DROP TABLE trellara.backfill_definition, trellara.backfill_part, \
         trellara.backfill, trellara.held_tie, trellara.audit, trellara.pause, trellara.request, trellara.skipped, \
         trellara.held_dependency, trellara.held_key, trellara.held_frame, trellara.held; \
     CREATE TABLE trellara.held (id bigint PRIMARY KEY, flow text NOT NULL, state text NOT NULL); \
     CREATE TABLE trellara.held_key (held_id bigint REFERENCES trellara.held (id)); \
     UPDATE trellara.state_version SET version = 1";

/// The stream knows its target by the schema's own id: that of an older schema counts.
#[tokio::test]
async fn setup_brings_the_schema_of_a_flow_up_to_date_and_the_flow_goes_on() -> Result<()> {
    for version in [15, 18] {
        let mut flow = started(version, "upgraded", &[SCHEMA], "halt: exit").await?;
        run(&flow.source_admin, &["INSERT INTO t VALUES (1, 'a')"]).await?;
        flow.caught_up(WITHIN).await?;
        flow.applier = None;
        let admin = format!("SET ROLE {}", flow.roles.admin());
        run(&flow.target_admin, &[&admin, BACK]).await?;
        run(&flow.source_admin, &["INSERT INTO t VALUES (2, 'b')"]).await?;
        let ledger = "SELECT string_agg(a::text, ' ' ORDER BY a::text) FROM trellara.applied AS a";
        let before = value(&flow.target_admin, ledger).await?;

        let refused = flow.command(&["applier"]).await?;
        ensure!(refused.code == 11, "{refused:?}");
        ensure!(refused.stderr.contains("has version 1"), "{refused:?}");
        ensure!(refused.stderr.contains("trellara setup"), "{refused:?}");

        let shown = flow.command(&["setup", "--dry-run"]).await?;
        let what = "bring schema trellara in the target to version 3";
        ensure!(format!("{shown:?}").contains(what), "{shown:?}");
        flow.setup().await?;
        ensure!(value(&flow.target_admin, ledger).await? == before);
        flow.start_applier()?;
        flow.converges(WITHIN).await?;
        let list = flow.command(&["quarantine", "list"]).await?;
        ensure!(list.code == 0, "{list:?}");
    }
    Ok(())
}
