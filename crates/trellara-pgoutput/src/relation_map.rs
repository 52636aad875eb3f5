//! What a reader of records has been told about tables and types so far.

use std::collections::BTreeMap;
use std::sync::Arc;

use trellara_envelope::Oid;
use trellara_envelope::records::Records;

use crate::relation::schema_name;
use crate::{Error, Kind, Message, Relation, decode};

/// Tables and types by oid, each as last described. A later description replaces an earlier one
/// from there on, as in a transaction that alters a table between two changes.
#[derive(Debug, Clone, Default)]
pub struct RelationMap {
    relations: BTreeMap<Oid, Arc<Relation>>,
    types: BTreeMap<Oid, TypeName>,
}

/// The name of a type that is not built in. Of a domain PostgreSQL sends the oid with the name of
/// its base type.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TypeName {
    /// Its schema; never empty.
    pub namespace: String,
    /// Its name.
    pub name: String,
}

impl RelationMap {
    /// Nothing described yet.
    pub fn new() -> Self {
        Self::default()
    }

    /// Remembers a RELATION or TYPE message; others change nothing.
    pub fn observe(&mut self, message: &Message<'_>) {
        match message {
            Message::Relation(body) => {
                let known = self.relations.get(&body.oid);
                if known.is_none_or(|relation| relation.fingerprint() != body.fingerprint()) {
                    self.relations.insert(body.oid, Arc::new(body.into()));
                }
            }
            Message::Type(body) => {
                let name = TypeName {
                    namespace: schema_name(body.namespace),
                    name: body.name.to_owned(),
                };
                self.types.insert(body.oid, name);
            }
            _ => {}
        }
    }

    /// Remembers what whole records outside stream blocks describe, and reads nothing else of
    /// them: for a reader that begins in the middle of a bundle, whose earlier transactions may
    /// hold the descriptions that later ones rely on.
    pub fn observe_records(&mut self, records: &[u8]) -> Result<(), Error> {
        for record in Records::new(records) {
            let record = record.map_err(|_| Error::TruncatedRecord)?;
            let kind = Kind::of(record.first().copied().unwrap_or_default())?;
            if matches!(kind, Kind::Relation | Kind::Type) {
                self.observe(&decode(record, false)?);
            }
        }
        Ok(())
    }

    /// A table as last described.
    pub fn get(&self, relation: Oid) -> Option<&Arc<Relation>> {
        self.relations.get(&relation)
    }

    /// The name of a type, if it is not built in and was described.
    pub fn type_name(&self, type_oid: Oid) -> Option<&TypeName> {
        self.types.get(&type_oid)
    }

    /// All tables, by oid.
    pub fn iter(&self) -> impl Iterator<Item = &Arc<Relation>> {
        self.relations.values()
    }

    /// Number of tables described.
    pub fn len(&self) -> usize {
        self.relations.len()
    }

    /// Whether no table was described.
    pub fn is_empty(&self) -> bool {
        self.relations.is_empty()
    }
}
