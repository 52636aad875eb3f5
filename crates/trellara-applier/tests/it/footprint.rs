//! What ties rows together, read from a real catalogue, and footprints that outlive the process.

use std::sync::Arc;

use tokio_postgres::Client;
use trellara_applier::quarantine::footprint::{
    self, Collector, Footprints, Hits, Standing, Tester, Touches,
};
use trellara_applier::quarantine::{HeldId, keys};
use trellara_applier::{Ties, schema};
use trellara_envelope::{FlowName, Lane};
use trellara_pgoutput::{RelationMap, decode};

use crate::execute::world::World;
use crate::on_each_version;

fn shop() -> FlowName {
    "shop".parse().unwrap()
}

async fn ties(world: &mut World, table: &str) -> Arc<Ties> {
    let table = world.catalog.table(&world.session, "public", table).await;
    let table = table.unwrap().unwrap();
    world.catalog.ties(&world.session, &table).await.unwrap()
}

/// Foreign keys as `columns > table(columns)`, `?` before those whose values do not compare and `!`
/// behind those that act.
fn foreign(ties: &[trellara_applier::ForeignTie]) -> Vec<String> {
    let one = |tie: &trellara_applier::ForeignTie| {
        format!(
            "{}{} > {}({}){}",
            if tie.by_text { "" } else { "?" },
            tie.own_columns.join(","),
            tie.other.name,
            tie.other_columns.join(","),
            if tie.acts { "!" } else { "" },
        )
    };
    ties.iter().map(one).collect()
}

on_each_version! {
    async fn c45_foreign_keys_are_read_both_ways(version) {
        let mut world = World::new(version, "
            CREATE TABLE parent (a int, b text, n numeric UNIQUE, PRIMARY KEY (b, a));
            CREATE DOMAIN small AS int;
            CREATE TABLE child (id int PRIMARY KEY, pa small, pb varchar, i int,
                boss int REFERENCES child ON DELETE CASCADE,
                FOREIGN KEY (pa, pb) REFERENCES parent (a, b),
                FOREIGN KEY (i) REFERENCES parent (n));
            CREATE TABLE at (d timestamp PRIMARY KEY);
            CREATE TABLE at_child (id int PRIMARY KEY, d date REFERENCES at)").await;
        let child = ties(&mut world, "child").await;
        let own = ["boss > child(id)!", "i > parent(n)", "pa,pb > parent(a,b)"];
        assert_eq!(foreign(&child.references), own);
        assert_eq!(foreign(&child.referenced_by), ["id > child(boss)!"]);
        let parent = ties(&mut world, "parent").await;
        assert_eq!(foreign(&parent.references), [""; 0]);
        assert_eq!(foreign(&parent.referenced_by), ["a,b > child(pa,pb)", "n > child(i)"]);
        // Equal, and printed differently.
        let at = ties(&mut world, "at_child").await;
        assert_eq!(foreign(&at.references), ["?d > at(d)"]);
    }
}

on_each_version! {
    async fn c45_indexes_and_columns_are_read_with_what_they_compare(version) {
        let mut world = World::new(version, "
            CREATE COLLATION blind FROM \"C\";
            CREATE DOMAIN word AS text COLLATE blind;
            CREATE TYPE mood AS ENUM ('well', 'ill');
            CREATE DOMAIN cents AS numeric(10, 2);
            CREATE TABLE t (id int PRIMARY KEY, plain text UNIQUE, late text UNIQUE DEFERRABLE,
                same int UNIQUE NULLS NOT DISTINCT, lower text, part int, blind text COLLATE blind UNIQUE,
                word word, mood mood, cents cents, span interval, doc jsonb, list int[], r int4range,
                at timestamptz, c char(3), EXCLUDE USING gist (r WITH &&));
            CREATE UNIQUE INDEX a_lower ON t (lower(lower));
            CREATE UNIQUE INDEX a_part ON t (part) WHERE part > 0;
            CREATE UNIQUE INDEX a_folded ON t (plain COLLATE blind);
            CREATE UNIQUE INDEX a_wide ON t (part, id) INCLUDE (mood);
            -- Not every build has a provider that compares so.
            UPDATE pg_catalog.pg_collation SET collisdeterministic = false WHERE collname = 'blind'").await;
        let ties = ties(&mut world, "t").await;
        let unique = |tie: &trellara_applier::UniqueTie| {
            let not_distinct = if tie.nulls_not_distinct { " not distinct" } else { "" };
            format!("{} {}{not_distinct}", tie.plain, tie.columns.join(","))
        };
        let uniques: Vec<String> = ties.uniques.iter().map(unique).collect();
        let expected = [
            "false plain", "false ", "false part", "true part,id", "false blind", "true late",
            "true id", "true plain", "false r", "true same not distinct",
        ];
        assert_eq!(uniques, expected);
        let shown = ["id", "plain", "late", "same", "lower", "part", "mood", "cents", "at", "c"];
        assert_eq!(ties.by_text, shown);
        assert!(ties.unicode && !ties.partition_alone);
    }
}

on_each_version! {
    async fn c45_partitions_are_their_roots(version) {
        let mut world = World::new(version, "
            CREATE TABLE country (code text PRIMARY KEY);
            CREATE TABLE root (id int PRIMARY KEY, code text REFERENCES country, v text)
                PARTITION BY RANGE (id);
            CREATE TABLE mid PARTITION OF root FOR VALUES FROM (0) TO (100) PARTITION BY RANGE (id);
            CREATE TABLE leaf PARTITION OF mid FOR VALUES FROM (0) TO (50);
            CREATE TABLE note (id int PRIMARY KEY, root int REFERENCES root, leaf int REFERENCES leaf)").await;
        for name in ["root", "mid", "leaf"] {
            let ties = ties(&mut world, name).await;
            assert_eq!(ties.root.as_ref().unwrap().name, "root", "{name}");
            assert_eq!(foreign(&ties.references), ["code > country(code)"], "{name}");
            let by = ["id > note(leaf)", "id > note(root)"];
            assert_eq!(foreign(&ties.referenced_by), by, "{name}");
            assert!(!ties.partition_alone, "{name}");
        }
        let note = ties(&mut world, "note").await;
        assert_eq!(foreign(&note.references), ["leaf > root(id)", "root > root(id)"]);
        world.target.batch_execute("CREATE UNIQUE INDEX ON mid (id, v)").await.unwrap();
        world.reconnect().await;
        assert!(ties(&mut world, "root").await.partition_alone);
        let mid = ties(&mut world, "mid").await;
        assert!(!mid.partition_alone && mid.uniques.len() == 2, "it is its own");
    }
}

/// The messages of the source since the last time, one list per transaction.
async fn transactions(world: &World) -> Vec<Vec<Vec<u8>>> {
    let mut all: Vec<Vec<Vec<u8>>> = Vec::new();
    for message in world.capture().await {
        if message[0] == b'B' {
            all.push(Vec::new());
        }
        all.last_mut().unwrap().push(message);
    }
    all
}

/// What is held, read from the target.
async fn loaded(world: &mut World, lane: Lane) -> Footprints {
    let target = (&mut world.catalog, world.options.role_replica);
    let flow = shop();
    let loading = footprint::load(&world.session, target, &flow, lane);
    loading.await.unwrap()
}

struct Reading {
    relations: RelationMap,
}

impl Reading {
    async fn touches(&mut self, world: &mut World, messages: &[Vec<u8>]) -> Touches {
        let replica = world.options.role_replica;
        let mut collector = Collector::new(&world.session, &mut world.catalog, replica, 1000);
        for message in messages {
            let message = decode(message, false).unwrap();
            self.relations.observe(&message);
            collector.message(&message, &self.relations).await.unwrap();
        }
        collector.finish().unwrap()
    }

    async fn hits(&mut self, world: &mut World, held: &Footprints, messages: &[Vec<u8>]) -> Hits {
        let replica = world.options.role_replica;
        let mut tester = Tester::new(&world.session, &mut world.catalog, replica, held);
        for message in messages {
            let message = decode(message, false).unwrap();
            self.relations.observe(&message);
            tester.message(&message, &self.relations).await.unwrap();
        }
        tester.finish()
    }
}

/// A held row of the number, of which only state and reason mean anything.
async fn hold(client: &Client, id: i64, state: &str, reason: &str) {
    let closed = if state == "discarded" {
        "now(), 'no'"
    } else {
        "NULL, NULL"
    };
    let none = "decode(repeat('00', 16), 'hex')";
    let sql = format!(
        "INSERT INTO trellara.held (id, flow, lane, hash, source_system, source_timeline, \
           commit_lsn, end_lsn, source_xid, committed_at_us, reason, state, storage, chunked, \
           stream, stream_created, stream_sequence, incarnation, frame_digest, after_lsn, \
           after_timeline, after_sequence, after_incarnation, after_ordinal, after_digest, \
           frames, bytes, changes, closed_at, closed_reason) \
         OVERRIDING SYSTEM VALUE \
         VALUES ({id}, 'shop', 0, decode(lpad('{id}', 32, '0'), 'hex'), 1, 1, \
           '0/{id}', '0/F{id}', {id}, 0, '{reason}', '{state}', 'target', false, \
           'S', '', 1, 1, {none}, '0/F{id}', 1, 1, 1, 1, {none}, 0, 0, 0, {closed})"
    );
    client.batch_execute(&sql).await.unwrap();
}

const TABLES: &str = "
    CREATE TABLE parent (id int PRIMARY KEY, name text UNIQUE);
    CREATE TABLE child (id numeric PRIMARY KEY, parent int REFERENCES parent);
    CREATE TABLE odd (\"a \"\"b\" text, n int, v text, PRIMARY KEY (n, \"a \"\"b\"));
    CREATE TABLE log (line text);
    CREATE TABLE gone (id int PRIMARY KEY);
    CREATE TABLE root (id int PRIMARY KEY) PARTITION BY RANGE (id);
    CREATE TABLE leaf PARTITION OF root FOR VALUES FROM (0) TO (50)";

on_each_version! {
    /// Each held transaction, and what must wait behind it and what must not.
    async fn c45_footprints_are_kept_in_the_target_and_read_again(version) {
        let mut world = World::new(version, TABLES).await;
        world.source.batch_execute("ALTER TABLE child REPLICA IDENTITY FULL").await.unwrap();
        schema::install(&mut world.target).await.unwrap();
        let cases: [(&str, &[&str], &[&str]); 7] = [
            ("INSERT INTO parent VALUES (1, 'é''\"\\'), (2, NULL)",
                &["UPDATE parent SET name = 'x' WHERE id = 1",
                  "INSERT INTO child VALUES (9, 1)",
                  "UPDATE parent SET name = 'é''\"\\' WHERE id = 30"],
                &["INSERT INTO child VALUES (10, 30)", "INSERT INTO parent VALUES (31, NULL)"]),
            ("INSERT INTO child VALUES (1.50, 30)",
                &["DELETE FROM child WHERE id = 1.5"], &["INSERT INTO child VALUES (1.05, 30)"]),
            ("INSERT INTO odd VALUES ('x  ', 1, 'v')",
                &["UPDATE odd SET v = 'w' WHERE n = 1"], &["INSERT INTO odd VALUES ('y', 1, 'v')"]),
            ("INSERT INTO log VALUES ('a')", &["INSERT INTO log VALUES ('b')"], &[]),
            ("TRUNCATE gone", &["INSERT INTO gone VALUES (1)"], &[]),
            ("INSERT INTO leaf VALUES (7)", &["DELETE FROM root WHERE id = 7"],
                &["INSERT INTO leaf VALUES (8)"]),
            ("UPDATE parent SET id = 40 WHERE id = 30",
                &["INSERT INTO parent VALUES (30, 'z')"], &[]),
        ];
        world.unseen("INSERT INTO parent VALUES (30, 'thirty')").await;
        let mut reading = Reading { relations: RelationMap::new() };
        for (number, (held, waiting, free)) in cases.into_iter().enumerate() {
            let id = HeldId(number as i64 + 1);
            if held.starts_with("UPDATE parent") {
                world.unseen("DELETE FROM child").await;
            }
            world.source.batch_execute(held).await.unwrap();
            let messages = transactions(&world).await.remove(0);
            let touches = reading.touches(&mut world, &messages).await;
            hold(&world.target, id.0, "held", "poisoned").await;
            keys::write(&world.session, id, &touches).await.unwrap();
            let count = world.target.query_one(
                "SELECT count(*) FROM trellara.held_key WHERE held_id = $1", &[&id.0]).await.unwrap();
            assert_eq!(count.get::<_, i64>(0) as u64, touches.keys(), "{held}");
            let mut fresh = Footprints::new();
            fresh.add(id, Standing::Open, &touches);
            let all = loaded(&mut world, Lane(0)).await;
            assert_eq!(all.transactions(), number as u64 + 1);
            for (statements, waits) in [(waiting, true), (free, false)] {
                for statement in statements {
                    world.source.batch_execute(statement).await.unwrap();
                    let messages = transactions(&world).await.remove(0);
                    let hits = reading.hits(&mut world, &fresh, &messages).await;
                    assert_eq!(hits.open == [id], waits, "{statement} behind {held}");
                    let hits = reading.hits(&mut world, &all, &messages).await;
                    assert_eq!(hits.open.contains(&id), waits, "{statement} behind {held}, read again");
                }
            }
        }
    }
}

on_each_version! {
    async fn c46_only_what_may_still_be_overtaken_is_read(version) {
        let mut world = World::new(version, TABLES).await;
        schema::install(&mut world.target).await.unwrap();
        let mut reading = Reading { relations: RelationMap::new() };
        world.source.batch_execute("INSERT INTO gone VALUES (1)").await.unwrap();
        let messages = transactions(&world).await.remove(0);
        let touches = reading.touches(&mut world, &messages).await;
        for (id, state, reason) in [
            (1, "held", "blocking"), (2, "held", "poisoned"), (3, "discarded", "poisoned"),
            (4, "discarded", "dependent"), (5, "held", "dependent"),
        ] {
            hold(&world.target, id, state, reason).await;
            keys::write(&world.session, HeldId(id), &touches).await.unwrap();
        }
        world.target.batch_execute("UPDATE trellara.held SET overtaken_by = 'x', overtaken_lsn = '0/1', \
            overtaken_at = now() WHERE id = 4").await.unwrap();
        let held = loaded(&mut world, Lane(0)).await;
        assert_eq!((held.transactions(), held.keys()), (3, 3));
        let hits = reading.hits(&mut world, &held, &messages).await;
        assert_eq!(hits, Hits { open: vec![HeldId(2), HeldId(5)], discarded: vec![HeldId(3)] });
        // Of another lane nothing is.
        let other = loaded(&mut world, Lane(1)).await;
        assert!(other.is_empty());
    }
}

const LATER: &str = "
    CREATE TABLE note (id int PRIMARY KEY, gone int);
    CREATE TABLE loose (id int PRIMARY KEY);
    CREATE FUNCTION nothing() RETURNS trigger LANGUAGE plpgsql AS $$BEGIN RETURN NULL; END$$";

on_each_version! {
    /// What the target is given while something is held compares values that the held one did not
    /// leave: one held before, and what comes, is of the same tables all the same.
    async fn c45_a_tie_made_while_something_is_held_is_waited_for(version) {
        let cases: [(&str, &str, &str, &str); 4] = [
            ("INSERT INTO odd VALUES ('a', 1, 'v')", "CREATE UNIQUE INDEX ON odd (v)",
                "INSERT INTO odd VALUES ('b', 2, 'v')", "INSERT INTO log VALUES ('free')"),
            ("INSERT INTO gone VALUES (1)", "ALTER TABLE note ADD FOREIGN KEY (gone) REFERENCES gone",
                "INSERT INTO note VALUES (1, 1)", "INSERT INTO odd VALUES ('c', 3, 'w')"),
            ("INSERT INTO loose VALUES (60)",
                "ALTER TABLE root ATTACH PARTITION loose FOR VALUES FROM (50) TO (100)",
                "DELETE FROM loose WHERE id = 60", "INSERT INTO loose VALUES (61)"),
            ("INSERT INTO note VALUES (2, NULL)",
                "CREATE TRIGGER t AFTER INSERT ON note EXECUTE FUNCTION nothing(); \
                 ALTER TABLE note ENABLE ALWAYS TRIGGER t",
                "INSERT INTO log VALUES ('behind it')", ""),
        ];
        for (held, tie, waiting, free) in cases {
            let mut world = World::new(version, &format!("{TABLES};{LATER}")).await;
            let replica = world.options.role_replica;
            schema::install(&mut world.target).await.unwrap();
            let mut reading = Reading { relations: RelationMap::new() };
            world.source.batch_execute(held).await.unwrap();
            let messages = transactions(&world).await.remove(0);
            let touches = reading.touches(&mut world, &messages).await;
            hold(&world.target, 1, "held", "poisoned").await;
            keys::write(&world.session, HeldId(1), &touches).await.unwrap();
            let mut fresh = Footprints::new();
            fresh.add(HeldId(1), Standing::Open, &touches);
            let mut read = loaded(&mut world, Lane(0)).await;
            for footprints in [&mut fresh, &mut read] {
                world.catalog.forget();
                let moved = footprints.moved(&world.session, &mut world.catalog, replica);
                assert!(!moved.await.unwrap(), "nothing was changed: {held}");
            }
            world.target.batch_execute(tie).await.unwrap();
            world.catalog.forget();
            for footprints in [&mut fresh, &mut read] {
                let moved = footprints.moved(&world.session, &mut world.catalog, replica);
                assert!(moved.await.unwrap(), "{tie}");
            }
            let mut read = loaded(&mut world, Lane(0)).await;
            world.catalog.forget();
            let moved = read.moved(&world.session, &mut world.catalog, replica);
            assert!(!moved.await.unwrap(), "it was read anew: {tie}");
            for (statement, waits) in [(waiting, true), (free, false)] {
                if statement.is_empty() {
                    continue;
                }
                world.source.batch_execute(statement).await.unwrap();
                let messages = transactions(&world).await.remove(0);
                let hits = reading.hits(&mut world, &read, &messages).await;
                assert_eq!(hits.open == [HeldId(1)], waits, "{statement} behind {held}");
            }
        }
    }
}

/// Bytes of this process that are in memory.
#[cfg(target_os = "linux")]
fn resident_bytes() -> u64 {
    let statm = std::fs::read_to_string("/proc/self/statm").unwrap();
    let pages = statm.split(' ').nth(1).unwrap();
    pages.parse::<u64>().unwrap() * 4096
}

/// As many keys as may be kept by default, read row by row into what they take and no more.
#[cfg(target_os = "linux")]
#[tokio::test]
async fn memory_of_half_a_million_keys_is_small() {
    let mut world = World::new(18, TABLES).await;
    schema::install(&mut world.target).await.unwrap();
    hold(&world.target, 1, "held", "poisoned").await;
    hold(&world.target, 2, "held", "dependent").await;
    let keys = "INSERT INTO trellara.held_key SELECT 1 + n % 2, 'public', 'gone', 'row', \
         jsonb_build_object('id', n::text) FROM generate_series(1, 500000) n";
    world.target.batch_execute(keys).await.unwrap();
    let before = resident_bytes();
    let began = std::time::Instant::now();
    let held = loaded(&mut world, Lane(0)).await;
    let took = began.elapsed();
    let grown = resident_bytes().saturating_sub(before) >> 20;
    assert_eq!((held.transactions(), held.keys()), (2, 500_000));
    assert!(grown < 64, "{grown} MiB, read in {took:?}");
    let mut reading = Reading {
        relations: RelationMap::new(),
    };
    world
        .source
        .batch_execute("INSERT INTO gone VALUES (499999), (500001)")
        .await
        .unwrap();
    let messages = transactions(&world).await.remove(0);
    let hits = reading.hits(&mut world, &held, &messages).await;
    assert_eq!(hits.open, [HeldId(2)]);
}
