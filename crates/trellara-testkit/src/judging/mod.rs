//! The judge under judgement: `trellara verify` under load while the applier is killed. It has to
//! find what was planted, each time, and nothing that was not.

mod plant;

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use serde_json::Value;

use crate::compare;
use crate::daemon::{Finished, trellara_with};
use crate::flow::Flow;
use crate::fresh::pgbench;
use crate::ground::{Ground, GroundOptions};

use plant::{CALM_ROWS, Plant};

const FLOW: &str = "judged";
const SCHEMA: &str = "\
    CREATE TABLE kept (id bigint PRIMARY KEY, v text, n numeric);\
    CREATE TABLE log (id bigint, note text); ALTER TABLE log REPLICA IDENTITY FULL";
/// Rows of the load are numbered from here on.
const HOT_FROM: i64 = 10_000;
const HOT_ROWS: i64 = 1000;
/// Each transaction changes a row, adds one to either table, and takes another one away.
const LOAD: &str = "\
    \\set hot random(10000, 10999)\n\
    \\set new random(100000, 1000000000)\n\
    BEGIN;\n\
    UPDATE public.kept SET n = n + 1 WHERE id = :hot;\n\
    INSERT INTO public.kept VALUES (:new, 'new', 0) ON CONFLICT DO NOTHING;\n\
    DELETE FROM public.kept WHERE id = (SELECT id FROM public.kept WHERE id > :new ORDER BY id LIMIT 1);\n\
    INSERT INTO public.log VALUES (:hot, 'load');\n\
    COMMIT;\n";
/// After so many runs with something to find comes one with nothing, on top of what was asked for.
const BARE_AFTER: u32 = 9;
/// In two of three runs the applier is killed at some moment of the run's first so long, which is
/// about how long a run takes; what ends earlier is not struck, and does not count as killed.
const KILL_WITHIN: Duration = Duration::from_millis(600);
/// A run that says nothing is made again; of a hundred runs so many may be.
const SILENT_PERCENT: u32 = 5;
const WITHIN: Duration = Duration::from_secs(60);
const EQUAL: i32 = 0;
const DIFFERENT: i32 = 3;
const NOT_COMPARED: i32 = 4;

/// How much of it.
#[derive(Debug, Clone)]
pub struct JudgingOptions {
    /// Runs with something planted and with a verdict; those with nothing planted come on top.
    pub runs: u32,
    /// Of both PostgreSQL servers.
    pub version: u32,
    /// Sessions that write.
    pub clients: u32,
    /// Transactions in a second, of all sessions together.
    pub rate: u32,
    /// Of plants and kills.
    pub seed: u64,
}

/// What the judge said.
#[derive(Debug, Default)]
pub struct JudgingReport {
    /// Runs with a verdict.
    pub runs: u32,
    /// Those of them in which something was planted.
    pub planted: u32,
    /// Runs with a planted difference that was found, exactly.
    pub found: u32,
    /// Runs with nothing planted that said equal.
    pub equal: u32,
    /// What was said wrongly.
    pub wrong: Vec<String>,
    /// Runs without a verdict, and why.
    pub silent: Vec<String>,
    /// Kills of the applier that struck while a run was on its way.
    pub kills: u32,
    /// How long the applier was held in each run, seconds.
    pub held: Vec<f64>,
    /// From the first run to the last.
    pub took: Duration,
}

impl JudgingReport {
    /// Whether every verdict was right, and few were missing.
    pub fn passed(&self) -> bool {
        // Of few runs, two may be unlucky.
        let allowed = (self.runs * SILENT_PERCENT / 100).max(2);
        self.wrong.is_empty()
            && self.runs == self.found + self.equal
            && self.planted == self.found
            && self.found > 0
            && self.kills > 0
            && self.silent.len() as u32 <= allowed
    }
}

impl fmt::Display for JudgingReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut held = self.held.clone();
        held.sort_by(f64::total_cmp);
        let at = |part: f64| {
            let last = held.len().saturating_sub(1);
            held.get((last as f64 * part).round() as usize)
                .map_or(f64::NAN, |seconds| seconds * 1e3)
        };
        writeln!(
            f,
            "{} runs in {:.0} s, applier killed {} times; planted and found {}, equal {}, wrong {}, \
             without a verdict {}",
            self.runs,
            self.took.as_secs_f64(),
            self.kills,
            self.found,
            self.equal,
            self.wrong.len(),
            self.silent.len(),
        )?;
        writeln!(
            f,
            "applier held: p50 {:.0} ms, p99 {:.0} ms",
            at(0.5),
            at(0.99)
        )?;
        for wrong in &self.wrong {
            writeln!(f, "WRONG: {wrong}")?;
        }
        for silent in &self.silent {
            writeln!(f, "no verdict: {silent}")?;
        }
        let verdict = match self.passed() {
            true => "passed: no false difference, none overlooked",
            false => "FAILED",
        };
        writeln!(f, "{verdict}")
    }
}

/// Judges the judge.
pub async fn judging(options: &JudgingOptions) -> Result<JudgingReport> {
    let ground =
        Ground::start(&GroundOptions::version(options.version).source("max_connections", "60"))?;
    let mut flow = ground.flow(FLOW, SCHEMA, SCHEMA, "").await?;
    flow.start().await?;
    let fill = format!(
        "INSERT INTO public.kept SELECT g, 'v' || g, 0 FROM generate_series(1, {CALM_ROWS}) AS g;
         INSERT INTO public.log SELECT g, 'calm' FROM generate_series(1, {CALM_ROWS}) AS g;
         INSERT INTO public.kept SELECT {HOT_FROM} + g, 'hot', 0 FROM generate_series(0, {HOT_ROWS} - 1) AS g"
    );
    let source = compare::connect(&flow.source_admin).await?;
    source.batch_execute(&fill).await?;
    flow.caught_up(WITHIN).await?;
    let load = Load::start(&flow, options)?;
    let report = runs(options, &mut flow).await;
    let loaded = load.finish().await;
    let report = report?;
    loaded?;
    // What was planted was taken back: nothing of it is left.
    flow.converges(WITHIN).await?;
    Ok(report)
}

async fn runs(options: &JudgingOptions, flow: &mut Flow) -> Result<JudgingReport> {
    let mut random = StdRng::seed_from_u64(options.seed);
    let target = compare::connect(&flow.target_admin).await?;
    let mut report = JudgingReport::default();
    let began = Instant::now();
    while report.planted < options.runs {
        let bare = report.runs % (BARE_AFTER + 1) == BARE_AFTER;
        let plant = (!bare).then(|| Plant::draw(&mut random));
        if let Some(plant) = &plant {
            target.batch_execute(&plant.sql()).await?;
        }
        let kill = random
            .random_ratio(2, 3)
            .then(|| random.random_range(Duration::ZERO..KILL_WITHIN));
        let (finished, struck) = verify(flow, kill).await?;
        report.kills += u32::from(struck);
        if let Some(plant) = &plant {
            target.batch_execute(&plant.back()).await?;
        }
        report.take(plant.as_ref(), &finished);
        ensure!(
            report.silent.len() as u32 <= options.runs + 2,
            "the judge says nothing: {report}"
        );
        tracing::info!(
            run = report.runs,
            wrong = report.wrong.len(),
            silent = report.silent.len(),
            "judged"
        );
    }
    report.took = began.elapsed();
    Ok(report)
}

impl JudgingReport {
    fn take(&mut self, plant: Option<&Plant>, finished: &Finished) {
        if finished.code == NOT_COMPARED {
            let why = finished.stderr.lines().next().unwrap_or_default();
            self.silent.push(why.to_owned());
            return;
        }
        self.runs += 1;
        self.planted += u32::from(plant.is_some());
        match judged(plant, finished) {
            Ok(held) => {
                self.held.push(held);
                match plant {
                    Some(_) => self.found += 1,
                    None => self.equal += 1,
                }
            }
            Err(error) => self.wrong.push(format!("run {}: {error:#}", self.runs)),
        }
    }
}

/// How long the applier was held, when the verdict is the right one.
fn judged(plant: Option<&Plant>, finished: &Finished) -> Result<f64> {
    let document: Value = serde_json::from_str(&finished.stdout)
        .with_context(|| format!("exit {}: {}", finished.code, finished.stderr))?;
    match plant {
        Some(plant) => {
            ensure!(finished.code == DIFFERENT, "exit {}", finished.code);
            plant.is_all_that(&document)?;
        }
        None => {
            let found = plant::found(&document)?;
            ensure!(found.is_empty(), "nothing was planted, found {found:?}");
            ensure!(finished.code == EQUAL, "exit {}", finished.code);
        }
    }
    let held = &document["applier_held_seconds"];
    held.as_f64().context("how long the applier was held")
}

/// Runs it, and kills the applier after so long, if it is to be killed and the run has not ended.
/// The second is whether it struck.
async fn verify(flow: &mut Flow, kill: Option<Duration>) -> Result<(Finished, bool)> {
    let (config, environment) = (flow.config(), flow.environment.clone());
    let words = ["verify", "--values", "--output", "json"];
    let mut judge = std::pin::pin!(trellara_with(&config, &words, &environment));
    let Some(after) = kill else {
        return Ok((judge.await?, false));
    };
    tokio::select! {
        finished = &mut judge => return Ok((finished?, false)),
        () = tokio::time::sleep(after) => {}
    }
    flow.applier.as_mut().context("an applier")?.kill()?;
    flow.start_applier()?;
    Ok((judge.await?, true))
}

/// pgbench, again and again until it is told to end.
struct Load {
    ending: Arc<AtomicBool>,
    task: tokio::task::JoinHandle<Result<()>>,
}

impl Load {
    fn start(flow: &Flow, options: &JudgingOptions) -> Result<Self> {
        let script = flow.folder().join("load.sql");
        std::fs::write(&script, LOAD)?;
        let (version, url) = (options.version, flow.source_admin.clone());
        let (clients, rate) = (options.clients.to_string(), options.rate.to_string());
        let ending = Arc::new(AtomicBool::new(false));
        let ended = Arc::clone(&ending);
        let task = tokio::task::spawn_blocking(move || {
            let script = script.to_string_lossy();
            while !ended.load(Ordering::Relaxed) {
                let words = ["-n", "-c", &clients, "-R", &rate, "-T", "5", "-f", &script];
                pgbench(version, &url, &words)?;
            }
            Ok(())
        });
        Ok(Self { ending, task })
    }

    async fn finish(self) -> Result<()> {
        self.ending.store(true, Ordering::Relaxed);
        self.task.await.context("the load")?
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_verdict_that_is_wrong_or_missing_too_often_does_not_pass() {
        let good = || JudgingReport {
            runs: 100,
            planted: 90,
            found: 90,
            equal: 10,
            kills: 1,
            silent: vec![String::new(); 5],
            ..JudgingReport::default()
        };
        assert!(good().passed());
        let spoils = [
            |report: &mut JudgingReport| report.planted = 91,
            |report: &mut JudgingReport| report.wrong.push("false".to_owned()),
            |report: &mut JudgingReport| report.found = 89,
            |report: &mut JudgingReport| report.silent.push(String::new()),
            |report: &mut JudgingReport| report.kills = 0,
        ];
        for spoil in spoils {
            let mut report = good();
            spoil(&mut report);
            assert!(!report.passed(), "{report}");
        }
    }

    #[test]
    fn equal_is_wrong_where_something_was_planted() {
        let finished = Finished {
            code: EQUAL,
            stdout: r#"{"tables": [], "applier_held_seconds": 0.01}"#.to_owned(),
            stderr: String::new(),
        };
        let plant = Plant::draw(&mut StdRng::seed_from_u64(1));
        assert!(judged(Some(&plant), &finished).is_err());
        assert!(judged(None, &finished).is_ok());
    }
}
