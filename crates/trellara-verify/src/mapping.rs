//! Which column of the target a column of the source is compared with, and in what form. Pure.

use trellara_postgres::quote;

use crate::apart::{Apart, parts};
use crate::digest::SideTable;
use crate::error::Failure;
use crate::inventory::{Column, Index, Published, Relation};
use crate::plan::{Grounds, Plan};
use crate::report::TableName;

/// A table of both sides, ready to be compared.
#[derive(Debug)]
pub(crate) struct Pair {
    pub(crate) table: TableName,
    /// The compared columns' names, in the source's order.
    pub(crate) columns: Vec<String>,
    /// Which of them are the key; none for a table without one.
    pub(crate) key: Vec<usize>,
    pub(crate) source: SideTable,
    pub(crate) target: SideTable,
    pub(crate) plan: Plan,
    pub(crate) mapped: Vec<String>,
}

/// Matches a published table with the target's of the same name.
pub(crate) fn pair(
    published: &Published,
    source: &Relation,
    target: Option<&Relation>,
    same_encoding: bool,
) -> Result<Pair, Failure> {
    let target = target.ok_or_else(|| {
        not_comparable(
            "the target has no table of this name".into(),
            "create it on the target, or take it out of the publication",
        )
    })?;
    if !matches!(target.kind, 'r' | 'p') {
        return Err(not_comparable(
            "on the target this name is not a table".into(),
            "compare with a table of this name; views and foreign tables are not looked at",
        ));
    }
    let columns = columns(published, source, target)?;
    let index = key_index(source, &published.columns);
    let position = |name: &String| published.columns.iter().position(|c| c == name);
    let key: Vec<usize> = match index {
        Some(index) => index.columns.iter().filter_map(position).collect(),
        None => Vec::new(),
    };
    let grounds = Grounds {
        key: key
            .iter()
            .filter_map(|i| columns.get(*i).copied())
            .collect(),
        source: index,
        target: &target.indexes,
        same_encoding,
        estimate: source.estimate,
    };
    let forms: Vec<Form> = columns.iter().map(|(s, t)| form(s, t)).collect();
    let mut mapped: Vec<String> = forms.iter().filter_map(|form| form.note.clone()).collect();
    mapped.extend(only_on_target(target, &published.columns));
    let source_values: Vec<String> = forms.iter().map(|form| form.source.clone()).collect();
    let target_values: Vec<String> = forms.into_iter().map(|form| form.target).collect();
    let apart: Vec<Option<Apart>> = columns
        .iter()
        .map(|(source, target)| Apart::of(source, target).filter(|_| same_encoding))
        .collect();
    let bases: Vec<&str> = columns.iter().map(|(_, t)| t.base.as_str()).collect();
    let side = |relation: &Relation, values: Vec<String>, filter: Option<String>| SideTable {
        from: from(relation, &published.table),
        filter,
        keys: key
            .iter()
            .map(|i| key_form(&values[*i], bases[*i]))
            .collect(),
        key_columns: key
            .iter()
            .map(|i| quote::identifier(&published.columns[*i]))
            .collect(),
        row: parts(values.iter().zip(&apart).map(|(v, a)| (v.clone(), *a))),
        key: parts(
            key.iter()
                .map(|i| (key_form(&values[*i], bases[*i]), apart[*i])),
        ),
        values,
    };
    Ok(Pair {
        table: published.table.clone(),
        columns: published.columns.clone(),
        plan: grounds.choose(),
        source: side(source, source_values, published.filter.clone()),
        target: side(target, target_values, None),
        key,
        mapped,
    })
}

/// Each published column on both sides.
fn columns<'a>(
    published: &Published,
    source: &'a Relation,
    target: &'a Relation,
) -> Result<Vec<(&'a Column, &'a Column)>, Failure> {
    let mut columns: Vec<(&Column, &Column)> = Vec::new();
    for name in &published.columns {
        let here = source.columns.iter().find(|column| column.name == *name);
        let here = here.ok_or_else(|| {
            not_comparable(
                format!("column {name:?} was published behind the position compared"),
                "run it again",
            )
        })?;
        let there = target.columns.iter().find(|column| column.name == *name);
        let there = there.ok_or_else(|| {
            not_comparable(
                format!("the target's table has no column {name:?}"),
                "add it on the target, or leave it out with a column list of the publication",
            )
        })?;
        columns.push((here, there));
    }
    Ok(columns)
}

/// The index whose columns identify a row: the replica identity's, else the primary key's, when
/// all of its columns are published.
fn key_index<'a>(source: &'a Relation, published: &[String]) -> Option<&'a Index> {
    let find = |wanted: fn(&Index) -> bool| source.indexes.iter().find(|index| wanted(index));
    let identity = find(|index| index.identity).filter(|_| source.identity == 'i');
    let index = identity.or_else(|| find(|index| index.primary))?;
    let whole = index.columns.iter().all(|name| published.contains(name));
    whole.then_some(index)
}

/// Partitions are read with what they belong to; children by inheritance are tables of their own.
fn from(relation: &Relation, table: &TableName) -> String {
    let only = if relation.kind == 'p' { "" } else { "ONLY " };
    format!("{only}{}", quote::qualified(&table.schema, &table.name))
}

/// Types whose casts cut off what is too long; `bpchar` is one too.
const CUT_TO_LENGTH: [&str; 5] = ["varchar", "bit", "varbit", "name", "char"];

/// Types that store an oid and print a name, which the catalogues give as it is now.
const NAMES_OF_NOW: [&str; 11] = [
    "regclass",
    "regcollation",
    "regconfig",
    "regdictionary",
    "regnamespace",
    "regoper",
    "regoperator",
    "regproc",
    "regprocedure",
    "regrole",
    "regtype",
];

/// Types whose values are numbers that each cluster gives away for itself.
const NUMBERS_OF_A_CLUSTER: [&str; 5] = ["oid", "xid", "cid", "tid", "xid8"];

/// The name of the type, or of an array's elements.
fn element(column: &Column) -> &str {
    let base = column.base.as_str();
    base.strip_prefix('_').unwrap_or(base)
}

/// In which form a column is compared.
struct Form {
    source: String,
    target: String,
    note: Option<String>,
}

fn form(source: &Column, target: &Column) -> Form {
    let name = quote::identifier(&source.name);
    let plain = |note| Form {
        source: name.clone(),
        target: name.clone(),
        note,
    };
    let (bare, other) = (source.bare(), target.bare());
    if source.declared == target.declared && bare.declared == other.declared {
        return plain(note_of_same(&bare, source, target));
    }
    let types = format!("{} on the source, {}", source.declared, target.declared);
    if bare.declared == other.declared {
        let note = format!("{}: {types} on the target; compared as text", source.name);
        return plain(Some(note));
    }
    // A domain pads, rounds and cuts as what it is over.
    let (source, target) = (&bare, &other);
    let types = format!("{} on the source, {}", source.declared, target.declared);
    let family = |names: &[&str]| {
        let has = |column: &Column| column.builtin && names.contains(&column.base.as_str());
        has(source) && has(target)
    };
    let same_text = family(&["int2", "int4", "int8"]) || family(&["text", "varchar"]);
    if same_text || !target.builtin {
        // A type of the target's own (an enum, a domain) need not exist on the source.
        let note = format!("{}: {types} on the target; compared as text", source.name);
        return plain(Some(note));
    }
    if element(target) == "bpchar" {
        // A cast to the length would cut off what differs, and say that it is equal. Without a
        // length there is no padding to compare either: it goes with the step to text.
        let of = if element(target) == target.base {
            ""
        } else {
            "[]"
        };
        return Form {
            source: format!(
                "CASE WHEN num_nulls({name}) = 0 THEN format('%s', {name})::bpchar{of}::text{of} END"
            ),
            target: format!("{name}::text{of}"),
            note: Some(format!(
                "{}: {types} on the target; compared as text without trailing blanks",
                source.name
            )),
        };
    }
    if CUT_TO_LENGTH.contains(&element(target)) {
        let note = format!("{}: {types} on the target; compared as text", source.name);
        return plain(Some(note));
    }
    // Through the text, as the value travels: a cast of PostgreSQL's own can print another one
    // (bool to text).
    let cast = &target.declared;
    Form {
        source: format!("CASE WHEN num_nulls({name}) = 0 THEN format('%s', {name})::{cast} END"),
        target: name.clone(),
        note: Some(format!(
            "{}: {types} on the target; the source's values are cast to the target's type",
            source.name
        )),
    }
}

/// What is to be known of a column of one type on both sides, if anything is.
fn note_of_same(bare: &Column, source: &Column, target: &Column) -> Option<String> {
    let (name, declared) = (&source.name, &source.declared);
    if bare.builtin && NAMES_OF_NOW.contains(&element(bare)) {
        return Some(format!(
            "{name}: the names that {declared} prints are those of now, not of the position compared"
        ));
    }
    if bare.builtin && NUMBERS_OF_A_CLUSTER.contains(&element(bare)) {
        return Some(format!(
            "{name}: values of {declared} are numbers of the source's cluster; on the target they \
             may stand for nothing"
        ));
    }
    let version = |column: &Column| column.extension.clone().unwrap_or_else(|| "none".into());
    (source.extension != target.extension).then(|| {
        format!(
            "{name}: extension {} on the source, {} on the target; equal values may be printed \
             differently",
            version(source),
            version(target)
        )
    })
}

/// The form that identifies: values that are one key to the index are one key to us, however they
/// are printed; the row's digest still tells them apart.
fn key_form(value: &str, base: &str) -> String {
    match base {
        "numeric" => format!("trim_scale({value})"),
        // -0 and 0.
        "float4" | "float8" => format!("({value}) + 0"),
        _ => value.to_owned(),
    }
}

fn only_on_target(target: &Relation, published: &[String]) -> Option<String> {
    let names: Vec<&str> = target
        .columns
        .iter()
        .map(|column| column.name.as_str())
        .filter(|name| !published.iter().any(|p| p == name))
        .collect();
    (!names.is_empty()).then(|| {
        let names = names.join(", ");
        format!("not compared, because only the target has them or they are not published: {names}")
    })
}

fn not_comparable(reason: String, hint: &str) -> Failure {
    Failure::NotComparable {
        reason,
        hint: hint.into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn column(name: &str, declared: &str, base: &str, builtin: bool) -> Column {
        Column {
            name: name.into(),
            declared: declared.into(),
            base: base.into(),
            builtin,
            not_null: true,
            bytewise: true,
            under: None,
            extension: None,
        }
    }

    fn relation(columns: Vec<Column>) -> Relation {
        Relation {
            kind: 'r',
            identity: 'd',
            guarded: false,
            estimate: 0,
            columns,
            indexes: Vec::new(),
        }
    }

    fn published(columns: &[&str]) -> Published {
        Published {
            table: TableName {
                schema: "public".into(),
                name: "t".into(),
            },
            filter: None,
            columns: columns.iter().map(|c| (*c).to_owned()).collect(),
        }
    }

    #[test]
    fn columns_meet_by_name_in_the_source_s_order() {
        let source = relation(vec![
            column("a", "integer", "int4", true),
            column("b", "text", "text", true),
        ]);
        let target = relation(vec![
            column("b", "text", "text", true),
            column("more", "text", "text", true),
            column("a", "integer", "int4", true),
        ]);
        let pair = pair(&published(&["a", "b"]), &source, Some(&target), true).unwrap();
        assert_eq!(pair.source.values, [r#""a""#, r#""b""#]);
        assert_eq!(pair.target.values, [r#""a""#, r#""b""#]);
        assert!(pair.mapped.iter().any(|note| note.contains("more")));
    }

    #[test]
    fn other_types_are_cast_to_the_target_s_and_told() {
        let cases = [
            // source, target, whether the source is cast
            (("integer", "int4", true), ("bigint", "int8", true), false),
            (
                ("text", "text", true),
                ("character varying(3)", "varchar", true),
                false,
            ),
            (
                ("character(3)", "bpchar", true),
                ("character(5)", "bpchar", true),
                true,
            ),
            (
                ("numeric", "numeric", true),
                ("numeric(10,2)", "numeric", true),
                true,
            ),
            (
                ("text", "text", true),
                ("public.mood", "mood", false),
                false,
            ),
            (("public.mood", "mood", false), ("text", "text", true), true),
        ];
        for (source, target, cast) in cases {
            let (s, t) = (
                column("c", source.0, source.1, source.2),
                column("c", target.0, target.1, target.2),
            );
            let form = form(&s, &t);
            assert_eq!(form.source != form.target, cast, "{}", form.source);
            let note = form.note.unwrap();
            assert!(note.contains(source.0) && note.contains(target.0), "{note}");
        }
    }

    #[test]
    fn what_the_target_lacks_is_named() {
        let source = relation(vec![column("a", "integer", "int4", true)]);
        let reason =
            |target: Option<&Relation>| match pair(&published(&["a"]), &source, target, true)
                .unwrap_err()
            {
                Failure::NotComparable { reason, .. } => reason,
                other => panic!("{other:?}"),
            };
        assert!(reason(None).contains("no table"));
        assert!(reason(Some(&relation(vec![]))).contains("no column \"a\""));
        let mut view = relation(vec![]);
        view.kind = 'v';
        assert!(reason(Some(&view)).contains("not a table"));
    }
}
