//! Transactions that travel in chunks: those that PostgreSQL streams before they commit, and
//! committed ones too large for a bundle.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use trellara_envelope::{
    AbortedSet, Manifest, Oid, RelationCount, RunningDigest, StreamSequence, Xid,
};

use super::descriptions::{Description, Descriptions};
use super::subtransactions::Subtransactions;

/// A transaction of which chunks were, or will be, published.
#[derive(Debug)]
pub(super) struct Open {
    pub(super) xid: Xid,
    /// Whether its records carry (sub)transaction ids.
    pub(super) streamed: bool,
    /// The chunk being filled.
    pub(super) buffer: Vec<u8>,
    pub(super) running: RunningDigest,
    pub(super) chunks: u64,
    /// What its chunks take in the stream, about.
    pub(super) stored: u64,
    pub(super) first_sequence: Option<StreamSequence>,
    /// What was rolled back: what abort frames name, and the little that none names yet. Kept
    /// apart, so that learning of one rollback never moves the many.
    pub(super) aborted: AbortedSet,
    pub(super) unwritten: AbortedSet,
    /// Those with changes and without a rollback so far.
    pub(super) subtransactions: Subtransactions,
    pub(super) aborts: u64,
    pub(super) last_abort: Option<StreamSequence>,
    pub(super) changes: u64,
    counts: BTreeMap<Oid, u64>,
    /// Descriptions that came inside it, by the (sub)transaction they belong to (C19).
    own: HashMap<Oid, Vec<(Xid, Arc<Description>)>>,
    /// What its records describe last.
    pub(super) described: BTreeMap<Oid, Arc<Description>>,
}

impl Open {
    pub(super) fn new(xid: Xid, streamed: bool) -> Self {
        Self {
            xid,
            streamed,
            buffer: Vec::new(),
            running: RunningDigest::new(),
            chunks: 0,
            stored: 0,
            first_sequence: None,
            aborted: AbortedSet::new(),
            unwritten: AbortedSet::new(),
            subtransactions: Subtransactions::default(),
            aborts: 0,
            last_abort: None,
            changes: 0,
            counts: BTreeMap::new(),
            own: HashMap::new(),
            described: BTreeMap::new(),
        }
    }

    /// Whether nothing of it was, or must be, published.
    pub(super) fn is_empty(&self) -> bool {
        self.chunks == 0 && self.buffer.is_empty()
    }

    /// Memory that publishing would free: the chunk being filled, and what was rolled back
    /// since the last abort frame.
    pub(super) fn unfinished(&self) -> usize {
        self.buffer.len() + size_of_val(self.unwritten.ranges())
    }

    /// The id under which descriptions stand in its records: its own, so that the rollback of a
    /// subtransaction never takes a description away from a reader.
    pub(super) fn description_xid(&self) -> Option<Xid> {
        self.streamed.then_some(self.xid)
    }

    /// Remembers a description that came inside it.
    pub(super) fn describe(&mut self, xid: Xid, relation: Oid, description: Arc<Description>) {
        self.described.insert(relation, description.clone());
        self.own
            .entry(relation)
            .or_default()
            .push((xid, description));
    }

    /// The description to put in front of a change, when its records do not already end with it.
    /// The error says that nobody ever described the table.
    pub(super) fn missing(
        &mut self,
        relation: Oid,
        known: &Descriptions,
    ) -> Result<Option<Arc<Description>>, Oid> {
        let own = self.own.get(&relation).and_then(|own| own.last());
        let wanted = own
            .map(|(_, description)| description)
            .or_else(|| known.get(relation))
            .or_else(|| self.described.get(&relation))
            .ok_or(relation)?;
        let there = self.described.get(&relation);
        if there.is_some_and(|there| Arc::ptr_eq(there, wanted)) {
            return Ok(None);
        }
        let wanted = wanted.clone();
        self.described.insert(relation, wanted.clone());
        Ok(Some(wanted))
    }

    /// Counts a change.
    pub(super) fn count(&mut self, relations: impl Iterator<Item = Oid>) {
        self.changes += 1;
        for relation in relations {
            *self.counts.entry(relation).or_default() += 1;
        }
    }

    /// Memory that only its end frees: what abort frames name, and what may have to be asked about.
    pub(super) fn remembered(&self) -> usize {
        size_of_val(self.aborted.ranges()) + self.subtransactions.bytes()
    }

    /// Takes note of a change of its own or of a subtransaction.
    pub(super) fn changed_by(&mut self, xid: Option<Xid>) {
        if let Some(xid) = xid.filter(|xid| *xid != self.xid) {
            self.subtransactions.insert(xid);
        }
    }

    /// Takes note of a subtransaction's rollback.
    pub(super) fn abort(&mut self, subxid: Xid) {
        self.unwritten.insert(subxid);
        self.subtransactions.remove(subxid);
        self.own.retain(|_, own| {
            own.retain(|(xid, _)| *xid != subxid);
            !own.is_empty()
        });
    }

    /// Hands its descriptions to the connection, once it has committed (C19).
    pub(super) fn promote(&mut self, known: &mut Descriptions) {
        for (relation, mut own) in self.own.drain() {
            if let Some((_, description)) = own.pop() {
                known.insert(relation, description);
            }
        }
    }

    /// Changes by relation as the manifest carries them.
    pub(super) fn relation_counts(&self) -> Vec<RelationCount> {
        let counts = self.counts.iter().filter_map(|(relation, changes)| {
            let described = self.described.get(relation)?;
            Some(RelationCount {
                relation: *relation,
                fingerprint: described.fingerprint,
                changes: *changes,
            })
        });
        counts.take(Manifest::MAX_RELATIONS).collect()
    }
}
