//! One transaction's changes, sifted: what a copy has already is left out.

use std::collections::HashMap;
use std::sync::Arc;

use trellara_envelope::{CopyTable, Oid, TransactionIdentity};
use trellara_pgoutput::{ChangeReader, Message, Relation, RelationMap};

use super::rule::{Bearing, Copies};

/// Judges the changes of one transaction by the tables that they name.
#[derive(Debug)]
pub(crate) struct Sieve {
    copies: Arc<Copies>,
    transaction: TransactionIdentity,
    /// By relation; one that is described anew may have another name.
    known: HashMap<Oid, (Arc<Relation>, Bearing)>,
}

/// The copy of this table has to be in before anything of the transaction may be applied.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Waits(pub(crate) CopyTable);

impl Sieve {
    /// For a transaction; `None` where no copy has anything to say about it.
    pub(crate) fn of(copies: &Arc<Copies>, transaction: &TransactionIdentity) -> Option<Self> {
        copies.concerns(transaction.commit_lsn).then(|| Self {
            copies: Arc::clone(copies),
            transaction: *transaction,
            known: HashMap::new(),
        })
    }

    /// Whether a change of this relation is to be applied. One that was not described is somebody
    /// else's to refuse.
    pub(crate) fn keeps(&mut self, oid: Oid, relations: &RelationMap) -> Result<bool, Waits> {
        let Some(relation) = relations.get(oid) else {
            return Ok(true);
        };
        let bearing = match self.known.get(&oid) {
            Some((of, bearing)) if Arc::ptr_eq(of, relation) => *bearing,
            Some(_) | None => {
                let bearing = self.copies.bearing(&table(relation), &self.transaction);
                self.known.insert(oid, (Arc::clone(relation), bearing));
                bearing
            }
        };
        match bearing {
            Bearing::Apply => Ok(true),
            Bearing::LeaveOut => Ok(false),
            Bearing::Wait => Err(Waits(table(relation))),
        }
    }

    /// Whether anything of a message is to be applied. Of a TRUNCATE of several tables some may
    /// have to be left out all the same.
    pub(crate) fn keeps_any(
        &mut self,
        message: &Message<'_>,
        relations: &RelationMap,
    ) -> Result<bool, Waits> {
        match message {
            Message::Insert { relation, .. }
            | Message::Update { relation, .. }
            | Message::Delete { relation, .. } => self.keeps(*relation, relations),
            Message::Truncate {
                relations: oids, ..
            } => {
                let mut any = false;
                // To the end: one behind it may have to be waited for.
                for oid in *oids {
                    any |= self.keeps(oid, relations)?;
                }
                Ok(any)
            }
            Message::Begin { .. }
            | Message::Commit { .. }
            | Message::Origin { .. }
            | Message::Relation(_)
            | Message::Type(_)
            | Message::Logical(_)
            | Message::StreamStart { .. }
            | Message::StreamStop
            | Message::StreamCommit { .. }
            | Message::StreamAbort { .. } => Ok(true),
        }
    }

    /// Whether everything that was fed to `reader` may be applied now; otherwise what it waits for.
    ///
    /// # Errors
    /// Damaged records.
    pub(crate) fn waits_for(
        &mut self,
        reader: &mut ChangeReader<'_>,
    ) -> Result<Option<CopyTable>, trellara_pgoutput::Error> {
        while let Some(change) = reader.next_change()? {
            if let Err(Waits(table)) = self.keeps_any(&change.message, change.relations) {
                return Ok(Some(table));
            }
        }
        Ok(None)
    }
}

fn table(relation: &Relation) -> CopyTable {
    CopyTable {
        schema: relation.namespace.clone(),
        name: relation.name.clone(),
    }
}
