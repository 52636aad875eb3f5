//! Long-running commands: signals, the endpoint, halts.
//!
//! A halted daemon keeps its process alive, so that its endpoint can say why and nobody restarts
//! it in a loop; `halt: exit` makes it leave with the halt's code instead.

pub(crate) mod endpoint;
mod health;
pub(crate) mod signals;

pub(crate) use signals::Signals;

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;
use trellara_envelope::{Halt, HaltCode};

use crate::config::{Config, Listen, OnHalt};
use crate::exit::{Exit, Failure};
use crate::report::DaemonReport;
use crate::telemetry::LogFormat;

use health::Health;

/// Options of every daemon.
#[derive(Debug, clap::Args)]
pub(crate) struct DaemonArgs {
    /// Form of the log lines on stderr.
    #[arg(long, value_name = "FORM", default_value = "text")]
    pub(crate) log_format: LogFormat,
}

type Running = Pin<Box<dyn Future<Output = Result<(), Halt>> + Send>>;

/// One daemon of this process.
pub(crate) struct Component {
    pub(crate) role: &'static str,
    /// Starts it; asked again when a halt may have been mended from outside.
    pub(crate) start: Box<dyn Fn(CancellationToken) -> Running + Send + Sync>,
    /// What it says about itself now.
    pub(crate) report: Box<dyn Fn() -> DaemonReport + Send + Sync>,
}

/// Waits between attempts to start a halted component again: 5 s, doubled up to a minute.
const PROBE_FIRST: Duration = Duration::from_secs(5);
const PROBE_MOST: Duration = Duration::from_secs(60);

/// Runs the components until a signal ends them or a halt does.
pub(crate) async fn serve(
    components: Vec<Component>,
    config: &Config,
    usual_address: &str,
) -> Result<Exit, Failure> {
    end_with_a_panic();
    let cancel = CancellationToken::new();
    let components: Arc<[Component]> = components.into();
    let health = Arc::new(Health::new(
        components.clone(),
        config.process.stall_timeout,
    ));
    let watch = tokio::spawn(Health::watch(health.clone(), cancel.clone()));
    let endpoint = match config.process.listen {
        Listen::Off => None,
        Listen::Default => usual_address.parse().ok(),
        Listen::Address(address) => Some(address),
    };
    if let Some(address) = endpoint {
        endpoint::start(address, health.clone()).await;
    }
    let mut tasks = JoinSet::new();
    for index in 0..components.len() {
        let components = components.clone();
        let cancel = cancel.clone();
        let on_halt = config.process.on_halt;
        tasks.spawn(async move { supervise(&components[index], on_halt, cancel).await });
    }
    let outcome = wait(&mut tasks, &cancel, config.process.shutdown_timeout).await;
    watch.abort();
    outcome
}

/// A panic is our bug, and nobody knows what the rest of the process is worth: wherever it happens, in
/// a worker of a copy or in a thread that reads, all of it ends, and whoever supervises it starts it
/// anew. Retried, it would be a bug that nobody ever hears of.
fn end_with_a_panic() {
    let usual = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |panic| {
        usual(panic);
        tracing::error!(hint = "please report it", "a panic: ending the process");
        std::process::exit(i32::from(Exit::Bug.code()));
    }));
}

/// Waits for the end of all components, or for the signals that bring it.
async fn wait(
    tasks: &mut JoinSet<Result<(), Halt>>,
    cancel: &CancellationToken,
    shutdown_timeout: Duration,
) -> Result<Exit, Failure> {
    let mut signals = Signals::new()?;
    let mut halted = None;
    let mut deadline = None;
    loop {
        let overdue = async {
            match deadline {
                Some(deadline) => tokio::time::sleep_until(deadline).await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            ended = tasks.join_next() => match ended {
                None => break,
                Some(Ok(Ok(()))) => {}
                Some(Ok(Err(halt))) => {
                    halted.get_or_insert(halt);
                    cancel.cancel();
                    deadline.get_or_insert(tokio::time::Instant::now() + shutdown_timeout);
                }
                Some(Err(panic)) => {
                    tracing::error!(error = %panic, "a daemon panicked");
                    return Err(Failure::new(Exit::Bug, "a daemon panicked", "please report it"));
                }
            },
            signal = signals.next() => {
                if cancel.is_cancelled() {
                    tracing::warn!(signal, "second signal: ending without waiting");
                    break;
                }
                let wait_seconds = shutdown_timeout.as_secs_f64();
                tracing::info!(signal, wait_seconds, "stopping: waiting for what is in flight");
                cancel.cancel();
                deadline = Some(tokio::time::Instant::now() + shutdown_timeout);
            }
            () = overdue => {
                tracing::warn!("what was in flight is not finished: it will be done again");
                break;
            }
        }
    }
    tasks.abort_all();
    match halted {
        Some(halt) => Err(halt.into()),
        None => Ok(Exit::Done),
    }
}

/// Keeps one component going as its halts allow.
async fn supervise(
    component: &Component,
    on_halt: OnHalt,
    cancel: CancellationToken,
) -> Result<(), Halt> {
    let mut pause = PROBE_FIRST;
    let mut last: Option<Halt> = None;
    loop {
        let started = tokio::time::Instant::now();
        let Err(halt) = (component.start)(cancel.clone()).await else {
            return Ok(());
        };
        if last.as_ref() != Some(&halt) {
            let (code, reason, hint) = (halt.code.as_str(), &halt.reason, &halt.hint);
            tracing::error!(code, hint = %hint, "{} halted: {reason}", component.role);
        }
        if on_halt == OnHalt::Exit {
            return Err(halt);
        }
        if !may_mend_itself(halt.code) {
            cancel.cancelled().await;
            return Ok(());
        }
        if started.elapsed() > PROBE_MOST {
            pause = PROBE_FIRST;
        }
        last = Some(halt);
        tokio::select! {
            () = cancel.cancelled() => return Ok(()),
            () = tokio::time::sleep(pause) => pause = (pause * 2).min(PROBE_MOST),
        }
    }
}

/// Whether somebody else's change outside, without a word to us, can end the halt. Gaps,
/// divergence and refused transactions wait for an operator's decision.
fn may_mend_itself(code: HaltCode) -> bool {
    matches!(code.exit_code(), 11 | 77)
}
