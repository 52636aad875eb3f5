//! What a copy could stumble over, named before the start, or in the middle without hiding the rest.

use anyhow::{Context, Result, ensure};
use serde_json::Value;
use trellara_testkit::compare;
use trellara_testkit::flow::{Flow, Places};
use trellara_testkit::ground::{Ground, GroundOptions};

use super::stopped;
use crate::restart::until;
use crate::scenario::{WITHIN, prepared, run, value};

/// What `trellara check` finds: its name, what it is about, how to cure it.
async fn found(flow: &Flow) -> Result<Vec<[String; 3]>> {
    let checked = flow.command(&["check", "--output", "json"]).await?;
    let findings: Vec<Value> =
        serde_json::from_str(&checked.stdout).with_context(|| format!("{checked:?}"))?;
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let three = |one: &Value| [text(&one["id"]), text(&one["about"]), text(&one["cure"])];
    Ok(findings.iter().map(three).collect())
}

/// What findings of that name are about, without quotes.
fn about(findings: &[[String; 3]], id: &str) -> String {
    let of_id = findings.iter().filter(|one| one[0] == id);
    let about: Vec<&str> = of_id.map(|one| one[1].as_str()).collect();
    about.join(" ").replace('"', "")
}

/// Grants without a publication: setup would have to make it.
async fn grant_alone(flow: &Flow) -> Result<()> {
    flow.grant().await?;
    let drop = format!("DROP PUBLICATION IF EXISTS trellara_{}", flow.name);
    run(&flow.source_admin, &[&drop]).await
}

/// Nothing was made on the source.
async fn untouched(flow: &Flow) -> Result<()> {
    let sql = "SELECT (SELECT count(*) FROM pg_publication) + \
               (SELECT count(*) FROM pg_replication_slots WHERE database = current_database())";
    ensure!(value(&flow.source_admin, sql).await? == "0");
    Ok(())
}

#[tokio::test]
async fn b68_bad_tables_are_named_all_at_once_and_hide_no_other() -> Result<()> {
    for (version, name) in [(15, "b68on15"), (18, "b68on18")] {
        let good: String = (0..7)
            .map(|n| format!("CREATE TABLE good{n} (id int PRIMARY KEY, v text);"))
            .collect();
        let bad = "CREATE TABLE nokey (a int, b text); ALTER TABLE nokey REPLICA IDENTITY NOTHING;
            CREATE TABLE secret (id int PRIMARY KEY, hidden text)";
        let missing = "CREATE TABLE missing (id int PRIMARY KEY, v text)";
        let both = format!("{good} {bad}");
        let mut flow = prepared(version, name, &[&both, missing], &[&both], "").await?;
        run(
            &flow.source_admin,
            &[
                "INSERT INTO good3 SELECT g, 'x' FROM generate_series(1, 50) g",
                "INSERT INTO nokey VALUES (1, 'x'), (1, 'x')",
                "INSERT INTO secret VALUES (1, 'x')",
                "INSERT INTO missing VALUES (1, 'x')",
            ],
        )
        .await?;
        grant_alone(&flow).await?;
        let capture = flow.roles.capture();
        let hide = format!(
            "REVOKE SELECT ON secret FROM {capture}; GRANT SELECT (id) ON secret TO {capture}"
        );
        run(&flow.source_admin, &[&hide]).await?;
        let findings = found(&flow).await?;
        for (id, table) in [
            ("SOURCE_NO_REPLICA_IDENTITY", "public.nokey"),
            ("SOURCE_TABLE_RIGHT", "public.secret"),
            ("TARGET_TABLE_MISSING", "public.missing"),
        ] {
            let named = about(&findings, id);
            ensure!(named == table, "{id} names {named:?}: {findings:?}");
        }
        let refused = flow.command(&["setup", "--yes"]).await?;
        ensure!(refused.code != 0, "{refused:?}");
        untouched(&flow).await?;
        // Cured as it was said.
        let full = "ALTER TABLE nokey REPLICA IDENTITY FULL";
        run(&flow.source_admin, &[full]).await?;
        run(&flow.target_admin, &[full, missing]).await?;
        flow.start().await?;
        flow.copied(WITHIN).await?;
        flow.converges(WITHIN).await?;
    }
    Ok(())
}

/// What only the rows tell: one table stops with its name, and all the others are in.
#[tokio::test]
async fn b68_a_table_that_fails_in_its_copy_is_named_and_the_others_come_in() -> Result<()> {
    for (version, name) in [(15, "b68late15"), (18, "b68late18")] {
        let good: String = (0..9)
            .map(|n| format!("CREATE TABLE good{n} (id int PRIMARY KEY, v text);"))
            .collect();
        let source = format!("{good} CREATE TABLE bad (id int PRIMARY KEY, v text)");
        let target = format!(
            "{good} CREATE TABLE bad (id int PRIMARY KEY, v text CONSTRAINT short CHECK (length(v) < 5))"
        );
        let mut flow = prepared(version, name, &[&source], &[&target], "").await?;
        for table in ["good0", "good4", "good8", "bad"] {
            let rows = format!(
                "INSERT INTO {table} SELECT g, repeat('v', g % 9) FROM generate_series(1, 300) g"
            );
            run(&flow.source_admin, &[&rows]).await?;
        }
        flow.start().await?;
        let copying = flow
            .copying_until(|copying| copying.waiting == 0, WITHIN)
            .await?;
        ensure!(copying.failed == 1, "{copying:?}");
        let reason = "SELECT table_name || ': ' || reason || ' ' || coalesce(hint, '') \
                        FROM trellara.backfill WHERE state = 'failed'";
        let reason = value(&flow.target_admin, reason).await?;
        ensure!(
            reason.starts_with("bad: ") && reason.contains("short") && !reason.contains("vvvv"),
            "{reason}"
        );
        let shown = flow.command(&["backfill"]).await?;
        let said = format!("{}{}", shown.stdout, shown.stderr);
        ensure!(
            shown.code != 0 && said.contains("public.bad"),
            "{} {said}",
            shown.code
        );
        ensure!(value(&flow.target_admin, "SELECT count(*) FROM good8").await? == "300");
        run(
            &flow.target_admin,
            &["ALTER TABLE bad DROP CONSTRAINT short"],
        )
        .await?;
        let again = ["table", "recopy", "public.bad", "--yes"];
        let again = flow.command(&again).await?;
        ensure!(again.code == 0, "{again:?}\n{}", flow.logs());
        flow.converges(WITHIN).await?;
    }
    Ok(())
}

#[tokio::test]
async fn b90_no_copy_makes_the_applications_own_writes_fail() -> Result<()> {
    let schema = &["CREATE TABLE keyed (id int PRIMARY KEY, v text);
        CREATE TABLE nopk (a int, v text);
        CREATE TABLE indexed (a int NOT NULL, v text);
        CREATE UNIQUE INDEX indexed_a ON indexed (a);
        ALTER TABLE indexed REPLICA IDENTITY USING INDEX indexed_a;
        DROP INDEX indexed_a"];
    let rows = "INSERT INTO keyed VALUES (1, 'x'); INSERT INTO nopk VALUES (1, 'x');
        INSERT INTO indexed VALUES (1, 'x')";
    let writes = "UPDATE keyed SET v = 'y'; UPDATE nopk SET v = 'y'; UPDATE indexed SET v = 'y';
        DELETE FROM nopk WHERE a = 2";
    for (version, name) in [(15, "b90on15"), (18, "b90on18")] {
        let all = prepared(version, &format!("{name}a"), schema, schema, "").await?;
        run(&all.source_admin, &[rows]).await?;
        // What config/ has for a DBA publishes none of them either.
        all.grant().await?;
        run(&all.source_admin, &[writes]).await?;
        grant_alone(&all).await?;
        let findings = found(&all).await?;
        let named = about(&findings, "SOURCE_NO_REPLICA_IDENTITY");
        ensure!(named == "public.indexed public.nopk", "{findings:?}");
        for [id, about, cure] in &findings {
            let cured = cure.contains(&format!("ALTER TABLE {about} REPLICA IDENTITY"));
            ensure!(id != "SOURCE_NO_REPLICA_IDENTITY" || cured, "{cure}");
        }
        ensure!(all.command(&["setup", "--yes"]).await?.code != 0);
        untouched(&all).await?;
        run(&all.source_admin, &[writes]).await?;

        // Without them nothing of theirs is published, before, during and after the copy.
        let one = "source.tables: [public.keyed]";
        let mut flow = prepared(version, name, schema, schema, one).await?;
        run(&flow.source_admin, &[rows]).await?;
        let gate = stopped(&mut flow).await?;
        run(&flow.source_admin, &[writes]).await?;
        gate.open().await?;
        flow.copied(WITHIN).await?;
        run(&flow.source_admin, &[writes]).await?;
        let published = "SELECT string_agg(tablename, ' ') || ' ' || bool_or(p.puballtables) \
            FROM pg_publication_tables AS t JOIN pg_publication AS p ON p.pubname = t.pubname";
        ensure!(value(&flow.source_admin, published).await? == "keyed false");
        flow.caught_up(WITHIN).await?;
        ensure!(value(&flow.target_admin, "SELECT v FROM keyed").await? == "y");
        flow.verified().await?;
    }
    Ok(())
}

#[tokio::test]
async fn b106_tables_that_appear_during_a_copy_are_no_part_of_it() -> Result<()> {
    let schema = &["CREATE TABLE t (id int PRIMARY KEY, v text)"];
    for (version, name) in [(15, "b106on15"), (18, "b106on18")] {
        let mut flow = prepared(version, name, schema, schema, "").await?;
        let rows = "INSERT INTO t SELECT g, repeat('v', 500) FROM generate_series(1, 2000) g";
        run(&flow.source_admin, &[rows]).await?;
        let gate = stopped(&mut flow).await?;
        run(
            &flow.source_admin,
            &[
                "CREATE TABLE ctas AS SELECT * FROM t",
                "CREATE UNLOGGED TABLE u AS SELECT * FROM t",
                "CREATE TEMPORARY TABLE gone AS SELECT * FROM t",
                "CREATE MATERIALIZED VIEW m AS SELECT * FROM t",
                "REFRESH MATERIALIZED VIEW m",
                "VACUUM FULL t",
                "UPDATE t SET v = 'w' WHERE id % 100 = 7; DELETE FROM t WHERE id = 8",
                "INSERT INTO ctas VALUES (-1, 'nobody carries it'); DELETE FROM u",
            ],
        )
        .await?;
        gate.open().await?;
        let copying = flow.copied(WITHIN).await?;
        ensure!(copying.tables == 1, "{copying:?}");
        flow.caught_up(WITHIN).await?;
        flow.verified().await?;
        let count = "SELECT count(*) || ' ' || count(*) FILTER (WHERE v = 'w') FROM t";
        ensure!(value(&flow.target_admin, count).await? == "1999 20");
        let named = about(&found(&flow).await?, "TABLE_NOT_PUBLISHED");
        ensure!(named.contains("public.ctas"), "{named:?}");
    }
    Ok(())
}

/// A to B to C: what keeps the books of one flow in B is no row of the other.
#[tokio::test]
async fn b106_the_books_of_a_flow_are_carried_by_no_other() -> Result<()> {
    let ground = Ground::start(&GroundOptions::version(18))?;
    let schema = "CREATE TABLE t (id int PRIMARY KEY, v text)";
    let mut first = ground.flow("first", schema, schema, "").await?;
    let rows = "INSERT INTO t SELECT g, 'v' FROM generate_series(1, 100) g";
    run(&first.source_admin, &[rows]).await?;
    first.start().await?;
    first.copied(WITHIN).await?;
    let admin = compare::connect(&ground.source.url("postgres")).await?;
    admin.batch_execute("CREATE DATABASE last").await?;
    let last = ground.source.url("last");
    run(&last, &[schema]).await?;
    let places = || Places {
        source_url: first.target_admin.clone(),
        target_url: last.clone(),
        nats_url: ground.nats.url(),
        nats_monitor_url: Some(ground.nats.monitor_url()),
    };
    // Whoever asks for all of them gets told.
    run(
        &first.target_admin,
        &["CREATE PUBLICATION everything FOR ALL TABLES"],
    )
    .await?;
    let all = Flow::new("all", places(), "source.publication: everything")?;
    all.grant().await?;
    let findings = found(&all).await?;
    let named = about(&findings, "PUBLICATION_OWN_TABLES");
    ensure!(named == "publication everything", "{findings:?}");
    ensure!(all.command(&["setup", "--yes"]).await?.code != 0);
    run(&first.target_admin, &["DROP PUBLICATION everything"]).await?;

    let mut second = Flow::new("second", places(), "source.tables: ['public.*']")?;
    second.start().await?;
    second.copied(WITHIN).await?;
    run(&first.source_admin, &["UPDATE t SET v = 'w' WHERE id > 90"]).await?;
    first.caught_up(WITHIN).await?;
    second.converges(WITHIN).await?;
    until(&last, "SELECT count(*) FROM t WHERE v = 'w'", "10", WITHIN).await?;
    let flows = "SELECT string_agg(DISTINCT flow, ' ') FROM trellara.lane";
    ensure!(value(&last, flows).await? == "second");
    Ok(())
}

#[tokio::test]
async fn b119_what_neither_copy_nor_stream_carries_is_named_before_the_start() -> Result<()> {
    let schema = &["CREATE TABLE t (id int PRIMARY KEY, picture oid)"];
    let aside = "CREATE UNLOGGED TABLE u (id int); INSERT INTO u VALUES (1);
        CREATE MATERIALIZED VIEW m AS SELECT 1 AS one;
        CREATE FOREIGN DATA WRAPPER nobody; CREATE SERVER nowhere FOREIGN DATA WRAPPER nobody;
        CREATE FOREIGN TABLE f (id int) SERVER nowhere;
        INSERT INTO t VALUES (1, lo_from_bytea(0, 'picture')), (2, NULL)";
    for (version, name) in [(15, "b119on15"), (18, "b119on18")] {
        let mut flow = prepared(version, name, schema, schema, "").await?;
        run(&flow.source_admin, &[aside]).await?;
        grant_alone(&flow).await?;
        let findings = found(&flow).await?;
        let named = about(&findings, "SOURCE_NOT_CARRIED");
        ensure!(named == "public.f public.m public.u", "{findings:?}");
        let named = about(&findings, "SOURCE_LARGE_OBJECTS");
        ensure!(!named.is_empty(), "{findings:?}");
        untouched(&flow).await?;
        // Named, and no reason to stop: the column's numbers are carried as they are.
        flow.start().await?;
        let copying = flow.copied(WITHIN).await?;
        ensure!((copying.tables, copying.rows) == (1, 2), "{copying:?}");
        run(
            &flow.source_admin,
            &["INSERT INTO t VALUES (3, lo_from_bytea(0, 'other'))"],
        )
        .await?;
        flow.caught_up(WITHIN).await?;
        let pictures = "SELECT string_agg(coalesce(picture::text, '-'), ' ' ORDER BY id) FROM t";
        let ours = value(&flow.source_admin, pictures).await?;
        ensure!(value(&flow.target_admin, pictures).await? == ours);
        let objects = "SELECT count(*) FROM pg_largeobject_metadata";
        ensure!(value(&flow.target_admin, objects).await? == "0");
        flow.verified().await?;
    }
    Ok(())
}
