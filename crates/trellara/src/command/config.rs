//! `trellara config`: the file, checked, shown and explained.

use clap::Subcommand;
use serde::Serialize;
use trellara_applier::quarantine::QuarantinePolicy;

use crate::config::{Available, BrokerSetting, Config, KEYS, Key};
use crate::context::Context;
use crate::exit::{Exit, Failure};
use crate::output::Format;

/// Checks, shows or explains the configuration; asks no server.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Reads:  the configuration file, the environment, password files
Writes: nothing

Exit codes: 0 fine, 78 the file cannot be used

Examples:
  trellara config check
  TRELLARA__STALL_TIMEOUT=1m trellara config show
  trellara config schema --output json > trellara.schema.json")]
pub(crate) struct Args {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Debug, Subcommand)]
enum Verb {
    /// Says whether the file can be used, with every error in one run.
    Check,
    /// Prints what is meant after defaults, variables and overrides; no secrets.
    Show,
    /// Lists every key with form, default and consequence; as JSON, a JSON Schema for editors.
    Schema,
}

pub(crate) fn execute(args: &Args, context: &Context) -> Result<Exit, Failure> {
    match args.verb {
        Verb::Check => {
            let config = context.config()?;
            context
                .output
                .note(format_args!("flow {}: the file can be used", config.flow));
        }
        Verb::Show => {
            let shown = Shown::of(&context.config()?);
            context.output.data(&shown, Shown::text);
        }
        Verb::Schema => match context.output.format {
            Format::Json | Format::Ndjson => context.output.data(&json_schema(), |_| String::new()),
            Format::Text => context.output.raw(&listing()),
        },
    }
    Ok(Exit::Done)
}

/// The resolved file without secrets.
#[derive(Serialize)]
struct Shown {
    flow: String,
    source: String,
    publication: String,
    slot: String,
    tables: Vec<String>,
    acknowledge: String,
    target: String,
    broker: String,
    stream: String,
    max_bytes: Option<u64>,
    open_bytes: Option<u64>,
    replicas: usize,
    listen: String,
    quarantine: String,
    missing_row: String,
    duplicate_key: String,
    /// Tables with conflict rules of their own.
    conflicts_tables: Vec<String>,
    stall_timeout_seconds: f64,
    shutdown_timeout_seconds: f64,
    halt: String,
}

impl Shown {
    fn of(config: &Config) -> Self {
        let lower = |value: &dyn std::fmt::Debug| format!("{value:?}").to_lowercase();
        Self {
            flow: config.flow.to_string(),
            source: config.source.connect.redacted(),
            publication: config.source.publication.clone(),
            slot: config.source.slot.clone(),
            tables: (config.source.tables.iter())
                .map(ToString::to_string)
                .collect(),
            acknowledge: lower(&config.source.acknowledge),
            target: config.target.connect.redacted(),
            broker: match &config.nats.broker {
                BrokerSetting::External(options) => options.redacted_url(),
                BrokerSetting::Embedded { store_dir, .. } => {
                    format!("embedded, store in {}", store_dir.display())
                }
            },
            stream: config.flow.stream(),
            max_bytes: config.nats.max_bytes,
            open_bytes: config.nats.open_bytes,
            replicas: config.nats.replicas,
            listen: lower(&config.process.listen),
            quarantine: match config.process.quarantine.policy {
                QuarantinePolicy::Halt => "halt".to_owned(),
                QuarantinePolicy::HoldDependents => "hold_dependents".to_owned(),
            },
            missing_row: lower(&config.process.conflicts.all.missing_row),
            duplicate_key: lower(&config.process.conflicts.all.duplicate_key),
            conflicts_tables: (config.process.conflicts.tables.iter())
                .map(|((schema, table), rules)| {
                    let missing_row = lower(&rules.missing_row);
                    let duplicate_key = lower(&rules.duplicate_key);
                    format!("{schema}.{table}: {missing_row}, {duplicate_key}")
                })
                .collect(),
            stall_timeout_seconds: config.process.stall_timeout.as_secs_f64(),
            shutdown_timeout_seconds: config.process.shutdown_timeout.as_secs_f64(),
            halt: lower(&config.process.on_halt),
        }
    }

    fn text(&self) -> String {
        let auto =
            |value: Option<u64>| value.map_or("auto".to_owned(), |bytes| format!("{bytes} bytes"));
        let rows = [
            ("flow", self.flow.clone()),
            ("source", self.source.clone()),
            ("publication", self.publication.clone()),
            ("slot", self.slot.clone()),
            ("tables", self.tables.join(", ")),
            ("acknowledge", self.acknowledge.clone()),
            ("target", self.target.clone()),
            ("broker", self.broker.clone()),
            (
                "stream",
                format!("{}, {} replica(s)", self.stream, self.replicas),
            ),
            ("max_bytes", auto(self.max_bytes)),
            ("open_bytes", auto(self.open_bytes)),
            ("listen", self.listen.clone()),
            ("quarantine", self.quarantine.clone()),
            ("missing_row", self.missing_row.clone()),
            ("duplicate_key", self.duplicate_key.clone()),
            ("conflicts.tables", self.conflicts_tables.join("; ")),
            ("stall_timeout", format!("{}s", self.stall_timeout_seconds)),
            (
                "shutdown_timeout",
                format!("{}s", self.shutdown_timeout_seconds),
            ),
            ("halt", self.halt.clone()),
        ];
        rows.map(|(name, value)| format!("{name:<18}{value}"))
            .join("\n")
    }
}

fn listing() -> String {
    let about = |key: &Key| {
        let default = match key.default {
            None => String::new(),
            Some("") => " Default: none.".to_owned(),
            Some(default) => format!(" Default: {default}."),
        };
        let later = if key.available == Available::Later {
            " Not available yet."
        } else {
            ""
        };
        format!(
            "{}: {}\n    {}{default}{later}",
            key.path, key.form, key.about
        )
    };
    KEYS.iter().map(about).collect::<Vec<_>>().join("\n")
}

/// JSON Schema 2020-12 of the file.
fn json_schema() -> serde_json::Value {
    let mut root = serde_json::Map::new();
    for key in KEYS {
        let described = serde_json::json!({
            "description": format!("{} Form: {}.", key.about, key.form),
            "type": match key.form.split(' ').next() {
                Some("list") => serde_json::json!("array"),
                Some("map") => serde_json::json!("object"),
                _ => serde_json::json!(["string", "number", "boolean"]),
            },
        });
        match key.path.split_once('.') {
            None => {
                root.insert(key.path.to_owned(), described);
            }
            Some((section, name)) => {
                let section = root.entry(section).or_insert_with(|| {
                    serde_json::json!({"type": "object", "additionalProperties": false, "properties": {}})
                });
                section["properties"][name] = described;
            }
        }
    }
    serde_json::json!({
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "trellara.yml",
        "type": "object",
        "additionalProperties": false,
        "required": ["flow", "source", "target"],
        "properties": root,
    })
}
