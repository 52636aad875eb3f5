//! Settings of the source, publications, slots and streams of another shape, and old brokers.

use anyhow::{Result, ensure};
use trellara_local::{NatsOptions, NatsServer};
use trellara_testkit::broker;
use trellara_testkit::flow::Flow;
use trellara_testkit::ground::{Ground, GroundOptions};

use super::{TABLE, accepted, as_superuser, bare, flow, refused};
use crate::scenario::run;

#[tokio::test]
async fn wal_level_and_used_up_slots_are_named_together() -> Result<()> {
    let options = GroundOptions::version(15)
        .source("wal_level", "replica")
        .source("max_replication_slots", "1")
        .source("max_wal_senders", "1");
    let ground = Ground::start(&options)?;
    let flow = as_superuser(ground.flow("worst", TABLE, TABLE, "").await?)?;
    let taken = "SELECT pg_create_physical_replication_slot('somebodys')";
    run(&flow.source_admin, &[taken]).await?;
    let expected = [
        "SOURCE_WAL_LEVEL",
        "SOURCE_NO_FREE_SLOT",
        "SOURCE_NO_WALSENDER",
    ];
    refused(&flow, &expected, 11).await?;
    Ok(())
}

#[tokio::test]
async fn used_up_walsenders_are_named() -> Result<()> {
    let options = GroundOptions::version(18).source("max_wal_senders", "2");
    let ground = Ground::start(&options)?;
    let flow = as_superuser(ground.flow("senders", TABLE, TABLE, "").await?)?;
    let busy = trellara_postgres::ConnectOptions::parse(
        &flow.source_admin,
        &trellara_postgres::Environment::empty(),
    )?;
    let _one = trellara_postgres::ReplicationConnection::connect(&busy).await?;
    let two = trellara_postgres::ReplicationConnection::connect(&busy).await?;
    refused(&flow, &["SOURCE_NO_WALSENDER"], 11).await?;
    drop(two);
    // The server ends a walsender some moments after its client has gone.
    let senders = "SELECT count(*) FROM pg_stat_get_wal_senders()";
    while crate::scenario::value(&flow.source_admin, senders).await? != "1" {
        tokio::task::yield_now().await;
    }
    accepted(&flow).await
}

#[tokio::test]
async fn a_publication_of_another_shape_is_named() -> Result<()> {
    let flow = flow(18, "pubshape", "").await?;
    let publication = format!("trellara_{}", flow.name);
    let create = format!("CREATE PUBLICATION {publication} WITH (publish = 'insert')");
    run(&flow.source_admin, &[&create]).await?;
    refused(&flow, &["PUBLICATION_PARTIAL", "PUBLICATION_EMPTY"], 11).await?;
    run(
        &flow.source_admin,
        &[
            &format!(
                "ALTER PUBLICATION {publication} SET (publish = 'insert, update, delete, truncate')"
            ),
            &format!("ALTER PUBLICATION {publication} ADD TABLE t"),
        ],
    )
    .await?;
    accepted(&flow).await
}

/// Each slot is somebody's: it is refused by name and stays exactly as it is.
#[tokio::test]
async fn a_slot_of_another_shape_is_named() -> Result<()> {
    let flow = flow(15, "slotshape", "").await?;
    let slot = format!("trellara_{}", flow.name);
    let elsewhere = crate::scenario::value(
        &flow.source_admin,
        "SELECT format('CREATE DATABASE %I', current_database() || '_b')",
    )
    .await?;
    run(&flow.source_admin, &[&elsewhere]).await?;
    let other = format!("{}_b", flow.source_admin);
    let logical = |plugin: &str, two_phase: bool| {
        format!(
            "SELECT pg_create_logical_replication_slot('{slot}', '{plugin}', false, {two_phase})"
        )
    };
    let cases = [
        (
            &flow.source_admin,
            logical("test_decoding", false),
            "SLOT_PLUGIN",
        ),
        (
            &flow.source_admin,
            format!("SELECT pg_create_physical_replication_slot('{slot}')"),
            "SLOT_PLUGIN",
        ),
        (&other, logical("pgoutput", false), "SLOT_DATABASE"),
        (
            &flow.source_admin,
            logical("pgoutput", true),
            "SLOT_TWO_PHASE",
        ),
        // It fits, and nobody knows where it began: setup does not guess.
        (&flow.source_admin, logical("pgoutput", false), "FLOW_STATE"),
    ];
    for (url, create, id) in cases {
        run(url, &[&create]).await?;
        refused(&flow, &[id], 11).await?;
        let drop = format!("SELECT pg_drop_replication_slot('{slot}')");
        run(&flow.source_admin, &[&drop]).await?;
    }
    accepted(&flow).await
}

#[tokio::test]
async fn a_stream_with_losing_settings_is_named_setting_by_setting() -> Result<()> {
    let flow = flow(18, "streamshape", "").await?;
    let nats = bare(&flow.places.nats_url);
    let stream = format!("TRELLARA_{}", flow.name);
    // What setup itself makes is the starting point of each bad one.
    accepted(&flow).await?;
    let good = broker::stream_settings(&nats, &stream)
        .await?
        .expect("setup made it");
    let removed = flow.command(&["remove", "--yes"]).await?;
    ensure!(removed.code == 0, "{removed:?}");
    let mut bad = good;
    bad.discard = broker::DiscardPolicy::Old;
    bad.max_age = std::time::Duration::from_secs(3600);
    bad.storage = broker::StorageType::Memory;
    bad.deny_delete = false;
    bad.subjects.push(format!("somebody.{}", flow.name));
    broker::create_stream(&nats, bad).await?;
    let found = refused(&flow, &["STREAM_UNFIT"], 11).await?;
    for setting in ["discard", "max_age", "storage", "deny_delete", "subjects"] {
        ensure!(
            found
                .iter()
                .any(|e| e["reason"].as_str().is_some_and(|r| r.starts_with(setting))),
            "{setting} is not named: {found:?}"
        );
    }
    broker::delete_stream(&nats, &stream).await?;
    accepted(&flow).await
}

/// The first is only warned of and the second cannot be asked beforehand: what was made before the
/// broker refused goes again.
#[tokio::test]
async fn a_stream_that_the_broker_refuses_leaves_nothing_behind() -> Result<()> {
    let small = NatsServer::start(&NatsOptions {
        max_store_bytes: 64 << 20,
        ..NatsOptions::default()
    })?;
    let mut flow = flow(15, "refused", "nats.max_bytes: 1GiB").await?;
    flow.places.nats_url = small.url();
    flow.write_config()?;
    taken_back(&flow).await?;
    // Somebody else's stream has the flow's subjects.
    let mut flow = super::flow(18, "subjects", "nats.max_bytes: 16MiB").await?;
    flow.places.nats_url = small.url();
    flow.write_config()?;
    let foreign = broker::Config {
        name: "FOREIGN".to_owned(),
        subjects: vec![format!("trellara.{}.mark", flow.name)],
        ..broker::Config::default()
    };
    broker::create_stream(&small.url(), foreign).await?;
    taken_back(&flow).await?;
    broker::delete_stream(&small.url(), "FOREIGN").await?;
    accepted(&flow).await
}

async fn taken_back(flow: &Flow) -> Result<()> {
    let before = super::inventory(flow).await?;
    let setup = super::run(flow, &["setup", "--yes"]).await?;
    ensure!(setup.code != 0, "{setup:?}");
    ensure!(setup.stderr.contains("taken back"), "{setup:?}");
    let after = super::inventory(flow).await?;
    ensure!(before == after, "before:\n{before}\nafter:\n{after}");
    Ok(())
}

/// nats-server 2.10.26 forgets message ids: it is used with `applied` only.
#[tokio::test]
async fn a_broker_too_old_for_the_acknowledge_level_is_named() -> Result<()> {
    let old = NatsServer::start(&NatsOptions {
        version: "2.10.26".to_owned(),
        sync_always: true,
        ..NatsOptions::default()
    })?;
    for (level, exit) in [("published", 11), ("applied", 0)] {
        let extra = format!("source.acknowledge: {level}");
        let mut flow = flow(18, "oldnats", &extra).await?;
        flow.places.nats_url = old.url();
        flow.write_config()?;
        if exit == 0 {
            accepted(&flow).await?;
            continue;
        }
        refused(&flow, &["BROKER_TOO_OLD_FOR_PUBLISHED"], exit).await?;
    }
    Ok(())
}
