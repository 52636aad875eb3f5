//! Where to go on, and when not to: the table of rules 0.4, as pure functions.
//!
//! Facts are read after START_REPLICATION has succeeded, so the slot is ours. Everything about
//! identity, timelines and the source's own position is decided here before anything is
//! published: a wrong relay must not fence the right one. What compares the slot's position S with
//! the tail's P is decided by [`after_marker`], once our own marker was acknowledged, because only
//! that proves that the tail was not stale.

use std::collections::BTreeSet;

use trellara_envelope::{
    Halt, HaltCode, Incarnation, Lsn, Marker, Oid, PublicationMember, SourceHistory, SourceId,
};
use trellara_source::publication::{PublicationFacts, members_digest};
use trellara_source::slot::SlotFacts;

use crate::Acknowledge;
use crate::machine::Tail;

/// What the broker says about the flow's stream.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum StreamEnd {
    /// There is no stream.
    Missing,
    /// There is one, and it is empty: its genesis frame is gone or was never written.
    Empty,
    /// Its last message is not a frame of this flow; why.
    Foreign(String),
    /// Its last frame, and the cluster and timeline of its writer.
    At(Tail, SourceId),
}

/// Everything the table looks at.
#[derive(Debug, Clone)]
pub struct Facts {
    /// The slot.
    pub slot: Option<SlotFacts>,
    /// The database connected to.
    pub database: String,
    /// The source's timelines.
    pub history: SourceHistory,
    /// The source's flush position F; `None` when it is a standby.
    pub flush: Option<Lsn>,
    /// The stream's end.
    pub stream: StreamEnd,
    /// The publication.
    pub publication: Option<PublicationFacts>,
    /// The newest marker, if it is still in the stream.
    pub marker: Option<Marker>,
    /// Which of the marker's members left the publication although they still exist.
    pub existing: BTreeSet<Oid>,
}

/// What the table says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Outcome {
    /// Neither slot nor stream: nothing was set up yet.
    FirstStart,
    /// The server is a standby: another host of the list may be the primary.
    NotASource,
    /// Go on from this tail; the slot's confirmed position.
    GoOn(Tail, Lsn),
    /// An operator must decide.
    Refuse(Halt),
}

/// The rows that are decided before anything is published.
pub fn decide(facts: &Facts) -> Outcome {
    let Some(flush) = facts.flush else {
        return Outcome::NotASource;
    };
    let (tail, source) = match (&facts.stream, &facts.slot) {
        (StreamEnd::Missing, None) => return Outcome::FirstStart,
        (StreamEnd::Missing | StreamEnd::Empty, _) => return Outcome::Refuse(no_stream(facts)),
        (StreamEnd::Foreign(reason), _) => return Outcome::Refuse(foreign(reason)),
        (StreamEnd::At(tail, source), _) => (tail, *source),
    };
    let checked = check_history(&facts.history, source, tail.position, flush)
        .and_then(|()| check_past(facts, tail.position))
        .and_then(|()| check_slot(facts, tail.position))
        .and_then(|confirmed| {
            check_publication(facts, tail)?;
            Ok(confirmed)
        });
    match checked {
        Ok(confirmed) => Outcome::GoOn(tail.clone(), confirmed),
        Err(halt) => Outcome::Refuse(halt),
    }
}

/// The rows that compare S with P, decided after our own marker was acknowledged.
///
/// In `applied` the marker itself carries the answer (`continues_at`): appliers at or beyond S go
/// on, others stop by themselves.
pub fn after_marker(acknowledge: Acknowledge, published: Lsn, confirmed: Lsn) -> Result<(), Halt> {
    if confirmed <= published || acknowledge == Acknowledge::Applied {
        return Ok(());
    }
    Err(Halt::new(
        HaltCode::StreamLostTail,
        format!(
            "the source was told {confirmed}, but the stream ends at {published}: the broker lost \
             frames that it had acknowledged"
        ),
        "restore the stream, or, when the target is at or beyond the slot's position, set \
         source.acknowledge to applied and start again; otherwise copy the tables again",
    ))
}

/// Compares the publication with what an earlier marker said of it (C06). A table that left and
/// came back has lost rows without any message, even though the set looks the same.
pub fn compare_members(
    known: &Marker,
    now: &PublicationFacts,
    existing: &BTreeSet<Oid>,
) -> Result<(), Halt> {
    if known.publication != now.oid {
        return Err(membership(
            "the publication was dropped and created again".to_owned(),
        ));
    }
    if known.publication_flags != now.flags() {
        return Err(membership(
            "the publication's operations or partition setting were changed".to_owned(),
        ));
    }
    for old in &known.members {
        let member = now
            .members
            .iter()
            .find(|member| member.ids.relation == old.relation);
        let Some(member) = member else {
            // A table that was dropped, or a partition that was detached, has nothing more to
            // say.
            if existing.contains(&old.relation) {
                return Err(membership(format!(
                    "the table with oid {} left the publication",
                    old.relation
                )));
            }
            continue;
        };
        if let Some(change) = change(old, &member.ids) {
            return Err(membership(format!("{}: {change}", member.table)));
        }
    }
    // A marker has no room for more, and then only its digest speaks for the others.
    let is_whole = members_digest(&known.members) == known.members_digest;
    if !is_whole && known.members_digest != now.members_digest() {
        return Err(membership(format!(
            "the publication's tables are not the same as before, and it has more than the {} \
             that are remembered one by one",
            known.members.len()
        )));
    }
    Ok(())
}

fn change(old: &PublicationMember, new: &PublicationMember) -> Option<&'static str> {
    if old.member != new.member {
        Some("left the publication and was added again")
    } else if old.definition != new.definition {
        Some("its row filter or column list was changed")
    } else {
        None
    }
}

fn membership(what: String) -> Halt {
    Halt::new(
        HaltCode::Config,
        format!("rows may be missing: {what}"),
        "copy the affected tables again; the publication must not be changed behind Trellara's \
         back",
    )
}

/// The publication is gone.
pub(crate) fn no_publication() -> Halt {
    Halt::new(
        HaltCode::Config,
        "the publication does not exist",
        "rows written while it was missing are not in the slot's stream: create it again and copy \
         the tables again",
    )
}

fn no_stream(facts: &Facts) -> Halt {
    let what = match facts.stream {
        StreamEnd::Empty => "the stream is empty, its genesis frame is gone",
        _ => "there is no stream",
    };
    let slot = facts.slot.as_ref().and_then(|slot| slot.confirmed_flush);
    let slot = slot.map_or_else(
        || "and no slot either".to_owned(),
        |confirmed| format!("but the slot stands at {confirmed}"),
    );
    Halt::new(
        HaltCode::NoStream,
        format!("{what}, {slot}"),
        "if setup was interrupted, run `trellara setup` again; if the stream was deleted, \
         `trellara setup --new-stream` makes another when the target has everything up to the \
         slot's position, otherwise copy the tables again",
    )
}

fn foreign(reason: &str) -> Halt {
    Halt::new(
        HaltCode::Corrupt,
        format!("the last message of the stream is not a frame of this flow: {reason}"),
        "somebody else publishes on the flow's subjects; `trellara inspect` shows it",
    )
}

fn check_history(
    history: &SourceHistory,
    source: SourceId,
    position: Lsn,
    flush: Lsn,
) -> Result<(), Halt> {
    if source.system != history.system {
        return Err(Halt::new(
            HaltCode::DifferentSource,
            format!(
                "the stream comes from cluster {}, this server is cluster {}",
                source.system, history.system
            ),
            "check source.url; a cluster that took the old one's place, by pg_upgrade as well, is \
             another source: copy the tables again",
        ));
    }
    if source.timeline == history.timeline {
        if flush < position {
            return Err(Halt::new(
                HaltCode::SourceRewound,
                format!("the source has written up to {flush}, the stream stands at {position}"),
                "the source was set back (a restored storage snapshot?): target and stream hold \
                 transactions that it no longer has; copy the tables again",
            ));
        }
        return Ok(());
    }
    let left_at = history
        .switches
        .iter()
        .find(|(timeline, _)| *timeline == source.timeline)
        .map(|(_, left_at)| *left_at);
    match left_at {
        None => Err(Halt::new(
            HaltCode::StalePrimary,
            format!(
                "the stream is on timeline {}, this server on {} and does not know it: it is an \
                 old primary that came back",
                source.timeline, history.timeline
            ),
            "point source.url at the present primary; this server must not be written to",
        )),
        Some(left_at) if left_at < position => Err(Halt::new(
            HaltCode::Diverged,
            format!(
                "the source left timeline {} at {left_at}, but the stream holds transactions up \
                 to {position}, which the new primary does not have",
                source.timeline
            ),
            "`trellara inspect` lists the transactions above that position; copy the tables \
             again, and set synchronized_standby_slots (17 and newer) so that it cannot recur",
        )),
        Some(_) => Ok(()),
    }
}

/// Two servers promoted from the same one at different positions call their new timelines by the
/// same number: where the last writer's marker is still there, the whole way is compared (C01).
fn check_past(facts: &Facts, position: Lsn) -> Result<(), Halt> {
    match &facts.marker {
        Some(marker) if !facts.history.shares_past(&marker.history, position) => Err(Halt::new(
            HaltCode::Diverged,
            format!(
                "the stream and this server came to timeline {} on different ways before {position}",
                facts.history.timeline
            ),
            "two servers were promoted from the same one: point source.url at the one that wrote \
             the stream, or copy the tables again",
        )),
        _ => Ok(()),
    }
}

fn check_slot(facts: &Facts, position: Lsn) -> Result<Lsn, Halt> {
    let lost = |what: String| {
        Halt::new(
            HaltCode::SlotLost,
            format!("{what}, although the stream stands at {position}"),
            "what happened on the source since then cannot be read any more; copy the tables again",
        )
    };
    let wrong = |what: String| {
        Halt::new(
            HaltCode::Config,
            what,
            "source.slot must name the slot that `trellara setup` created",
        )
    };
    let slot = facts
        .slot
        .as_ref()
        .ok_or_else(|| lost("the replication slot does not exist".to_owned()))?;
    if slot.plugin.as_deref() != Some("pgoutput") {
        let plugin = slot.plugin.as_deref().unwrap_or("none, it is physical");
        return Err(wrong(format!(
            "the slot's plugin is not pgoutput: {plugin}"
        )));
    }
    if slot.database.as_deref() != Some(facts.database.as_str()) {
        let database = slot.database.as_deref().unwrap_or("none");
        return Err(wrong(format!(
            "the slot belongs to another database: {database}"
        )));
    }
    if slot.two_phase {
        return Err(wrong("the slot was created with two_phase".to_owned()));
    }
    if let Some(reason) = slot.lost() {
        return Err(lost(format!("the replication slot is lost ({reason})")));
    }
    slot.confirmed_flush
        .ok_or_else(|| lost("the replication slot has no position".to_owned()))
}

fn check_publication(facts: &Facts, tail: &Tail) -> Result<(), Halt> {
    let Some(publication) = &facts.publication else {
        return Err(no_publication());
    };
    match &facts.marker {
        // No relay has written to the stream yet.
        None if tail.incarnation == Incarnation(0) => Ok(()),
        // The target never trims the newest one.
        None => Err(Halt::new(
            HaltCode::Config,
            format!(
                "rows may be missing: the marker of incarnation {} is no longer in the stream, \
                 and nothing else says which tables were published",
                tail.incarnation
            ),
            "copy the tables again; or, when the publication was not changed since the relay last \
             ran and the target has everything up to the slot's position, delete the stream and \
             run `trellara setup --new-stream`",
        )),
        Some(marker) => compare_members(marker, publication, &facts.existing),
    }
}

#[cfg(test)]
mod tests;
