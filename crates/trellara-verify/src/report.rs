//! What a run found, as values; how they are printed is the program's affair.

use std::fmt;
use std::time::{Duration, SystemTime};

use trellara_envelope::{Lsn, SystemId, Timeline};

use crate::compare::{CompareOptions, Comparison};
use crate::freeze::Pair;

pub use crate::definitions::{DefinitionDifference, Part};
pub use crate::sequences::{SequencePosition, SequenceReport, SequenceState};

/// A table by name.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TableName {
    /// Schema.
    pub schema: String,
    /// Table.
    pub name: String,
}

impl fmt::Display for TableName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.schema, self.name)
    }
}

/// How the databases were looked at.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mode {
    /// Both frozen at one source position.
    Exact,
    /// One range after the other as they are; what differs is compared again, frozen.
    Rolling,
    /// Rolling again and again.
    Watch,
    /// Both frozen, every table counted, a sample of the rows compared.
    Quick,
}

/// What a row is digested by.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum DigestLane {
    /// A 64-bit hash that the databases compute.
    #[default]
    Row64,
    /// BLAKE3 of the row's text, computed here.
    Blake3,
}

/// How much of a table was looked at, in pieces of its division.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Coverage {
    /// Pieces whose rows were compared.
    pub compared: u32,
    /// Pieces there are.
    pub of: u32,
}

impl Coverage {
    /// Every row was compared.
    pub fn is_whole(self) -> bool {
        self.compared == self.of
    }
}

/// How a table's rows were divided into pieces that are compared by digest.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Method {
    /// Half-open ranges of a key whose order is the same on both sides; how many.
    Range(u32),
    /// Buckets by a hash of the key, or of the whole row where there is no key; how many.
    Bucket(u32),
}

/// How a row differs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Kind {
    /// On the source alone.
    Missing,
    /// On the target alone.
    Extra,
    /// The same key, other values.
    Changed,
    /// Equal rows (or rows of one key), more of them on one side than on the other.
    Duplicate,
}

/// One row that differs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Difference {
    /// Columns of the key and their values as text; without a key every column of the row where
    /// values were asked for, and none where they were not: the digest names the row.
    /// These are data: whoever prints them was asked to.
    pub key: Vec<(String, Option<String>)>,
    /// How.
    pub kind: Kind,
    /// Which columns differ, for [`Kind::Changed`].
    pub columns: Vec<String>,
    /// How many such rows the source has.
    pub source_count: u64,
    /// How many the target has.
    pub target_count: u64,
    /// Digest of the source's row, of this run's seed; `None` when it has none.
    pub source_digest: Option<i64>,
    /// Digest of the target's row.
    pub target_digest: Option<i64>,
    /// Columns and values of the source's row, where values were asked for.
    pub source_row: Option<Vec<(String, Option<String>)>>,
    /// The same of the target's.
    pub target_row: Option<Vec<(String, Option<String>)>>,
    /// What explains it.
    pub explained_by: Option<Explanation>,
}

/// Why a row may differ.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Explanation {
    /// A transaction that the target holds in quarantine touches it: its number there.
    Held(String),
    /// A conflict rule of the flow let a change of it go by.
    ConflictRule,
}

impl fmt::Display for Explanation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Explanation::Held(id) => f.write_str(id),
            Explanation::ConflictRule => f.write_str("conflict rule"),
        }
    }
}

/// What became of a table.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Outcome {
    /// Every row was compared, and none differs.
    Equal,
    /// Some rows were compared, and none of those differs.
    NoneFound,
    /// Some rows differ, or their number does: then it need not be known which.
    Different,
    /// It could not be compared.
    NotComparable {
        /// Why.
        reason: String,
        /// What to do about it.
        hint: String,
    },
}

/// What it takes to write statements that touch exactly the rows that were compared.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Recipe {
    /// The target's table as UPDATE, DELETE and SELECT name it.
    pub from: String,
    /// As INSERT names it.
    pub into: String,
    /// The very expression over its columns that [`Difference::target_digest`] was computed by, under
    /// the comparison's session settings; `None` when digests were not computed by the database.
    pub digest: Option<String>,
    /// Its columns that nobody can write.
    pub generated: Vec<String>,
    /// Its identity columns that can be inserted, and not updated.
    pub always: Vec<String>,
    /// The database that it is in.
    pub database: String,
    /// What `trellara.state_version` calls that database; a copy of it has the same, another
    /// database of the cluster has not. `None` where there is none.
    pub target_id: Option<String>,
}

impl Outcome {
    /// In the words of every report.
    pub fn word(&self) -> &'static str {
        match self {
            Outcome::Equal => "equal",
            Outcome::NoneFound => "no difference found",
            Outcome::Different => "different",
            Outcome::NotComparable { .. } => "not comparable",
        }
    }
}

/// One table's result.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TableReport {
    /// The table, as the source calls it.
    pub table: TableName,
    /// How it was divided; `None` when it could not be compared.
    pub method: Option<Method>,
    /// Whether rows have a key; without one they are named by all their columns.
    pub by_key: bool,
    /// The result.
    pub outcome: Outcome,
    /// Rows counted on the source, of the whole table where they were counted as a whole.
    pub source_rows: u64,
    /// Rows counted on the target.
    pub target_rows: u64,
    /// Rows of the source whose contents were compared: fewer where a sample was.
    pub rows_compared: u64,
    /// Sum of the digests of the source's rows compared, a whole number of any size.
    pub source_sum: String,
    /// The same of the target's.
    pub target_sum: String,
    /// Rows of each kind.
    pub missing: u64,
    /// On the target alone.
    pub extra: u64,
    /// Same key, other values.
    pub changed: u64,
    /// Equal rows too many or too few.
    pub duplicate: u64,
    /// The first rows that differ, in key order where there is one; never more than asked for.
    pub differences: Vec<Difference>,
    /// How many of the differing rows quarantined transactions and conflict rules explain.
    pub explained: u64,
    /// How much of it was looked at.
    pub coverage: Coverage,
    /// The oldest source position that any of its rows was compared at.
    pub verified_through: Option<Lsn>,
    /// For repair, where it was asked for and something differs.
    pub recipe: Option<Recipe>,
    /// Columns compared in another form than the source's own, and why.
    pub mapped: Vec<String>,
    /// How long it took.
    pub took: Duration,
}

impl TableReport {
    /// Rows that differ.
    pub fn differing(&self) -> u64 {
        self.missing + self.extra + self.changed + self.duplicate
    }

    /// How many of them the list stands for.
    pub fn listed(&self) -> u64 {
        self.differences.iter().map(Difference::rows).sum()
    }

    /// Whether its rows were compared, so that its counts say something.
    pub fn is_compared(&self) -> bool {
        match self.outcome {
            Outcome::Equal | Outcome::NoneFound | Outcome::Different => true,
            Outcome::NotComparable { .. } => false,
        }
    }

    /// Which part of it was compared, between 0 and 1.
    pub fn covered(&self) -> f64 {
        match self.coverage {
            _ if !self.is_compared() => 0.0,
            Coverage { compared, of } if compared < of => f64::from(compared) / f64::from(of),
            Coverage { .. } => 1.0,
        }
    }
}

impl Difference {
    /// How many of the table's differing rows it stands for.
    pub fn rows(&self) -> u64 {
        match self.kind {
            Kind::Missing | Kind::Changed => self.source_count,
            Kind::Extra => self.target_count,
            Kind::Duplicate => self.source_count.abs_diff(self.target_count),
        }
    }
}

/// What was found beside the rows, which never changes what is said about them; or why it could not
/// be looked at.
pub type Beside<T> = Result<T, String>;

/// One of the two databases.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ServerReport {
    /// The cluster.
    pub system: SystemId,
    /// Its timeline.
    pub timeline: Timeline,
    /// Its version as the server prints it.
    pub version: String,
}

/// A whole run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Report {
    /// The run's own name.
    pub run: String,
    /// How the databases were looked at.
    pub mode: Mode,
    /// What rows were digested by.
    pub lane: DigestLane,
    /// When it began, by this machine's clock.
    pub started: SystemTime,
    /// Seed of the row digests, drawn for this run.
    pub seed: i64,
    /// The source position that both sides were compared at.
    pub consistent_point: Lsn,
    /// The source.
    pub source: ServerReport,
    /// The target.
    pub target: ServerReport,
    /// How long the applier was held.
    pub held: Duration,
    /// Each table of the publication.
    pub tables: Vec<TableReport>,
    /// Tables of the publication that nobody asked for.
    pub left_out: Vec<TableName>,
    /// What no mode looks at: large objects, unlogged tables, tables outside of the publication.
    pub not_covered: Vec<String>,
    /// The sequences that fill columns of published tables, in order of their names.
    pub sequences: Beside<Vec<SequenceReport>>,
    /// In what the definitions of published tables differ, in order of the tables' names.
    pub definitions: Beside<Vec<DefinitionDifference>>,
    /// Transactions in quarantine that the target is still to get.
    pub held_transactions: u64,
    /// How long it took.
    pub took: Duration,
}

/// The one word.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    /// Every table of the publication was compared whole, and is equal.
    Equal,
    /// At least one row differs.
    Different,
    /// What differs is what transactions in quarantine touch or conflict rules let go by; or nothing
    /// does, and some are held.
    Explained,
    /// Nothing differs in what was asked for, which was not everything.
    NoneFound,
    /// Nothing differs, but not everything could be compared.
    CouldNotCompare,
}

impl Verdict {
    /// In the words of every report.
    pub fn word(self) -> &'static str {
        match self {
            Verdict::Equal => "equal",
            Verdict::NoneFound => "no difference found",
            Verdict::Different => "different",
            Verdict::Explained => "explained",
            Verdict::CouldNotCompare => "not compared",
        }
    }
}

impl Report {
    /// The report of two databases that were frozen at one position, begun at `started` and done
    /// now.
    pub fn exact(
        pair: &Pair,
        options: &CompareOptions,
        mut compared: Comparison,
        started: SystemTime,
    ) -> Self {
        let done = compared.tables.iter_mut();
        let done = done.filter(|t| t.is_compared() && t.coverage.is_whole());
        done.for_each(|table| {
            table.verified_through.get_or_insert(pair.consistent_point);
        });
        Self {
            run: options.run.clone(),
            mode: Mode::Exact,
            lane: options.lane,
            started,
            seed: options.seed,
            consistent_point: pair.consistent_point,
            source: pair.source_server.clone(),
            target: pair.target_server.clone(),
            held: pair.held,
            tables: compared.tables,
            left_out: compared.left_out,
            not_covered: compared.not_covered,
            sequences: compared.sequences,
            definitions: compared.definitions,
            held_transactions: compared.held_transactions,
            took: started.elapsed().unwrap_or_default(),
        }
    }

    /// Which part of what is published was compared, between 0 and 1: the mean of the tables'.
    pub fn coverage(&self) -> f64 {
        let covered: f64 = self.tables.iter().map(TableReport::covered).sum();
        match self.tables.len() {
            0 => 0.0,
            tables => covered / tables as f64,
        }
    }

    /// The verdict. Nothing compared is not "equal".
    pub fn verdict(&self) -> Verdict {
        let is = |wanted: fn(&Outcome) -> bool| self.tables.iter().any(|t| wanted(&t.outcome));
        // A number of rows that differs without their names is explained by nothing.
        let unexplained = |t: &TableReport| t.explained < t.differing() || t.differing() == 0;
        let different = |t: &&TableReport| t.outcome == Outcome::Different;
        if self.tables.iter().filter(different).any(unexplained) {
            Verdict::Different
        } else if self.tables.is_empty() || is(|o| matches!(o, Outcome::NotComparable { .. })) {
            Verdict::CouldNotCompare
        } else if !self.left_out.is_empty() || is(|o| matches!(o, Outcome::NoneFound)) {
            Verdict::NoneFound
        } else if self.held_transactions > 0 || is(|o| matches!(o, Outcome::Different)) {
            Verdict::Explained
        } else {
            Verdict::Equal
        }
    }
}
