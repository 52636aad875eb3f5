//! Statements that would make the target equal, for a person to read and to run. We never run them.
//!
//! Each touches exactly the rows that were compared: a row is changed or deleted only while its
//! digest is the one that was seen, and added only while it is not there; every statement demands
//! its exact number of rows and takes its whole batch back otherwise. So the file does nothing to a
//! target that has moved on, and nothing when it is run twice.

use std::collections::{BTreeMap, BTreeSet};

use trellara_postgres::{SESSION_SETTINGS, quote};
use trellara_verify::report::{
    Difference, Explanation, Kind, Outcome, Recipe, Report, TableReport,
};

use crate::visible;

use header::header;

mod header;

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

/// A dollar quote that the text does not end.
fn tag(run: &str, text: &str) -> String {
    let mut tag = format!("$trellara_{run}$");
    while text.contains(&tag) {
        tag.insert(tag.len() - 1, '_');
    }
    tag
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
        let differences = self.table.differences.iter();
        // What is in quarantine comes by itself, or was refused by somebody.
        let (held, mut differences): (Vec<&Difference>, Vec<&Difference>) =
            differences.partition(|difference| difference.explained_by.is_some());
        differences.sort_by_key(order);
        let mut left = Left::default();
        for difference in held {
            let reason = match &difference.explained_by {
                Some(Explanation::Held(id)) => {
                    format!("explained by transaction {id} in quarantine")
                }
                Some(Explanation::ConflictRule) | None => "explained by conflict rule".to_owned(),
            };
            left.add(self.named(difference), reason);
        }
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
                Err(reason) => left.add(self.named(difference), reason),
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
        left.tell(name, repair);
        if kept > 0 {
            repair.refuse(format!(
                "{name}: {kept} rows that the target alone has stay; --delete-extra deletes them"
            ));
        }
    }

    /// One transaction.
    fn batch(&self, statements: &[Statement]) -> String {
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
        let alone = self.alone(statements);
        let text: String = statements.iter().map(|s| s.text.as_str()).collect();
        let body = format!(
            "\n#variable_conflict use_column\nDECLARE trellara_rows bigint;\nBEGIN\n{lock}{alone}{text}END\n"
        );
        let tag = tag(self.run, &body);
        format!(
            "BEGIN;\n{}DO {tag}{body}{tag};\nCOMMIT;\n",
            settings.concat()
        )
    }

    /// Refuses a batch that a foreign key would carry on into other tables: their rows were not
    /// asked about. A session that is a replica carries nothing on.
    fn alone(&self, statements: &[Statement]) -> String {
        let mut ways = Vec::new();
        if statements.iter().any(|statement| statement.deletes) {
            ways.push("c.confdeltype IN ('c', 'n', 'd')".to_owned());
        }
        let updated = statements.iter().flat_map(|s| &s.updates);
        let updated: BTreeSet<String> = updated.map(|name| quote::literal(name)).collect();
        if !updated.is_empty() {
            let updated: Vec<String> = updated.into_iter().collect();
            ways.push(format!(
                "c.confupdtype IN ('c', 'n', 'd') AND EXISTS (SELECT FROM pg_catalog.pg_attribute AS a \
                 WHERE a.attrelid = c.confrelid AND a.attnum = ANY (c.confkey) \
                   AND a.attname::text IN ({}))",
                updated.join(", ")
            ));
        }
        if ways.is_empty() {
            return String::new();
        }
        let table = quote::literal(&self.recipe.0.into);
        format!(
            "  IF current_setting('session_replication_role') <> 'replica' AND EXISTS (\
             SELECT FROM pg_catalog.pg_constraint AS c WHERE c.contype = 'f' \
             AND (c.confrelid = {table}::regclass \
             OR c.confrelid IN (SELECT relid FROM pg_catalog.pg_partition_tree({table}::regclass))) \
             AND ({})) THEN\n    RAISE EXCEPTION '{CARRIED_ON}';\n  END IF;\n",
            ways.join(" OR ")
        )
    }

    /// One row's, or those of rows that are equal.
    fn statement(&self, difference: &Difference) -> Result<Statement, String> {
        let one = difference.source_count <= 1 && difference.target_count <= 1;
        match (self.table.by_key, difference.kind) {
            (false, _) => self.multiset(difference),
            (true, Kind::Duplicate) => {
                Err("several rows have one key; which is right is not known".into())
            }
            (true, _) if !one => {
                Err("several rows have one key; which is right is not known".into())
            }
            (true, Kind::Missing) => self.insert(difference).map(Statement::from),
            (true, Kind::Changed) => self.update(difference),
            (true, Kind::Extra) => self.delete(difference),
        }
    }

    fn insert(&self, difference: &Difference) -> Result<String, String> {
        let (row, from) = (self.row(difference)?, &self.recipe.0.from);
        let absent = format!("SELECT count(*) FROM {from} WHERE {}", key(difference));
        Ok(demand_count(&absent, 0) + &demand(&format!("{row} ON CONFLICT DO NOTHING"), 1))
    }

    fn update(&self, difference: &Difference) -> Result<Statement, String> {
        let source = difference.source_row.as_ref().ok_or(NO_VALUES)?;
        let changed = source.iter().filter(|(name, _)| {
            difference.columns.contains(name) && !self.recipe.0.generated.contains(name)
        });
        let changed: Vec<_> = changed.collect();
        if changed.is_empty() {
            return Err("it differs in generated columns alone".into());
        }
        let always = &self.recipe.0.always;
        if let Some((name, _)) = changed.iter().find(|(name, _)| always.contains(name)) {
            return Err(format!(
                "{} is an identity that is always generated, and no UPDATE sets it",
                visible::quoted(name)
            ));
        }
        let set = changed.iter();
        let set =
            set.map(|(name, value)| format!("{} = {}", quote::identifier(name), literal(value)));
        let text = demand(
            &format!(
                "UPDATE {} SET {} WHERE {} AND {}",
                self.recipe.0.from,
                set.collect::<Vec<_>>().join(", "),
                key(difference),
                self.seen(difference.target_digest)?
            ),
            1,
        );
        Ok(Statement {
            text,
            deletes: false,
            updates: changed.into_iter().map(|(name, _)| name.clone()).collect(),
        })
    }

    fn delete(&self, difference: &Difference) -> Result<Statement, String> {
        let text = demand(
            &format!(
                "DELETE FROM {} WHERE {} AND {}",
                self.recipe.0.from,
                key(difference),
                self.seen(difference.target_digest)?
            ),
            1,
        );
        Ok(Statement::deleting(text))
    }

    /// Equal rows of a table without a key: as many as were seen, then as many as there should be.
    fn multiset(&self, difference: &Difference) -> Result<Statement, String> {
        let (from, want) = (&self.recipe.0.from, difference.source_count);
        let have = difference.target_count;
        let digest = difference.target_digest.or(difference.source_digest);
        let seen = self.seen(digest)?;
        let counted = demand_count(&format!("SELECT count(*) FROM {from} WHERE {seen}"), have);
        if want < have {
            let surplus = have - want;
            let text = counted
                + &demand(
                    &format!(
                        "DELETE FROM {from} WHERE (tableoid, ctid) IN (SELECT tableoid, ctid FROM {from} \
                         WHERE {seen} LIMIT {surplus})"
                    ),
                    surplus,
                );
            return Ok(Statement::deleting(text));
        }
        let row = demand(&self.row(difference)?, 1);
        Ok(format!(
            "{counted}  FOR trellara_number IN 1..{} LOOP\n{row}  END LOOP;\n",
            want - have
        )
        .into())
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

    /// Which row it is: by its key, or by its digest where there is none.
    fn named(&self, difference: &Difference) -> String {
        if self.table.by_key {
            return visible_key(difference);
        }
        let digest = difference.target_digest.or(difference.source_digest);
        digest.map_or_else(String::new, |digest| {
            format!("row {:016x}", digest.cast_unsigned())
        })
    }

    fn seen(&self, digest: Option<i64>) -> Result<String, String> {
        let digest = digest.ok_or("a row's digest is not known")?;
        Ok(format!("{} = '{digest}'::bigint", self.recipe.1))
    }
}

/// A row's part of a batch, and what it does that could go on into other tables.
struct Statement {
    text: String,
    deletes: bool,
    /// Columns that it sets.
    updates: Vec<String>,
}

impl Statement {
    fn deleting(text: String) -> Self {
        Self {
            deletes: true,
            ..text.into()
        }
    }
}

impl From<String> for Statement {
    fn from(text: String) -> Self {
        Self {
            text,
            deletes: false,
            updates: Vec::new(),
        }
    }
}

/// Rows that no statement was written for, by the reason.
#[derive(Default)]
struct Left(BTreeMap<String, Vec<String>>);

impl Left {
    fn add(&mut self, row: String, reason: String) {
        self.0.entry(reason).or_default().push(row);
    }

    /// The file names each row; what is told counts them.
    fn tell(self, name: &str, repair: &mut Repair) {
        for (reason, rows) in self.0 {
            repair.refuse(format!("{name}: {} rows: {reason}", rows.len()));
            let rows = rows
                .iter()
                .map(|row| format!("--   {}\n", visible::inline(row)));
            repair.sql.extend(rows);
        }
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

fn visible_key(difference: &Difference) -> String {
    let part = |(name, value): &(String, Option<String>)| match value {
        Some(value) => format!("{}={}", visible::quoted(name), visible::quoted(value)),
        None => format!("{} is null", visible::quoted(name)),
    };
    difference
        .key
        .iter()
        .map(part)
        .collect::<Vec<_>>()
        .join(" ")
}

fn literal(value: &Option<String>) -> String {
    match value {
        Some(value) => quote::literal(value),
        None => "NULL".to_owned(),
    }
}

const MOVED_ON: &str = "the target is not what was compared: nothing of this batch was done; run \
                        trellara verify again";

const CARRIED_ON: &str = "a foreign key with ON DELETE or ON UPDATE refers to this table and would \
                          change other rows; take care of those first, or, as the applier does, \
                          SET session_replication_role = replica";

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
mod tests;
