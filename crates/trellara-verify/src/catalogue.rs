//! What the publication holds, and each of its tables compared by what both sides have of it.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::compare::{CompareOptions, Progress, over};
use crate::error::{Failure, Side, VerifyError};
use crate::held::Spent;
use crate::inventory::{self, Published, Relation};
use crate::mapping::{self, Pair};
use crate::pool::Lane;
use crate::reader::{Reader, TextRow};
use crate::report::{Coverage, Outcome, TableName, TableReport};
use crate::table::{Ground, Work};

/// What is there to be compared.
pub(crate) struct Catalogue {
    pub(crate) published: Vec<Published>,
    /// Published in the snapshot, and now no longer.
    pub(crate) gone: Vec<TableName>,
    pub(crate) source: BTreeMap<TableName, Relation>,
    pub(crate) target: BTreeMap<TableName, Relation>,
    pub(crate) not_covered: Vec<String>,
    /// Published, and nobody asked for it.
    pub(crate) left_out: Vec<TableName>,
    /// The publication, as the snapshot shows it.
    definition: TextRow,
}

impl Catalogue {
    pub(crate) async fn read(lane: &Lane, options: &CompareOptions) -> Result<Self, Failure> {
        let mut published = inventory::published(&lane.source, &options.publication).await?;
        let mut names: Vec<TableName> = published.iter().map(|p| p.table.clone()).collect();
        let implied = inventory::implied(&lane.source, &options.publication).await?;
        let mut gone = implied.clone();
        gone.retain(|table| !names.contains(table));
        names.extend(gone.iter().cloned());
        let not_covered =
            inventory::not_covered(&lane.source, &options.publication, &names).await?;
        let wanted = |table: &TableName| options.is_asked_for(table);
        let (names, left_out): (Vec<_>, Vec<_>) = names.into_iter().partition(wanted);
        published.retain(|p| wanted(&p.table));
        gone.retain(wanted);
        let mut source = inventory::relations(&lane.source, &names).await?;
        // What joined since then was there, and not published.
        source.retain(|table, _| implied.contains(table));
        let target = inventory::relations(&lane.target, &names).await?;
        Ok(Self {
            published,
            gone,
            source,
            target,
            not_covered,
            left_out,
            definition: inventory::definition(&lane.source, &options.publication).await?,
        })
    }

    /// Refuses when the publication is not the one that the snapshot shows.
    pub(crate) async fn check(
        &self,
        now: &Reader,
        options: &CompareOptions,
    ) -> Result<(), VerifyError> {
        let definition = inventory::definition(now, &options.publication).await;
        if definition.map_err(over)? == self.definition {
            return Ok(());
        }
        Err(VerifyError::unusable(
            Side::Source,
            "the publication was changed behind the position compared".into(),
            "run it again",
        ))
    }

    /// The tables that are published now, and were not when this was read.
    pub(crate) async fn joined(
        &self,
        now: &Reader,
        options: &CompareOptions,
    ) -> Result<Vec<TableName>, Failure> {
        let published = inventory::published(now, &options.publication).await?;
        let tables = published.into_iter().map(|published| published.table);
        let known = |table: &TableName| {
            self.gone.contains(table) || self.published.iter().any(|p| p.table == *table)
        };
        let joined = tables.filter(|table| options.is_asked_for(table) && !known(table));
        Ok(joined.collect())
    }

    pub(crate) fn estimates(&self) -> Vec<(TableName, u64)> {
        let estimate = |p: &Published| self.source.get(&p.table).map_or(0, |r| r.estimate);
        let tables = self.published.iter();
        let known = tables.map(|p| (p.table.clone(), estimate(p)));
        let gone = self.gone.iter().map(|table| (table.clone(), 0));
        known.chain(gone).collect()
    }

    /// What both sides have of a table.
    pub(crate) fn pair(&self, published: &Published, same_encoding: bool) -> Result<Pair, Failure> {
        let table = &published.table;
        let Some(source) = self.source.get(table) else {
            return Err(Failure::NotComparable {
                reason: "the table was made or published behind the position compared".into(),
                hint: "run it again".into(),
            });
        };
        mapping::pair(published, source, self.target.get(table), same_encoding)
    }

    /// Why a table cannot be compared, and what to do about it.
    pub(crate) fn reason(
        &self,
        table: &TableName,
        failure: Failure,
    ) -> Result<(String, String), VerifyError> {
        let (source, target) = (self.source.get(table), self.target.get(table));
        failure.about_table(|side| match side {
            Side::Source => source.is_some_and(|relation| relation.guarded),
            Side::Target => target.is_some_and(|relation| relation.guarded),
        })
    }

    /// A table that cannot be compared.
    pub(crate) fn refused(
        &self,
        table: &TableName,
        failure: Failure,
        took: Duration,
    ) -> Result<TableReport, VerifyError> {
        let (reason, hint) = self.reason(table, failure)?;
        Ok(not_comparable(table, reason, hint, took))
    }

    /// The publication's definition as one text.
    pub(crate) fn definition_text(&self) -> String {
        let cells = self.definition.iter().flatten();
        cells.cloned().collect::<Vec<_>>().join(" ")
    }

    pub(crate) async fn compare(
        &self,
        ground: &Ground<'_>,
        published: &Published,
        same_encoding: bool,
    ) -> Result<TableReport, VerifyError> {
        let started = Instant::now();
        let table = &published.table;
        (ground.progress)(Progress::Started {
            table: table.clone(),
        });
        let result = match self.pair(published, same_encoding) {
            Ok(pair) => Box::pin(Work::new(ground, &pair).run()).await,
            Err(failure) => Err(failure),
        };
        let mut report = match result {
            Ok(report) => report,
            Err(failure) => self.refused(table, failure, started.elapsed())?,
        };
        let mut spent = Spent::default();
        let explained = ground.held.explain(&ground.pool, &mut report, &mut spent);
        explained.await.map_err(crate::held::unreadable)?;
        let report = Arc::new(report);
        (ground.progress)(Progress::Finished {
            report: Arc::clone(&report),
        });
        // Copied only when the listener kept it.
        Ok(Arc::unwrap_or_clone(report))
    }
}

/// A table that left the publication by itself is neither equal nor outside of the comparison.
pub(crate) fn gone(table: &TableName) -> TableReport {
    let reason = "the table was dropped, renamed, moved, detached or made unlogged behind the \
                  position compared";
    let hint = "run it again; what is published then is compared";
    not_comparable(table, reason.into(), hint.into(), Duration::ZERO)
}

/// A table that nobody looked at.
pub(crate) fn joined(table: &TableName) -> TableReport {
    let reason = "the table was made or published while the others were compared";
    let hint = "run it again; what is published then is compared";
    not_comparable(table, reason.into(), hint.into(), Duration::ZERO)
}

/// What was counted before it failed says nothing about the table, so none of it is kept.
pub(crate) fn not_comparable(
    table: &TableName,
    reason: String,
    hint: String,
    took: Duration,
) -> TableReport {
    TableReport {
        table: table.clone(),
        method: None,
        by_key: false,
        outcome: Outcome::NotComparable { reason, hint },
        source_rows: 0,
        target_rows: 0,
        rows_compared: 0,
        source_sum: "0".into(),
        target_sum: "0".into(),
        missing: 0,
        extra: 0,
        changed: 0,
        duplicate: 0,
        differences: Vec::new(),
        explained: 0,
        coverage: Coverage::default(),
        verified_through: None,
        recipe: None,
        mapped: Vec::new(),
        took,
    }
}
