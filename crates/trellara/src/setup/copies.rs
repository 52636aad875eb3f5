//! Which tables the flow's first copy has to bring: decided for each by what both sides hold.

use std::collections::BTreeSet;
use std::time::Duration;

use trellara_applier::backfill::{self, CopyState, TableCopy};
use trellara_envelope::{CopyTable, Lsn, SourceId};
use trellara_postgres::settle::{SettleError, Snapshot};
use trellara_postgres::{ReplicationConnection, Session, SnapshotAction};
use trellara_source::publication::{self, Member, TableName};
use trellara_source::settled;

use super::Step;
use super::act::Work;
use crate::config::{Config, Existing};
use crate::exit::{Exit, Failure};
use crate::link;

/// Commits are a few milliseconds from their log record to the end of their transaction; one that
/// waits for a standby is not, and somebody should know which.
const SETTLE_PATIENCE: Duration = Duration::from_secs(30);

/// What is to become of one table.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Plan {
    /// Its rows are copied, and what the target holds of it is deleted before.
    Copy,
    /// There is nothing to copy.
    Nothing,
    /// What the target holds is taken for the source's.
    Keep,
    /// The target holds rows, and nobody said what becomes of them.
    Refuse,
}

/// Pure.
fn plan(source_empty: bool, target_rows: bool, existing: Existing) -> Plan {
    match (target_rows, existing) {
        (true, Existing::Refuse) => Plan::Refuse,
        (true, Existing::Keep) => Plan::Keep,
        // Deleting is the loader's.
        (true, Existing::Truncate) => Plan::Copy,
        (false, Existing::Refuse | Existing::Keep | Existing::Truncate) if source_empty => {
            Plan::Nothing
        }
        (false, Existing::Refuse | Existing::Keep | Existing::Truncate) => Plan::Copy,
    }
}

/// A table's row; the flow begins at `point`.
fn row(
    member: &Member,
    plan: Plan,
    (source, sight): (SourceId, (&Snapshot, Lsn)),
    point: Lsn,
) -> TableCopy {
    let table = CopyTable {
        schema: member.table.schema.clone(),
        name: member.table.name.clone(),
    };
    let row = TableCopy {
        relation: Some(member.ids.relation.0),
        ..TableCopy::wanted(table, true)
    };
    match plan {
        Plan::Copy | Plan::Refuse => row,
        Plan::Keep => row.in_state(CopyState::Kept),
        Plan::Nothing => {
            let (snapshot, converges_at) = sight;
            // Nothing that the snapshot saw is behind the point where the flow begins.
            let state = match converges_at <= point {
                true => CopyState::Done,
                false => CopyState::Loaded,
            };
            TableCopy {
                source: Some(source),
                snapshot: Some(snapshot.clone()),
                converges_at: Some(converges_at),
                ..row.in_state(state)
            }
        }
    }
}

impl Work<'_> {
    /// Writes down what the first copy has to bring.
    pub(super) async fn record_copies(&mut self) -> Result<Step, Failure> {
        let point = self.point()?;
        let name = &self.config.source.publication;
        let facts = publication::describe(&self.sessions.source, name).await?;
        let members = facts.map(|facts| facts.members).unwrap_or_default();
        let tables: Vec<TableName> = members.iter().map(|member| member.table.clone()).collect();
        let sight = settled::sight(&self.sessions.source, &tables)
            .await
            .map_err(|error| unsettled(&error).doing("cannot look at the source's tables"))?;
        let mut occupied = BTreeSet::new();
        for table in &tables {
            if target_has_rows(&self.sessions.target, table).await? {
                occupied.insert(table.clone());
            }
        }
        let existing = self.config.backfill.existing;
        let mut rows = Vec::new();
        let mut refused = Vec::new();
        for member in &members {
            let table = &member.table;
            let (empty, target) = (sight.empty.contains(table), occupied.contains(table));
            let plan = plan(empty, target, existing);
            if plan == Plan::Refuse {
                refused.push(table.to_string());
            }
            let seen = (sight.source, (&sight.snapshot, sight.converges_at));
            rows.push(row(member, plan, seen, point));
        }
        let client = &mut self.sessions.target.client;
        if !refused.is_empty() && !backfill::has_begun(client, &self.config.flow).await? {
            return Err(occupied_failure(&refused));
        }
        backfill::record_initial(client, &self.config.flow, &rows).await?;
        let count = |state| rows.iter().filter(|row| row.state == state).count();
        let (wanted, kept) = (count(CopyState::Wanted), count(CopyState::Kept));
        Ok(Step {
            id: "copies",
            what: format!(
                "of {} tables {wanted} will be copied, {kept} are taken as they are",
                rows.len()
            ),
        })
    }
}

fn occupied_failure(tables: &[String]) -> Failure {
    Failure::new(
        Exit::Unfit,
        format!("the target holds rows of: {}", tables.join(", ")),
        "backfill.existing: truncate deletes them before the copy",
    )
    .hint("backfill.existing: keep takes them for those of the source")
}

/// Whether the target's table holds rows; one that is not there holds none.
async fn target_has_rows(target: &Session, table: &TableName) -> Result<bool, Failure> {
    let there = "SELECT to_regclass($1) IS NOT NULL";
    let name = table.to_string();
    let there: bool = target.client.query_one(there, &[&name]).await?.get(0);
    if !there {
        return Ok(false);
    }
    let rows = settled::has_rows(target, table).await;
    rows.map_err(|error| {
        Failure::from(error).doing(format!(
            "cannot see whether the target's {table} holds rows"
        ))
    })
}

/// Waits for whoever committed in front of the slot whose creation exported `snapshot`.
pub(super) async fn settle(source: &Session, snapshot: &str) -> Result<(), Failure> {
    settled::settle_behind(source, snapshot, SETTLE_PATIENCE)
        .await
        .map_err(|error| unsettled(&error))
}

/// The same for a slot that is there: one that lives for a moment stands behind it.
pub(super) async fn settle_again(config: &Config, source: &Session) -> Result<(), Failure> {
    let options = link::source_options(config);
    let mut connection = ReplicationConnection::connect(&options.connect)
        .await
        .map_err(Failure::from)?;
    let name = format!("trellara_setup_{}", std::process::id());
    let created = connection.create_logical_slot(&name, true, SnapshotAction::Export, false);
    let created = match tokio::time::timeout(super::act::SLOT_PATIENCE, created).await {
        Ok(Ok(created)) => created,
        Ok(Err(error)) => {
            let failure = Failure::from_error(Exit::Unexpected, &error);
            return Err(failure.doing("cannot create a temporary slot"));
        }
        Err(_) => return Err(super::act::blocked_slot(config, source).await),
    };
    settle(source, &created.snapshot.unwrap_or_default()).await
}

fn unsettled(error: &SettleError) -> Failure {
    let exit = match error {
        SettleError::TimedOut { .. } => Exit::TimedOut,
        SettleError::Server(_) | SettleError::Malformed(_) => Exit::Unexpected,
    };
    let failure = Failure::from_error(exit, error);
    match error {
        SettleError::TimedOut { .. } => failure.hint(
            "a commit that waits for a standby does not end: see synchronous_standby_names and \
             pg_stat_activity",
        ),
        SettleError::Server(_) | SettleError::Malformed(_) => failure,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_becomes_of_a_table() {
        use Existing::{Keep, Refuse, Truncate};
        for existing in [Refuse, Truncate, Keep] {
            assert_eq!(plan(true, false, existing), Plan::Nothing);
            assert_eq!(plan(false, false, existing), Plan::Copy);
        }
        for source_empty in [true, false] {
            assert_eq!(plan(source_empty, true, Refuse), Plan::Refuse);
            assert_eq!(plan(source_empty, true, Truncate), Plan::Copy);
            assert_eq!(plan(source_empty, true, Keep), Plan::Keep);
        }
    }

    #[test]
    fn an_empty_table_is_done_where_the_flow_begins_behind_what_was_seen() {
        let member = Member {
            table: TableName {
                schema: "public".to_owned(),
                name: "t".to_owned(),
            },
            ids: trellara_envelope::PublicationMember {
                member: trellara_envelope::Oid(1),
                relation: trellara_envelope::Oid(2),
                definition: trellara_envelope::FrameDigest::default(),
            },
        };
        let snapshot: Snapshot = "5:5:".parse().expect("a snapshot");
        let source = "7412345678901234567.1".parse().expect("a source");
        let seen = |at| (source, (&snapshot, Lsn(at)));
        let state = |plan, at| row(&member, plan, seen(at), Lsn(0x100)).state;
        assert_eq!(state(Plan::Nothing, 0x100), CopyState::Done);
        assert_eq!(state(Plan::Nothing, 0x101), CopyState::Loaded);
        assert_eq!(state(Plan::Copy, 0x100), CopyState::Wanted);
        assert_eq!(state(Plan::Keep, 0x100), CopyState::Kept);
    }
}
