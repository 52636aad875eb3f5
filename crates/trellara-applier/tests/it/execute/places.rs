//! Names, partitions, inheritance, TRUNCATE and definitions that change (cases.md 7, B27).

use trellara_applier::ApplyErrorKind;

use super::world::World;
use crate::on_each_version;

on_each_version! {
    async fn b95_names_that_need_quotes(version) {
        let name = r#""Weird.Sch""ema"."select * > é 😀""#;
        let long = "\"".to_owned() + &"0123456789".repeat(6) + "123\"";
        let tables = format!(
            r#"CREATE SCHEMA "Weird.Sch""ema"; CREATE TABLE t(id int);
             CREATE TYPE "Weird.Sch""ema"."Mo""od" AS ENUM ('x');
             CREATE TABLE {name}("User" int PRIMARY KEY, "a""b" text, "order" int, "имя" text, "with space" "Weird.Sch""ema"."Mo""od", "x'); drop table t; --" int);
             CREATE TABLE {long}(id int PRIMARY KEY, u int, "c1" int, "$1" int)"#);
        let mut world = World::new(version, &tables).await;
        world.follows(&format!(
            "INSERT INTO {name} SELECT g, 'a' || g, g, 'и', 'x', g FROM generate_series(1, 5) g; INSERT INTO {long} SELECT g, g, g, g FROM generate_series(1, 3) g;
             UPDATE {name} SET \"order\" = 9, \"x'); drop table t; --\" = 0; UPDATE {name} SET \"User\" = 50 WHERE \"User\" = 5; DELETE FROM {name} WHERE \"User\" < 3;
             UPDATE {long} SET u = 0, \"$1\" = 7; DELETE FROM {long} WHERE id = 1"), &[name, &long]).await;
        world.source.batch_execute(&format!("ALTER TABLE {name} REPLICA IDENTITY FULL")).await.unwrap();
        world.target.batch_execute(&format!("ALTER TABLE {name} DROP CONSTRAINT \"select * > é 😀_pkey\"")).await.unwrap();
        world.follows(&format!("UPDATE {name} SET \"имя\" = 'я' WHERE \"User\" = 3; DELETE FROM {name} WHERE \"User\" = 4"), &[name]).await;
        world.follows(&format!("TRUNCATE {name}, {long}"), &[name, &long]).await;
        world.equal("t").await;
    }
}

on_each_version! {
    async fn b100_columns_come_and_go_in_mid_transaction(version) {
        let mut world = World::with(version, "CREATE TABLE d(id int PRIMARY KEY, a int, b int)",
            "CREATE TABLE d(gone int, b int, extra text DEFAULT 'own', id int PRIMARY KEY, a int); ALTER TABLE d DROP gone").await;
        world.run("INSERT INTO d VALUES (1, 1, 1), (2, 2, 2)").await.unwrap();
        assert_eq!(world.rows("d").await, ["(1,own,1,1)", "(2,own,2,2)"]);
        world.source.batch_execute(
            "BEGIN; INSERT INTO d(id, b) VALUES (5, 5); ALTER TABLE d ADD COLUMN z varchar(9); INSERT INTO d(id, b, z) VALUES (6, 6, '6');
             ALTER TABLE d ALTER COLUMN z TYPE text; INSERT INTO d(id, b, z) VALUES (7, 7, 't'); COMMIT").await.unwrap();
        let messages = world.capture().await;
        let missing = world.apply(&messages).await.unwrap_err();
        assert_eq!((missing.kind, missing.change_number), (ApplyErrorKind::Schema, 2), "{missing}");
        assert_eq!(missing.hint, "ALTER TABLE \"public\".\"d\" ADD COLUMN \"z\" varchar(9);");
        assert_eq!(world.rows("d").await.len(), 2);
        // After the ALTER it goes on by itself, with the catalogue of the same session.
        world.target.batch_execute("ALTER TABLE d ADD COLUMN z text").await.unwrap();
        world.apply(&messages).await.unwrap();
        assert_eq!(world.rows("d").await.last().unwrap(), "(7,own,7,,t)");
        world.run("ALTER TABLE d DROP COLUMN a; UPDATE d SET b = 8 WHERE id = 7").await.unwrap();
        let renamed = world.run("ALTER TABLE d RENAME COLUMN b TO bb; UPDATE d SET bb = 9 WHERE id = 7").await.unwrap_err();
        assert_eq!(renamed.hint, "ALTER TABLE \"public\".\"d\" ADD COLUMN \"bb\" int4;");
        let gone = world.run("ALTER TABLE d RENAME TO dd; UPDATE dd SET bb = 10 WHERE id = 7").await.unwrap_err();
        assert_eq!((gone.kind, gone.table.as_str()), (ApplyErrorKind::Schema, "dd"));
        assert_eq!(gone.hint, "CREATE TABLE \"public\".\"dd\" (\"id\" int4, \"bb\" int4, \"z\" text, PRIMARY KEY (\"id\"));");
    }
}

on_each_version! {
    async fn b100_the_target_changes_under_a_cached_catalogue(version) {
        let mut world = World::new(version, "CREATE TABLE d(id int PRIMARY KEY, a text)").await;
        for n in 0..4 {
            world.run(&format!("INSERT INTO d VALUES ({n}, 'a')")).await.unwrap();
        }
        world.target.batch_execute("ALTER TABLE d RENAME COLUMN a TO b").await.unwrap();
        world.source.batch_execute("INSERT INTO d VALUES (9, 'a')").await.unwrap();
        let messages = world.capture().await;
        // First the server refuses the statement, then the catalogue is read anew.
        let refused = world.apply(&messages).await.unwrap_err();
        assert_eq!((refused.kind, refused.sqlstate.as_str()), (ApplyErrorKind::Schema, "42703"));
        let refused = world.apply(&messages).await.unwrap_err();
        assert!(refused.hint.starts_with("ALTER TABLE"), "{refused:?}");
        world.target.batch_execute("ALTER TABLE d RENAME COLUMN b TO a").await.unwrap();
        world.apply(&messages).await.unwrap();
        world.equal("d").await;
    }
}

on_each_version! {
    async fn b103_generated_columns(version) {
        let mut world = World::with(version,
            "CREATE TABLE either(id int PRIMARY KEY, b int, g int GENERATED ALWAYS AS (b * 2) STORED);
             CREATE TABLE here(id int PRIMARY KEY, b int, g int); CREATE TABLE full_here(b int, g int); ALTER TABLE full_here REPLICA IDENTITY FULL",
            "CREATE TABLE either(g int GENERATED ALWAYS AS (b * 2) STORED, id int PRIMARY KEY, b int);
             CREATE TABLE here(id int PRIMARY KEY, b int, g int GENERATED ALWAYS AS (b * 2) STORED);
             CREATE TABLE full_here(b int, g int GENERATED ALWAYS AS (b * 2) STORED)").await;
        world.run("INSERT INTO either(id, b) VALUES (1, 1), (2, 2); INSERT INTO here VALUES (1, 1, 0); INSERT INTO full_here VALUES (1, 0), (2, 0);
             UPDATE either SET b = 5; UPDATE here SET b = 6; UPDATE full_here SET b = 7 WHERE b = 1; UPDATE either SET id = 3 WHERE id = 2").await.unwrap();
        assert_eq!(world.rows("either").await, ["(10,1,5)", "(10,3,5)"]);
        assert_eq!(world.rows("here").await, ["(1,6,12)"]);
        assert_eq!(world.rows("full_here").await, ["(2,4)", "(7,14)"]);
    }
}

on_each_version! {
    async fn b27_truncate_in_order_with_the_rest(version) {
        let tables = "CREATE TABLE parent(id int PRIMARY KEY); CREATE TABLE child(id int GENERATED BY DEFAULT AS IDENTITY PRIMARY KEY, p int REFERENCES parent);
             CREATE TABLE aside(id int PRIMARY KEY); CREATE TABLE heir() INHERITS (aside); CREATE TABLE pt(id int) PARTITION BY RANGE (id);
             CREATE TABLE pt1 PARTITION OF pt FOR VALUES FROM (0) TO (100)";
        let mut world = World::new(version, tables).await;
        world.follows("INSERT INTO parent VALUES (1), (2); INSERT INTO child(p) VALUES (1), (2); INSERT INTO aside VALUES (1); INSERT INTO heir VALUES (2);
             INSERT INTO pt VALUES (5)", &["parent", "child", "aside", "pt"]).await;
        world.follows("BEGIN; INSERT INTO parent VALUES (3); TRUNCATE parent, child RESTART IDENTITY; INSERT INTO parent VALUES (4); COMMIT", &["parent", "child"]).await;
        let next: i64 = world.target.query_one("SELECT nextval('child_id_seq')", &[]).await.unwrap().get(0);
        assert_eq!(next, 1);
        // A role that owns nothing may not restart a sequence, only set it.
        let role = format!("plain_{}", world.target_url.rsplit_once('/').unwrap().1);
        world.target.batch_execute(&format!("CREATE ROLE {role}; GRANT SELECT, INSERT, UPDATE, DELETE, TRUNCATE ON ALL TABLES IN SCHEMA public TO {role};
             GRANT SELECT, UPDATE ON ALL SEQUENCES IN SCHEMA public TO {role}; SELECT setval('child_id_seq', 50)")).await.unwrap();
        world.session.batch_execute(&format!("SET ROLE {role}")).await.unwrap();
        world.follows("BEGIN; TRUNCATE parent, child RESTART IDENTITY; INSERT INTO parent VALUES (4); COMMIT", &["parent", "child"]).await;
        let next: i64 = world.target.query_one("SELECT nextval('child_id_seq')", &[]).await.unwrap().get(0);
        assert_eq!(next, 1);
        world.target.batch_execute(&format!("REVOKE UPDATE ON SEQUENCE child_id_seq FROM {role}")).await.unwrap();
        let refused = world.run("TRUNCATE child RESTART IDENTITY").await.unwrap_err();
        assert_eq!((refused.kind, refused.sqlstate.as_str()), (ApplyErrorKind::Rights, "42501"));
        world.session.batch_execute("RESET ROLE").await.unwrap();
        world.target.batch_execute(&format!("DROP OWNED BY {role}; DROP ROLE {role}")).await.unwrap();
        world.follows("INSERT INTO child(id, p) VALUES (77, 4); TRUNCATE parent CASCADE", &["parent", "child"]).await;
        world.follows("TRUNCATE ONLY aside", &["aside"]).await;
        assert_eq!(world.rows("aside").await, ["(2)"]);
        world.follows("TRUNCATE pt", &["pt"]).await;
        world.follows("TRUNCATE aside", &["aside"]).await;
    }
}

on_each_version! {
    async fn b110_truncate_blocked_by_the_targets_own_table(version) {
        let mut world = World::with(version, "CREATE TABLE parent(id int PRIMARY KEY)",
            "CREATE TABLE parent(id int PRIMARY KEY); CREATE TABLE own(p int REFERENCES parent)").await;
        world.run("INSERT INTO parent VALUES (1)").await.unwrap();
        world.target.batch_execute("INSERT INTO own VALUES (1)").await.unwrap();
        let blocked = world.run("TRUNCATE parent").await.unwrap_err();
        assert_eq!((blocked.kind, blocked.sqlstate.as_str()), (ApplyErrorKind::Schema, "0A000"));
        assert_eq!(world.rows("own").await.len(), 1);
        assert_eq!(world.rows("parent").await.len(), 1);
    }
}

on_each_version! {
    async fn b96_partitions_the_same_another_way_and_not_at_all(version) {
        let leaves = "CREATE TABLE pt1 PARTITION OF pt FOR VALUES FROM (0) TO (100); CREATE TABLE pt2 PARTITION OF pt FOR VALUES FROM (100) TO (200)";
        let root = "CREATE TABLE pt(id int PRIMARY KEY, k int) PARTITION BY RANGE (id)";
        let change = "INSERT INTO pt VALUES (1, 1), (50, 5), (150, 1); UPDATE pt SET id = 160 WHERE id = 1; UPDATE pt SET k = 7; UPDATE pt SET id = 170 WHERE id = 160; DELETE FROM pt WHERE id = 50";
        for (via_root, target) in [
            (false, format!("{root}; {leaves}")),
            (true, format!("{root}; {leaves}")),
            (true, format!("{root}; CREATE TABLE all_of_it PARTITION OF pt DEFAULT")),
            (true, "CREATE TABLE pt(id int PRIMARY KEY, k int)".to_owned()),
        ] {
            let mut world = World::with(version, &format!("{root}; {leaves}"), &target).await;
            world.source.batch_execute(&format!("ALTER PUBLICATION p SET (publish_via_partition_root = {via_root})")).await.unwrap();
            world.follows(change, &["pt"]).await;
            world.follows("TRUNCATE pt", &["pt"]).await;
        }
        // Without a key, in several partitions with equal places.
        let keyless = "CREATE TABLE pt(id int, k int) PARTITION BY RANGE (id)";
        let mut world = World::new(version, &format!("{keyless}; {leaves}; ALTER TABLE pt REPLICA IDENTITY FULL; ALTER TABLE pt1 REPLICA IDENTITY FULL; ALTER TABLE pt2 REPLICA IDENTITY FULL")).await;
        world.source.batch_execute("ALTER PUBLICATION p SET (publish_via_partition_root = true)").await.unwrap();
        world.follows("INSERT INTO pt SELECT g, 1 FROM generate_series(98, 101) g; DELETE FROM pt WHERE id = 98; UPDATE pt SET k = 2 WHERE id = 101; UPDATE pt SET id = 55 WHERE id = 100", &["pt"]).await;
    }
}

on_each_version! {
    async fn children_are_tables_of_their_own(version) {
        let mut world = World::new(version,
            "CREATE TABLE p(id int, v int); CREATE TABLE c() INHERITS (p); ALTER TABLE p REPLICA IDENTITY FULL; ALTER TABLE c REPLICA IDENTITY FULL").await;
        world.follows("INSERT INTO p VALUES (1, 1); INSERT INTO c VALUES (1, 1); UPDATE ONLY p SET v = 2; DELETE FROM c; INSERT INTO c VALUES (1, 2); DELETE FROM ONLY p", &["p", "c"]).await;
        assert_eq!(world.rows("c").await, ["(1,2)"]);
    }
}
