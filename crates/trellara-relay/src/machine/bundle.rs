//! Small transactions, gathered whole.

use std::collections::BTreeMap;
use std::sync::Arc;

use trellara_envelope::{BundleEntry, Oid, Xid};

use super::descriptions::{Description, Descriptions};

/// A transaction between its Begin and its Commit message.
#[derive(Debug)]
pub(super) struct Current {
    pub(super) xid: Xid,
    pub(super) records: Vec<u8>,
    pub(super) changes: u32,
    /// Descriptions that its records rely on and do not hold, in order of first use.
    needs: Vec<(Oid, Arc<Description>)>,
    /// What its records, or `needs`, describe last.
    pub(super) described: BTreeMap<Oid, Arc<Description>>,
}

impl Current {
    pub(super) fn new(xid: Xid) -> Self {
        Self {
            xid,
            records: Vec::new(),
            changes: 0,
            needs: Vec::new(),
            described: BTreeMap::new(),
        }
    }

    /// Adds a description that came inside the transaction.
    pub(super) fn describe(&mut self, relation: Oid, description: Arc<Description>) {
        description.append(&mut self.records, None);
        self.described.insert(relation, description);
    }

    /// Makes sure that a table about to be changed is described; false when nobody ever did.
    pub(super) fn need(&mut self, relation: Oid, known: &Descriptions) -> bool {
        if self.described.contains_key(&relation) {
            return true;
        }
        let Some(description) = known.get(relation) else {
            return false;
        };
        self.needs.push((relation, description.clone()));
        self.described.insert(relation, description.clone());
        true
    }

    /// What it would add to a bundle at most.
    pub(super) fn bytes(&self) -> usize {
        let needs: usize = self.needs.iter().map(|(_, needed)| needed.bytes()).sum();
        self.records.len() + needs + ENTRY_BYTES
    }

    /// Everything as records that can be read alone.
    pub(super) fn into_records(self) -> (Vec<u8>, BTreeMap<Oid, Arc<Description>>) {
        let mut all = Vec::new();
        for (_, description) in &self.needs {
            description.append(&mut all, None);
        }
        all.extend_from_slice(&self.records);
        (all, self.described)
    }
}

/// Whole transactions on their way into one frame.
#[derive(Debug, Default)]
pub(super) struct Bundle {
    pub(super) entries: Vec<BundleEntry>,
    pub(super) payload: Vec<u8>,
    described: BTreeMap<Oid, Arc<Description>>,
}

/// What one entry may cost in the head of a frame; its fields are variable-length integers.
const ENTRY_BYTES: usize = 72;

impl Bundle {
    pub(super) fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// The size of the frame it would make, about.
    pub(super) fn bytes(&self) -> usize {
        self.payload.len() + self.entries.len() * ENTRY_BYTES
    }

    /// Adds a committed transaction; what it needs and the bundle lacks is described first.
    pub(super) fn add(&mut self, transaction: Current, mut entry: BundleEntry) {
        let before = self.payload.len();
        for (relation, description) in &transaction.needs {
            let there = self.described.get(relation);
            if !there.is_some_and(|there| Arc::ptr_eq(there, description)) {
                description.append(&mut self.payload, None);
            }
        }
        self.payload.extend_from_slice(&transaction.records);
        self.described.extend(transaction.described);
        let bytes = self.payload.len() - before;
        entry.bytes = u32::try_from(bytes).expect("a bundled transaction is below the chunk size");
        self.entries.push(entry);
    }
}
