//! What PostgreSQL has told about tables, so that it can be told again.
//!
//! The walsender describes a table once per connection; a frame or a chunked transaction must be
//! readable alone. So each description is kept and repeated where it is needed. The TYPE messages
//! that precede a RELATION message belong to it.

use std::collections::HashMap;
use std::sync::Arc;

use trellara_envelope::{FrameDigest, Oid, Xid, records};

/// One table as described: its TYPE messages and its RELATION message, without transaction id.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Description {
    messages: Vec<Vec<u8>>,
    /// Digest of the RELATION message behind its kind byte, as readers compute it.
    pub(super) fingerprint: FrameDigest,
}

/// The descriptions that hold for a connection.
#[derive(Debug, Default)]
pub(super) struct Descriptions {
    known: HashMap<Oid, Arc<Description>>,
    /// TYPE messages since the last RELATION message.
    types: Vec<Vec<u8>>,
}

impl Descriptions {
    /// Remembers a TYPE message until the RELATION message that it belongs to.
    pub(super) fn type_message(&mut self, message: &[u8], in_stream: bool) {
        self.types.push(without_xid(message, in_stream));
    }

    /// The description that a RELATION message completes.
    pub(super) fn complete(&mut self, message: &[u8], in_stream: bool) -> Arc<Description> {
        let relation = without_xid(message, in_stream);
        let fingerprint = FrameDigest::of(&relation[1..]);
        let mut messages = std::mem::take(&mut self.types);
        messages.push(relation);
        Arc::new(Description {
            messages,
            fingerprint,
        })
    }

    /// From here on this description holds.
    pub(super) fn insert(&mut self, relation: Oid, description: Arc<Description>) {
        self.known.insert(relation, description);
    }

    /// The description that holds.
    pub(super) fn get(&self, relation: Oid) -> Option<&Arc<Description>> {
        self.known.get(&relation)
    }
}

impl Description {
    /// What it takes as records, about.
    pub(super) fn bytes(&self) -> usize {
        let lengths = self.messages.iter().map(|message| message.len() + 8);
        lengths.sum()
    }

    /// Appends the messages as records, under a transaction id inside streamed transactions.
    pub(super) fn append(&self, records: &mut Vec<u8>, xid: Option<Xid>) {
        for message in &self.messages {
            match xid {
                None => records::push(records, message),
                Some(xid) => {
                    let mut with = Vec::with_capacity(message.len() + XID_BYTES);
                    with.push(message[0]);
                    with.extend_from_slice(&xid.0.to_be_bytes());
                    with.extend_from_slice(&message[1..]);
                    records::push(records, &with);
                }
            }
        }
    }
}

const XID_BYTES: usize = 4;

/// The message as it stands outside stream blocks. Called only with messages that were peeked at,
/// so kind byte and transaction id are there.
fn without_xid(message: &[u8], in_stream: bool) -> Vec<u8> {
    if !in_stream {
        return message.to_vec();
    }
    let mut out = Vec::with_capacity(message.len());
    out.push(message[0]);
    out.extend_from_slice(&message[1 + XID_BYTES..]);
    out
}
