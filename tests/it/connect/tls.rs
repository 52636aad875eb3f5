//! TLS: what `sslmode` asks for holds on every connection, or there is none.

use std::fs;
use std::os::unix::fs::PermissionsExt;

use anyhow::{Context, Result, ensure};
use trellara_local::TlsFiles;
use trellara_testkit::certificates::{Authority, Identity};
use trellara_testkit::flow::Flow;
use trellara_testkit::ground::{Ground, GroundOptions};

use super::{SCHEMA, command, questions};
use crate::scenario::{WITHIN, run, started, value};

/// Into `sealed` nobody comes without TLS, into `certified` nobody without a certificate; only the
/// superuser, who sets things up, may.
const HBA: &str = "\
local all postgres trust
host all postgres all trust
hostnossl sealed all all reject
hostssl certified all all cert
hostnossl certified all all reject
host all all all scram-sha-256
";

/// Servers that are known as 127.0.0.1 to those who trust `authority`.
fn ground(version: u32, authority: &Authority, identity: Identity) -> Result<Ground> {
    let mut options = GroundOptions::version(version);
    options.hba = HBA.to_owned();
    options.tls = Some(TlsFiles {
        certificate: identity.certificate,
        key: identity.key,
        client_authority: Some(authority.certificate.clone()),
    });
    Ground::start(&options)
}

/// Writes a file that only we may read; its path.
fn file(flow: &Flow, name: &str, text: &str) -> Result<String> {
    let path = flow.folder().join(name);
    fs::write(&path, text)?;
    fs::set_permissions(&path, fs::Permissions::from_mode(0o600))?;
    Ok(path.to_str().context("a path in UTF-8")?.to_owned())
}

/// How the flow's roles are connected to a server right now, by kind of backend.
async fn connections(url: &str) -> Result<String> {
    value(
        url,
        "SELECT coalesce(string_agg(DISTINCT concat_ws(' ', a.backend_type, s.ssl), ', ' ), '')
           FROM pg_stat_activity AS a JOIN pg_stat_ssl AS s USING (pid)
          WHERE a.usename LIKE 'trellara%'",
    )
    .await
}

/// Restarts the daemons with these parameters behind both URLs, carries a row, and says how both
/// servers saw them.
async fn carried_with(
    flow: &mut Flow,
    bare: &(String, String),
    parameters: &str,
    id: usize,
) -> Result<(String, String)> {
    flow.places.source_url = format!("{}?{parameters}", bare.0);
    flow.places.target_url = format!("{}?{parameters}", bare.1);
    flow.write_config()?;
    if id == 0 {
        flow.setup().await?;
    }
    flow.start_relay()?;
    flow.start_applier()?;
    let insert = format!("INSERT INTO t VALUES ({id}, '{parameters}')");
    run(&flow.source_admin, &[&insert]).await?;
    flow.converges(WITHIN).await?;
    questions(flow).await?;
    Ok((
        connections(&flow.source_admin).await?,
        connections(&flow.target_admin).await?,
    ))
}

async fn every_mode(version: u32) -> Result<()> {
    let authority = Authority::new()?;
    let ground = ground(version, &authority, authority.server("127.0.0.1")?)?;
    let plain = ["sslmode=disable", "sslmode=allow"];
    let sealed = [
        "sslmode=allow",
        "sslmode=prefer",
        "sslmode=require",
        "sslmode=verify-ca&sslrootcert=ROOT",
        "sslmode=verify-full&sslrootcert=ROOT",
        // The password's exchange is bound to the TLS session: SCRAM-SHA-256-PLUS.
        "sslmode=require&channel_binding=require&require_auth=scram-sha-256",
    ];
    for (name, modes, encrypted) in [("open", &plain[..], "f"), ("sealed", &sealed[..], "t")] {
        let mut flow = ground.flow(name, SCHEMA, SCHEMA, "").await?;
        let root = file(&flow, "root.crt", &authority.certificate)?;
        let bare = (
            flow.places.source_url.clone(),
            flow.places.target_url.clone(),
        );
        for (id, mode) in modes.iter().enumerate() {
            let mode = mode.replace("ROOT", &root);
            let (source, target) = carried_with(&mut flow, &bare, &mode, id)
                .await
                .with_context(|| format!("{name}, {mode}"))?;
            let both = format!("client backend {encrypted}, walsender {encrypted}");
            // The relay's own session comes and goes.
            let walsender = format!("walsender {encrypted}");
            ensure!(source == both || source == walsender, "{mode}: {source}");
            ensure!(
                target == format!("client backend {encrypted}"),
                "{mode}: {target}"
            );
        }
    }
    Ok(())
}

#[tokio::test]
async fn b129_sslmode_holds_on_every_connection_on_15() -> Result<()> {
    every_mode(15).await
}

#[tokio::test]
async fn b129_sslmode_holds_on_every_connection_on_18() -> Result<()> {
    every_mode(18).await
}

/// Every command refuses, with the reason and without a secret.
async fn refused(flow: &Flow, reason: &str) -> Result<()> {
    flow.write_config()?;
    for arguments in [
        &["check"] as &[&str],
        &["setup", "--yes"],
        &["wait"],
        &["status"],
    ] {
        let done = command(flow, arguments).await?;
        let said = format!("{}{}", done.stdout, done.stderr);
        let quiet = arguments == ["status"];
        ensure!(quiet || done.code != 0, "{arguments:?} was let in: {said}");
        ensure!(
            said.contains(reason),
            "{arguments:?} does not say {reason:?}: {said}"
        );
    }
    Ok(())
}

/// The same of a daemon: it gets nowhere and says why.
async fn daemons_refused(flow: &mut Flow, reason: &str) -> Result<()> {
    flow.start_relay()?.logged(reason, WITHIN).await?;
    flow.start_applier()?.logged(reason, WITHIN).await?;
    (flow.relay, flow.applier) = (None, None);
    flow.tells_no_secret()
}

#[tokio::test]
async fn b129_what_cannot_be_had_is_refused() -> Result<()> {
    let authority = Authority::new()?;
    let ground = ground(15, &authority, authority.server("127.0.0.1")?)?;
    let mut flow = ground.flow("sealed", SCHEMA, SCHEMA, "").await?;
    let root = file(&flow, "root.crt", &authority.certificate)?;
    let other = file(&flow, "other.crt", &Authority::new()?.certificate)?;
    let bare = (
        flow.places.source_url.clone(),
        flow.places.target_url.clone(),
    );
    flow.grant().await?;
    let localhost = |url: &str| url.replace("@127.0.0.1:", "@localhost:");
    let cases = [
        ("sslmode=disable".to_owned(), false, "pg_hba.conf"),
        (
            format!("sslmode=verify-full&sslrootcert={root}"),
            true,
            "localhost",
        ),
        (
            format!("sslmode=verify-full&sslrootcert={other}"),
            false,
            "TLS",
        ),
        (format!("sslmode=require&sslrootcert={other}"), false, "TLS"),
        (
            format!("sslmode=verify-ca&sslrootcert={root}.missing"),
            false,
            "root.crt.missing",
        ),
        (
            "sslmode=verify-full".to_owned(),
            false,
            "needs a root certificate",
        ),
    ];
    for (parameters, by_name, reason) in cases {
        let place = |url: &str| match by_name {
            true => format!("{}?{parameters}", localhost(url)),
            false => format!("{url}?{parameters}"),
        };
        flow.places.source_url = place(&bare.0);
        flow.places.target_url = place(&bare.1);
        refused(&flow, reason)
            .await
            .with_context(|| parameters.clone())?;
        daemons_refused(&mut flow, reason)
            .await
            .with_context(|| parameters.clone())?;
    }
    Ok(())
}

#[tokio::test]
async fn b129_an_expired_certificate_proves_nothing() -> Result<()> {
    let authority = Authority::new()?;
    let ground = ground(18, &authority, authority.expired("127.0.0.1")?)?;
    let mut flow = ground.flow("sealed", SCHEMA, SCHEMA, "").await?;
    flow.grant().await?;
    let root = file(&flow, "root.crt", &authority.certificate)?;
    for url in [&mut flow.places.source_url, &mut flow.places.target_url] {
        url.push_str(&format!("?sslmode=verify-full&sslrootcert={root}"));
    }
    refused(&flow, "xpired").await?;
    daemons_refused(&mut flow, "xpired").await
}

#[tokio::test]
async fn b129_a_server_without_tls() -> Result<()> {
    let mut flow = started(15, "notls", &[SCHEMA], "").await?;
    (flow.relay, flow.applier) = (None, None);
    for url in [&mut flow.places.source_url, &mut flow.places.target_url] {
        url.push_str("?sslmode=require");
    }
    refused(&flow, "the server offers no TLS").await?;
    daemons_refused(&mut flow, "the server offers no TLS").await
}

#[tokio::test]
async fn b129_client_certificates_instead_of_passwords() -> Result<()> {
    let authority = Authority::new()?;
    let ground = ground(18, &authority, authority.server("127.0.0.1")?)?;
    let mut flow = ground.flow("certified", SCHEMA, SCHEMA, "").await?;
    let root = file(&flow, "root.crt", &authority.certificate)?;
    let (capture, apply) = (flow.roles.capture(), flow.roles.apply());
    for role in [&capture, &apply, &flow.roles.admin()] {
        let client = authority.client(role)?;
        file(&flow, &format!("{role}.crt"), &client.certificate)?;
        file(&flow, &format!("{role}.key"), &client.key)?;
    }
    let folder = flow.folder().to_string_lossy().into_owned();
    let place = |port: u16, role: &str, shown: &str| {
        format!(
            "postgresql://{role}@127.0.0.1:{port}/certified?sslmode=verify-full&sslrootcert={root}\
             &sslcert={folder}/{shown}.crt&sslkey={folder}/{shown}.key"
        )
    };
    // Somebody else's certificate first.
    flow.grant().await?;
    flow.places.source_url = place(ground.source.port(), &capture, &apply);
    flow.places.target_url = place(ground.target.port(), &apply, &capture);
    flow.write_config()?;
    let done = command(&flow, &["check"]).await?;
    ensure!(done.code != 0, "{}", done.stdout);
    daemons_refused(&mut flow, "certificate authentication failed").await?;
    flow.places.source_url = place(ground.source.port(), &capture, &capture);
    flow.places.target_url = place(ground.target.port(), &apply, &apply);
    flow.write_config()?;
    flow.start().await?;
    run(&flow.source_admin, &["INSERT INTO t VALUES (1, 'x')"]).await?;
    flow.converges(WITHIN).await?;
    questions(&flow).await?;
    let dn =
        "SELECT string_agg(DISTINCT client_dn, ', ') FROM pg_stat_ssl WHERE client_dn IS NOT NULL";
    let source = value(&flow.source_admin, dn).await?;
    ensure!(source.contains(&capture), "{source}");
    Ok(())
}
