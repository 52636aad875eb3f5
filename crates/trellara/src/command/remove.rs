//! `trellara remove`: takes away what the flow created.

use serde::Serialize;
use trellara_applier::backfill::restore;
use trellara_applier::quarantine::store;
use trellara_applier::schema;
use trellara_crashpoints as crashpoints;
use trellara_jetstream::topology;
use trellara_postgres::fault;
use trellara_source::{publication, slot};

use crate::config::Config;
use crate::context::Context;
use crate::exit::{Exit, Failure};
use crate::telemetry::{self, LogFormat};
use crate::{broker, link, output, setup, visible};

/// Removes what the flow created: slot, publication, stream, its rows in the target.
///
/// The slot goes first, because a slot nobody reads fills the source's disk; each part goes
/// although the others do not answer. User tables are never touched. Running daemons halt.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Reads:  source, broker and target, to see what is there
Writes: drops the slot, the publication if setup made it, the stream, the flow's rows in the
        target's trellara schema but for its audit, and that schema with the last flow

Exit codes: 0 nothing is left; 1 a part does not answer and is still there; 64 not confirmed,
            or something is held; 77 a right is missing

Examples:
  trellara remove --dry-run
  trellara remove --yes")]
pub(crate) struct Args {
    /// Do not ask.
    #[arg(long)]
    yes: bool,
    /// Although transactions are held that were neither replayed nor discarded: they are lost.
    #[arg(long)]
    discard_held: bool,
    /// Only say what would go.
    #[arg(long)]
    dry_run: bool,
}

#[derive(Serialize)]
struct Removed {
    id: &'static str,
    name: String,
    outcome: String,
    #[serde(skip)]
    failed: bool,
}

pub(crate) async fn execute(args: &Args, context: &Context) -> Result<Exit, Failure> {
    telemetry::start_logs(context, false, LogFormat::Text);
    let config = context.config()?;
    let names = [
        ("slot", config.source.slot.clone()),
        ("publication", config.source.publication.clone()),
        ("stream", config.flow.stream()),
        ("target", format!("flow {} in schema trellara", config.flow)),
    ];
    if args.dry_run {
        let planned = names.map(|(id, name)| Removed {
            id,
            name,
            outcome: "would be removed if it is there".to_owned(),
            failed: false,
        });
        context.output.data(&planned, |removed| text(removed));
        return Ok(Exit::Done);
    }
    let held = open_held(&config).await?;
    if held > 0 && !args.discard_held {
        return Err(Failure::new(
            Exit::Usage,
            format!(
                "flow {} holds {} that the target lacks, and nothing else has any more",
                config.flow,
                transactions(held)
            ),
            "replay or discard first (trellara quarantine list), or give --discard-held: what is \
             held is lost then",
        ));
    }
    let lost = match held {
        0 => String::new(),
        _ => format!(" So are {} in quarantine.", transactions(held)),
    };
    let question = format!(
        "Remove flow {}? What the stream holds and the target lacks is lost.{lost}",
        config.flow
    );
    if !args.yes && !output::confirm(&question) {
        return Err(Failure::new(
            Exit::Usage,
            "not confirmed",
            "give --yes to go on without asking",
        ));
    }
    let mut removed = Vec::new();
    let source = remove_source(&config).await;
    removed.extend(source);
    if crashpoints::reached(crashpoints::REMOVE_SOURCE) {
        return Err(Failure::new(Exit::Unexpected, "a crash point", ""));
    }
    removed.push(outcome(
        "stream",
        config.flow.stream(),
        remove_stream(&config, context).await,
    ));
    if crashpoints::reached(crashpoints::REMOVE_STREAM) {
        return Err(Failure::new(Exit::Unexpected, "a crash point", ""));
    }
    let target = remove_target(&config).await;
    removed.push(outcome("target", names[3].1.clone(), target));
    let failed = removed.iter().any(|removed| removed.failed);
    context.output.data(&removed, |removed| text(removed));
    Ok(if failed { Exit::Unexpected } else { Exit::Done })
}

/// How many transactions are held; none where the target does not answer, as its rows stay then.
async fn open_held(config: &Config) -> Result<u64, Failure> {
    let Ok(session) = link::target(config).await else {
        return Ok(0);
    };
    let counted = store::count_open(&session.client, &config.flow).await;
    counted.or_else(|error| match fault(&error).sqlstate.as_str() {
        // No schema, or an older one, which held nothing.
        "42P01" | "3F000" | "42703" => Ok(0),
        _ => Err(error.into()),
    })
}

fn transactions(count: u64) -> String {
    match count {
        1 => "1 transaction".to_owned(),
        _ => format!("{count} transactions"),
    }
}

async fn remove_source(config: &Config) -> Vec<Removed> {
    let (slot_name, publication_name) = (&config.source.slot, &config.source.publication);
    let session = match link::source(config).await {
        Ok(session) => session,
        Err(failure) => {
            let text = failure.causes.join(": ");
            let parts = [("slot", slot_name), ("publication", publication_name)];
            return parts
                .map(|(id, name)| Removed {
                    id,
                    name: name.clone(),
                    outcome: text.clone(),
                    failed: true,
                })
                .into();
        }
    };
    let slot = slot::drop(&session, slot_name).await.map_err(Failure::from);
    let ours = setup::made_by_us(&session, publication_name, &config.flow).await;
    let publication = match ours {
        Ok(true) => publication::drop(&session, publication_name)
            .await
            .map_err(Failure::from),
        Ok(false) => Ok(false),
        Err(failure) => Err(failure),
    };
    vec![
        outcome("slot", slot_name.clone(), slot),
        outcome("publication", publication_name.clone(), publication),
    ]
}

async fn remove_stream(config: &Config, context: &Context) -> Result<bool, Failure> {
    if broker::never_started(config) {
        return Ok(false);
    }
    let (broker, _embedded) =
        broker::reach(config, broker::Role::Remove, &context.environment).await?;
    // That of a copy which nobody waits for any more is there only while one runs.
    let copy = topology::delete(&broker, &config.flow.copy_stream()).await?;
    Ok(topology::delete(&broker, &config.flow.stream()).await? || copy)
}

async fn remove_target(config: &Config) -> Result<bool, Failure> {
    let mut session = link::target(config).await?;
    give_back(config, &session.client).await?;
    schema::remove(&mut session.client, config.flow.as_str())
        .await
        .map(|_| true)
        .map_err(|error| Failure::from_error(Exit::Unexpected, &error))
}

/// Makes the indexes and foreign keys again that the copy put off; nothing else knows them.
async fn give_back(config: &Config, client: &tokio_postgres::Client) -> Result<(), Failure> {
    let refused = match restore::give_back(client, &config.flow).await {
        Ok((_, refused)) => refused,
        Err(error) => match fault(&error).sqlstate.as_str() {
            // No schema, or an older one.
            "42P01" | "3F000" | "42703" => Vec::new(),
            _ => return Err(error.into()),
        },
    };
    if refused.is_empty() {
        return Ok(());
    }
    Err(Failure::new(
        Exit::Unfit,
        format!(
            "what the copy put off cannot be made again: {}",
            refused.join("; ")
        ),
        "mend the cause, or delete its rows of trellara.backfill_definition to do without, then \
         remove again",
    ))
}

fn outcome(id: &'static str, name: String, answer: Result<bool, Failure>) -> Removed {
    let (outcome, failed) = match answer {
        Ok(true) => ("removed".to_owned(), false),
        Ok(false) => ("not there, or not made by setup".to_owned(), false),
        Err(failure) => (failure.causes.join(": "), true),
    };
    Removed {
        id,
        name,
        outcome,
        failed,
    }
}

fn text(removed: &[Removed]) -> String {
    let line = |part: &Removed| {
        let mark = if part.failed { "still there" } else { "" };
        let (name, outcome) = (visible::inline(&part.name), visible::inline(&part.outcome));
        format!("{:<12} {name:<40} {outcome} {mark}", part.id)
    };
    removed
        .iter()
        .map(line)
        .map(|line| line.trim_end().to_owned())
        .collect::<Vec<_>>()
        .join("\n")
}
