//! Differences that are planted on the target, in rows that no load touches, and taken back.

use anyhow::{Context, Result, ensure};
use rand::Rng;
use rand::rngs::StdRng;
use serde_json::Value;

/// Rows of both tables that no load touches, numbered from 1.
pub(super) const CALM_ROWS: i64 = 2000;

/// A kind of difference, in a table with a key or in one without.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Changed,
    Missing,
    Extra,
    MissingKeyless,
    ExtraKeyless,
    Duplicate,
}

const KINDS: [Kind; 6] = [
    Kind::Changed,
    Kind::Missing,
    Kind::Extra,
    Kind::MissingKeyless,
    Kind::ExtraKeyless,
    Kind::Duplicate,
];

/// One difference.
#[derive(Debug, Clone)]
pub(super) struct Plant {
    kind: Kind,
    id: i64,
}

impl Plant {
    pub(super) fn draw(random: &mut StdRng) -> Self {
        Self {
            kind: KINDS[random.random_range(0..KINDS.len())],
            id: random.random_range(1..=CALM_ROWS),
        }
    }

    /// What plants it.
    pub(super) fn sql(&self) -> String {
        let id = self.id;
        match self.kind {
            Kind::Changed => format!("UPDATE public.kept SET v = v || '!' WHERE id = {id}"),
            Kind::Missing => format!("DELETE FROM public.kept WHERE id = {id}"),
            Kind::Extra => format!("INSERT INTO public.kept VALUES (-{id}, 'nobody''s', 0)"),
            Kind::MissingKeyless => format!("DELETE FROM public.log WHERE id = {id}"),
            Kind::ExtraKeyless => format!("INSERT INTO public.log VALUES (-{id}, 'nobody''s')"),
            Kind::Duplicate => format!("INSERT INTO public.log VALUES ({id}, 'calm')"),
        }
    }

    /// What takes it back.
    pub(super) fn back(&self) -> String {
        let id = self.id;
        match self.kind {
            Kind::Changed => format!("UPDATE public.kept SET v = 'v{id}' WHERE id = {id}"),
            Kind::Missing => format!("INSERT INTO public.kept VALUES ({id}, 'v{id}', 0)"),
            Kind::Extra => format!("DELETE FROM public.kept WHERE id = -{id}"),
            Kind::MissingKeyless => format!("INSERT INTO public.log VALUES ({id}, 'calm')"),
            Kind::ExtraKeyless => format!("DELETE FROM public.log WHERE id = -{id}"),
            Kind::Duplicate => format!(
                "DELETE FROM public.log WHERE ctid = (SELECT max(ctid) FROM public.log WHERE id = {id})"
            ),
        }
    }

    /// Fails unless the document names this difference, exactly, and no other.
    pub(super) fn is_all_that(&self, document: &Value) -> Result<()> {
        let (table, kind) = match self.kind {
            Kind::Changed => ("public.kept", "changed"),
            Kind::Missing => ("public.kept", "missing"),
            Kind::Extra => ("public.kept", "extra"),
            Kind::MissingKeyless => ("public.log", "missing"),
            Kind::ExtraKeyless => ("public.log", "extra"),
            Kind::Duplicate => ("public.log", "duplicate"),
        };
        let id = match self.kind {
            Kind::Extra | Kind::ExtraKeyless => -self.id,
            _ => self.id,
        };
        let columns = match self.kind {
            Kind::Changed => "v",
            _ => "",
        };
        let found = found(document)?;
        let wanted = [format!("{table} id={id} {kind} {columns}")];
        ensure!(found == wanted, "planted {wanted:?}, found {found:?}");
        Ok(())
    }
}

/// Every difference that a document lists; fails when its counts say something else.
pub(super) fn found(document: &Value) -> Result<Vec<String>> {
    let mut found = Vec::new();
    let mut counted = 0;
    for table in document["tables"].as_array().context("tables")? {
        for kind in ["missing", "extra", "changed", "duplicate"] {
            counted += table[kind].as_u64().context("a count")?;
        }
        for row in table["differences"].as_array().context("differences")? {
            let text = |value: &Value| value.as_str().unwrap_or("?").to_owned();
            let columns = row["columns"].as_array().context("columns")?;
            let columns: Vec<String> = columns.iter().map(text).collect();
            found.push(format!(
                "{} id={} {} {}",
                text(&table["id"]),
                // The first column of both tables; a row without a key has all of its columns.
                text(&row["key"][0]["value"]),
                text(&row["kind"]),
                columns.join(",")
            ));
        }
    }
    ensure!(
        counted == found.len() as u64,
        "{counted} counted, listed {found:?}"
    );
    Ok(found)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn document(changed: u64, rows: &[Value]) -> Value {
        json!({"tables": [
            {"id": "public.kept", "missing": 0, "extra": 0, "changed": changed, "duplicate": 0,
             "differences": rows},
        ]})
    }

    #[test]
    fn nothing_but_the_very_difference_will_do() {
        let plant = Plant {
            kind: Kind::Changed,
            id: 17,
        };
        let row = |id: &str, columns: &[&str]| json!({"key": [{"id": "id", "value": id}], "kind": "changed", "columns": columns});
        let right = row("17", &["v"]);
        assert!(
            plant
                .is_all_that(&document(1, std::slice::from_ref(&right)))
                .is_ok()
        );
        for wrong in [
            document(0, &[]),
            document(2, std::slice::from_ref(&right)),
            document(2, &[right.clone(), row("18", &["v"])]),
            document(1, &[row("18", &["v"])]),
            document(1, &[row("17", &["n"])]),
        ] {
            assert!(plant.is_all_that(&wrong).is_err(), "{wrong}");
        }
    }
}
