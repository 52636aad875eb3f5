//! `trellara check`: the read-only doctor.

use crate::broker;
use crate::context::Context;
use crate::exit::{Exit, Failure};
use crate::preflight::{self, Finding, Severity};
use crate::setup::Choices;
use crate::telemetry::{self, LogFormat};

/// Examines source, broker, target and file, and says what would go wrong, with each cure.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Reads:  settings, rights, publication, slot and tables of the source; tables and rights of the
        target; version and stream of the broker
Writes: nothing

Exit codes: 0 no error (there may be warnings); 11 a server or table does not fit; 77 a right is
            missing; 1 a server does not answer; 78 the file

Examples:
  trellara check
  trellara check --output json | jq '.[] | select(.severity == \"error\") | .cure'")]
pub(crate) struct Args {}

pub(crate) async fn execute(_args: &Args, context: &Context) -> Result<Exit, Failure> {
    telemetry::start_logs(context, false, LogFormat::Text);
    let config = context.config()?;
    let broker = broker::connect(&config, broker::Role::Check).await;
    let findings = preflight::examine(&config, &broker, Choices::default()).await;
    context.output.data(&findings, |findings| text(findings));
    let first = findings
        .iter()
        .find(|finding| finding.severity == Severity::Error);
    Ok(first.map_or(Exit::Done, |finding| finding.exit))
}

fn text(findings: &[Finding]) -> String {
    let count = |severity| {
        findings
            .iter()
            .filter(|finding| finding.severity == severity)
            .count()
    };
    let mut lines: Vec<String> = findings.iter().map(preflight::text).collect();
    lines.push(format!(
        "{} error(s), {} warning(s), {} note(s)",
        count(Severity::Error),
        count(Severity::Warning),
        count(Severity::Note)
    ));
    lines.join("\n")
}
