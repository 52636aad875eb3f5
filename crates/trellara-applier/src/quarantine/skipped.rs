//! Changes that a conflict rule let go by or wrote over, as the target keeps them.

use tokio_postgres::Client;
use tokio_postgres::types::{PgLsn, ToSql, Type};
use trellara_envelope::{FlowName, Lane, Lsn, TransactionIdentity};

use super::audit::{self, Action, Deed, Operator};
use super::{ConflictRule, keys};
use crate::execute::Skipped;
use crate::ledger::{LedgerError, lane as lane_number};
use crate::plan::{Parameter, TextArray};

/// Rows written by one statement.
const ROWS: usize = 4096;

/// What rules did to one transaction, written down while it is applied: a long one may have more
/// conflicts than fit into memory.
pub(crate) struct Recorder<'a> {
    pub(crate) flow: &'a FlowName,
    pub(crate) lane: Lane,
    pub(crate) identity: TransactionIdentity,
    pub(crate) end_lsn: Lsn,
    skipped: u64,
    overwritten: u64,
}

impl<'a> Recorder<'a> {
    /// For one transaction, nothing recorded.
    pub(crate) fn new(
        (flow, lane): (&'a FlowName, Lane),
        identity: TransactionIdentity,
        end_lsn: Lsn,
    ) -> Self {
        Self {
            flow,
            lane,
            identity,
            end_lsn,
            skipped: 0,
            overwritten: 0,
        }
    }

    /// Records what an executor gives.
    pub(crate) async fn take(
        &mut self,
        client: &Client,
        skipped: Vec<Skipped>,
    ) -> Result<(), LedgerError> {
        if skipped.is_empty() {
            return Ok(());
        }
        let overwritten = skipped.iter().filter(|s| s.rule == ConflictRule::Overwrite);
        let overwritten = overwritten.count() as u64;
        self.overwritten += overwritten;
        self.skipped += skipped.len() as u64 - overwritten;
        let (flow, lane) = (self.flow, self.lane);
        Box::pin(record(
            client,
            flow,
            lane,
            &self.identity,
            self.end_lsn,
            &skipped,
        ))
        .await
    }

    /// Records all of a transaction at once, with its row of the audit.
    pub(crate) async fn all(
        &mut self,
        client: &Client,
        skipped: Vec<Skipped>,
        host: &str,
        stands: Lsn,
    ) -> Result<u64, LedgerError> {
        self.take(client, skipped).await?;
        self.audit(client, host, stands).await
    }

    /// Writes one row of the audit, when there is something to say; returns how many changes were
    /// skipped or wrote over rows.
    pub(crate) async fn audit(
        &self,
        client: &Client,
        host: &str,
        stands: Lsn,
    ) -> Result<u64, LedgerError> {
        let changes = self.skipped + self.overwritten;
        if changes == 0 {
            return Ok(0);
        }
        let arguments = serde_json::json!({
            "transaction": self.identity.to_string(),
            "skipped": self.skipped,
            "overwritten": self.overwritten,
        });
        let deed = Deed {
            action: Action::Skipped,
            held: None,
            operator: &Operator::applier(host),
            arguments: &arguments.to_string(),
            reason: "",
            lsn: stands,
            digest: None,
        };
        Box::pin(audit::write(client, (self.flow, self.lane), deed)).await?;
        tracing::warn!(
            flow = %self.flow, transaction = %self.identity, skipped = self.skipped,
            overwritten = self.overwritten, "conflict rules acted; see trellara.skipped"
        );
        Ok(changes)
    }
}

/// Records what rules did to changes of one transaction, inside the target transaction that applies
/// it.
///
/// # Errors
/// When the server refuses.
pub async fn record(
    client: &Client,
    flow: &FlowName,
    lane: Lane,
    identity: &TransactionIdentity,
    end_lsn: Lsn,
    skipped: &[Skipped],
) -> Result<(), LedgerError> {
    let alike = |a: &Skipped, b: &Skipped| {
        let names = |s: &Skipped| {
            s.key
                .iter()
                .map(|(name, _)| name.clone())
                .collect::<Vec<_>>()
        };
        a.table == b.table && names(a) == names(b)
    };
    for alike in skipped.chunk_by(alike) {
        for rows in alike.chunks(ROWS) {
            write(client, flow, lane, identity, end_lsn, rows).await?;
        }
    }
    Ok(())
}

/// Writes rows of one table with the same key columns.
async fn write(
    client: &Client,
    flow: &FlowName,
    lane: Lane,
    identity: &TransactionIdentity,
    end_lsn: Lsn,
    rows: &[Skipped],
) -> Result<(), LedgerError> {
    let Some(first) = rows.first() else {
        return Ok(());
    };
    let columns: Vec<String> = first.key.iter().map(|(name, _)| name.clone()).collect();
    let mut values = vec![TextArray::default(); columns.len()];
    for row in rows {
        for (array, (_, value)) in values.iter_mut().zip(&row.key) {
            array.push(value.as_deref().map(str::as_bytes));
        }
    }
    let values: Vec<Parameter<'_>> = values.into_iter().map(Parameter::Rows).collect();
    let changes: Vec<i64> = rows.iter().map(|row| row.change.cast_signed()).collect();
    let verbs: Vec<&str> = rows.iter().map(|row| row.verb).collect();
    let conflicts: Vec<&str> = rows.iter().map(|row| row.conflict.as_str()).collect();
    let rules: Vec<&str> = rows.iter().map(|row| row.rule.as_str()).collect();
    let hash = identity.hash();
    let hash = &hash.0[..];
    let (flow, lane) = (flow.as_str(), lane_number(lane));
    let (commit, end) = (PgLsn::from(identity.commit_lsn.0), PgLsn::from(end_lsn.0));
    let xid = i64::from(identity.xid.0);
    let (schema, table) = (&first.table.schema, &first.table.name);
    let mut parameters: Vec<(&(dyn ToSql + Sync), Type)> = vec![
        (&flow, Type::TEXT),
        (&lane, Type::INT4),
        (&hash, Type::BYTEA),
        (&commit, Type::PG_LSN),
        (&end, Type::PG_LSN),
        (&xid, Type::INT8),
        (schema, Type::TEXT),
        (table, Type::TEXT),
        (&changes, Type::INT8_ARRAY),
        (&verbs, Type::TEXT_ARRAY),
        (&conflicts, Type::TEXT_ARRAY),
        (&rules, Type::TEXT_ARRAY),
    ];
    let own = parameters.len();
    parameters.extend(
        values
            .iter()
            .map(|array| (array as &(dyn ToSql + Sync), Type::TEXT_ARRAY)),
    );
    let keyed = keys::Keyed::new(&columns, own);
    let sql = format!(
        "INSERT INTO trellara.skipped (flow, lane, hash, commit_lsn, end_lsn, source_xid, \
           schema, \"table\", change, verb, conflict, rule, key) \
         SELECT $1, $2, $3, $4, $5, $6, $7, $8, u.change, u.verb, u.conflict, u.rule, {} \
           FROM unnest($9, $10, $11, $12{}) AS u(change, verb, conflict, rule{})",
        keyed.object.as_deref().unwrap_or("NULL"),
        keyed.parameters,
        keyed.names
    );
    client.query_typed(&sql, &parameters).await?;
    Ok(())
}
