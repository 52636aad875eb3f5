//! What would go wrong, found before anything is created: all findings in one run, each with its
//! cure. Reads only.

mod broker;
mod copy;
mod failover;
mod lists;
mod loops;
mod published;
mod source;
mod storage;
mod tables;
mod target;

use serde::Serialize;
use trellara_envelope::HaltCode;
use trellara_jetstream::Broker;
use trellara_postgres::Session;
use trellara_source::publication::TableName;

use crate::config::{BrokerSetting, Config};
use crate::exit::{Exit, Failure};
use crate::link;
use crate::output::Output;
use crate::setup::{self, Choices};
use crate::visible;

/// How bad.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Severity {
    /// Worth knowing.
    Note,
    /// It works, and may hurt later.
    Warning,
    /// It does not work.
    Error,
}

/// One finding.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct Finding {
    /// Stable name.
    pub(crate) id: &'static str,
    pub(crate) severity: Severity,
    /// What it is about: a server, a table, a setting.
    pub(crate) about: String,
    pub(crate) reason: String,
    /// The statement or change that mends it.
    pub(crate) cure: String,
    #[serde(skip)]
    pub(crate) exit: Exit,
}

/// Collects findings about one thing after the other.
#[derive(Default)]
pub(crate) struct Findings(Vec<Finding>);

impl Findings {
    fn add(
        &mut self,
        severity: Severity,
        id: &'static str,
        about: impl Into<String>,
        reason: impl Into<String>,
        cure: impl Into<String>,
    ) {
        let exit = match severity {
            Severity::Error => Exit::Unfit,
            Severity::Warning | Severity::Note => Exit::Done,
        };
        let (about, reason, cure) = (about.into(), reason.into(), cure.into());
        self.0.push(Finding {
            id,
            severity,
            about,
            reason,
            cure,
            exit,
        });
    }

    fn error(
        &mut self,
        id: &'static str,
        about: impl Into<String>,
        reason: impl Into<String>,
        cure: impl Into<String>,
    ) {
        self.add(Severity::Error, id, about, reason, cure);
    }

    fn warning(
        &mut self,
        id: &'static str,
        about: impl Into<String>,
        reason: impl Into<String>,
        cure: impl Into<String>,
    ) {
        self.add(Severity::Warning, id, about, reason, cure);
    }

    fn note(&mut self, id: &'static str, about: impl Into<String>, reason: impl Into<String>) {
        self.add(Severity::Note, id, about, reason, "");
    }

    /// A missing right: an error with an exit code of its own.
    fn right(
        &mut self,
        id: &'static str,
        about: impl Into<String>,
        reason: impl Into<String>,
        cure: impl Into<String>,
    ) {
        self.error(id, about, reason, cure);
        if let Some(finding) = self.0.last_mut() {
            finding.exit = Exit::Rights;
        }
    }

    /// What the relay halts with: an error with that halt's exit code.
    fn halt(
        &mut self,
        code: HaltCode,
        about: impl Into<String>,
        reason: impl Into<String>,
        cure: impl Into<String>,
    ) {
        self.error(code.as_str(), about, reason, cure);
        if let Some(finding) = self.0.last_mut() {
            finding.exit = Exit::Halted(code);
        }
    }

    /// No connection: nobody answers, or they do not let us in.
    fn no_connection(
        &mut self,
        (unreachable, refuses): (&'static str, &'static str),
        about: &str,
        failure: &Failure,
    ) {
        let id = match failure.exit {
            Exit::Rights => refuses,
            _ => unreachable,
        };
        self.failed(id, about, failure);
        if let Some(finding) = self.0.last_mut()
            && finding.cure.is_empty()
        {
            "check the connection string, and that the server runs".clone_into(&mut finding.cure);
        }
    }

    /// A question that could not be asked.
    fn failed(&mut self, id: &'static str, about: &str, failure: &Failure) {
        let reason = failure.causes.join(": ");
        let cure = failure.hints.join("; ");
        self.error(id, about, reason, cure);
        if let Some(finding) = self.0.last_mut() {
            finding.exit = failure.exit;
        }
    }
}

/// Everything, most severe first. `broker` may be the reason why there is none.
pub(crate) async fn examine(
    config: &Config,
    broker: &Result<Broker, Failure>,
    choices: Choices,
) -> Vec<Finding> {
    let mut findings = Findings::default();
    let source = link::source(config).await;
    let target = link::target(config).await;
    let set_up = match &target {
        Ok(target) => target::knows_flow(config, target).await,
        Err(_) => false,
    };
    let mut members = Vec::new();
    match &source {
        Ok(source) => match source::examine(config, source, set_up, &mut findings).await {
            Ok(tables) => members = tables,
            Err(failure) => findings.failed("SOURCE_QUERY", "source", &failure),
        },
        Err(failure) => {
            let ids = ("SOURCE_UNREACHABLE", "SOURCE_REFUSES");
            findings.no_connection(ids, "source", failure);
        }
    }
    match &target {
        Ok(target) => {
            if let Err(failure) = target::examine(config, target, &mut findings).await {
                findings.failed("TARGET_QUERY", "target", &failure);
            }
        }
        Err(failure) => {
            let ids = ("TARGET_UNREACHABLE", "TARGET_REFUSES");
            findings.no_connection(ids, "target", failure);
        }
    }
    if let (Ok(source), Ok(target)) = (&source, &target)
        && let Err(failure) = loops::examine(config, (source, target), &mut findings).await
    {
        findings.failed("FLOW_LOOP_QUERY", "flows", &failure);
    }
    if let (Ok(source), Ok(target)) = (&source, &target)
        && let Err(failure) = tables::compare(config, source, target, &members, &mut findings).await
    {
        findings.failed("TABLES_QUERY", "tables", &failure);
    }
    if let Ok(target) = &target
        && !set_up
        && config.backfill.copy
        && let Err(failure) = copy::target(config, target, &members, &mut findings).await
    {
        findings.failed("TABLES_QUERY", "tables", &failure);
    }
    let embedded = matches!(config.nats.broker, BrokerSetting::Embedded { .. });
    match broker {
        Ok(broker) => {
            broker::examine(config, broker, target.as_ref().ok(), &mut findings).await;
            if source.is_ok() && target.is_ok() {
                plan(config, broker, choices, &mut findings).await;
            }
        }
        Err(failure) if embedded && failure.exit == Exit::Unexpected => {
            let reason = "it does not run now; `trellara run` starts it";
            findings.note("BROKER_NOT_RUNNING", "embedded broker", reason);
        }
        Err(failure) => {
            let ids = ("BROKER_UNREACHABLE", "BROKER_REFUSES");
            findings.no_connection(ids, "broker", failure);
        }
    }
    storage::examine(config, broker.as_ref().ok(), &mut findings).await;
    let mut findings = findings.0;
    findings.sort_by_key(|finding| std::cmp::Reverse(finding.severity));
    findings
}

/// The same of single tables that are to join a flow.
pub(crate) async fn tables(
    config: &Config,
    (source, target): (&Session, &Session),
    tables: &[TableName],
) -> Vec<Finding> {
    let mut findings = Findings::default();
    let examined = async {
        published::replica_identities(config, source, tables, &mut findings).await?;
        copy::rights(config, source, tables, &mut findings).await?;
        tables::compare(config, source, target, tables, &mut findings).await?;
        copy::target(config, target, tables, &mut findings).await
    };
    if let Err(failure) = examined.await {
        findings.failed("TABLES_QUERY", "tables", &failure);
    }
    // Rules are for tables that are not looked at here.
    findings.0.retain(|finding| finding.id != "CONFLICTS_TABLE");
    findings
        .0
        .sort_by_key(|finding| std::cmp::Reverse(finding.severity));
    findings.0
}

/// What setup would refuse because of what it finds together: a slot nobody can vouch for, a
/// stream that is gone. Findings that already name the part in the way are not said twice.
async fn plan(config: &Config, broker: &Broker, choices: Choices, findings: &mut Findings) {
    const SAID: [&str; 6] = [
        "SLOT_",
        "STREAM_",
        "TARGET_SCHEMA",
        "TARGET_STATE_",
        "SOURCE_NO_",
        "BROKER_",
    ];
    let said = findings.0.iter().any(|finding| {
        finding.severity == Severity::Error && SAID.iter().any(|id| finding.id.starts_with(id))
    });
    if said {
        return;
    }
    match setup::plan(config, broker, choices).await {
        Ok(_) => {}
        Err(failure) => findings.failed("FLOW_STATE", &format!("flow {}", config.flow), &failure),
    }
}

/// Fails when anything is an error, with all of them; says warnings on the way.
pub(crate) fn refuse(findings: &[Finding], output: Output) -> Result<(), Failure> {
    for warning in findings
        .iter()
        .filter(|finding| finding.severity == Severity::Warning)
    {
        output.note(text(warning));
    }
    let errors: Vec<&Finding> = findings
        .iter()
        .filter(|finding| finding.severity == Severity::Error)
        .collect();
    let Some(first) = errors.first() else {
        return Ok(());
    };
    let count = errors.len();
    let mut failure = Failure::new(
        first.exit,
        format!("nothing was created: {count} finding(s) stand in the way"),
        "",
    );
    for error in errors {
        failure.causes.push(text(error));
    }
    Err(failure.hint("`trellara check` shows all findings, warnings included"))
}

/// A finding for people.
pub(crate) fn text(finding: &Finding) -> String {
    let severity = match finding.severity {
        Severity::Error => "error",
        Severity::Warning => "warning",
        Severity::Note => "note",
    };
    let cure = match finding.cure.as_str() {
        "" => String::new(),
        cure => format!("\n    hint: {}", visible::inline(cure)),
    };
    // Names of tables, columns and roles stand in all three.
    format!(
        "{severity} {} ({}): {}{cure}",
        finding.id,
        visible::inline(&finding.about),
        visible::inline(&finding.reason)
    )
}
