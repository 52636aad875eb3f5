//! Cases from the field that a judge has to see, each a test named after its number.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use nix::sys::signal::Signal;
use serde_json::Value;
use trellara_testkit::daemon::Daemon;
use trellara_testkit::flow::Flow;
use trellara_testkit::ground::GroundOptions;

use super::{table, verify};
use crate::restart::ground;
use crate::scenario::{WITHIN, prepared, run, started, value};

/// What it says when no other test's open transaction keeps it waiting.
async fn judged(flow: &Flow, more: &[&str]) -> Result<(i32, Option<Value>, String)> {
    let words: Vec<&str> = ["--output", "json"].iter().chain(more).copied().collect();
    let finished = flow.judged(&words).await?;
    let document = serde_json::from_str(&finished.stdout).ok();
    Ok((finished.code, document, finished.stderr))
}

/// The document of a run that ended so.
async fn ends(flow: &Flow, code: i32) -> Result<Value> {
    let (ended, document, stderr) = judged(flow, &[]).await?;
    let shown = document.as_ref().map(ToString::to_string);
    ensure!(
        ended == code,
        "verify ended with {ended}: {shown:?} {stderr}"
    );
    document.with_context(|| format!("a document: {stderr}"))
}

/// How many rows of a table differ in each way.
fn kinds(document: &Value, name: &str) -> Result<[u64; 4]> {
    let table = table(document, name)?;
    Ok(["missing", "extra", "changed", "duplicate"]
        .map(|kind| table[kind].as_u64().unwrap_or(u64::MAX)))
}

#[tokio::test]
async fn b63_keys_that_the_servers_order_differently() -> Result<()> {
    let tables = |text: &str| {
        format!(
            "CREATE TABLE word (k text {text} PRIMARY KEY, v int);
             CREATE TABLE tenant (tenant int, id text {text}, v int, PRIMARY KEY (tenant, id));
             CREATE TABLE padded (k char(5) PRIMARY KEY, v int);
             CREATE TABLE gaps (k text {text} UNIQUE, v int); ALTER TABLE gaps REPLICA IDENTITY FULL;
             CREATE TABLE token (k uuid PRIMARY KEY, v int);
             CREATE TABLE amount (k numeric PRIMARY KEY, v int)"
        )
    };
    for (version, name) in [(15, "b63on15"), (18, "b63on18")] {
        // Where there is ICU, the target's order is a person's and calls different texts equal.
        let icu = "CREATE COLLATION loose (provider = icu, locale = 'und-u-ks-level2', deterministic = false)";
        let mut flow = prepared(version, name, &[&tables("")], &[], "").await?;
        let loose = run(&flow.target_admin, &[icu]).await.is_ok();
        let collation = if loose {
            "COLLATE loose"
        } else {
            "COLLATE \"C.utf8\""
        };
        run(&flow.target_admin, &[&tables(collation)]).await?;
        flow.start().await?;
        run(
            &flow.source_admin,
            &[
                "INSERT INTO word SELECT p || g, g FROM generate_series(1, 200) g, unnest('{a,B,_x,é,a-b,ab}'::text[]) p",
                "INSERT INTO tenant SELECT g % 3, p || g, g FROM generate_series(1, 200) g, unnest('{a,B,_x,é}'::text[]) p",
                "INSERT INTO padded SELECT 'a' || g, g FROM generate_series(1, 999) g; INSERT INTO padded VALUES ('', 0)",
                "INSERT INTO gaps SELECT nullif('k' || g, 'k5'), g FROM generate_series(1, 100) g; INSERT INTO gaps VALUES (NULL, 1), (NULL, 1)",
                "INSERT INTO token SELECT md5(g::text)::uuid, g FROM generate_series(1, 1000) g",
                "INSERT INTO amount SELECT g / 7.0, g FROM generate_series(-500, 499) g; INSERT INTO amount VALUES ('NaN', 1), (1e30, 2)",
            ],
        )
        .await?;
        flow.caught_up(WITHIN).await?;
        let rows = [
            ("word", 1200, "k = 'B7'"),
            ("tenant", 800, "id = '_x9'"),
            ("padded", 1000, "k = 'a77'"),
            ("gaps", 102, "k IS NULL AND v = 5"),
            ("token", 1000, "v = 500"),
            ("amount", 1002, "k = 'NaN'"),
        ];
        let document = ends(&flow, 0).await?;
        for (name, rows, _) in rows {
            let table = table(&document, &format!("public.{name}"))?;
            ensure!(
                table["source_rows"] == rows && table["target_rows"] == rows,
                "{table}"
            );
        }
        for (name, _, row) in rows {
            let delete = format!("DELETE FROM {name} WHERE {row}");
            run(&flow.target_admin, &[&delete]).await?;
        }
        let document = ends(&flow, 3).await?;
        for (name, ..) in rows {
            let found = kinds(&document, &format!("public.{name}"))?;
            ensure!(found == [1, 0, 0, 0], "{name} on {version}: {found:?}");
        }
    }
    Ok(())
}

#[tokio::test]
async fn b87_one_of_two_equal_rows_is_missed() -> Result<()> {
    for (version, name) in [(15, "b87judge15"), (18, "b87judge18")] {
        let schema = "CREATE TABLE dup (a int, b text); ALTER TABLE dup REPLICA IDENTITY FULL";
        let flow = started(version, name, &[schema], "").await?;
        let rows = "INSERT INTO dup VALUES (1, NULL), (1, NULL), (2, 'x'), (2, 'x')";
        run(&flow.source_admin, &[rows]).await?;
        flow.caught_up(WITHIN).await?;
        ends(&flow, 0).await?;
        let one = "DELETE FROM dup WHERE ctid = (SELECT min(ctid) FROM dup WHERE a = 1)";
        run(&flow.target_admin, &[one]).await?;
        let document = ends(&flow, 3).await?;
        let found = kinds(&document, "public.dup")?;
        ensure!(found == [0, 0, 0, 1], "{found:?}");
        let row = &table(&document, "public.dup")?["differences"][0];
        ensure!(
            row["source_count"] == 2 && row["target_count"] == 1,
            "{row}"
        );
    }
    Ok(())
}

/// Each of `what` is named as not covered.
fn not_covered(document: &Value, what: &[&str]) -> Result<()> {
    let named = &document["not_covered"];
    let all = named.as_array().context("a list")?;
    for what in what {
        ensure!(all.iter().any(|one| one == what), "{what} in {named}");
    }
    Ok(())
}

#[tokio::test]
async fn b106_tables_that_appear_by_themselves_are_named() -> Result<()> {
    let schema = "CREATE TABLE t (id int PRIMARY KEY, v text)";
    for (version, name) in [(15, "b106judge15"), (18, "b106judge18")] {
        let flow = started(version, name, &[schema], "").await?;
        run(
            &flow.source_admin,
            &[
                "INSERT INTO t SELECT g, 'v' FROM generate_series(1, 100) g",
                "CREATE TABLE ctas AS SELECT * FROM t",
                "CREATE UNLOGGED TABLE u AS SELECT * FROM t",
                "CREATE MATERIALIZED VIEW m AS SELECT * FROM t",
                "REFRESH MATERIALIZED VIEW m",
                "VACUUM FULL t",
                "UPDATE t SET v = 'w' WHERE id = 7",
            ],
        )
        .await?;
        flow.caught_up(WITHIN).await?;
        let document = ends(&flow, 0).await?;
        ensure!(table(&document, "public.t")?["target_rows"] == 100);
        let what = [
            "table public.ctas",
            "unlogged table public.u",
            "materialized view public.m",
        ];
        not_covered(&document, &what)?;
    }
    Ok(())
}

#[tokio::test]
async fn b111_what_the_target_did_to_a_row_is_found() -> Result<()> {
    let schema = "CREATE TABLE t (id int PRIMARY KEY, v text);";
    let trigger = |body: &str| {
        format!(
            "CREATE OR REPLACE FUNCTION meddle() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN {body} END $$;
             CREATE OR REPLACE TRIGGER meddles BEFORE INSERT ON t FOR EACH ROW EXECUTE FUNCTION meddle();
             ALTER TABLE t ENABLE ALWAYS TRIGGER meddles"
        )
    };
    for (version, name) in [(15, "b111judge15"), (18, "b111judge18")] {
        let mut flow = started(version, name, &[schema], "").await?;
        let rows = "INSERT INTO t SELECT g, 'v' FROM generate_series(1, 10) g";
        run(&flow.source_admin, &[rows]).await?;
        flow.caught_up(WITHIN).await?;
        // The flow sees nothing of either.
        let other = trigger("NEW.v := 'meddled'; RETURN NEW;");
        run(&flow.target_admin, &["DELETE FROM t WHERE id = 3", &other]).await?;
        run(&flow.source_admin, &["INSERT INTO t VALUES (11, 'v')"]).await?;
        flow.caught_up(WITHIN).await?;
        let document = ends(&flow, 3).await?;
        let found = kinds(&document, "public.t")?;
        ensure!(found == [1, 0, 1, 0], "{found:?}");
        // A row that is eaten stops the flow, and the judge says so instead of "equal".
        let eats = trigger("RETURN NULL;");
        run(&flow.target_admin, &[&eats]).await?;
        run(&flow.source_admin, &["INSERT INTO t VALUES (12, 'v')"]).await?;
        // Asked where it listens, it says why it does not answer.
        let applier = flow.applier.as_ref().context("applier")?;
        let listens = applier.endpoint().context("an endpoint")?;
        flow.environment.push(("TRELLARA__OPS__LISTEN", listens));
        let (code, document, stderr) = judged(&flow, &["--timeout", "1m"]).await?;
        ensure!(
            code == 4 && document.is_none() && stderr.contains("the applier halted: APPLY_FAILED"),
            "verify ended with {code}: {stderr}"
        );
    }
    Ok(())
}

#[tokio::test]
async fn b119_what_no_stream_carries_stands_in_the_verdict() -> Result<()> {
    for (version, name) in [(15, "b119judge15"), (18, "b119judge18")] {
        let schema = "CREATE TABLE t (id int PRIMARY KEY, picture oid)";
        let flow = started(version, name, &[schema], "").await?;
        run(
            &flow.source_admin,
            &[
                "CREATE UNLOGGED TABLE u (id int); INSERT INTO u VALUES (1)",
                "CREATE MATERIALIZED VIEW m AS SELECT 1 AS one",
                "INSERT INTO t VALUES (1, lo_from_bytea(0, 'picture'))",
            ],
        )
        .await?;
        flow.caught_up(WITHIN).await?;
        let document = ends(&flow, 0).await?;
        let what = [
            "large objects",
            "unlogged table public.u",
            "materialized view public.m",
        ];
        not_covered(&document, &what)?;
        let mapped = table(&document, "public.t")?["mapped"].to_string();
        ensure!(mapped.contains("picture"), "{mapped}");
        // For people it stands in the line of the verdict.
        let told = flow.judged(&[]).await?;
        let mut lines = told.stdout.lines();
        let verdict = lines.find(|line| line.starts_with("verdict: EQUAL"));
        let named = verdict.is_some_and(|line| what.iter().all(|what| line.contains(what)));
        ensure!(named, "{}{}", told.stdout, told.stderr);
    }
    Ok(())
}

#[tokio::test]
async fn b123_the_exit_code_says_which_of_three() -> Result<()> {
    let schema = "CREATE TABLE t (id int PRIMARY KEY); CREATE TABLE u (id int PRIMARY KEY)";
    for (version, name) in [(15, "b123judge15"), (18, "b123judge18")] {
        let mut flow = started(version, name, &[schema], "").await?;
        let rows = "INSERT INTO t SELECT generate_series(1, 10); INSERT INTO u VALUES (1)";
        run(&flow.source_admin, &[rows]).await?;
        flow.caught_up(WITHIN).await?;
        ends(&flow, 0).await?;
        let target = flow.target_admin.clone();
        run(&target, &["DELETE FROM t WHERE id IN (2, 5, 10)"]).await?;
        let found = kinds(&ends(&flow, 3).await?, "public.t")?;
        ensure!(found == [3, 0, 0, 0], "{found:?}");
        let extra = "INSERT INTO t VALUES (2), (5), (10), (11)";
        run(&target, &[extra]).await?;
        let found = kinds(&ends(&flow, 3).await?, "public.t")?;
        ensure!(found == [0, 1, 0, 0], "{found:?}");
        run(
            &target,
            &["DELETE FROM t WHERE id = 11; ALTER TABLE u RENAME TO gone"],
        )
        .await?;
        let document = ends(&flow, 4).await?;
        ensure!(document["verdict"] == "not compared", "{document}");
        ensure!(table(&document, "public.t")?["outcome"] == "equal");
        ensure!(table(&document, "public.u")?["outcome"] == "not comparable");
        // A difference is one, whatever else could not be compared.
        run(&target, &["DELETE FROM t WHERE id = 1"]).await?;
        ends(&flow, 3).await?;
        run(
            &target,
            &["INSERT INTO t VALUES (1); ALTER TABLE gone RENAME TO u"],
        )
        .await?;
        ends(&flow, 0).await?;
        let nowhere = "postgresql://nobody@127.0.0.1:1/nowhere?connect_timeout=2";
        for side in ["TRELLARA__SOURCE__URL", "TRELLARA__TARGET__URL"] {
            flow.environment = vec![(side, nowhere.to_owned())];
            let (code, document, stderr) = verify(&flow, &[]).await?;
            ensure!(
                code == 4 && document.is_none(),
                "{side}: verify ended with {code}: {stderr}"
            );
        }
    }
    Ok(())
}

/// A part that stands still looks healthy from outside; there is no "equal" about what it has not
/// carried, and no waiting beyond what was asked for. On servers of its own: another test's open
/// transaction would be the cause instead.
#[tokio::test]
async fn b125_a_part_that_stands_still_is_no_equality() -> Result<()> {
    const SLACK: Duration = Duration::from_secs(10);
    let schema = "CREATE TABLE t (id int PRIMARY KEY)";
    for version in [15, 18] {
        let (_ground, flow) = ground(GroundOptions::version(version), schema, "").await?;
        let parts: [(&Option<Daemon>, &str); 2] = [
            (&flow.applier, "did not answer"),
            (&flow.relay, "did not come to the source's position"),
        ];
        for (i, (part, cause)) in parts.into_iter().enumerate() {
            let part = part.as_ref().context("a daemon")?;
            flow.caught_up(WITHIN).await?;
            part.signal(Signal::SIGSTOP)?;
            let row = format!("INSERT INTO t VALUES ({i})");
            run(&flow.source_admin, &[&row]).await?;
            let began = Instant::now();
            let (code, document, stderr) = verify(&flow, &["--timeout", "2s"]).await?;
            let took = began.elapsed();
            part.signal(Signal::SIGCONT)?;
            ensure!(
                code == 4 && document.is_none() && stderr.contains(cause),
                "verify ended with {code}: {stderr}"
            );
            ensure!(took < SLACK, "it waited for {took:?}");
            flow.caught_up(WITHIN).await?;
            ends(&flow, 0).await?;
            ensure!(
                value(&flow.target_admin, "SELECT count(*) FROM t").await? == (i + 1).to_string()
            );
        }
    }
    Ok(())
}
