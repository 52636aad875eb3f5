//! What is written of a run, for people and for programs.

use std::os::unix::fs::PermissionsExt;

use anyhow::{Context, Result, ensure};
use nix::sys::signal::Signal;
use serde_json::Value;
use trellara_testkit::daemon::Daemon;

use super::SCHEMA;
use crate::scenario::{WITHIN, run, started};

/// A key that forges a verdict, clears a terminal and ends a page's element.
const FORGED: &str = "x\nverdict: EQUAL\u{1b}[2J</td><script>document.title=1</script>";

#[tokio::test]
async fn a_run_is_told_line_by_line_and_as_a_page() -> Result<()> {
    let keyed = "CREATE TABLE named (k text PRIMARY KEY, v text)";
    let flow = started(18, "told", &[SCHEMA, keyed], "").await?;
    let insert = format!("INSERT INTO named VALUES ($q${FORGED}$q$, 'a'), ('plain', 'a')");
    run(&flow.source_admin, &[&insert]).await?;
    flow.caught_up(WITHIN).await?;
    run(&flow.target_admin, &["UPDATE named SET v = 'secret'"]).await?;
    let page = flow.folder().join("report.html");
    let path = page.to_string_lossy().into_owned();
    let told = flow
        .command(&["verify", "--output", "ndjson", "--html", &path])
        .await?;
    ensure!(told.code == 3, "{} {}", told.stdout, told.stderr);
    let events: Vec<Value> = told
        .stdout
        .lines()
        .map(|line| serde_json::from_str(line).with_context(|| line.to_owned()))
        .collect::<Result<_>>()?;
    let names: Vec<&str> = events.iter().filter_map(|e| e["event"].as_str()).collect();
    ensure!(names.len() == events.len(), "{}", told.stdout);
    let count = |name: &str| names.iter().filter(|n| **n == name).count();
    ensure!(names.first() == Some(&"step") && names.last() == Some(&"verdict"));
    ensure!(
        (
            count("run"),
            count("table"),
            count("difference"),
            count("verdict")
        ) == (1, 3, 2, 1),
        "{names:?}"
    );
    let last = events.last().context("an event")?;
    ensure!(
        last["verdict"] == "different" && last["differing"] == 2,
        "{last}"
    );
    ensure!(
        last["schema_version"] == 1 && last["flow"] == flow.name.as_str(),
        "{last}"
    );
    ensure!(
        last["verified_through"] == last["consistent_point"],
        "{last}"
    );
    ensure!(events.iter().all(|event| event["run"] == last["run"]));
    ensure!(!told.stdout.contains('\u{1b}') && !told.stdout.contains("secret"));
    let begun = events.iter().find(|event| event["event"] == "run");
    let begun = begun.context("a run")?;
    ensure!(
        begun["mode"] == "exact" && begun["seed"].is_null() && last["seed"].is_null(),
        "{begun}"
    );
    let quick = ["verify", "--output", "ndjson", "--mode", "quick"];
    let quick = flow.command(&quick).await?;
    let mut lines = quick.stdout.lines();
    let begun = lines.find(|line| line.contains(r#""event":"run""#));
    let begun = begun.context("a run")?;
    ensure!(begun.contains(r#""mode":"quick""#), "{begun}");
    let html = std::fs::read_to_string(&page)?;
    ensure!(
        html.contains("Different") && !html.contains("<script"),
        "{html}"
    );
    ensure!(!html.contains("secret"));

    let shown = flow
        .command(&["verify", "--values", "--html", &path])
        .await?;
    ensure!(shown.code == 3, "{}", shown.stderr);
    let verdicts = shown.stdout.lines().filter(|l| l.starts_with("verdict:"));
    ensure!(
        verdicts.count() == 1 && !shown.stdout.contains('\u{1b}'),
        "{}",
        shown.stdout
    );
    let mode = std::fs::metadata(&page)?.permissions().mode();
    ensure!(mode & 0o777 == 0o600, "{mode:o}");
    ensure!(std::fs::read_to_string(&page)?.contains("v=secret"));

    let metrics = flow.folder().join("verify.prom");
    let prom = metrics.to_string_lossy().into_owned();
    let measured = flow.command(&["verify", "--metrics-file", &prom]).await?;
    ensure!(measured.code == 3, "{}", measured.stderr);
    let numbers = std::fs::read_to_string(&metrics)?;
    let changed = format!(
        "trellara_verify_differences{{flow=\"{}\",table=\"public.named\",kind=\"changed\"}} 2",
        flow.name
    );
    ensure!(numbers.lines().any(|line| line == changed), "{numbers}");
    let status = flow.command(&["status"]).await?;
    ensure!(
        status.stdout.contains("  verify   different at "),
        "{}",
        status.stdout
    );

    // That it cannot be written is known before anything is compared, and is no verdict.
    let nowhere = flow.folder().join("none/report.html");
    let nowhere = nowhere.to_string_lossy().into_owned();
    let refused = flow.command(&["verify", "--html", &nowhere]).await?;
    ensure!(
        refused.code == 1 && refused.stdout.is_empty() && refused.stderr.contains("hint:"),
        "{} {}",
        refused.code,
        refused.stderr
    );
    Ok(())
}

/// A watch can be asked while it goes on; nothing else goes on long enough.
#[tokio::test]
async fn a_watch_serves_its_numbers() -> Result<()> {
    let flow = started(18, "served", &[SCHEMA], "").await?;
    run(&flow.source_admin, &["INSERT INTO kept VALUES (1, 'a', 1)"]).await?;
    flow.caught_up(WITHIN).await?;
    let once = ["verify", "--listen", "127.0.0.1:0"];
    let refused = flow.command(&once).await?;
    ensure!(
        refused.code == 64 && refused.stderr.contains("--metrics-file"),
        "{} {}",
        refused.code,
        refused.stderr
    );
    let log = flow.folder().join("served.log");
    let words = [
        "verify",
        "--mode",
        "watch",
        "--every",
        "100ms",
        "--listen",
        "127.0.0.1:0",
    ];
    let mut judge = Daemon::start(&flow.config(), &words, &log)?;
    judge.logged("public.kept: equal", WITHIN).await?;
    run(&flow.target_admin, &["UPDATE kept SET v = 'x'"]).await?;
    // The round before this one is through.
    judge.logged("public.kept: DIFFERENT", WITHIN).await?;
    let text = judge.metrics().await.context("metrics")?;
    let equal = format!(
        r#"trellara_verify_last_success_timestamp_seconds{{flow="{}",table="public.kept"}} "#,
        flow.name
    );
    ensure!(text.contains(&equal), "{text}");
    // Two who listen at one place are told, and not by silence.
    let taken = judge.endpoint().context("an endpoint")?;
    let second = ["verify", "--mode", "watch", "--listen", &taken];
    let second = flow.command(&second).await?;
    ensure!(
        second.code == 1 && second.stderr.contains("cannot be listened on"),
        "{} {}",
        second.code,
        second.stderr
    );
    judge.signal(Signal::SIGTERM)?;
    judge.wait(WITHIN)?;
    Ok(())
}
