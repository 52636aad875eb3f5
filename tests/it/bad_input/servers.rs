//! What the servers themselves are or say: a target that takes no writes or is the source, a source
//! that waits for us, a broker that lets nobody in or holds too little.

use anyhow::{Result, ensure};
use trellara_local::{NatsOptions, NatsServer, shared};
use trellara_testkit::compare;
use trellara_testkit::ground::{Ground, GroundOptions};

use super::rights::with_user;
use super::{TABLE, accepted, as_superuser, flow, refused, refused_with, warned};
use crate::restart::until;
use crate::scenario::{WITHIN, run};

#[tokio::test]
async fn a_publication_that_a_dba_has_still_to_make_is_named() -> Result<()> {
    let extra = "source.tables: []\nsource.publication: absent";
    let flow = flow(18, "nopub", extra).await?;
    refused(&flow, &["PUBLICATION_MISSING"], 11).await?;
    run(
        &flow.source_admin,
        &["CREATE PUBLICATION absent FOR TABLE t"],
    )
    .await?;
    accepted(&flow).await
}

#[tokio::test]
async fn a_slot_that_ends_with_its_session_is_named() -> Result<()> {
    let flow = flow(15, "tempslot", "").await?;
    let session = compare::connect(&flow.source_admin).await?;
    let create = format!(
        "SELECT pg_create_logical_replication_slot('trellara_{}', 'pgoutput', true)",
        flow.name
    );
    session.batch_execute(&create).await?;
    refused(&flow, &["SLOT_TEMPORARY"], 11).await?;
    let drop = format!("SELECT pg_drop_replication_slot('trellara_{}')", flow.name);
    session.batch_execute(&drop).await?;
    accepted(&flow).await
}

#[tokio::test]
async fn a_target_that_is_read_only_by_default_is_named() -> Result<()> {
    let flow = flow(18, "readonly", "").await?;
    let (name, setting) = (&flow.name, "default_transaction_read_only");
    let set = format!("ALTER DATABASE {name} SET {setting} = on");
    run(&flow.target_admin, &[&set]).await?;
    refused(&flow, &["TARGET_READ_ONLY"], 11).await?;
    // The administrator's own sessions are read-only too.
    let reset = format!("ALTER DATABASE {name} RESET {setting}");
    run(
        &flow.target_admin,
        &[&format!("SET {setting} = off"), &reset],
    )
    .await?;
    accepted(&flow).await
}

/// The administrator's override lets setup in; the role that the file names is nobody.
#[tokio::test]
async fn an_applier_role_that_does_not_exist_is_named() -> Result<()> {
    let mut flow = flow(15, "nobody", "").await?;
    let administrator = flow.places.target_url.clone();
    flow.places.target_url = with_user(&administrator, &format!("{}_n", flow.name));
    flow.write_config()?;
    let variables = [("TRELLARA__TARGET__URL", administrator.as_str())];
    refused_with(&flow, &variables, &["TARGET_ROLE_MISSING"], 77).await?;
    Ok(())
}

#[tokio::test]
async fn a_target_that_is_the_source_is_named() -> Result<()> {
    let mut flow = flow(18, "itself", "").await?;
    flow.places.target_url = flow.places.source_url.clone();
    flow.write_config()?;
    refused(&flow, &["TARGET_IS_SOURCE"], 11).await?;
    Ok(())
}

/// Demanded by the file it is an error, otherwise a warning.
#[tokio::test]
async fn a_role_that_may_not_be_the_replica_role_is_named() -> Result<()> {
    for (name, extra) in [("replica", "apply: {role_replica: true}"), ("replauto", "")] {
        let mut flow = flow(18, name, extra).await?;
        let apply = format!("{}_a", flow.name);
        run(
            &flow.target_admin,
            &[
                &format!("CREATE ROLE {apply} LOGIN PASSWORD 'secret'"),
                &format!("GRANT CREATE ON DATABASE {} TO {apply}", flow.name),
                &format!("GRANT ALL ON t TO {apply}"),
            ],
        )
        .await?;
        flow.places.target_url = with_user(&flow.target_admin, &apply);
        flow.write_config()?;
        if extra.is_empty() {
            ensure!(warned(&flow, "TARGET_REPLICA_ROLE").await?.len() == 1);
        } else {
            let found = refused(&flow, &["TARGET_REPLICA_ROLE"], 77).await?;
            let cure = found[0]["cure"].as_str().unwrap_or_default();
            run(&flow.target_admin, &[cure]).await?;
        }
        accepted(&flow).await?;
    }
    Ok(())
}

/// Whoever commits would wait for a relay that cannot run before setup has committed.
#[tokio::test]
async fn c10_a_source_that_waits_for_the_relay_before_there_is_one_is_named() -> Result<()> {
    let ground = Ground::start(&GroundOptions::version(15))?;
    let flow = as_superuser(ground.flow("waits", TABLE, TABLE, "").await?)?;
    let standbys = "SHOW synchronous_standby_names";
    for names in ["*", "\"trellara-waits\""] {
        let set = format!("ALTER SYSTEM SET synchronous_standby_names = '{names}'");
        run(&flow.source_admin, &[&set, "SELECT pg_reload_conf()"]).await?;
        until(&flow.source_admin, standbys, names, WITHIN).await?;
        refused(&flow, &["SOURCE_SYNCHRONOUS_STANDBY"], 11).await?;
    }
    let reset = "ALTER SYSTEM RESET synchronous_standby_names";
    run(&flow.source_admin, &[reset, "SELECT pg_reload_conf()"]).await?;
    until(&flow.source_admin, standbys, "", WITHIN).await?;
    accepted(&flow).await
}

/// Not let in at all, or let in without the right to ask about the stream.
#[tokio::test]
async fn a_broker_that_refuses_is_named() -> Result<()> {
    let own = NatsServer::start(&NatsOptions {
        auth: Some(("right".to_owned(), "password".to_owned())),
        ..NatsOptions::default()
    })?;
    let mut flow = flow(18, "entry", "").await?;
    flow.places.nats_url = own.url().replace("right", "wrong");
    flow.write_config()?;
    refused(&flow, &["BROKER_REFUSES"], 77).await?;
    let timid = NatsServer::start(&NatsOptions {
        extra_config: "accounts { A { jetstream: enabled, users: [ \
            { user: timid, password: timid, permissions { \
                publish: [\"$JS.API.INFO\"], subscribe: [\"_INBOX_trellara_check.>\", \"_INBOX_trellara_setup.>\"] } } \
            ] } }\nno_auth_user: timid\n"
            .to_owned(),
        ..NatsOptions::default()
    })?;
    flow.places.nats_url = timid.url();
    flow.places.nats_monitor_url = None;
    flow.write_config()?;
    refused(&flow, &["STREAM_QUERY"], 77).await?;
    Ok(())
}

#[tokio::test]
async fn a_broker_that_takes_no_frame_is_named() -> Result<()> {
    let small = NatsServer::start(&NatsOptions {
        max_payload: 32 << 10,
        ..shared::nats()
    })?;
    let mut flow = flow(15, "payload", "").await?;
    flow.places.nats_url = small.url();
    flow.write_config()?;
    refused(&flow, &["BROKER_PAYLOAD"], 11).await?;
    Ok(())
}

/// The stream's limit is more than the server or the account has room for: said with what fits.
#[tokio::test]
async fn a_broker_that_holds_less_than_the_stream_is_named() -> Result<()> {
    let small = NatsServer::start(&NatsOptions {
        max_store_bytes: 64 << 20,
        ..NatsOptions::default()
    })?;
    let limited = NatsServer::start(&NatsOptions {
        extra_config: "accounts { A { jetstream { max_file: 67108864 }, \
            users: [ { user: a, password: a } ] } }\nno_auth_user: a\n"
            .to_owned(),
        ..NatsOptions::default()
    })?;
    for (name, server) in [("room", &small), ("account", &limited)] {
        let mut flow = flow(18, name, "").await?;
        flow.places.nats_url = server.url();
        flow.places.nats_monitor_url = Some(server.monitor_url());
        flow.write_config()?;
        let cures = warned(&flow, "BROKER_STORAGE").await?;
        ensure!(
            cures
                .iter()
                .any(|cure| cure.contains("nats.max_bytes to 64MiB or less")),
            "{name}: {cures:?}"
        );
        // As the cure says; a stream that is there has its room.
        let text = std::fs::read_to_string(flow.config())?;
        let mended = text.replace("nats: {", "nats: {max_bytes: 64MiB, ");
        std::fs::write(flow.config(), &mended)?;
        ensure!(warned(&flow, "BROKER_STORAGE").await?.is_empty(), "{name}");
        accepted(&flow).await?;
        ensure!(warned(&flow, "BROKER_STORAGE").await?.is_empty(), "{name}");
        let more = mended.replace("64MiB", "65MiB");
        std::fs::write(flow.config(), more)?;
        ensure!(!warned(&flow, "BROKER_STORAGE").await?.is_empty(), "{name}");
    }
    Ok(())
}
