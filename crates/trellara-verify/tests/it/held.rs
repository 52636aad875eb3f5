//! What the target set aside or let go by explains the differences on its keys, and no others.

use trellara_envelope::Lsn;
use trellara_verify::Quarantine;
use trellara_verify::report::TableReport;

use crate::support::{VERSIONS, World};

/// As much of the tables as is read.
const TABLES: &str = "CREATE SCHEMA trellara;
    CREATE TABLE trellara.held (id bigint PRIMARY KEY, flow text, commit_lsn pg_lsn, reason text, state text,
        changes bigint DEFAULT 1, overtaken_by text);
    CREATE TABLE trellara.held_key (held_id bigint, schema text, \"table\" text, touch text, key jsonb);
    CREATE TABLE trellara.skipped (id bigint, flow text, commit_lsn pg_lsn, verb text, rule text,
        schema text, \"table\" text, key jsonb);
    INSERT INTO trellara.held SELECT n, 'shop', '0/1', 'poisoned', 'held' FROM generate_series(1, 9) n;
    UPDATE trellara.held SET flow = 'other' WHERE id = 2;
    UPDATE trellara.held SET commit_lsn = 'F/0' WHERE id = 3;
    UPDATE trellara.held SET reason = 'blocking' WHERE id = 4;
    UPDATE trellara.held SET state = 'replayed' WHERE id = 5;
    UPDATE trellara.held SET state = 'discarded' WHERE id = 6";

async fn report(world: &World) -> TableReport {
    let quarantine = Quarantine {
        flow: "shop".parse().expect("a flow"),
        before: Lsn(0x1000),
    };
    world
        .report_with(|options| options.quarantine = Some(quarantine))
        .await
}

/// The reports of all tables, by name.
async fn all(world: &World) -> Vec<TableReport> {
    let quarantine = Quarantine {
        flow: "shop".parse().expect("a flow"),
        before: Lsn(0x1000),
    };
    let mut tables = world
        .compare_with(|options| options.quarantine = Some(quarantine))
        .await
        .tables;
    tables.sort_by(|a, b| a.table.cmp(&b.table));
    tables
}

/// `key by` of each difference that something explains, the key's values alone.
fn explained(report: &TableReport) -> Vec<String> {
    let differences = report.differences.iter();
    let by = differences.filter_map(|difference| {
        let values = difference.key.iter();
        let values = values.map(|(_, value)| value.as_deref().unwrap_or("NULL"));
        let by = difference.explained_by.as_ref()?;
        Some(format!("{} {by}", values.collect::<Vec<_>>().join(",")))
    });
    by.collect()
}

#[tokio::test]
async fn c54_a_key_explains_itself_and_nothing_else() {
    for version in VERSIONS {
        let world = World::new(version).await;
        world
            .both("CREATE TABLE t (b text, a int, v text, PRIMARY KEY (a, b))")
            .await;
        world.publish_all().await;
        world.target.run(TABLES).await;
        world
            .source
            .run("INSERT INTO t SELECT 'é''', n, 'x' FROM generate_series(1, 9) n")
            .await;
        world
            .target
            .run("INSERT INTO t VALUES ('é''', 8, 'y'), ('', 70, 'x')")
            .await;
        // The first explains whatever it is; the others are of no flow, position, state or touch
        // that counts, or are not the whole key.
        world
            .target
            .run(
                "INSERT INTO trellara.held_key SELECT n, 'public', 't', 'row', \
                     jsonb_build_object('a', n::text, 'b', 'é''') FROM generate_series(1, 6) n;
                 INSERT INTO trellara.held_key VALUES
                     (7, 'public', 't', 'value', '{\"a\": \"7\", \"b\": \"é''\"}'),
                     (7, 'public', 't', 'table', NULL),
                     (7, 'public', 'u', 'row', '{\"a\": \"7\", \"b\": \"é''\"}'),
                     (7, 'public', 't', 'row', '{\"a\": \"7\"}'),
                     (7, 'public', 't', 'row', '{\"a\": \"70\", \"b\": null}'),
                     (7, 'public', 't', 'row', '{\"a\": \"7\", \"b\": \"é''\", \"c\": \"\"}'),
                     (8, 'public', 't', 'row', '{\"a\": 8, \"b\": \"é''\"}'),
                     (9, 'public', 't', 'row', '{\"a\": \"8\", \"b\": \"é''\"}')",
            )
            .await;
        let report = report(&world).await;
        assert_eq!(report.differing(), 10);
        assert_eq!(explained(&report), ["1,é' 1", "6,é' 6", "8,é' 8"]);
        assert_eq!(report.explained, 3);
    }
}

#[tokio::test]
async fn what_a_rule_skipped_explains_what_it_left_out() {
    for version in VERSIONS {
        let world = World::new(version).await;
        world
            .both("CREATE TABLE t (a int PRIMARY KEY, v text)")
            .await;
        world.publish_all().await;
        world.target.run(TABLES).await;
        world
            .source
            .run("INSERT INTO t SELECT n, 'x' FROM generate_series(1, 7) n")
            .await;
        world
            .target
            .run("INSERT INTO t VALUES (1, 'y'), (50, 'x')")
            .await;
        world
            .target
            .run(
                "INSERT INTO trellara.skipped SELECT n, 'shop', '0/1', 'insert', 'skip', 'public', \
                     't', jsonb_build_object('a', n::text) FROM unnest('{1,2,3,4,5,6,50}'::int[]) n;
                 UPDATE trellara.skipped SET verb = 'update' WHERE id = 2;
                 UPDATE trellara.skipped SET verb = 'delete' WHERE id = 3;
                 UPDATE trellara.skipped SET rule = 'overwrite' WHERE id = 4;
                 UPDATE trellara.skipped SET flow = 'other' WHERE id = 5;
                 UPDATE trellara.skipped SET commit_lsn = 'F/0' WHERE id = 6",
            )
            .await;
        let left_out = report(&world).await;
        assert_eq!(left_out.differing(), 8);
        assert_eq!(explained(&left_out), ["1 conflict rule", "2 conflict rule"]);
        // A target of an older version has no such table.
        world.target.run("DROP TABLE trellara.skipped").await;
        let older = report(&world).await;
        assert_eq!((older.differing(), older.explained), (8, 0));
    }
}

/// What a discarded transaction left out is written over by the next that touches the same, and
/// nobody wrote down which of its rows that one touched: a difference there may be anything.
#[tokio::test]
async fn c46_what_was_discarded_and_overtaken_explains_nothing() {
    for version in VERSIONS {
        let world = World::new(version).await;
        world
            .both("CREATE TABLE t (a int PRIMARY KEY, v text); CREATE TABLE u (a int)")
            .await;
        world.publish_all().await;
        world.target.run(TABLES).await;
        world
            .source
            .run("INSERT INTO t VALUES (1, 'x'); INSERT INTO u VALUES (1)")
            .await;
        world
            .target
            .run(
                "INSERT INTO t VALUES (1, 'y'), (2, 'extra');
                 INSERT INTO trellara.held_key VALUES (6, 'public', 't', 'row', '{\"a\": \"1\"}'),
                     (6, 'public', 't', 'truncate', NULL), (6, 'public', 'u', 'keyless', NULL)",
            )
            .await;
        let by_table = async |expected: [u64; 2]| {
            let tables = all(&world).await;
            let found = tables.iter().map(|table| table.explained);
            assert_eq!(found.collect::<Vec<_>>(), expected, "on {version}");
        };
        by_table([2, 1]).await;
        let overtaken = "UPDATE trellara.held SET overtaken_by = '1/1:0/9' WHERE id = 6";
        world.target.run(overtaken).await;
        by_table([0, 0]).await;
        // What is open is written over by nobody; were it so, the row would be nonsense.
        world
            .target
            .run("UPDATE trellara.held_key SET held_id = 1")
            .await;
        by_table([2, 1]).await;
    }
}

/// A change of a row without a key leaves two rows different at the most: the old and the new.
#[tokio::test]
async fn changes_without_a_key_explain_two_rows_each_and_no_more() {
    for version in VERSIONS {
        let world = World::new(version).await;
        world.both("CREATE TABLE t (a int)").await;
        world.publish_all().await;
        world.target.run(TABLES).await;
        world
            .source
            .run("INSERT INTO t SELECT n FROM generate_series(1, 7) n")
            .await;
        world
            .target
            .run(
                "UPDATE trellara.held SET changes = 2 WHERE id = 1;
                 INSERT INTO trellara.held_key VALUES (1, 'public', 't', 'keyless', NULL),
                     (7, 'public', 't', 'keyless', NULL), (5, 'public', 't', 'keyless', NULL)",
            )
            .await;
        // Six rows by two transactions; a third was replayed.
        let all = report(&world).await;
        assert_eq!((all.differing(), all.explained), (7, 0), "on {version}");
        world.target.run("INSERT INTO t VALUES (1)").await;
        let all = report(&world).await;
        assert_eq!((all.differing(), all.explained), (6, 6), "on {version}");
        // One more was skipped by a rule, and that is one row.
        world.target.run("DELETE FROM t").await;
        let skipped = "INSERT INTO trellara.skipped VALUES \
             (1, 'shop', '0/1', 'insert', 'skip', 'public', 't', NULL)";
        world.target.run(skipped).await;
        let all = report(&world).await;
        assert_eq!((all.differing(), all.explained), (7, 7), "on {version}");
        world.target.run("INSERT INTO t VALUES (80)").await;
        let all = report(&world).await;
        assert_eq!((all.differing(), all.explained), (8, 0), "on {version}");
    }
}

/// A held TRUNCATE of a table without a key leaves rows too many there, and none out.
#[tokio::test]
async fn an_emptied_table_without_a_key_has_rows_too_many_and_no_others() {
    for version in VERSIONS {
        let world = World::new(version).await;
        world
            .both("CREATE TABLE t (a int); INSERT INTO t VALUES (1), (2), (2)")
            .await;
        world.publish_all().await;
        world.target.run(TABLES).await;
        let emptied = "INSERT INTO trellara.held_key VALUES (1, 'public', 't', 'truncate', NULL)";
        world.target.run(emptied).await;
        world
            .target
            .run("INSERT INTO t VALUES (1), (3), (3), (3)")
            .await;
        let more = report(&world).await;
        assert_eq!((more.differing(), more.explained), (4, 4), "on {version}");
        world.source.run("INSERT INTO t VALUES (2), (7)").await;
        let fewer = report(&world).await;
        assert_eq!((fewer.differing(), fewer.explained), (6, 4), "on {version}");
    }
}

/// More keys than one statement asks for, each answered for itself.
#[tokio::test]
async fn every_listed_difference_is_asked_for() {
    for version in VERSIONS {
        let world = World::new(version).await;
        world.both("CREATE TABLE t (a int PRIMARY KEY)").await;
        world.publish_all().await;
        world.target.run(TABLES).await;
        let rows = "INSERT INTO t SELECT n FROM generate_series(1, 1203) n";
        world.source.run(rows).await;
        let keys = "INSERT INTO trellara.held_key SELECT 1, 'public', 't', 'row', \
             jsonb_build_object('a', n::text) FROM generate_series(1, 1203) n WHERE n <> 600";
        world.target.run(keys).await;
        let report = report(&world).await;
        assert_eq!((report.missing, report.explained), (1203, 1202));
        let unexplained = report.differences.iter();
        let unexplained = unexplained.filter(|difference| difference.explained_by.is_none());
        let unexplained: Vec<_> = unexplained.map(|difference| &difference.key).collect();
        assert_eq!(unexplained, [&[("a".to_owned(), Some("600".to_owned()))]]);
    }
}
