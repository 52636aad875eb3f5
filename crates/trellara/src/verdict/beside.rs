//! What was looked at beside the rows: sequences and definitions. Verdicts of their own, without an
//! exit code.

use serde::Serialize;
use trellara_postgres::quote;
use trellara_verify::Side;
use trellara_verify::report::{
    Beside, DefinitionDifference, Part, SequencePosition, SequenceReport, SequenceState,
};

/// Names and lines shown to people; `--output json` has them all.
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

#[derive(Serialize)]
pub(crate) struct DefinitionDocument {
    id: String,
    table: String,
    part: &'static str,
    name: Option<String>,
    kind: &'static str,
    source: Option<String>,
    target: Option<String>,
}

pub(crate) fn definitions(found: &Beside<Vec<DefinitionDifference>>) -> Looked<DefinitionDocument> {
    Looked::of(found, |difference| {
        let part = match difference.part {
            Part::Column => "column",
            Part::Constraint => "constraint",
            Part::Index => "index",
            Part::ReplicaIdentity => "replica identity",
            Part::PartitionKey => "partition key",
        };
        let name = Some(difference.name.clone()).filter(|name| !name.is_empty());
        let mut id = format!("{} {part}", difference.table);
        if let Some(name) = &name {
            id = format!("{id} {}", quote::identifier(name));
        }
        DefinitionDocument {
            id,
            table: difference.table.to_string(),
            part,
            name,
            kind: match (&difference.source, &difference.target) {
                (Some(_), None) => "only on the source",
                (None, Some(_)) => "only on the target",
                _ => "differs",
            },
            source: difference.source.clone(),
            target: difference.target.clone(),
        }
    })
}

/// A line with their number, and one for each of the first.
pub(crate) fn definitions_lines(looked: &Looked<DefinitionDocument>) -> Vec<String> {
    let found = match looked {
        Looked::Found(found) => found,
        Looked::NotLookedAt { not_looked_at } => {
            return vec![format!("definitions: not looked at: {not_looked_at}")];
        }
    };
    let all = found.len();
    if all == 0 {
        return Vec::new();
    }
    let mut lines = vec![format!(
        "definitions: {all} differ; see whether they are meant to"
    )];
    lines.extend(found.iter().take(SHOWN).map(definition_line));
    if all > SHOWN {
        let more = all - SHOWN;
        lines.push(format!("  and {more} more; --output json has them all"));
    }
    lines
}

fn definition_line(one: &DefinitionDocument) -> String {
    let id = &one.id;
    match (&one.source, &one.target) {
        (Some(source), Some(target)) => {
            format!("  {id}: {source} on the source, {target} on the target")
        }
        (source, target) => {
            let definition = source.as_ref().or(target.as_ref());
            let definition = definition.map(String::as_str).unwrap_or_default();
            format!("  {id} {}: {definition}", one.kind)
        }
    }
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
    fn definitions_are_counted_and_the_first_are_shown() {
        let difference =
            |name: &str, source: Option<&str>, target: Option<&str>| DefinitionDifference {
                table: TableName {
                    schema: "public".into(),
                    name: "t".into(),
                },
                part: Part::Index,
                name: name.into(),
                source: source.map(str::to_owned),
                target: target.map(str::to_owned),
            };
        let lines = |all: Vec<DefinitionDifference>| definitions_lines(&definitions(&Ok(all)));
        assert!(lines(vec![]).is_empty());
        let got = lines(vec![
            difference("a\"b", Some("x"), Some("y")),
            difference("c", None, Some("z")),
        ]);
        assert_eq!(
            got,
            [
                "definitions: 2 differ; see whether they are meant to",
                "  public.t index \"a\"\"b\": x on the source, y on the target",
                "  public.t index \"c\" only on the target: z",
            ]
        );
        let many = (0..30).map(|i| difference(&i.to_string(), Some("x"), None));
        let got = lines(many.collect());
        assert_eq!(got.len(), 22);
        assert!(
            got.last().is_some_and(|line| line.contains("10 more")),
            "{got:?}"
        );
    }

    #[test]
    fn why_nothing_was_looked_at_is_told() {
        let looked = sequences(&Err("the target refused".into()));
        let line = sequences_line(&looked).unwrap_or_default();
        assert_eq!(line, "sequences: not looked at: the target refused");
    }
}
