//! A setup that fails leaves nothing half-made: what this run created goes again, newest first. A
//! crash leaves what there is to the next run, which finds out ([`super::decide`]).

use trellara_applier::schema;
use trellara_jetstream::topology;
use trellara_source::{publication, slot};

use super::Action;
use super::act::Work;
use crate::exit::Failure;

/// Takes back what was `done` before `failed` failed, and says so in the failure.
pub(super) async fn undo(
    work: &mut Work<'_>,
    done: &[Action],
    failed: Action,
    mut failure: Failure,
) -> Failure {
    // Whether the genesis frame is stored may be unknown, and the next run finds out; behind it
    // only the ledger's first row is missing.
    let behind_genesis = failed == Action::RecordCopies && work.has_genesis();
    if behind_genesis || matches!(failed, Action::WriteGenesis(_) | Action::WriteLedger) {
        return failure.hint("run setup again: it goes on where this run stopped");
    }
    // A stream that was there keeps the target's name, so the target keeps it too.
    let registered = done.contains(&Action::RegisterTarget);
    let installed = done.contains(&Action::InstallSchema);
    for action in done.iter().rev() {
        let undone = match action {
            Action::CreateSlot => drop_slot(work).await,
            Action::CreateStream => delete_stream(work).await,
            Action::RecordIntent | Action::InstallSchema if registered => continue,
            // Goes with the schema.
            Action::RecordIntent if installed => continue,
            Action::RecordIntent => forget(work).await,
            Action::InstallSchema => remove_schema(work).await,
            Action::CreatePublication => drop_publication(work).await,
            // The older one is of no use to anybody who runs this build.
            Action::UpgradeSchema
            | Action::RegisterTarget
            | Action::UseSlot(_)
            // Nobody acts on it before the ledger's first row is there, and the next run writes it
            // anew.
            | Action::RecordCopies
            | Action::WriteGenesis(_)
            | Action::WriteLedger => continue,
        };
        if let Err(left) = undone {
            let left = left.causes.join(": ");
            failure = failure.hint(format!(
                "not taken back: {} ({left}); `trellara remove` does",
                action.text()
            ));
        }
    }
    if !done.is_empty() {
        failure = failure.hint("what this run had created was taken back");
    }
    failure
}

async fn drop_slot(work: &Work<'_>) -> Result<(), Failure> {
    let name = &work.config.source.slot;
    slot::drop(&work.sessions.source, name).await?;
    Ok(())
}

/// Only while it is empty: nobody else's frames go with it.
async fn delete_stream(work: &Work<'_>) -> Result<(), Failure> {
    let name = work.config.flow.stream();
    let facts = topology::facts(work.broker, &name).await?;
    if facts.last_sequence.0 == 0 {
        topology::delete(work.broker, &name).await?;
    }
    Ok(())
}

async fn forget(work: &Work<'_>) -> Result<(), Failure> {
    let sql = "DELETE FROM trellara.lane WHERE flow = $1 AND state = 'intended'";
    let client = &work.sessions.target.client;
    client.execute(sql, &[&work.config.flow.as_str()]).await?;
    Ok(())
}

async fn remove_schema(work: &mut Work<'_>) -> Result<(), Failure> {
    let flow = work.config.flow.as_str();
    let removed = schema::remove(&mut work.sessions.target.client, flow).await;
    removed
        .map(drop)
        .map_err(|error| Failure::from_error(crate::exit::Exit::Unexpected, &error))
}

async fn drop_publication(work: &Work<'_>) -> Result<(), Failure> {
    let name = &work.config.source.publication;
    publication::drop(&work.sessions.source, name).await?;
    Ok(())
}
