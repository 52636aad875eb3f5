//! The file and the environment, before any server is asked.

use anyhow::{Result, ensure};

use super::command as trellara;

/// Every command says the same about a bad file, all of it, and ends with 78.
#[tokio::test]
async fn a_wrong_file_is_named_key_by_key_in_one_run() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let path = folder.path().join("trellara.yml");
    std::fs::write(
        &path,
        "flow: \"Not A Name\"\n\
         source: {url: \"postgresql://nobody:hunter2@localhost/x?sslmode=perhaps\", tables: [public.*, orders, a.b.c], insert_only: [log], colour: red}\n\
         target: {url: \"host=\"}\n\
         nats: {url: \"http://localhost\", max_bytes: plenty, monitor_url: \"https://u:hunter2@n1:8222\"}\n\
         quarantine: {policy: skip}\n\
         halt: maybe\n",
    )?;
    let environment = [
        ("TRELLARA__SOURCE__ACKNOWLEDGE", "sometimes"),
        ("TRELLARA__SOURCE__TABELS", "public.*"),
    ];
    for command in [
        ["check"].as_slice(),
        &["setup", "--yes"],
        &["relay"],
        &["applier"],
        &["run"],
        &["config", "check"],
    ] {
        let ended = trellara(&path, command, &environment).await?;
        ensure!(ended.code == 78, "{command:?}: {ended:?}");
        for named in [
            "colour",
            "flow: ",
            "source.url: ",
            "nats.url: ",
            "nats.max_bytes: ",
            "nats.monitor_url: ",
            "source.tables: not a table pattern (write schema.table or schema.*): \"orders\"",
            "\"a.b.c\"",
            "source.insert_only: ",
            "quarantine.policy: ",
            "halt: ",
            "source.acknowledge: ",
            "source.tabels: ",
            "did you mean source.tables",
        ] {
            ensure!(
                ended.stderr.contains(named),
                "{command:?} does not name {named:?}: {}",
                ended.stderr
            );
        }
        ensure!(
            !ended.stderr.contains("hunter2") && !ended.stdout.contains("hunter2"),
            "{command:?} shows the password"
        );
        ensure!(ended.stderr.contains("hint: "), "{command:?}: {ended:?}");
    }
    Ok(())
}

/// A file that is no YAML, or is not there, is named with its place.
#[tokio::test]
async fn a_file_that_cannot_be_read_is_named() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let path = folder.path().join("trellara.yml");
    let missing = trellara(&path, &["check"], &[]).await?;
    ensure!(missing.code == 78, "{missing:?}");
    ensure!(missing.stderr.contains("trellara.yml"), "{missing:?}");
    std::fs::write(&path, "flow: shop\nsource: [\n")?;
    let broken = trellara(&path, &["setup", "--yes"], &[]).await?;
    ensure!(broken.code == 78, "{broken:?}");
    ensure!(broken.stderr.contains("hint: "), "{broken:?}");
    Ok(())
}

/// What only the other kind of broker has would be ignored: it is named instead.
#[tokio::test]
async fn keys_of_the_other_kind_of_broker_are_named() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let path = folder.path().join("trellara.yml");
    let begin = "flow: shop\n\
        source: {url: \"postgresql://a@localhost/x\", tables: [public.*]}\n\
        target: {url: \"postgresql://b@localhost/x\"}\n";
    let cases = [
        (
            "password_file: trellara.yml, credentials_file: c, tls_ca: c, tls_cert: c, tls_key: c, \
             replicas: 3, durable: true, monitor_url: \"http://n1:8222\"",
            [
                "nats.password_file",
                "nats.credentials_file",
                "nats.tls_ca",
                "nats.tls_cert",
                "nats.tls_key",
                "nats.replicas",
                "nats.durable",
                "nats.monitor_url",
            ]
            .as_slice(),
        ),
        (
            "url: \"nats://n1\", server: nats-server, store_dir: store",
            &["nats.server", "nats.store_dir"],
        ),
    ];
    for (section, keys) in cases {
        std::fs::write(&path, format!("{begin}nats: {{{section}}}\n"))?;
        let ended = trellara(&path, &["config", "check"], &[]).await?;
        ensure!(ended.code == 78, "{ended:?}");
        for key in keys {
            let named = format!("{key}: is about ");
            ensure!(ended.stderr.contains(&named), "{named}: {}", ended.stderr);
        }
    }
    // What says the default promises nothing.
    std::fs::write(
        &path,
        format!("{begin}nats: {{durable: false, replicas: 1}}\n"),
    )?;
    let ended = trellara(&path, &["config", "check"], &[]).await?;
    ensure!(ended.code == 0, "{ended:?}");
    Ok(())
}
