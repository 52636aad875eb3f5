//! Statements that would make the target equal, for a person to read and to run. We never run them.
//!
//! Each touches exactly the rows that were compared: a row is changed or deleted only while its
//! digest is the one that was seen, and added only while it is not there; every statement demands
//! its exact number of rows and takes its whole batch back otherwise. So the file does nothing to a
//! target that has moved on, and nothing when it is run twice.

use trellara_postgres::{SESSION_SETTINGS, quote};
use trellara_verify::report::{Difference, Kind, Outcome, Recipe, Report, TableReport};

use crate::visible;

/// Rows of one transaction.
const BATCH: usize = 1000;
/// With more than one row in so many differing, a copy of the table is the better cure, or the
/// target is the wrong one.
const ONE_IN: u64 = 5;

/// Settings beside those of every session of ours under which digests were computed.
const MORE_SETTINGS: [(&str, &str); 3] = [
    ("row_security", "off"),
    ("xmloption", "content"),
    ("lc_numeric", "C"),
];

/// The file, and what is not in it.
pub(crate) struct Repair {
    pub(crate) sql: String,
    /// Why tables or rows were left out.
    pub(crate) refused: Vec<String>,
}

/// Writes the statements of every table that differs.
pub(crate) fn of(report: &Report, delete_extra: bool) -> Repair {
    let mut repair = Repair {
        sql: header(report),
        refused: Vec::new(),
    };
    let differing = report.tables.iter();
    for table in differing.filter(|table| table.outcome == Outcome::Different) {
        let name = visible::table(&table.table.schema, &table.table.name);
        match writable(table) {
            Ok(recipe) => {
                let writer = Writer {
                    table,
                    recipe,
                    run: &report.run,
                    delete_extra,
                };
                writer.write(&name, &mut repair);
            }
            Err(reason) => repair.refuse(format!("{name}: {reason}")),
        }
    }
    repair
}

impl Repair {
    fn refuse(&mut self, what: String) {
        self.sql
            .push_str(&format!("\n-- NOT REPAIRED: {}\n", visible::inline(&what)));
        self.refused.push(what);
    }
}

/// What a table's statements are made of, or why there are none.
fn writable(table: &TableReport) -> Result<(&Recipe, &str), String> {
    if table.differing() == 0 {
        return Err("the number of rows differs, and which they are was not looked for".into());
    }
    let rows = table.source_rows.max(table.target_rows);
    if table.differing().saturating_mul(ONE_IN) > rows {
        return Err(format!(
            "{} of {rows} rows differ, more than one in {ONE_IN}; copy the table anew, or see whether \
             this is the right target",
            table.differing()
        ));
    }
    if table.listed() < table.differing() {
        return Err(format!(
            "only {} of {} differing rows are listed; raise --max-diffs",
            table.listed(),
            table.differing()
        ));
    }
    let recipe = table.recipe.as_ref();
    let recipe = recipe.ok_or(
        "its rows were not compared at one position, so nothing could guard a statement; use --mode exact",
    )?;
    let digest = recipe.digest.as_deref();
    let digest = digest.ok_or(
        "rows were not digested by the database, so nothing could guard a statement; use --lane row64",
    )?;
    Ok((recipe, digest))
}

fn header(report: &Report) -> String {
    let target = &report.target;
    let system = quote::literal(&target.system.to_string());
    format!(
        "-- Written by `trellara verify`, run {run}, at {point} of cluster {source}, for cluster {system_id}.\n\
         -- It holds rows of the source. Read it, then:\n\
         --   1. stop the applier, so that the target does not move on;\n\
         --   2. psql -v ON_ERROR_STOP=1 -f FILE, as a role that may write to these tables;\n\
         --   3. start the applier, and run `trellara verify` again.\n\
         -- Each statement demands exactly the rows that were compared. What has changed since ends the\n\
         -- file with an error, and its batch of at most {BATCH} rows is undone as a whole.\n\
         -- Triggers of the tables fire, unless session_replication_role says otherwise.\n\
         \\set ON_ERROR_STOP on\n\
         SET client_encoding = 'UTF8';\n\
         DO $trellara$BEGIN\n\
         \x20 IF (SELECT system_identifier FROM pg_catalog.pg_control_system())::text <> {system} THEN\n\
         \x20   RAISE EXCEPTION 'this is not the cluster that was compared';\n\
         \x20 END IF;\n\
         END$trellara$;\n",
        run = report.run,
        point = report.consistent_point,
        source = report.source.system,
        system_id = target.system,
    )
}

/// Writes one table's statements.
struct Writer<'a> {
    table: &'a TableReport,
    recipe: (&'a Recipe, &'a str),
    run: &'a str,
    delete_extra: bool,
}

impl Writer<'_> {
    fn write(&self, name: &str, repair: &mut Repair) {
        // What goes makes room under unique constraints for what comes.
        let order = |difference: &&Difference| match difference.kind {
            Kind::Extra => 0,
            Kind::Duplicate => 1,
            Kind::Changed => 2,
            Kind::Missing => 3,
        };
        let mut differences: Vec<&Difference> = self.table.differences.iter().collect();
        differences.sort_by_key(order);
        repair
            .sql
            .push_str(&format!("\n-- {name}: {} rows\n", self.table.differing()));
        let (mut batch, mut kept) = (Vec::new(), 0);
        for difference in differences {
            let surplus = difference
                .target_count
                .saturating_sub(difference.source_count);
            if surplus > 0 && !self.delete_extra {
                kept += surplus;
                continue;
            }
            match self.statement(difference) {
                Ok(statement) => batch.push(statement),
                Err(reason) => repair.refuse(format!("{name}: {reason}")),
            }
            if batch.len() == BATCH {
                repair
                    .sql
                    .push_str(&self.batch(&std::mem::take(&mut batch)));
            }
        }
        if !batch.is_empty() {
            repair.sql.push_str(&self.batch(&batch));
        }
        if kept > 0 {
            repair.refuse(format!(
                "{name}: {kept} rows that the target alone has stay; --delete-extra deletes them"
            ));
        }
    }

    /// One transaction.
    fn batch(&self, statements: &[String]) -> String {
        let timeouts = |name: &str| name.ends_with("_timeout");
        let settings = SESSION_SETTINGS.iter().chain(&MORE_SETTINGS);
        let settings: Vec<String> = settings
            .filter(|(name, _)| !timeouts(name) && *name != "client_encoding")
            .map(|(name, value)| format!("SET LOCAL {name} = {};\n", quote::literal(value)))
            .collect();
        // Nothing but a count tells equal rows apart: nobody else may write meanwhile.
        let lock = match self.table.by_key {
            true => String::new(),
            false => format!(
                "  LOCK TABLE {} IN SHARE ROW EXCLUSIVE MODE;\n",
                self.recipe.0.from
            ),
        };
        let body = format!(
            "\n#variable_conflict use_column\nDECLARE trellara_rows bigint;\nBEGIN\n{lock}{}END\n",
            statements.concat()
        );
        let mut tag = format!("$trellara_{}$", self.run);
        while body.contains(&tag) {
            tag.insert(tag.len() - 1, '_');
        }
        format!(
            "BEGIN;\n{}DO {tag}{body}{tag};\nCOMMIT;\n",
            settings.concat()
        )
    }

    /// One row's, or those of rows that are equal.
    fn statement(&self, difference: &Difference) -> Result<String, String> {
        let one = difference.source_count <= 1 && difference.target_count <= 1;
        match (self.table.by_key, difference.kind) {
            (false, _) => self.multiset(difference),
            (true, Kind::Duplicate) => {
                Err("several rows have one key; which is right is not known".into())
            }
            (true, _) if !one => {
                Err("several rows have one key; which is right is not known".into())
            }
            (true, Kind::Missing) => self.insert(difference),
            (true, Kind::Changed) => self.update(difference),
            (true, Kind::Extra) => self.delete(difference),
        }
    }

    fn insert(&self, difference: &Difference) -> Result<String, String> {
        let (row, from) = (self.row(difference)?, &self.recipe.0.from);
        let absent = format!("SELECT count(*) FROM {from} WHERE {}", key(difference));
        Ok(demand_count(&absent, 0) + &demand(&format!("{row} ON CONFLICT DO NOTHING"), 1))
    }

    fn update(&self, difference: &Difference) -> Result<String, String> {
        let source = difference.source_row.as_ref().ok_or(NO_VALUES)?;
        let changed = source.iter().filter(|(name, _)| {
            difference.columns.contains(name) && !self.recipe.0.generated.contains(name)
        });
        let set: Vec<String> = changed
            .map(|(name, value)| format!("{} = {}", quote::identifier(name), literal(value)))
            .collect();
        if set.is_empty() {
            return Err("a row differs in generated columns alone".into());
        }
        Ok(demand(
            &format!(
                "UPDATE {} SET {} WHERE {} AND {}",
                self.recipe.0.from,
                set.join(", "),
                key(difference),
                self.seen(difference.target_digest)?
            ),
            1,
        ))
    }

    fn delete(&self, difference: &Difference) -> Result<String, String> {
        Ok(demand(
            &format!(
                "DELETE FROM {} WHERE {} AND {}",
                self.recipe.0.from,
                key(difference),
                self.seen(difference.target_digest)?
            ),
            1,
        ))
    }

    /// Equal rows of a table without a key: as many as were seen, then as many as there should be.
    fn multiset(&self, difference: &Difference) -> Result<String, String> {
        let (from, want) = (&self.recipe.0.from, difference.source_count);
        let have = difference.target_count;
        let digest = difference.target_digest.or(difference.source_digest);
        let seen = self.seen(digest)?;
        let counted = demand_count(&format!("SELECT count(*) FROM {from} WHERE {seen}"), have);
        if want < have {
            let surplus = have - want;
            return Ok(counted
                + &demand(
                    &format!(
                        "DELETE FROM {from} WHERE (tableoid, ctid) IN (SELECT tableoid, ctid FROM {from} \
                         WHERE {seen} LIMIT {surplus})"
                    ),
                    surplus,
                ));
        }
        let row = demand(&self.row(difference)?, 1);
        Ok(format!(
            "{counted}  FOR trellara_number IN 1..{} LOOP\n{row}  END LOOP;\n",
            want - have
        ))
    }

    /// The row of the source as an INSERT.
    fn row(&self, difference: &Difference) -> Result<String, String> {
        let row = difference.source_row.as_ref();
        let row = row.or(difference
            .target_row
            .as_ref()
            .filter(|_| !self.table.by_key));
        let row = row.ok_or(NO_VALUES)?;
        let written = row
            .iter()
            .filter(|(name, _)| !self.recipe.0.generated.contains(name));
        let (names, values): (Vec<String>, Vec<String>) = written
            .map(|(name, value)| (quote::identifier(name), literal(value)))
            .unzip();
        Ok(format!(
            "INSERT INTO {} ({}) OVERRIDING SYSTEM VALUE VALUES ({})",
            self.recipe.0.into,
            names.join(", "),
            values.join(", ")
        ))
    }

    fn seen(&self, digest: Option<i64>) -> Result<String, String> {
        let digest = digest.ok_or("a row's digest is not known")?;
        Ok(format!("{} = '{digest}'::bigint", self.recipe.1))
    }
}

const NO_VALUES: &str =
    "the values of some rows were more than is kept of a table (64 MiB); copy them by hand";

fn key(difference: &Difference) -> String {
    let parts: Vec<String> = difference
        .key
        .iter()
        .map(|(name, value)| match value {
            Some(value) => format!("{} = {}", quote::identifier(name), quote::literal(value)),
            None => format!("{} IS NULL", quote::identifier(name)),
        })
        .collect();
    parts.join(" AND ")
}

fn literal(value: &Option<String>) -> String {
    match value {
        Some(value) => quote::literal(value),
        None => "NULL".to_owned(),
    }
}

const MOVED_ON: &str = "the target is not what was compared: nothing of this batch was done; run \
                        trellara verify again";

fn demand(statement: &str, rows: u64) -> String {
    format!(
        "  {statement};\n  GET DIAGNOSTICS trellara_rows = ROW_COUNT;\n{}",
        unless(rows)
    )
}

fn demand_count(query: &str, rows: u64) -> String {
    format!("  trellara_rows := ({query});\n{}", unless(rows))
}

fn unless(rows: u64) -> String {
    format!("  IF trellara_rows <> {rows} THEN RAISE EXCEPTION '{MOVED_ON}'; END IF;\n")
}

#[cfg(test)]
mod tests {
    use super::super::sample::{FORGED, report};
    use super::*;

    fn recipe() -> Option<Recipe> {
        Some(Recipe {
            from: r#"ONLY "public"."t""#.into(),
            into: r#""public"."t""#.into(),
            digest: Some("hash(v)".into()),
            generated: vec!["g".into()],
        })
    }

    #[test]
    fn no_name_or_value_gets_out_of_its_place() {
        let mut report = report();
        let table = &mut report.tables[1];
        table.recipe = recipe();
        (table.changed, table.duplicate) = (1, 3);
        let value = format!("'; $trellara_{}$ {FORGED}", report.run);
        if let Some(row) = &mut table.differences[0].source_row {
            row[1].1 = Some(value);
        }
        let repair = of(&report, true);
        // Comments are one line each, whatever a table is called.
        let comments = repair
            .sql
            .lines()
            .filter(|line| line.starts_with("-- public."));
        for line in comments {
            assert!(
                line.contains(r"x\nverdict") && line.ends_with(" rows"),
                "{line}"
            );
        }
        let tag = format!("$trellara_{}_$", report.run);
        assert_eq!(repair.sql.matches(&tag).count(), 2, "{}", repair.sql);
        assert!(repair.sql.contains("'''; $trellara_"), "{}", repair.sql);
        // The key that two rows share is named, not guessed at.
        assert!(
            repair
                .refused
                .iter()
                .any(|why| why.contains("several rows"))
        );
    }

    #[test]
    fn what_is_too_much_or_not_whole_is_refused() {
        let mut report = report();
        let refused = |report: &Report| {
            let repair = of(report, false);
            assert!(!repair.sql.contains("UPDATE"), "{}", repair.sql);
            assert!(repair.sql.contains("-- NOT REPAIRED: "));
            repair.refused.join("\n")
        };
        report.tables[1].recipe = recipe();
        assert!(refused(&report).contains("raise --max-diffs"));
        report.tables[1].duplicate = 3;
        report.tables[1].source_rows = 20;
        report.tables[1].target_rows = 20;
        assert!(refused(&report).contains("5 of 20 rows differ"));
        report.tables[1].source_rows = 25;
        report.tables[1].changed = 1;
        if let Some(recipe) = &mut report.tables[1].recipe {
            recipe.digest = None;
        }
        assert!(refused(&report).contains("--lane row64"));
    }
}
