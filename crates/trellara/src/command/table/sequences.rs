//! `trellara table sequences`: where the target's sequences have to stand before applications write
//! there.

use serde::Serialize;
use trellara_postgres::{Session, fault};
use trellara_source::publication::TableName;

use super::{Place, record};
use crate::config::Config;
use crate::context::Context;
use crate::exit::{Exit, Failure};
use crate::telemetry::{self, LogFormat};
use crate::visible;

/// Sets the target's sequences to where the source's stand, for a cut-over.
///
/// Replication carries rows, not where sequences stand. Those that fill columns of published tables
/// are set so that they hand out nothing that the source has handed out, never backwards.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Reads:  the sequences of published tables on both sides
Writes: sequences on the target (not with --dry-run); a row of trellara.audit there

Exit codes: 0 all stand where they should; 11 some are missing on the target, or count the other
            way; 77 a right is missing, on either side

Examples:
  trellara table sequences --dry-run
  trellara table sequences --margin 1000     (while the source is still written to)
  trellara table sequences --output json | jq '.[] | select(.outcome != \"set\")'")]
pub(crate) struct Args {
    /// So many numbers further than the source, for what it hands out in the meantime.
    #[arg(long, value_name = "NUMBERS", default_value_t = 0)]
    margin: u32,
    /// Set those too that stand further than the source's: back.
    #[arg(long)]
    force: bool,
    /// Only say what would be set.
    #[arg(long)]
    dry_run: bool,
}

/// How far beyond the source, and whether backwards.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Margin {
    pub(crate) numbers: u32,
    pub(crate) backwards: bool,
}

impl Margin {
    /// Where the source stands, and never backwards.
    pub(crate) const NONE: Self = Self {
        numbers: 0,
        backwards: false,
    };
}

/// One sequence, and what became of it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(crate) struct Carried {
    pub(crate) id: String,
    pub(crate) source: Option<i64>,
    pub(crate) target: Option<i64>,
    /// Where it stands now, or would.
    pub(crate) set_to: Option<i64>,
    /// `set`, `would be set`, `ahead` (left where it is), `missing`, `not readable`, `other
    /// direction`, `refused`.
    pub(crate) outcome: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) reason: Option<String>,
}

impl Carried {
    /// Whether the target may be written to without handing out a number twice.
    pub(crate) fn is_ready(&self) -> bool {
        matches!(self.outcome, "set" | "ahead")
    }
}

pub(crate) async fn execute(args: &Args, context: &Context) -> Result<Exit, Failure> {
    telemetry::start_logs(context, false, LogFormat::Text);
    let place = Place::of(context).await?;
    let margin = Margin {
        numbers: args.margin,
        backwards: args.force,
    };
    let sides = (&place.source, &place.target);
    let carried = carry(&place.config, sides, margin, args.dry_run).await?;
    context.output.data(&carried, |carried| text(carried));
    let stuck = carried
        .iter()
        .find(|one| !one.is_ready() && one.outcome != "would be set");
    Ok(match stuck.map(|one| one.outcome) {
        None => Exit::Done,
        Some("not readable" | "refused") => Exit::Rights,
        Some(_) => Exit::Unfit,
    })
}

/// For people.
pub(crate) fn text(carried: &[Carried]) -> String {
    let number = |value: Option<i64>| value.map_or("-".to_owned(), |value| value.to_string());
    let line = |one: &Carried| {
        let reason = one.reason.as_deref().map(visible::inline);
        format!(
            "{:<15} {}: source {}, target {} -> {} {}",
            one.outcome,
            one.id,
            number(one.source),
            number(one.target),
            number(one.set_to),
            reason.unwrap_or_default()
        )
    };
    let lines: Vec<String> = carried.iter().map(line).collect();
    match lines.is_empty() {
        true => "no column of a published table takes its values from a sequence".to_owned(),
        false => lines.join("\n"),
    }
}

/// Looks at every sequence of the publication's tables, and sets those of the target.
pub(crate) async fn carry(
    config: &Config,
    (source, target): (&Session, &Session),
    margin: Margin,
    dry_run: bool,
) -> Result<Vec<Carried>, Failure> {
    let publication = &config.source.publication;
    let names = source
        .client
        .query(include_str!("sequences.sql"), &[publication])
        .await?;
    let mut all = Vec::new();
    for row in &names {
        let name = TableName {
            schema: row.get(0),
            name: row.get(1),
        };
        let (here, there) = (
            position(source, &name).await?,
            position(target, &name).await?,
        );
        let mut carried = decided(&name, here, there, margin);
        if let (Some(to), "would be set", false) = (carried.set_to, carried.outcome, dry_run) {
            set(target, &name, to, &mut carried).await;
        }
        all.push(carried);
    }
    let done = all.iter().filter(|one| one.outcome == "set").count();
    if done > 0 {
        let arguments = serde_json::json!({ "sequences": done, "margin": margin.numbers });
        record(target, config, "sequences set", &arguments).await?;
    }
    Ok(all)
}

async fn set(target: &Session, name: &TableName, to: i64, carried: &mut Carried) {
    // The number itself has been handed out.
    let sql = "SELECT pg_catalog.setval($1::text::regclass, $2, true)";
    match target.client.execute(sql, &[&name.to_string(), &to]).await {
        Ok(_) => carried.outcome = "set",
        Err(error) => {
            let fault = fault(&error);
            carried.outcome = "refused";
            carried.reason = Some(format!("{} (SQLSTATE {})", fault.message, fault.sqlstate));
        }
    }
}

/// Where a sequence stands on one side.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Stands {
    /// There is none of that name.
    Missing,
    /// The role may not read it.
    Hidden,
    /// There.
    At {
        last: i64,
        called: bool,
        increment: i64,
        least: i64,
        most: i64,
    },
}

async fn position(session: &Session, name: &TableName) -> Result<Stands, Failure> {
    let sql = "SELECT has_sequence_privilege(c.oid, 'SELECT') AND has_schema_privilege(n.oid, 'USAGE'), \
                      s.seqincrement, s.seqmin, s.seqmax \
                 FROM pg_class AS c JOIN pg_namespace AS n ON n.oid = c.relnamespace \
                 JOIN pg_sequence AS s ON s.seqrelid = c.oid \
                WHERE n.nspname = $1 AND c.relname = $2";
    let found = session
        .client
        .query_opt(sql, &[&name.schema, &name.name])
        .await?;
    let Some(row) = found else {
        return Ok(Stands::Missing);
    };
    if !row.get::<_, bool>(0) {
        return Ok(Stands::Hidden);
    }
    let sql = format!("SELECT last_value, is_called FROM {name}");
    let value = session.client.query_one(&sql, &[]).await?;
    Ok(Stands::At {
        last: value.get(0),
        called: value.get(1),
        increment: row.get(1),
        least: row.get(2),
        most: row.get(3),
    })
}

/// What has to become of the target's sequence.
fn decided(name: &TableName, source: Stands, target: Stands, margin: Margin) -> Carried {
    let last = |stands: Stands| match stands {
        Stands::At { last, .. } => Some(last),
        Stands::Missing | Stands::Hidden => None,
    };
    let (set_to, outcome) = match (source, target) {
        (_, Stands::Missing) | (Stands::Missing, _) => (None, "missing"),
        (Stands::Hidden, _) | (_, Stands::Hidden) => (None, "not readable"),
        (
            Stands::At {
                last,
                called,
                increment,
                ..
            },
            Stands::At {
                last: there,
                called: there_called,
                increment: there_increment,
                least,
                most,
            },
        ) => {
            let up = increment > 0;
            let step = |numbers: u32| i128::from(increment) * i128::from(numbers);
            let wanted = i128::from(last) + step(margin.numbers);
            let wanted = wanted.clamp(i128::from(least), i128::from(most));
            let further = |a: i128, b: i128| if up { a >= b } else { a <= b };
            // What was not handed out yet may be handed out by either.
            let ahead = further(i128::from(there), wanted)
                && (there_called || !called || i128::from(there) != wanted);
            match () {
                () if up != (there_increment > 0) => (None, "other direction"),
                () if !called && !there_called && last == there && margin.numbers == 0 => {
                    (None, "ahead")
                }
                () if ahead && (!margin.backwards || i128::from(there) == wanted) => {
                    (None, "ahead")
                }
                () => (i64::try_from(wanted).ok(), "would be set"),
            }
        }
    };
    Carried {
        id: visible::table(&name.schema, &name.name),
        source: last(source),
        target: last(target),
        set_to,
        outcome,
        reason: None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(last: i64, called: bool, increment: i64) -> Stands {
        Stands::At {
            last,
            called,
            increment,
            least: -1000,
            most: 1000,
        }
    }

    #[track_caller]
    fn check(source: Stands, target: Stands, numbers: u32, expected: (Option<i64>, &str)) {
        let name = TableName {
            schema: "public".to_owned(),
            name: "s".to_owned(),
        };
        let margin = Margin {
            numbers,
            backwards: false,
        };
        let carried = decided(&name, source, target, margin);
        assert_eq!((carried.set_to, carried.outcome), expected);
    }

    #[test]
    fn nothing_is_handed_out_twice_and_nothing_goes_backwards() {
        let fresh = at(1, false, 1);
        check(fresh, fresh, 0, (None, "ahead"));
        check(at(7, true, 1), fresh, 0, (Some(7), "would be set"));
        check(at(7, true, 1), at(7, true, 1), 0, (None, "ahead"));
        check(
            at(7, true, 1),
            at(7, false, 1),
            0,
            (Some(7), "would be set"),
        );
        check(at(7, true, 1), at(8, false, 1), 0, (None, "ahead"));
        check(at(7, true, 1), at(90, true, 1), 0, (None, "ahead"));
        check(
            at(7, true, 1),
            at(90, true, 1),
            100,
            (Some(107), "would be set"),
        );
        check(at(7, true, 5), fresh, 10, (Some(57), "would be set"));
        check(at(990, true, 1), fresh, 100, (Some(1000), "would be set"));
        check(
            at(-7, true, -1),
            at(-1, false, -1),
            0,
            (Some(-7), "would be set"),
        );
        check(at(-7, true, -1), at(-9, true, -1), 0, (None, "ahead"));
    }

    #[test]
    fn what_cannot_be_carried_is_named() {
        check(Stands::Missing, at(1, true, 1), 0, (None, "missing"));
        check(at(1, true, 1), Stands::Missing, 0, (None, "missing"));
        check(Stands::Hidden, at(1, true, 1), 0, (None, "not readable"));
        check(
            at(1, true, 1),
            at(1, true, -1),
            0,
            (None, "other direction"),
        );
    }

    #[test]
    fn only_a_word_sets_a_sequence_back() {
        let name = TableName {
            schema: "public".to_owned(),
            name: "s".to_owned(),
        };
        let margin = Margin {
            numbers: 0,
            backwards: true,
        };
        let carried = decided(&name, at(7, true, 1), at(90, true, 1), margin);
        assert_eq!((carried.set_to, carried.outcome), (Some(7), "would be set"));
    }
}
