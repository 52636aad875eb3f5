//! Log lines on stderr, as text or JSON. Values of rows and secrets never reach them: no library
//! of ours puts one into an event.

use tracing_subscriber::EnvFilter;
use tracing_subscriber::fmt::format::FmtSpan;

use crate::context::Context;

/// Form of the log lines.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum LogFormat {
    /// For people.
    Text,
    /// One JSON object a line.
    Json,
}

/// Starts logging. Daemons say what they do (`info`); other commands only what goes wrong, because
/// their result is on stdout. `RUST_LOG` overrides everything.
pub(crate) fn start(context: &Context, daemon: bool, format: LogFormat) {
    let ours = match (context.verbose, daemon, context.output.quiet) {
        (0, _, true) => "warn",
        (0, true, false) => "info",
        (0, false, false) => "warn",
        (1, _, _) => "debug",
        (_, _, _) => "trace",
    };
    let filter = match context.environment.get("RUST_LOG") {
        Some(written) => EnvFilter::new(written),
        None => EnvFilter::new(format!("warn,async_nats=error,{}", own_targets(ours))),
    };
    let builder = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_span_events(FmtSpan::NONE)
        .with_writer(std::io::stderr);
    // A second start in one process (tests) keeps the first.
    let _ = match format {
        LogFormat::Text => builder.with_ansi(false).try_init(),
        LogFormat::Json => builder.json().flatten_event(true).try_init(),
    };
}

fn own_targets(level: &str) -> String {
    let crates = [
        "trellara",
        "trellara_relay",
        "trellara_applier",
        "trellara_source",
        "trellara_jetstream",
        "trellara_postgres",
        "trellara_local",
    ];
    crates.map(|name| format!("{name}={level}")).join(",")
}
