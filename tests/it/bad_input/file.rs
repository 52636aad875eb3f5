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
         source: {url: \"postgresql://nobody:hunter2@localhost/x?sslmode=perhaps\", tables: [public.*], colour: red}\n\
         target: {url: \"host=\"}\n\
         nats: {url: \"http://localhost\", max_bytes: plenty}\n\
         quarantine: {policy: hold_dependents}\n\
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
