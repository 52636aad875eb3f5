//! What to do about what was found. Pure: the tests walk through every crash window of setup.

use trellara_applier::lane::FlowState;
use trellara_applier::schema::SCHEMA_VERSION;
use trellara_envelope::{Body, HaltCode, Lsn};

use super::found::Found;
use crate::exit::{Exit, Failure};

/// What the operator allows beyond the ordinary.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Choices {
    /// Take a slot that is there although setup cannot prove where it began.
    pub(crate) adopt: bool,
    /// Put a new stream in the place of a lost one (C26).
    pub(crate) new_stream: bool,
}

/// One change.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Action {
    CreatePublication,
    /// The target's `trellara` schema.
    InstallSchema,
    /// The same of an older build, with all that is in it.
    UpgradeSchema,
    /// The flow's row in the target, before anything else of it exists.
    RecordIntent,
    CreateStream,
    /// The target's name into the stream's metadata.
    RegisterTarget,
    /// Its consistent point is C.
    CreateSlot,
    /// The slot is there and begins at C.
    UseSlot(Lsn),
    /// Which tables the first copy has to bring.
    RecordCopies,
    /// The genesis frame; checkpoints at or beyond this go on here (`None`: C).
    WriteGenesis(Option<Lsn>),
    /// The first row of the ledger, and the flow is ready.
    WriteLedger,
}

impl Action {
    /// In words.
    pub(crate) fn text(self) -> String {
        match self {
            Action::CreatePublication => "create the publication".to_owned(),
            Action::InstallSchema => "create schema trellara in the target".to_owned(),
            Action::UpgradeSchema => {
                format!("bring schema trellara in the target to version {SCHEMA_VERSION}")
            }
            Action::RecordIntent => "write the intent into the target".to_owned(),
            Action::CreateStream => "create the stream".to_owned(),
            Action::RegisterTarget => "register the target in the stream".to_owned(),
            Action::CreateSlot => "create the replication slot".to_owned(),
            Action::UseSlot(lsn) => format!("use the slot that is there, from {lsn}"),
            Action::RecordCopies => "note which tables are to be copied".to_owned(),
            Action::WriteGenesis(None) => "write the genesis frame".to_owned(),
            Action::WriteGenesis(Some(lsn)) => {
                format!("write the genesis frame, going on at {lsn}")
            }
            Action::WriteLedger => "write the ledger's first row".to_owned(),
        }
    }
}

/// The actions in order, or a refusal that names what is in the way. No action: all is there.
pub(super) fn decide(found: &Found, choices: Choices) -> Result<Vec<Action>, Failure> {
    refuse_unfit_stream(found)?;
    refuse_unfit_slot(found)?;
    let mut actions = Vec::new();
    if found.publication.is_none() {
        actions.push(Action::CreatePublication);
    }
    if found.registration.is_none() {
        actions.push(Action::InstallSchema);
    } else if found.outdated {
        actions.push(Action::UpgradeSchema);
    }
    match found.intent.as_ref().map(|intent| intent.state) {
        Some(FlowState::Removing) => {
            let reason = format!("flow {} is being removed", found.flow);
            Err(Failure::new(
                Exit::Unfit,
                reason,
                "finish with `trellara remove --yes`",
            ))
        }
        Some(FlowState::Ready) => ready(found, choices, actions),
        Some(FlowState::Intended) | None => begun(found, choices, actions),
    }
}

/// A flow that is new, or whose setup was interrupted.
fn begun(
    found: &Found,
    choices: Choices,
    mut actions: Vec<Action>,
) -> Result<Vec<Action>, Failure> {
    let noted = found
        .intent
        .as_ref()
        .and_then(|intent| intent.start)
        .map(|(_, lsn)| lsn);
    if let Some(tail) = &found.tail {
        return with_frames(found, tail, actions);
    }
    if found.intent.is_none() {
        actions.push(Action::RecordIntent);
    }
    stream_actions(found, &mut actions);
    match (found.slot_position(), noted) {
        (None, _) => actions.push(Action::CreateSlot),
        (Some(position), Some(noted)) if position == noted => actions.push(Action::UseSlot(noted)),
        (Some(position), _) if choices.adopt => actions.push(Action::UseSlot(position)),
        (Some(position), _) => return Err(refuse_slot(found, position)),
    }
    actions.extend(found.copies.then_some(Action::RecordCopies));
    actions.extend([Action::WriteGenesis(None), Action::WriteLedger]);
    Ok(actions)
}

/// The stream has frames although the target does not know the flow as ready: either setup was
/// interrupted behind the genesis frame, or the stream belongs to somebody else.
fn with_frames(
    found: &Found,
    tail: &trellara_envelope::Frame,
    mut actions: Vec<Action>,
) -> Result<Vec<Action>, Failure> {
    match (&tail.body, found.slot_position()) {
        (Body::Genesis(genesis), Some(position)) if genesis.consistent_point == position => {
            actions.push(Action::UseSlot(position));
            actions.extend(found.copies.then_some(Action::RecordCopies));
            actions.push(Action::WriteLedger);
            Ok(actions)
        }
        (Body::Genesis(_), None) => Err(slot_lost(found)),
        _ => Err(Failure::new(
            Exit::Unfit,
            format!(
                "the stream of flow {} is already in use, and this target does not know it",
                found.flow
            ),
            "name another flow; or, when this target was wiped, `trellara remove` and set up anew",
        )),
    }
}

/// A flow that was set up before.
fn ready(
    found: &Found,
    choices: Choices,
    mut actions: Vec<Action>,
) -> Result<Vec<Action>, Failure> {
    let Some(position) = found.slot_position() else {
        return Err(slot_lost(found));
    };
    if found.tail.is_some() {
        if found
            .stream
            .as_ref()
            .is_some_and(|stream| stream.target().is_none())
        {
            actions.push(Action::RegisterTarget);
        }
        return Ok(actions);
    }
    let start = found
        .intent
        .as_ref()
        .and_then(|intent| intent.start)
        .map(|(_, lsn)| lsn);
    let applied = found
        .checkpoint
        .as_ref()
        .map(|checkpoint| checkpoint.end_lsn);
    let pristine = start == Some(position);
    let covered = found.applied && applied.is_some_and(|applied| applied >= position);
    let allowed = (choices.adopt && pristine) || (choices.new_stream && covered);
    if !allowed {
        return Err(no_stream(found, position, applied, pristine, covered));
    }
    stream_actions(found, &mut actions);
    actions.extend([
        Action::UseSlot(position),
        Action::WriteGenesis(Some(position)),
        Action::WriteLedger,
    ]);
    Ok(actions)
}

fn stream_actions(found: &Found, actions: &mut Vec<Action>) {
    match &found.stream {
        None => actions.push(Action::CreateStream),
        Some(stream) if stream.target().is_none() => actions.push(Action::RegisterTarget),
        Some(_) => {}
    }
}

fn refuse_unfit_stream(found: &Found) -> Result<(), Failure> {
    let Some(stream) = &found.stream else {
        return Ok(());
    };
    let mut failure: Option<Failure> = None;
    for difference in found
        .differences
        .iter()
        .filter(|difference| difference.fatal)
    {
        let text = format!(
            "stream {}: {} is {}, must be {}: {}",
            stream.name, difference.setting, difference.is, difference.must, difference.why
        );
        failure = Some(match failure {
            None => Failure::new(Exit::Unfit, text, difference.hint.clone()),
            Some(mut failure) => {
                failure.causes.push(text);
                failure.hint(difference.hint.clone())
            }
        });
    }
    if let Some(failure) = failure {
        return Err(failure);
    }
    match (stream.target(), &found.registration) {
        (Some(other), ours) if ours.as_deref() != Some(other) => Err(Failure::new(
            Exit::Unfit,
            format!(
                "stream {} is registered for another target: {other}",
                stream.name
            ),
            "one stream feeds one target; name another flow for this one",
        )),
        _ => Ok(()),
    }
}

fn refuse_unfit_slot(found: &Found) -> Result<(), Failure> {
    let Some(slot) = &found.slot else {
        return Ok(());
    };
    let plugin = slot
        .plugin
        .as_deref()
        .unwrap_or("none: it is a physical slot");
    let wrong = if plugin != "pgoutput" {
        Some(format!("its plugin is {plugin}, not pgoutput"))
    } else if slot.database.as_deref() != Some(found.database.as_str()) {
        let database = slot.database.as_deref().unwrap_or("none");
        Some(format!(
            "it belongs to database {database}, not {}",
            found.database
        ))
    } else if slot.two_phase {
        Some("it decodes prepared transactions (two_phase)".to_owned())
    } else if slot.temporary {
        Some("it is temporary".to_owned())
    } else {
        slot.lost().map(|why| format!("it is lost: {why}"))
    };
    match wrong {
        None => Ok(()),
        Some(wrong) => Err(Failure::new(
            Exit::Unfit,
            format!("slot {} cannot be used: {wrong}", found.slot_name),
            format!(
                "drop it when nobody needs it (SELECT pg_drop_replication_slot('{}')), or name another in source.slot",
                found.slot_name
            ),
        )),
    }
}

/// F09: setup does not guess what happened between the slot's creation and now.
fn refuse_slot(found: &Found, position: Lsn) -> Failure {
    let reason = format!(
        "slot {} exists at {position}, and nothing says that this flow made it",
        found.slot_name
    );
    Failure::new(
        Exit::Unfit,
        reason,
        "`trellara setup --adopt` goes on from its position",
    )
    .hint(format!(
        "or drop it: SELECT pg_drop_replication_slot('{}')",
        found.slot_name
    ))
}

fn slot_lost(found: &Found) -> Failure {
    Failure::new(
        Exit::Halted(HaltCode::SlotLost),
        format!(
            "SLOT_LOST: flow {} was set up, and slot {} is not there",
            found.flow, found.slot_name
        ),
        "what was committed meanwhile is in no slot: `trellara remove`, load the target anew, set up",
    )
}

fn no_stream(
    found: &Found,
    position: Lsn,
    applied: Option<Lsn>,
    pristine: bool,
    covered: bool,
) -> Failure {
    let level = applied.is_some_and(|applied| applied >= position);
    let applied = applied.map_or("nothing".to_owned(), |lsn| lsn.to_string());
    let reason = format!(
        "NO_STREAM: flow {} was set up and its stream is gone or empty; the slot stands at {position}, the target applied {applied}",
        found.flow
    );
    let hint = match (pristine, covered) {
        (false, false) if level => {
            "the target has everything that the slot gave away, but a new stream is only made with `source.acknowledge: applied`: set it and run `trellara setup --new-stream`"
        }
        (true, _) => "nothing was read from the slot yet: `trellara setup --adopt` goes on",
        (_, true) => {
            "the target has everything that the slot gave away: `trellara setup --new-stream` goes on"
        }
        _ => {
            "transactions may be lost between the two: restore the stream, or remove the flow and load the target anew"
        }
    };
    Failure::new(Exit::Halted(HaltCode::NoStream), reason, hint)
}

#[cfg(test)]
#[path = "decide_tests.rs"]
mod tests;
