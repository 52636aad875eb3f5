//! Which row a change means: replica identities, TOAST, duplicates, identity columns.

use anyhow::{Result, ensure};

use crate::scenario::{WITHIN, carried, run, started, value};

#[tokio::test]
async fn b82_unchanged_toast_stays() -> Result<()> {
    for (version, name) in [(15, "b82on15"), (18, "b82on18")] {
        let flow = carried(
            version,
            name,
            &["CREATE TABLE big (id int PRIMARY KEY, doc text, n int); ALTER TABLE big ALTER doc SET STORAGE external"],
            &[
                "INSERT INTO big SELECT 1, repeat('x', 20000), 1",
                "UPDATE big SET n = 2 WHERE id = 1",
                "UPDATE big SET id = 7 WHERE id = 1",
            ],
        )
        .await?;
        ensure!(
            value(
                &flow.target_admin,
                "SELECT length(doc) FROM big WHERE id = 7"
            )
            .await?
                == "20000"
        );
    }
    Ok(())
}

#[tokio::test]
async fn b84_unchanged_toast_with_identity_full() -> Result<()> {
    carried(
        15,
        "b84",
        &["CREATE TABLE big (id int, doc text, j jsonb, a text[], b bytea, n int);
           ALTER TABLE big REPLICA IDENTITY FULL;
           ALTER TABLE big ALTER doc SET STORAGE external, ALTER j SET STORAGE external, ALTER a SET STORAGE external, ALTER b SET STORAGE external"],
        &[
            "INSERT INTO big SELECT g, repeat('x' || g, 20000), jsonb_build_object('k', repeat('y', 20000)),
                    ARRAY[repeat('z', 20000), NULL], convert_to(repeat('b', 20000), 'UTF8'), g FROM generate_series(1, 3) g",
            "UPDATE big SET n = 12 WHERE id = 1",
            "DELETE FROM big WHERE id = 2",
            "UPDATE big SET doc = 'short' WHERE id = 3",
        ],
    )
    .await?;
    Ok(())
}

#[tokio::test]
async fn b85_nulls_of_a_key_only_old_row_are_not_values() -> Result<()> {
    carried(
        15,
        "b85",
        &["CREATE TABLE t (id int PRIMARY KEY, a text NOT NULL, b int NOT NULL)"],
        &[
            "INSERT INTO t SELECT g * 10, 'a' || g, g FROM generate_series(1, 20) g",
            "UPDATE t SET id = id + 1",
            "DELETE FROM t WHERE id > 100",
        ],
    )
    .await?;
    Ok(())
}

#[tokio::test]
async fn b86_a_key_change_leaves_no_old_row() -> Result<()> {
    carried(
        15,
        "b86",
        &["CREATE TABLE c (a int, b int, v text, PRIMARY KEY (a, b)); CREATE TABLE t (id int PRIMARY KEY, v text)"],
        &[
            "INSERT INTO c VALUES (1, 1, 'x'), (1, 2, 'y'); INSERT INTO t SELECT g, 'v' || g FROM generate_series(1, 1000) g",
            "UPDATE c SET b = 3 WHERE b = 1",
            "BEGIN; UPDATE t SET id = 0 WHERE id = 1; UPDATE t SET id = 1 WHERE id = 2; UPDATE t SET id = 2 WHERE id = 0; COMMIT",
            "UPDATE t SET id = -5, v = 'both' WHERE id = 7",
            "UPDATE t SET id = id + 100000",
            "BEGIN; UPDATE t SET id = id + 1 WHERE id = (SELECT max(id) FROM t); UPDATE t SET id = id + 1 WHERE id = (SELECT max(id) - 2 FROM t); COMMIT",
        ],
    )
    .await?;
    Ok(())
}

#[tokio::test]
async fn b87_identity_full_without_a_key_touches_exactly_one_row() -> Result<()> {
    let flow = carried(
        15,
        "b87",
        &["CREATE TABLE dup (a int, b text); ALTER TABLE dup REPLICA IDENTITY FULL"],
        &[
            "INSERT INTO dup VALUES (1, NULL), (1, NULL), (2, 'x'), (2, 'x')",
            "DELETE FROM dup WHERE ctid = (SELECT min(ctid) FROM dup WHERE a = 1)",
            "UPDATE dup SET b = 'y' WHERE ctid = (SELECT min(ctid) FROM dup WHERE a = 2)",
        ],
    )
    .await?;
    let left = value(
        &flow.target_admin,
        "SELECT string_agg(a || coalesce(b, '-'), ',' ORDER BY a, b) FROM dup",
    )
    .await?;
    ensure!(left == "1-,2x,2y", "{left}");
    Ok(())
}

#[tokio::test]
async fn b93_the_key_is_what_relation_says() -> Result<()> {
    carried(
        15,
        "b93",
        &["CREATE SCHEMA other; CREATE TABLE other.child (x int, y int, parent int, v text, PRIMARY KEY (y, x));
           CREATE TABLE parent (id int PRIMARY KEY, code text UNIQUE);
           CREATE TABLE child (x int, y int, parent int REFERENCES parent, v text, PRIMARY KEY (y, x));
           CREATE UNIQUE INDEX ON child (parent) WHERE parent > 1000; CREATE UNIQUE INDEX ON child ((v || 'z'))"],
        &[
            "INSERT INTO parent VALUES (1, 'a'), (2, 'b'); INSERT INTO child VALUES (1, 2, 1, 'p'), (2, 1, 1, 'q')",
            "UPDATE child SET parent = 2 WHERE x = 1; UPDATE child SET v = 'r' WHERE x = 2; DELETE FROM child WHERE x = 1",
        ],
    )
    .await?;
    Ok(())
}

#[tokio::test]
async fn b104_identity_columns_keep_their_values() -> Result<()> {
    for (version, name) in [(15, "b104on15"), (18, "b104on18")] {
        carried(
            version,
            name,
            &["CREATE TABLE p (id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, v text, u int UNIQUE);
               CREATE TABLE c (id bigint GENERATED BY DEFAULT AS IDENTITY PRIMARY KEY, p bigint REFERENCES p);
               CREATE TABLE only_id (id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY)"],
            &[
                "INSERT INTO p (v, u) SELECT 'v' || g, g FROM generate_series(1, 5) g; INSERT INTO c (p) SELECT id FROM p WHERE id > 1",
                "INSERT INTO only_id DEFAULT VALUES; INSERT INTO only_id DEFAULT VALUES",
                "UPDATE p SET v = 'other' WHERE id = 2",
                "ALTER TABLE p ALTER id SET GENERATED BY DEFAULT; UPDATE p SET id = 100 WHERE id = 1; ALTER TABLE p ALTER id SET GENERATED ALWAYS",
                "DELETE FROM only_id WHERE id = 1",
            ],
        )
        .await?;
    }
    Ok(())
}

#[tokio::test]
async fn identity_by_index_and_nothing_and_a_changed_identity() -> Result<()> {
    carried(
        15,
        "ident",
        &["CREATE TABLE byindex (a int NOT NULL, b text NOT NULL, c int); CREATE UNIQUE INDEX byindex_b ON byindex (b);
           ALTER TABLE byindex REPLICA IDENTITY USING INDEX byindex_b;
           CREATE TABLE flips (id int PRIMARY KEY, v int)"],
        &[
            "INSERT INTO byindex VALUES (1, 'x', 1), (2, 'y', 2); UPDATE byindex SET c = 9 WHERE a = 1; UPDATE byindex SET b = 'z' WHERE a = 2; DELETE FROM byindex WHERE a = 1",
            "INSERT INTO flips VALUES (1, 1), (2, 2), (3, 3); UPDATE flips SET v = 10 WHERE id = 1",
            "ALTER TABLE flips REPLICA IDENTITY FULL; UPDATE flips SET v = 20 WHERE id = 2; DELETE FROM flips WHERE id = 1",
            "ALTER TABLE flips REPLICA IDENTITY DEFAULT; UPDATE flips SET id = 30 WHERE id = 3",
        ],
    )
    .await?;
    Ok(())
}

#[tokio::test]
async fn a_missing_target_row_stops_with_its_name() -> Result<()> {
    let mut flow = started(
        15,
        "missing",
        &["CREATE TABLE t (id int PRIMARY KEY, v int)"],
        "halt: exit",
    )
    .await?;
    run(&flow.source_admin, &["INSERT INTO t VALUES (1, 1), (2, 2)"]).await?;
    flow.caught_up(WITHIN).await?;
    run(&flow.target_admin, &["DELETE FROM t WHERE id = 2"]).await?;
    run(
        &flow.source_admin,
        &["BEGIN; UPDATE t SET v = 5 WHERE id = 1; UPDATE t SET v = 5 WHERE id = 2; COMMIT"],
    )
    .await?;
    let applier = flow.applier.as_mut().expect("it was started");
    let status = applier.wait(WITHIN)?;
    let log = applier.log();
    ensure!(status.code() == Some(12), "ended with {status}: {log}");
    ensure!(
        log.contains("APPLY_FAILED") && log.contains("hint"),
        "{log}"
    );
    ensure!(
        value(&flow.target_admin, "SELECT v FROM t WHERE id = 1").await? == "1",
        "half a transaction is in"
    );
    Ok(())
}
