//! A target that got something twice, on purpose: extra or duplicate rows, never "equal".

use anyhow::{Context, Result, ensure};

use super::{equal, table, verify};
use crate::scenario::{WITHIN, prepared, run, value};

const SOURCE: &str = "\
    CREATE TABLE kept (id bigint PRIMARY KEY, v text);\
    CREATE TABLE log (id bigint, note text); ALTER TABLE log REPLICA IDENTITY FULL";
/// Nothing on the target keeps a row from standing there twice.
const TARGET: &str = "\
    CREATE TABLE kept (id bigint, v text); CREATE INDEX ON kept (id);\
    CREATE TABLE log (id bigint, note text)";
/// Writes every inserted row once more, whoever writes it and however.
const TWICE: &str = "\
    CREATE FUNCTION twice() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER AS $$ BEGIN \
        IF pg_trigger_depth() = 1 THEN \
            EXECUTE format('INSERT INTO public.%I SELECT ($1).*', TG_TABLE_NAME) USING NEW; \
        END IF; RETURN NULL; END $$;\
    CREATE TRIGGER twice AFTER INSERT ON kept FOR EACH ROW EXECUTE FUNCTION twice();\
    ALTER TABLE kept ENABLE ALWAYS TRIGGER twice;\
    CREATE TRIGGER twice AFTER INSERT ON log FOR EACH ROW EXECUTE FUNCTION twice();\
    ALTER TABLE log ENABLE ALWAYS TRIGGER twice";

#[tokio::test]
async fn rows_that_the_target_writes_twice_are_duplicates() -> Result<()> {
    for version in [15, 18] {
        let mut flow = prepared(version, "twice", &[SOURCE], &[TARGET], "").await?;
        flow.start().await?;
        let rows = |from: u32, to: u32| {
            format!(
                "INSERT INTO kept SELECT g, 'v' FROM generate_series({from}, {to}) AS g; \
                 INSERT INTO log SELECT g, 'n' FROM generate_series({from}, {to}) AS g"
            )
        };
        run(&flow.source_admin, &[&rows(1, 100)]).await?;
        flow.caught_up(WITHIN).await?;
        equal(&flow).await?;
        run(&flow.target_admin, &[TWICE]).await?;
        run(&flow.source_admin, &[&rows(101, 103)]).await?;
        flow.caught_up(WITHIN).await?;
        for lane in ["row64", "blake3"] {
            let (code, document, stderr) = verify(&flow, &["--lane", lane]).await?;
            ensure!(code == 3, "verify ended with {code}: {stderr}");
            let document = document.context("a document")?;
            ensure!(document["verdict"] == "different", "{document}");
            for name in ["public.kept", "public.log"] {
                let found = table(&document, name)?;
                ensure!(
                    found["duplicate"] == 3 && found["differing"] == 3,
                    "{found}"
                );
                ensure!(
                    found["source_rows"] == 103 && found["target_rows"] == 106,
                    "{found}"
                );
                let rows = found["differences"].as_array().context("differences")?;
                let doubled = |row: &serde_json::Value| {
                    row["kind"] == "duplicate"
                        && row["source_count"] == 1
                        && row["target_count"] == 2
                };
                ensure!(rows.len() == 3 && rows.iter().all(doubled), "{found}");
            }
        }
    }
    Ok(())
}

/// The newest rows of the ledger are taken away, so that the applier itself applies what they stood
/// for a second time.
#[tokio::test]
async fn a_stretch_that_was_applied_twice_is_duplicates() -> Result<()> {
    for version in [15, 18] {
        let mut flow = prepared(version, "stretch", &[SOURCE], &[TARGET], "").await?;
        flow.start().await?;
        run(&flow.source_admin, &["INSERT INTO log VALUES (1, 'once')"]).await?;
        flow.caught_up(WITHIN).await?;
        let newest = format!(
            "SELECT max(last_ordinal) FROM trellara.applied WHERE flow = '{}'",
            flow.name
        );
        let before = value(&flow.target_admin, &newest).await?;
        run(
            &flow.source_admin,
            &[
                "INSERT INTO log VALUES (2, 'twice')",
                "INSERT INTO kept VALUES (2, 'twice')",
                "INSERT INTO log VALUES (2, 'twice')",
            ],
        )
        .await?;
        flow.caught_up(WITHIN).await?;
        equal(&flow).await?;
        flow.applier.as_mut().context("an applier")?.kill()?;
        let forget = format!(
            "DELETE FROM trellara.applied WHERE flow = '{}' AND first_ordinal > {before}",
            flow.name
        );
        run(&flow.target_admin, &[&forget]).await?;
        flow.start_applier()?;
        flow.caught_up(WITHIN).await?;
        let (code, document, stderr) = verify(&flow, &[]).await?;
        ensure!(code == 3, "verify ended with {code}: {stderr}");
        let document = document.context("a document")?;
        let (kept, log) = (
            table(&document, "public.kept")?,
            table(&document, "public.log")?,
        );
        ensure!(kept["duplicate"] == 1 && kept["differing"] == 1, "{kept}");
        ensure!(kept["differences"][0]["id"] == "id=2", "{kept}");
        ensure!(log["duplicate"] == 2 && log["differing"] == 2, "{log}");
        let row = &log["differences"][0];
        ensure!(
            row["source_count"] == 2 && row["target_count"] == 4,
            "{log}"
        );
    }
    Ok(())
}
