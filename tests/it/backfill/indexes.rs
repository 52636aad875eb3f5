//! Indexes and foreign keys that are put off, with the parts killed while rows come and while the
//! indexes are made again.

use anyhow::{Result, ensure};
use trellara_testkit::compare;
use trellara_testkit::ground::{Ground, GroundOptions};
use trellara_testkit::handover::{Victim, kill};

use super::resume::{SOURCE, TARGET, WITHIN, shut};
use crate::restart::until;
use crate::scenario::{run, value};

const INDEXES: &str = "
    CREATE INDEX large_1_length ON large_1 (length(body)) WHERE id > 10;
    CREATE UNIQUE INDEX small_both ON small (v, id);
    COMMENT ON INDEX small_both IS 'as it was';
    ALTER TABLE small ADD CONSTRAINT small_far FOREIGN KEY (id) REFERENCES large_1";
const CATALOGUE: &str = "\
    SELECT string_agg(line, E'\\n' ORDER BY line) FROM ( \
      SELECT pg_get_indexdef(indexrelid) || coalesce(obj_description(indexrelid, 'pg_class'), '') AS line \
        FROM pg_index AS i JOIN pg_class AS c ON c.oid = i.indrelid \
       WHERE c.relnamespace = 'public'::regnamespace AND i.indisvalid \
      UNION ALL \
      SELECT conname || pg_get_constraintdef(oid) FROM pg_constraint \
       WHERE connamespace = 'public'::regnamespace) AS c";
const MISSING: &str = "\
    SELECT count(*) FROM trellara.backfill_definition WHERE restored_at IS NULL";

#[tokio::test]
async fn indexes_are_made_again_although_the_applier_dies() -> Result<()> {
    made_again(15, Victim::Applier).await
}

#[tokio::test]
async fn indexes_are_made_again_although_the_relay_dies() -> Result<()> {
    made_again(18, Victim::Relay).await
}

async fn made_again(version: u32, victim: Victim) -> Result<()> {
    let mut ground = Ground::start(&GroundOptions::version(version))?;
    let target = format!("{TARGET};{INDEXES}");
    // One reader, and the table with the index is the largest: it is the one that is read first, and
    // fills the stream.
    let configuration = "backfill: {max_bytes: 4MiB, workers: 1, indexes: defer}";
    let source = format!(
        "{SOURCE}; INSERT INTO large_1 SELECT g, repeat(md5(g::text), 100) \
           FROM generate_series(5001, 7000) g"
    );
    let mut flow = ground
        .flow("indexes", &source, &target, configuration)
        .await?;
    flow.grant().await?;
    // Who does not own a table may not make its indexes again: they stay.
    let check = flow.command(&["check"]).await?;
    ensure!(check.stdout.contains("TARGET_INDEXES_STAY"), "{check:?}");
    let apply = flow.roles.apply();
    let own = format!(
        "ALTER TABLE large_1 OWNER TO {apply}; ALTER TABLE large_2 OWNER TO {apply}; \
         ALTER TABLE small OWNER TO {apply}; GRANT CREATE ON SCHEMA public TO {apply}"
    );
    run(&flow.target_admin, &[&own]).await?;
    let before = value(&flow.target_admin, CATALOGUE).await?;
    let gate = shut(&flow).await?;
    flow.setup().await?;
    flow.start_relay()?;
    flow.start_applier()?;
    flow.copying_until(|copying| copying.parts >= 2, WITHIN)
        .await?;
    let shown = flow.command(&["backfill"]).await?;
    for line in [
        "put off: index large_1_length of public.large_1",
        "put off: foreign key small_far of public.small",
        "the copy's stream holds ",
    ] {
        ensure!(shown.stdout.contains(line), "{line}: {shown:?}");
    }
    let waited = flow.command(&["wait", "--timeout", "1s"]).await?;
    ensure!(
        waited.code == 20 && waited.stderr.contains(" is not in (copying)"),
        "{waited:?}"
    );
    kill(victim, &mut ground, &mut flow)?;

    // Whoever looks at the rows keeps the index away; nobody needs the source for it any more.
    let application = compare::connect(&flow.target_admin).await?;
    application
        .batch_execute("BEGIN; LOCK TABLE public.large_1 IN SHARE UPDATE EXCLUSIVE MODE")
        .await?;
    gate.batch_execute("SELECT pg_advisory_unlock_all()")
        .await?;
    let whole = "SELECT count(*) FROM trellara.backfill \
                  WHERE table_name = 'large_1' AND state = 'copying' AND parts IS NOT NULL";
    until(&flow.target_admin, whole, "1", WITHIN).await?;
    let generation = "SELECT generation FROM trellara.backfill WHERE table_name = 'large_1'";
    let generation_before = value(&flow.target_admin, generation).await?;
    kill(victim, &mut ground, &mut flow)?;
    application.batch_execute("ROLLBACK").await?;

    flow.copied(WITHIN).await?;
    ensure!(value(&flow.target_admin, generation).await? == generation_before);
    until(&flow.target_admin, MISSING, "0", WITHIN).await?;
    ensure!(value(&flow.target_admin, CATALOGUE).await? == before);
    flow.converges(WITHIN).await?;
    ground.nats.stop()?;
    Ok(())
}
