//! A flow from setup to removal, by commands alone.

use std::process::{Child, Stdio};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use trellara_local::PostgresOptions;

use crate::servers::World;

/// A daemon that is stopped with the test.
struct Daemon(Child);

impl Daemon {
    fn start(world: &World, verb: &str) -> Self {
        let mut command = world.program(&[verb, "--quiet"]);
        Self(
            command
                .stdout(Stdio::null())
                .spawn()
                .expect("the daemon starts"),
        )
    }

    /// SIGTERM; the exit code.
    fn stop(mut self) -> Option<i32> {
        let pid = Pid::from_raw(i32::try_from(self.0.id()).expect("a pid"));
        kill(pid, Signal::SIGTERM).expect("it is there");
        self.0.wait().expect("it ends").code()
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// The status once nothing blocks; a relay that is just reconnecting is named as a block, rightly.
fn status_at_rest(world: &World) -> serde_json::Value {
    let mut status = serde_json::Value::Null;
    for _ in 0..50 {
        status = world.run(&["status", "--output", "json"]).expect(0).json();
        if status["blocked_by"] == serde_json::json!([]) {
            return status;
        }
    }
    panic!("something blocks: {status}");
}

#[test]
fn a_flow_is_set_up_carried_watched_inspected_and_removed() {
    let world = World::start(PostgresOptions::version(18));
    let table = "CREATE TABLE orders (id int PRIMARY KEY, what text)";
    world.source_sql(table);
    world.target_sql(table);
    world.config("");
    let planned = world.run(&["setup", "--dry-run"]).expect(0);
    assert!(
        planned.stdout.contains("create the replication slot"),
        "{planned:?}"
    );
    assert_eq!(
        world.source_sql("SELECT count(*) FROM pg_replication_slots"),
        "0"
    );
    world.run(&["setup", "--yes"]).expect(0);
    let again = world.run(&["setup", "--yes"]).expect(0);
    assert!(again.stdout.contains("set up already"), "{again:?}");
    world.source_sql("INSERT INTO orders VALUES (1, 'secret value')");
    let behind = world.run(&["wait", "--timeout", "300ms"]).expect(20);
    assert!(behind.stderr.contains("hint:"), "{behind:?}");

    let (relay, applier) = (
        Daemon::start(&world, "relay"),
        Daemon::start(&world, "applier"),
    );
    world.source_sql("INSERT INTO orders VALUES (2, 'b')");
    world.run(&["wait", "--timeout", "60s"]).expect(0);
    assert_eq!(
        world.target_sql("SELECT string_agg(what, ',' ORDER BY id) FROM orders"),
        "secret value,b"
    );
    let status = status_at_rest(&world);
    assert_eq!(
        status["ladder"].as_array().map(Vec::len),
        Some(5),
        "{status}"
    );

    let listed = world.run(&["inspect", "--output", "json"]).expect(0).json();
    let transaction = listed[0]["id"].as_str().expect("an identity").to_owned();
    let hidden = world
        .run(&["inspect", "--transaction", &transaction])
        .expect(0);
    assert!(
        hidden.stdout.contains("insert \"public\".\"orders\""),
        "{hidden:?}"
    );
    assert!(!hidden.stdout.contains("secret"), "{hidden:?}");
    let shown = world
        .run(&["inspect", "--transaction", &transaction, "--values"])
        .expect(0);
    assert!(shown.stdout.contains("secret value"), "{shown:?}");

    assert_eq!(relay.stop(), Some(0));
    assert_eq!(applier.stop(), Some(0));
    world.run(&["remove"]).expect(64);
    world.run(&["remove", "--yes"]).expect(0);
    assert_eq!(
        world.source_sql("SELECT count(*) FROM pg_replication_slots"),
        "0"
    );
    assert_eq!(world.source_sql("SELECT count(*) FROM pg_publication"), "0");
    assert_eq!(
        world.target_sql("SELECT count(*) FROM pg_namespace WHERE nspname = 'trellara'"),
        "0"
    );
    world.run(&["remove", "--yes"]).expect(0);
}

#[test]
fn remove_takes_the_slot_although_the_other_side_is_dead() {
    let mut world = World::start(PostgresOptions::version(18));
    let table = "CREATE TABLE orders (id int PRIMARY KEY)";
    world.source_sql(table);
    world.target_sql(table);
    world.config("");
    world.run(&["setup", "--yes"]).expect(0);
    world.target.kill().expect("the target dies");
    world.broker.kill().expect("the broker dies");
    let removed = world
        .run(&["remove", "--yes", "--output", "json"])
        .expect(1)
        .json();
    assert_eq!(removed[0]["outcome"], "removed", "{removed}");
    assert_eq!(
        world.source_sql("SELECT count(*) FROM pg_replication_slots"),
        "0"
    );
}

#[test]
fn a_flow_with_its_own_broker_is_set_up_and_removed_while_nothing_runs() {
    let world = World::start(PostgresOptions::version(18));
    let table = "CREATE TABLE orders (id int PRIMARY KEY)";
    world.source_sql(table);
    world.target_sql(table);
    world.config_with_own_broker();
    let checked = world.run(&["check", "--output", "json"]).expect(0);
    assert!(checked.stdout.contains("BROKER_NOT_RUNNING"), "{checked:?}");
    world.run(&["setup", "--yes"]).expect(0);
    let removed = world
        .run(&["remove", "--yes", "--output", "json"])
        .expect(0);
    for part in removed.json().as_array().expect("a list") {
        assert_eq!(part["outcome"], "removed", "{part}");
    }
}
