//! Bad input: found before anything is created, everything in one run, each finding with its cure,
//! and nothing half-made stays behind.

mod file;
mod rights;
mod servers;
mod shapes;
mod tables;

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use serde_json::Value;
use tokio::process::Command;
use trellara_testkit::broker;
use trellara_testkit::daemon::binary;
use trellara_testkit::flow::Flow;

use crate::scenario::{prepared, value};

/// The broker's URL without the user that the flow's file names: tests act behind its back.
pub(crate) fn bare(url: &str) -> String {
    match (url.split_once("//"), url.rsplit_once('@')) {
        (Some((scheme, _)), Some((_, host))) => format!("{scheme}//{host}"),
        _ => url.to_owned(),
    }
}

/// Makes the flow's file name superusers, for findings that are not about rights.
pub(crate) fn as_superuser(mut flow: Flow) -> Result<Flow> {
    flow.places.source_url = flow.source_admin.clone();
    flow.places.target_url = flow.target_admin.clone();
    flow.places.nats_url = bare(&flow.places.nats_url);
    flow.write_config()?;
    Ok(flow)
}

/// What stands on both sides where the tables do not matter.
const TABLE: &str = "CREATE TABLE t (id int PRIMARY KEY, v text)";

/// A flow of superusers with that table on both sides.
async fn flow(version: u32, name: &str, extra: &str) -> Result<Flow> {
    as_superuser(prepared(version, name, &[TABLE], &[TABLE], extra).await?)
}

/// A command that ended.
#[derive(Debug)]
struct Ended {
    code: i32,
    stdout: String,
    stderr: String,
}

/// Runs a command with this file, and with variables added to its environment.
async fn command(config: &Path, arguments: &[&str], variables: &[(&str, &str)]) -> Result<Ended> {
    let mut command = Command::new(binary());
    command.arg("--config").arg(config).args(arguments);
    command.envs(variables.iter().copied()).kill_on_drop(true);
    let output = tokio::time::timeout(Duration::from_secs(60), command.output()).await??;
    Ok(Ended {
        code: output.status.code().unwrap_or(-1),
        stdout: String::from_utf8(output.stdout)?,
        stderr: String::from_utf8(output.stderr)?,
    })
}

/// Runs a command as the file says, whoever is in it.
async fn run(flow: &Flow, arguments: &[&str]) -> Result<Ended> {
    command(&flow.config(), arguments, &[]).await
}

/// Everything on the three servers that setup could have made, as one text.
async fn inventory(flow: &Flow) -> Result<String> {
    let slots = value(
        &flow.source_admin,
        "SELECT coalesce(string_agg(concat_ws(' ', slot_name, plugin, database, two_phase, \
                confirmed_flush_lsn), ', ' ORDER BY slot_name), 'none') \
           FROM pg_replication_slots WHERE database = current_database() OR slot_name = 'trellara_' || current_database()",
    )
    .await?;
    let publications = value(
        &flow.source_admin,
        "SELECT coalesce(string_agg(concat_ws(' ', p.oid, pubname, obj_description(p.oid)), ', ' \
                ORDER BY pubname), 'none') FROM pg_publication AS p",
    )
    .await?;
    let schemas = value(
        &flow.target_admin,
        "SELECT string_agg(nspname, ', ' ORDER BY nspname) FROM pg_namespace \
          WHERE nspname NOT LIKE 'pg_%'",
    )
    .await?;
    let nats = bare(&flow.places.nats_url);
    let stream = match broker::stream_settings(&nats, &format!("TRELLARA_{}", flow.name)).await {
        Ok(Some(mut stream)) => {
            // In the order of their names.
            let metadata: BTreeMap<_, _> =
                std::mem::take(&mut stream.metadata).into_iter().collect();
            format!("{stream:?} {metadata:?}")
        }
        Ok(None) => "none".to_owned(),
        Err(_) => "no broker".to_owned(),
    };
    Ok(format!(
        "slots: {slots}\npublications: {publications}\nschemas: {schemas}\nstream: {stream}"
    ))
}

/// The errors among the findings.
fn errors(findings: &Value) -> Result<Vec<&Value>> {
    let findings = findings.as_array().context("findings are an array")?;
    Ok(findings
        .iter()
        .filter(|finding| finding["severity"] == "error")
        .collect())
}

/// `check` and `setup` both name exactly the `expected` errors in one run, with `exit`, each with
/// its cure, and leave everything as it was.
async fn refused(flow: &Flow, expected: &[&str], exit: i32) -> Result<Vec<Value>> {
    refused_with(flow, &[], expected, exit).await
}

/// The same with variables added to the environment.
async fn refused_with(
    flow: &Flow,
    variables: &[(&str, &str)],
    expected: &[&str],
    exit: i32,
) -> Result<Vec<Value>> {
    let run = async |arguments: &[&str]| command(&flow.config(), arguments, variables).await;
    let before = inventory(flow).await?;
    let checked = run(&["check", "--output", "json"]).await?;
    let findings: Value = serde_json::from_str(&checked.stdout)
        .with_context(|| format!("check printed {checked:?}"))?;
    let errors = errors(&findings)?;
    let found: BTreeSet<&str> = errors.iter().filter_map(|e| e["id"].as_str()).collect();
    ensure!(
        found == expected.iter().copied().collect(),
        "found {found:?}, expected {expected:?}: {findings:#}"
    );
    for error in &errors {
        for part in ["about", "reason", "cure"] {
            let text = error[part].as_str().unwrap_or_default();
            ensure!(!text.is_empty(), "{part} is missing: {error}");
        }
    }
    ensure!(checked.code == exit, "check ended with {}", checked.code);
    let setup = run(&["setup", "--yes"]).await?;
    ensure!(
        setup.code == exit,
        "setup ended with {}: {setup:?}",
        setup.code
    );
    ensure!(setup.stderr.contains("nothing was created"), "{setup:?}");
    for id in expected {
        ensure!(
            setup.stderr.contains(id),
            "setup does not name {id}: {setup:?}"
        );
    }
    let after = inventory(flow).await?;
    ensure!(before == after, "before:\n{before}\nafter:\n{after}");
    Ok(errors.into_iter().cloned().collect())
}

/// The cures of one warning.
async fn warned(flow: &Flow, id: &str) -> Result<Vec<String>> {
    let checked = run(flow, &["check", "--output", "json"]).await?;
    let findings: Value = serde_json::from_str(&checked.stdout)
        .with_context(|| format!("check printed {checked:?}"))?;
    let findings = findings.as_array().context("findings are an array")?;
    let warnings = findings
        .iter()
        .filter(|finding| finding["id"] == id && finding["severity"] == "warning");
    Ok(warnings
        .filter_map(|finding| finding["cure"].as_str().map(str::to_owned))
        .collect())
}

/// No error stands in the way any more.
async fn accepted(flow: &Flow) -> Result<()> {
    let checked = run(flow, &["check", "--output", "json"]).await?;
    ensure!(checked.code == 0, "{checked:?}");
    let setup = run(flow, &["setup", "--yes"]).await?;
    ensure!(setup.code == 0, "{setup:?}");
    Ok(())
}
