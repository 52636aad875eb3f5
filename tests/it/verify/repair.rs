//! The statements that `verify --repair-sql` writes, run by psql as a person would.

use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Command, Output};

use anyhow::{Context, Result, ensure};
use trellara_testkit::flow::Flow;

use super::{equal, verify};
use crate::scenario::{WITHIN, run, started, value};

/// Closes strings and dollar quotes, and opens comments.
const HOSTILE: &str = r#"'; $trellara$ $$ \ " -- /*"#;

const SCHEMA: &str = "\
    CREATE TABLE \"mend\n-- it's \" (k text PRIMARY KEY, \"v'\"\"\n\" text, \
        i int GENERATED ALWAYS AS IDENTITY, d date, b bytea, f float8, \
        g text GENERATED ALWAYS AS (upper(k)) STORED);\
    CREATE TABLE bag (n int, note text); ALTER TABLE bag REPLICA IDENTITY FULL";
const MEND: &str = "\"mend\n-- it's \"";
const COLUMN: &str = "\"v'\"\"\n\"";

fn psql(version: u32, url: &str, file: &Path) -> Result<Output> {
    let program = trellara_local::postgres_bin(version)?.join("psql");
    let run = Command::new(&program)
        .args(["-X", "-q", "-v", "ON_ERROR_STOP=1", "-d", url, "-f"])
        .arg(file)
        .output();
    run.with_context(|| format!("running {}", program.display()))
}

async fn written(flow: &Flow, more: &[&str]) -> Result<(std::path::PathBuf, String)> {
    let file = flow.folder().join("repair.sql");
    let path = file.to_string_lossy().into_owned();
    let mut words = vec!["--repair-sql", &path];
    words.extend_from_slice(more);
    let (code, document, stderr) = verify(flow, &words).await?;
    ensure!(code == 3, "verify ended with {code}: {stderr}");
    let document = document.context("a document")?;
    ensure!(
        !document.to_string().contains("hostile"),
        "a value without --values"
    );
    let mode = std::fs::metadata(&file)?.permissions().mode();
    ensure!(mode & 0o777 == 0o600, "{mode:o}");
    Ok((file, stderr))
}

/// Every kind of difference, with and without a key, is mended by the file; which then does
/// nothing more, and did nothing to a row that had changed since.
async fn mended(version: u32, name: &str) -> Result<()> {
    let flow = started(version, name, &[SCHEMA], "").await?;
    let rows = format!(
        "INSERT INTO {MEND} (k, {COLUMN}, d, b, f) \
         SELECT 'k' || g || $q${HOSTILE}$q$, 'hostile' || g || E'\\n' || $q${HOSTILE}$q$, \
                '2024-02-03', '\\xff5c27', 0.1::float8 + 0.2 FROM generate_series(1, 40) AS g"
    );
    let bag = format!(
        "INSERT INTO bag SELECT g / 2, 'hostile' || $q${HOSTILE}$q$ FROM generate_series(0, 59) AS g"
    );
    run(&flow.source_admin, &[&rows, &bag]).await?;
    flow.caught_up(WITHIN).await?;
    let plant = [
        format!("DELETE FROM {MEND} WHERE k LIKE 'k3''%'"),
        format!("UPDATE {MEND} SET {COLUMN} = NULL, d = '2000-01-01' WHERE k LIKE 'k4''%'"),
        format!("UPDATE {MEND} SET f = 0.3, b = '' WHERE k LIKE 'k5''%'"),
        format!("INSERT INTO {MEND} (k, {COLUMN}) VALUES ('k extra', '')"),
        // One of two equal rows, both of two, one more, and one of its own.
        "DELETE FROM bag WHERE ctid = (SELECT min(ctid) FROM bag WHERE n = 3)".to_owned(),
        "DELETE FROM bag WHERE n = 4".to_owned(),
        "INSERT INTO bag SELECT * FROM bag WHERE n = 5 LIMIT 1".to_owned(),
        "INSERT INTO bag VALUES (NULL, 'hostile bag')".to_owned(),
    ];
    let plant: Vec<&str> = plant.iter().map(String::as_str).collect();
    run(&flow.target_admin, &plant).await?;

    // Without --delete-extra nothing is deleted, and it says so.
    let (file, stderr) = written(&flow, &[]).await?;
    ensure!(stderr.contains("--delete-extra"), "{stderr}");
    ensure!(!std::fs::read_to_string(&file)?.contains("DELETE FROM"));

    let (file, stderr) = written(&flow, &["--delete-extra"]).await?;
    ensure!(!stderr.contains("not repaired"), "{stderr}");
    // What changed since is not what was compared: its whole batch is left as it is.
    let meanwhile = format!("UPDATE {MEND} SET d = '1999-09-09' WHERE k LIKE 'k4''%'");
    run(&flow.target_admin, &[&meanwhile]).await?;
    let digest = format!("SELECT md5(string_agg(t::text, '|' ORDER BY t::text)) FROM {MEND} AS t");
    let before = value(&flow.target_admin, &digest).await?;
    let refused = psql(version, &flow.target_admin, &file)?;
    ensure!(!refused.status.success(), "{refused:?}");
    let said = String::from_utf8_lossy(&refused.stderr).into_owned();
    ensure!(
        said.contains("not what was compared") && !said.contains("k extra"),
        "{said}"
    );
    ensure!(value(&flow.target_admin, &digest).await? == before);

    let (file, _) = written(&flow, &["--delete-extra"]).await?;
    let done = psql(version, &flow.target_admin, &file)?;
    ensure!(done.status.success(), "{done:?}");
    equal(&flow).await?;
    let again = psql(version, &flow.target_admin, &file)?;
    ensure!(!again.status.success(), "{again:?}");
    equal(&flow).await?;
    // Not into another cluster.
    let elsewhere = psql(version, &flow.source_admin, &file)?;
    let said = String::from_utf8_lossy(&elsewhere.stderr).into_owned();
    ensure!(
        !elsewhere.status.success() && said.contains("not the cluster"),
        "{said}"
    );

    // So much differs that a copy is the better cure.
    run(
        &flow.target_admin,
        &["UPDATE bag SET note = 'x' WHERE n < 12"],
    )
    .await?;
    let (file, stderr) = written(&flow, &[]).await?;
    ensure!(
        stderr.contains("not repaired: public.bag") && stderr.contains("differ"),
        "{stderr}"
    );
    ensure!(!std::fs::read_to_string(&file)?.contains("BEGIN;"));
    Ok(())
}

#[tokio::test]
async fn the_repair_mends_what_was_compared_and_nothing_else_on_15() -> Result<()> {
    mended(15, "mended15").await
}

#[tokio::test]
async fn the_repair_mends_what_was_compared_and_nothing_else_on_18() -> Result<()> {
    mended(18, "mended18").await
}

/// The statements act on the table that was compared, in the database that was compared: a foreign
/// key would delete rows of other tables, and another database of the cluster looks like this one.
#[tokio::test]
async fn the_repair_reaches_no_other_table_and_no_other_database() -> Result<()> {
    let schema = "CREATE TABLE parent (id int PRIMARY KEY, n int GENERATED ALWAYS AS IDENTITY)";
    let flow = started(18, "alone", &[schema], "").await?;
    run(
        &flow.source_admin,
        &["INSERT INTO parent (id) SELECT g FROM generate_series(1, 20) AS g"],
    )
    .await?;
    flow.caught_up(WITHIN).await?;
    let plant = [
        "CREATE TABLE child (id int REFERENCES parent ON DELETE CASCADE)",
        "INSERT INTO parent VALUES (21)",
        "INSERT INTO child VALUES (21)",
    ];
    run(&flow.target_admin, &plant).await?;
    let (file, _) = written(&flow, &["--delete-extra"]).await?;
    let sql = std::fs::read_to_string(&file)?;
    let refused = |sql: &str, why: &str| -> Result<()> {
        let other = flow.folder().join("other.sql");
        std::fs::write(&other, sql)?;
        let ran = psql(18, &flow.target_admin, &other)?;
        let said = String::from_utf8_lossy(&ran.stderr).into_owned();
        ensure!(!ran.status.success() && said.contains(why), "{said}");
        Ok(())
    };
    refused(&sql, "would change other rows")?;
    ensure!(value(&flow.target_admin, "SELECT count(*) FROM child").await? == "1");
    let elsewhere = "CREATE DATABASE elsewhere;\n\\connect elsewhere\n";
    refused(&format!("{elsewhere}{sql}"), "not the database")?;
    let anew = "UPDATE trellara.state_version SET target_id = gen_random_uuid();\n";
    refused(&format!("BEGIN;\n{anew}{sql}"), "set up anew")?;

    // As the applier does it: nothing is carried on.
    let replica = format!("SET session_replication_role = replica;\n{sql}");
    std::fs::write(&file, replica)?;
    let done = psql(18, &flow.target_admin, &file)?;
    ensure!(done.status.success(), "{done:?}");
    ensure!(value(&flow.target_admin, "SELECT count(*) FROM child").await? == "1");

    // An identity that no UPDATE can set is named, and nothing is written for its row.
    let moved = "ALTER TABLE parent ALTER n SET GENERATED BY DEFAULT; \
                 UPDATE parent SET n = 99 WHERE id = 3; \
                 ALTER TABLE parent ALTER n SET GENERATED ALWAYS";
    run(&flow.target_admin, &[moved]).await?;
    let (file, stderr) = written(&flow, &[]).await?;
    ensure!(stderr.contains("n is an identity"), "{stderr}");
    ensure!(!std::fs::read_to_string(&file)?.contains("UPDATE ONLY"));
    Ok(())
}
