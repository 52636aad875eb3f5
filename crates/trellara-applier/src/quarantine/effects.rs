//! What a transaction does, counted table by table.

use std::collections::BTreeMap;

use trellara_envelope::Oid;
use trellara_pgoutput::{Message, RelationMap};

/// Changes of one table.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Effect {
    /// Schema on the source.
    pub schema: String,
    /// Name on the source.
    pub table: String,
    /// Rows put in.
    pub inserted: u64,
    /// Rows changed.
    pub updated: u64,
    /// Rows taken out.
    pub deleted: u64,
    /// How often it was emptied.
    pub truncated: u64,
}

/// Counts changes as they are read.
#[derive(Debug, Default)]
pub(crate) struct Effects {
    tables: BTreeMap<Oid, Effect>,
}

impl Effects {
    pub(crate) fn count(&mut self, message: &Message<'_>, relations: &RelationMap) {
        match message {
            Message::Insert { relation, .. } => self.of(*relation, relations).inserted += 1,
            Message::Update { relation, .. } => self.of(*relation, relations).updated += 1,
            Message::Delete { relation, .. } => self.of(*relation, relations).deleted += 1,
            Message::Truncate {
                relations: oids, ..
            } => {
                for oid in *oids {
                    self.of(oid, relations).truncated += 1;
                }
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
            | Message::StreamAbort { .. } => {}
        }
    }

    fn of(&mut self, oid: Oid, relations: &RelationMap) -> &mut Effect {
        self.tables.entry(oid).or_insert_with(|| {
            let relation = relations.get(oid);
            Effect {
                schema: relation.map_or(String::new(), |one| one.namespace.clone()),
                table: relation.map_or(String::new(), |one| one.name.clone()),
                ..Effect::default()
            }
        })
    }

    /// By schema and name.
    pub(crate) fn finish(self) -> Vec<Effect> {
        let mut effects: Vec<Effect> = self.tables.into_values().collect();
        effects.sort_by(|a, b| (&a.schema, &a.table).cmp(&(&b.schema, &b.table)));
        effects
    }
}
