//! What was looked at beside the rows: sequences. A verdict of its own, without an exit code.

use serde::Serialize;
use trellara_verify::Side;
use trellara_verify::report::{Beside, SequencePosition, SequenceReport, SequenceState};

/// Names shown to people; `--output json` has them all.
const SHOWN: usize = 20;

/// Either what was found, or why nothing could be looked at.
#[derive(Serialize)]
#[serde(untagged)]
pub(crate) enum Looked<T> {
    /// Each thing looked at.
    Found(Vec<T>),
    /// Nothing was.
    NotLookedAt {
        /// Why.
        not_looked_at: String,
    },
}

impl<T> Looked<T> {
    fn of<R>(beside: &Beside<Vec<R>>, document: impl Fn(&R) -> T) -> Self {
        match beside {
            Ok(found) => Looked::Found(found.iter().map(document).collect()),
            Err(reason) => Looked::NotLookedAt {
                not_looked_at: reason.clone(),
            },
        }
    }
}

#[derive(Serialize)]
pub(crate) struct SequenceDocument {
    id: String,
    state: &'static str,
    source: Option<PositionDocument>,
    target: Option<PositionDocument>,
}

/// Numbers of 64 bits are text: not every reader of JSON keeps them whole.
#[derive(Serialize)]
struct PositionDocument {
    last_value: String,
    is_called: bool,
    increment: String,
}

pub(crate) fn sequences(found: &Beside<Vec<SequenceReport>>) -> Looked<SequenceDocument> {
    let position = |position: &SequencePosition| PositionDocument {
        last_value: position.last_value.to_string(),
        is_called: position.is_called,
        increment: position.increment.to_string(),
    };
    Looked::of(found, |report| SequenceDocument {
        id: report.sequence.to_string(),
        state: match report.state {
            SequenceState::Ready => "ready",
            SequenceState::Behind => "behind",
            SequenceState::Missing => "missing",
            SequenceState::NotReadable(Side::Source) => "not readable on the source",
            SequenceState::NotReadable(Side::Target) => "not readable on the target",
        },
        source: report.source.as_ref().map(position),
        target: report.target.as_ref().map(position),
    })
}

/// One line; none where no column has a sequence.
pub(crate) fn sequences_line(looked: &Looked<SequenceDocument>) -> Option<String> {
    let found = match looked {
        Looked::Found(found) => found,
        Looked::NotLookedAt { not_looked_at } => {
            return Some(format!("sequences: not looked at: {not_looked_at}"));
        }
    };
    if found.is_empty() {
        return None;
    }
    let all = found.len();
    let mut states: Vec<&str> = found.iter().map(|sequence| sequence.state).collect();
    states.retain(|state| *state != "ready");
    states.sort_unstable();
    states.dedup();
    let parts: Vec<String> = states
        .into_iter()
        .map(|state| {
            let of = found.iter().filter(|sequence| sequence.state == state);
            let names: Vec<&str> = of.map(|sequence| sequence.id.as_str()).collect();
            let shown = names[..names.len().min(SHOWN)].join(", ");
            let more = match names.len().saturating_sub(SHOWN) {
                0 => String::new(),
                more => format!(" and {more} more"),
            };
            let state = match state {
                "behind" => "behind the source",
                "missing" => "missing on the target",
                other => other,
            };
            format!("{} of {all} {state}: {shown}{more}", names.len())
        })
        .collect();
    Some(match parts.as_slice() {
        [] => format!("sequences: all {all} are where the source's were a moment ago"),
        parts => format!(
            "sequences: {}; set them before a cut-over",
            parts.join("; ")
        ),
    })
}

#[cfg(test)]
mod tests {
    use trellara_verify::report::TableName;

    use super::*;

    #[test]
    fn one_line_names_what_is_not_ready() {
        let report = |name: &str, state| SequenceReport {
            sequence: TableName {
                schema: "public".into(),
                name: name.into(),
            },
            state,
            source: None,
            target: None,
        };
        let line = |found: Beside<Vec<SequenceReport>>| sequences_line(&sequences(&found));
        assert_eq!(line(Ok(vec![])), None);
        let ready = report("a", SequenceState::Ready);
        let mut all = vec![ready.clone()];
        assert!(line(Ok(all.clone())).is_some_and(|line| line.contains("all 1 are")));
        all.push(report("b", SequenceState::Behind));
        all.push(report("c", SequenceState::Behind));
        all.push(report("d", SequenceState::NotReadable(Side::Target)));
        assert_eq!(
            line(Ok(all)).as_deref(),
            Some(
                "sequences: 2 of 4 behind the source: public.b, public.c; \
                 1 of 4 not readable on the target: public.d; set them before a cut-over"
            )
        );
        let many = (0..30).map(|i| report(&i.to_string(), SequenceState::Missing));
        let line = line(Ok(many.collect())).unwrap_or_default();
        assert!(
            line.contains("30 of 30 missing on the target: public.0, "),
            "{line}"
        );
        assert!(line.contains("public.19 and 10 more;"), "{line}");
    }

    #[test]
    fn why_nothing_was_looked_at_is_told() {
        let looked = sequences(&Err("the target refused".into()));
        let line = sequences_line(&looked).unwrap_or_default();
        assert_eq!(line, "sequences: not looked at: the target refused");
    }
}
