//! The protocol written down a second time, for the decoder to be compared with.

use trellara_envelope::Xid;
use trellara_pgoutput::{Message, OldTuple, ReplicaIdentity, TupleRef, Value};

/// A message as bytes, written from the protocol's chapter and not from the decoder.
pub(crate) fn encode(message: &Message<'_>) -> Vec<u8> {
    let mut out = Out(vec![message.kind() as u8]);
    match message {
        Message::Begin {
            final_lsn,
            commit_time,
            xid,
        } => {
            out.long(final_lsn.0)
                .long(commit_time.0.cast_unsigned())
                .int(xid.0);
        }
        Message::Commit {
            flags,
            commit_lsn,
            end_lsn,
            commit_time,
        } => {
            out.byte(*flags).long(commit_lsn.0).long(end_lsn.0);
            out.long(commit_time.0.cast_unsigned());
        }
        Message::Origin { commit_lsn, name } => {
            out.long(commit_lsn.0).text(name);
        }
        Message::Relation(body) => {
            out.xid(body.xid)
                .int(body.oid.0)
                .text(body.namespace)
                .text(body.name);
            out.byte(match body.replica_identity {
                ReplicaIdentity::Default => b'd',
                ReplicaIdentity::Nothing => b'n',
                ReplicaIdentity::Full => b'f',
                ReplicaIdentity::Index => b'i',
            });
            out.short(body.columns.len());
            for column in body.columns {
                out.byte(u8::from(column.key))
                    .text(column.name)
                    .int(column.type_oid.0);
                out.int(column.type_modifier.cast_unsigned());
            }
        }
        Message::Type(body) => {
            out.xid(body.xid)
                .int(body.oid.0)
                .text(body.namespace)
                .text(body.name);
        }
        Message::Insert { xid, relation, new } => {
            out.xid(*xid).int(relation.0).byte(b'N').tuple(*new);
        }
        Message::Update {
            xid,
            relation,
            old,
            new,
        } => {
            out.xid(*xid).int(relation.0);
            if let Some(old) = old {
                out.old(old);
            }
            out.byte(b'N').tuple(*new);
        }
        Message::Delete { xid, relation, old } => {
            out.xid(*xid).int(relation.0).old(old);
        }
        Message::Truncate {
            xid,
            relations,
            options,
        } => {
            out.xid(*xid).int(relations.len() as u32);
            out.byte(u8::from(options.cascade) | (u8::from(options.restart_identity) << 1));
            for relation in *relations {
                out.int(relation.0);
            }
        }
        Message::Logical(message) => {
            out.xid(message.xid)
                .byte(u8::from(message.transactional))
                .long(message.lsn.0);
            out.text(message.prefix).bytes(message.content);
        }
        Message::StreamStart { xid, first } => {
            out.int(xid.0).byte(u8::from(*first));
        }
        Message::StreamStop => {}
        Message::StreamCommit {
            xid,
            flags,
            commit_lsn,
            end_lsn,
            commit_time,
        } => {
            out.int(xid.0)
                .byte(*flags)
                .long(commit_lsn.0)
                .long(end_lsn.0);
            out.long(commit_time.0.cast_unsigned());
        }
        Message::StreamAbort { xid, subxid } => {
            out.int(xid.0).int(subxid.0);
        }
    }
    out.0
}

struct Out(Vec<u8>);

impl Out {
    fn byte(&mut self, value: u8) -> &mut Self {
        self.0.push(value);
        self
    }

    fn short(&mut self, value: usize) -> &mut Self {
        let value = u16::try_from(value).expect("a 16-bit count");
        self.0.extend_from_slice(&value.to_be_bytes());
        self
    }

    fn int(&mut self, value: u32) -> &mut Self {
        self.0.extend_from_slice(&value.to_be_bytes());
        self
    }

    fn long(&mut self, value: u64) -> &mut Self {
        self.0.extend_from_slice(&value.to_be_bytes());
        self
    }

    fn text(&mut self, value: &str) -> &mut Self {
        self.0.extend_from_slice(value.as_bytes());
        self.byte(0)
    }

    fn bytes(&mut self, value: &[u8]) -> &mut Self {
        self.int(value.len() as u32);
        self.0.extend_from_slice(value);
        self
    }

    fn xid(&mut self, xid: Option<Xid>) -> &mut Self {
        match xid {
            Some(xid) => self.int(xid.0),
            None => self,
        }
    }

    fn old(&mut self, old: &OldTuple<'_>) -> &mut Self {
        match old {
            OldTuple::Key(tuple) => self.byte(b'K').tuple(*tuple),
            OldTuple::Full(tuple) => self.byte(b'O').tuple(*tuple),
        }
    }

    fn tuple(&mut self, tuple: TupleRef<'_>) -> &mut Self {
        self.short(tuple.len());
        for value in tuple {
            match value {
                Value::Null => self.byte(b'n'),
                Value::Unchanged => self.byte(b'u'),
                Value::Text(text) => self.byte(b't').bytes(text),
                Value::Binary(binary) => self.byte(b'b').bytes(binary),
            };
        }
        self
    }
}
