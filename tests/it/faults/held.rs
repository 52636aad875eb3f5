//! What is about the rows is held whole under `hold_dependents`: the healthy ones before and behind it
//! go in, in the same session and through the same statements, and after the repair it is replayed.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use serde_json::Value;
use trellara_testkit::flow::Flow;

use crate::scenario::{WITHIN, prepared, run, value};

const HELD: &str = "SELECT coalesce(string_agg(concat_ws(' ', reason, state, nullif(sqlstate, ''), nullif(table_name, ''), nullif(object, '')), \
                    ', ' ORDER BY id), '') FROM trellara.held";

/// A fault of the rows.
struct Fault {
    name: &'static str,
    version: u32,
    /// Further lines of the file.
    extra: &'static str,
    /// Both sides.
    source: &'static str,
    target: &'static str,
    /// What the target has to itself when both have the rows of `first`.
    apart: &'static str,
    /// On the source, healthy.
    first: &'static str,
    /// On the source: one transaction that the target refuses.
    poison: &'static str,
    /// On the source, in the same table and by the same kind of statement.
    healthy: &'static [&'static str],
    /// What is said of it: reason, state, SQLSTATE, table, constraint or column.
    said: &'static str,
    /// On the target: what makes it go in.
    repair: &'static str,
}

const PLAIN: &str = "CREATE TABLE t (id int PRIMARY KEY, v text)";

/// The most ordinary one, for others to differ from.
const CHECK: Fault = Fault {
    name: "check",
    version: 18,
    extra: "",
    source: PLAIN,
    target: "CREATE TABLE t (id int PRIMARY KEY, v text, CONSTRAINT nice CHECK (v <> 'bad'))",
    apart: "",
    first: "INSERT INTO t VALUES (1, 'one')",
    poison: "BEGIN; INSERT INTO t VALUES (48, 'fine'), (49, 'fine'); INSERT INTO t VALUES (50, 'bad'); COMMIT",
    healthy: &[
        "INSERT INTO t VALUES (2, 'two'), (3, 'three')",
        "INSERT INTO t VALUES (4, 'four')",
    ],
    said: "23514 t nice",
    repair: "ALTER TABLE t DROP CONSTRAINT nice",
};

/// Who holds the lane, and in which session.
async fn session(flow: &Flow) -> Result<String> {
    value(
        &flow.target_admin,
        "SELECT epoch || ' ' || holder_pid FROM trellara.lane",
    )
    .await
}

async fn caught_up(flow: &Flow) -> Result<()> {
    flow.caught_up(WITHIN).await
}

/// Up to where the fault is held, and everything else is in.
async fn is_held(fault: &Fault, flow: &mut Flow) -> Result<()> {
    flow.start().await?;
    run(&flow.source_admin, &[fault.first]).await?;
    caught_up(flow).await?;
    if !fault.apart.is_empty() {
        run(&flow.target_admin, &[fault.apart]).await?;
    }
    let before = session(flow).await?;
    run(&flow.source_admin, &[fault.poison]).await?;
    run(&flow.source_admin, fault.healthy).await?;
    caught_up(flow).await?;
    let said = value(&flow.target_admin, HELD).await?;
    let expected = format!("poisoned held {}", fault.said);
    ensure!(
        said == expected,
        "{said:?}, expected {expected:?}\n{}",
        flow.logs()
    );
    ensure!(
        session(flow).await? == before,
        "the error cost a session\n{}",
        flow.logs()
    );
    let applier = flow.applier.as_ref().context("applier")?;
    let status = applier.status().await.context("no status")?;
    ensure!(status["daemons"][0]["halt"] == Value::Null, "{status}");
    Ok(())
}

/// The whole of it.
async fn held_and_replayed(fault: Fault) -> Result<()> {
    let extra = format!("quarantine: {{policy: hold_dependents}}\n{}", fault.extra);
    let (source, target) = (&[fault.source][..], &[fault.target][..]);
    let mut flow = prepared(fault.version, fault.name, source, target, &extra).await?;
    is_held(&fault, &mut flow).await?;
    // Nothing of it is in, and a replay that comes too early changes nothing.
    let done = flow.command(&["quarantine", "replay", "--all"]).await?;
    ensure!(done.code != 0, "{done:?}");
    let state = value(
        &flow.target_admin,
        "SELECT DISTINCT state FROM trellara.held",
    )
    .await?;
    ensure!(state == "held", "{state}");
    run(&flow.target_admin, &[fault.repair]).await?;
    let done = flow.command(&["quarantine", "replay", "--all"]).await?;
    ensure!(done.code == 0, "{done:?}\n{}", flow.logs());
    flow.converges(Duration::from_secs(60)).await?;
    let state = value(
        &flow.target_admin,
        "SELECT string_agg(DISTINCT state, ' ') FROM trellara.held",
    )
    .await?;
    ensure!(state == "replayed", "{state}");
    Ok(())
}

#[tokio::test]
async fn f95_a_check_that_the_source_lacks_holds_the_transaction() -> Result<()> {
    held_and_replayed(CHECK).await
}

#[tokio::test]
async fn f95_a_key_that_the_target_has_already_holds_the_transaction() -> Result<()> {
    held_and_replayed(Fault {
        name: "unique",
        version: 15,
        target: PLAIN,
        apart: "INSERT INTO t VALUES (50, 'mine')",
        said: "23505 t t_pkey",
        repair: "DELETE FROM t WHERE id = 50",
        ..CHECK
    })
    .await
}

#[tokio::test]
async fn f95_a_parent_that_the_target_lacks_holds_the_transaction() -> Result<()> {
    const TABLES: &str = "CREATE TABLE p (id int PRIMARY KEY); \
                          CREATE TABLE t (id int PRIMARY KEY, p int CONSTRAINT parent REFERENCES p)";
    held_and_replayed(Fault {
        name: "parent",
        extra: "apply: {role_replica: false}",
        source: TABLES,
        target: TABLES,
        first: "INSERT INTO p VALUES (1), (2); INSERT INTO t VALUES (1, 1)",
        apart: "DELETE FROM p WHERE id = 2",
        poison: "INSERT INTO t VALUES (50, 2)",
        healthy: &["INSERT INTO t VALUES (2, 1)"],
        said: "23503 t parent",
        repair: "INSERT INTO p VALUES (2)",
        ..CHECK
    })
    .await
}

#[tokio::test]
async fn f95_a_null_that_the_target_forbids_holds_the_transaction() -> Result<()> {
    held_and_replayed(Fault {
        name: "notnull",
        version: 15,
        target: PLAIN,
        apart: "ALTER TABLE t ALTER COLUMN v SET NOT NULL",
        poison: "INSERT INTO t VALUES (50, NULL)",
        said: "23502 t v",
        repair: "ALTER TABLE t ALTER COLUMN v DROP NOT NULL",
        ..CHECK
    })
    .await
}

#[tokio::test]
async fn f96_a_text_that_is_too_long_holds_the_transaction() -> Result<()> {
    held_and_replayed(Fault {
        name: "length",
        target: "CREATE TABLE t (id int PRIMARY KEY, v varchar(5))",
        poison: "INSERT INTO t VALUES (50, 'longer')",
        said: "22001 t",
        repair: "ALTER TABLE t ALTER COLUMN v TYPE text",
        ..CHECK
    })
    .await
}

#[tokio::test]
async fn f96_a_number_that_is_out_of_range_holds_the_transaction() -> Result<()> {
    held_and_replayed(Fault {
        name: "range",
        version: 15,
        source: "CREATE TABLE t (id int PRIMARY KEY, v bigint)",
        target: "CREATE TABLE t (id int PRIMARY KEY, v smallint)",
        first: "INSERT INTO t VALUES (1, 1)",
        poison: "INSERT INTO t VALUES (50, 40000)",
        healthy: &["INSERT INTO t VALUES (2, 2)"],
        said: "22003 t",
        repair: "ALTER TABLE t ALTER COLUMN v TYPE bigint",
        ..CHECK
    })
    .await
}

#[tokio::test]
async fn f96_a_label_that_the_targets_enum_lacks_holds_the_transaction() -> Result<()> {
    held_and_replayed(Fault {
        name: "label",
        source: "CREATE TYPE mood AS ENUM ('one', 'two', 'four', 'bad'); CREATE TABLE t (id int PRIMARY KEY, v mood)",
        target: "CREATE TYPE mood AS ENUM ('one', 'two', 'four'); CREATE TABLE t (id int PRIMARY KEY, v mood)",
        poison: "INSERT INTO t VALUES (50, 'bad')",
        healthy: &["INSERT INTO t VALUES (2, 'two')", "INSERT INTO t VALUES (4, 'four')"],
        said: "22P02 t",
        repair: "ALTER TYPE mood ADD VALUE 'bad'",
        ..CHECK
    })
    .await
}

/// The target's encoding lacks a character: there is no repair but another database.
#[tokio::test]
async fn f96_a_character_that_the_targets_encoding_lacks_holds_the_transaction() -> Result<()> {
    let fault = Fault {
        name: "latin",
        version: 15,
        poison: "INSERT INTO t VALUES (50, '漢')",
        healthy: &[
            "INSERT INTO t VALUES (2, 'zwölf')",
            "INSERT INTO t VALUES (4, 'four')",
        ],
        said: "22P05 t",
        ..CHECK
    };
    let extra = "quarantine: {policy: hold_dependents}";
    let mut flow = prepared(fault.version, fault.name, &[fault.source], &[], extra).await?;
    let (server, database) = flow.target_admin.rsplit_once('/').context("a database")?;
    let server = format!("{server}/postgres");
    for sql in [
        format!("DROP DATABASE {database}"),
        format!(
            "CREATE DATABASE {database} ENCODING 'LATIN1' LC_COLLATE 'C' LC_CTYPE 'C' TEMPLATE template0"
        ),
    ] {
        run(&server, &[&sql]).await?;
    }
    run(&flow.target_admin, &[PLAIN]).await?;
    is_held(&fault, &mut flow).await?;
    let words = value(
        &flow.target_admin,
        "SELECT string_agg(v, ' ' ORDER BY id) FROM t",
    )
    .await?;
    ensure!(words == "one zwölf four", "{words}");
    Ok(())
}

#[tokio::test]
async fn f97_a_row_that_is_not_there_to_update_holds_the_transaction() -> Result<()> {
    held_and_replayed(Fault {
        name: "noupdate",
        target: PLAIN,
        first: "INSERT INTO t VALUES (1, 'one'), (2, 'two'), (50, 'fifty')",
        apart: "DELETE FROM t WHERE id = 50",
        poison: "UPDATE t SET v = 'else' WHERE id IN (1, 50)",
        healthy: &["UPDATE t SET v = 'other' WHERE id = 2"],
        said: "t",
        repair: "INSERT INTO t VALUES (50, 'fifty')",
        ..CHECK
    })
    .await
}

#[tokio::test]
async fn f97_a_row_that_is_not_there_to_delete_holds_the_transaction() -> Result<()> {
    held_and_replayed(Fault {
        name: "nodelete",
        version: 15,
        target: PLAIN,
        first: "INSERT INTO t VALUES (1, 'one'), (2, 'two'), (50, 'fifty')",
        apart: "DELETE FROM t WHERE id = 50",
        poison: "DELETE FROM t WHERE id IN (1, 50)",
        healthy: &["DELETE FROM t WHERE id = 2"],
        said: "t",
        repair: "INSERT INTO t VALUES (50, 'fifty')",
        ..CHECK
    })
    .await
}

/// Without a key on the target one row of the source may be two there.
#[tokio::test]
async fn f97_two_rows_where_one_should_be_hold_the_transaction() -> Result<()> {
    held_and_replayed(Fault {
        name: "tworows",
        source: "CREATE TABLE t (id int PRIMARY KEY, v text); CREATE TABLE other (id int PRIMARY KEY)",
        target: "CREATE TABLE t (id int, v text); CREATE TABLE other (id int PRIMARY KEY)",
        first: "INSERT INTO t VALUES (1, 'one'), (2, 'two')",
        apart: "INSERT INTO t VALUES (2, 'two')",
        poison: "UPDATE t SET v = 'else' WHERE id = 2",
        // All of the table waits behind it: which of its rows are the same ones nobody knows.
        healthy: &["INSERT INTO other VALUES (1)"],
        said: "t",
        repair: "DELETE FROM t WHERE ctid = (SELECT max(ctid) FROM t WHERE id = 2)",
        ..CHECK
    })
    .await
}

#[tokio::test]
async fn f106_a_trigger_that_raises_holds_the_transaction() -> Result<()> {
    held_and_replayed(Fault {
        name: "trigger",
        version: 15,
        source: "CREATE TABLE t (id int PRIMARY KEY, v text); CREATE TABLE other (id int PRIMARY KEY)",
        target: "CREATE TABLE t (id int PRIMARY KEY, v text); CREATE TABLE other (id int PRIMARY KEY); \
                 CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS \
                   'BEGIN IF NEW.v = ''bad'' THEN RAISE ''not this one''; END IF; RETURN NEW; END'; \
                 CREATE TRIGGER refuse BEFORE INSERT ON t FOR EACH ROW EXECUTE FUNCTION refuse(); \
                 ALTER TABLE t ENABLE ALWAYS TRIGGER refuse",
        // A trigger may write anywhere: nothing goes past what it would have been fired for.
        healthy: &["INSERT INTO other VALUES (1)"],
        said: "P0001 t, dependent held",
        repair: "DROP TRIGGER refuse ON t",
        ..CHECK
    })
    .await
}
