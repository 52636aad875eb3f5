//! Descriptions of tables.

use trellara_envelope::{FrameDigest, Oid, Xid};

use crate::cursor::Cursor;
use crate::{Error, Kind};

/// What a table sends of the old row.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ReplicaIdentity {
    /// The primary key, if there is one.
    Default,
    /// Nothing: updates and deletes cannot be captured.
    Nothing,
    /// The whole row.
    Full,
    /// The columns of a chosen unique index.
    Index,
}

/// A RELATION message, borrowed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RelationBody<'a> {
    /// The (sub)transaction, inside a stream block.
    pub xid: Option<Xid>,
    /// The table on the source; with `publish_via_partition_root`, the root.
    pub oid: Oid,
    /// Its schema; empty for `pg_catalog`.
    pub namespace: &'a str,
    /// Its name.
    pub name: &'a str,
    /// What it sends of the old row.
    pub replica_identity: ReplicaIdentity,
    /// Its published columns.
    pub columns: Columns<'a>,
    body: &'a [u8],
}

impl<'a> RelationBody<'a> {
    pub(crate) fn decode(cursor: &mut Cursor<'a>, xid: Option<Xid>) -> Result<Self, Error> {
        let start = *cursor;
        let oid = cursor.oid("relation oid")?;
        let namespace = cursor.text("relation schema")?;
        let name = cursor.text("relation name")?;
        let replica_identity = match cursor.u8("replica identity")? {
            b'd' => ReplicaIdentity::Default,
            b'n' => ReplicaIdentity::Nothing,
            b'f' => ReplicaIdentity::Full,
            b'i' => ReplicaIdentity::Index,
            other => {
                return Err(Error::Undefined {
                    what: "replica identity",
                    value: u32::from(other),
                });
            }
        };
        let columns = Columns::decode(cursor)?;
        Ok(RelationBody {
            xid,
            oid,
            namespace,
            name,
            replica_identity,
            columns,
            body: cursor.since(start),
        })
    }

    /// Digest of the message behind its kind byte and transaction id, so that one description has
    /// one fingerprint whether it was streamed or not.
    pub fn fingerprint(&self) -> FrameDigest {
        FrameDigest::of(self.body)
    }

    /// The message again, as it stands inside (`Some`) or outside a stream block. The relay
    /// repeats descriptions under the top-level transaction id wherever a frame needs them.
    pub fn encode(&self, xid: Option<Xid>) -> Vec<u8> {
        let mut out = Vec::with_capacity(5 + self.body.len());
        out.push(Kind::Relation as u8);
        if let Some(xid) = xid {
            out.extend_from_slice(&xid.0.to_be_bytes());
        }
        out.extend_from_slice(self.body);
        out
    }
}

/// The columns of a RELATION message, borrowed; an iterator over them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Columns<'a> {
    left: u16,
    body: &'a [u8],
}

impl<'a> Columns<'a> {
    fn decode(cursor: &mut Cursor<'a>) -> Result<Self, Error> {
        let left = cursor.u16("number of columns")?;
        let start = *cursor;
        for _ in 0..left {
            column(cursor)?;
        }
        Ok(Columns {
            left,
            body: cursor.since(start),
        })
    }
}

impl<'a> Iterator for Columns<'a> {
    type Item = ColumnRef<'a>;

    fn next(&mut self) -> Option<ColumnRef<'a>> {
        self.left = self.left.checked_sub(1)?;
        let mut cursor = Cursor::new(self.body);
        // Checked by `Columns::decode`; an error here cannot happen.
        let column = column(&mut cursor).ok()?;
        self.body = cursor.rest();
        Some(column)
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        (usize::from(self.left), Some(usize::from(self.left)))
    }
}

impl ExactSizeIterator for Columns<'_> {}

/// A column, borrowed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ColumnRef<'a> {
    /// Whether it belongs to the replica identity (with FULL: every column does).
    pub key: bool,
    /// Its name.
    pub name: &'a str,
    /// Its type on the source.
    pub type_oid: Oid,
    /// `atttypmod`; -1 for none.
    pub type_modifier: i32,
}

fn column<'a>(cursor: &mut Cursor<'a>) -> Result<ColumnRef<'a>, Error> {
    Ok(ColumnRef {
        key: crate::decode::boolean(cursor, "column flags")?,
        name: cursor.text("column name")?,
        type_oid: cursor.oid("column type")?,
        type_modifier: cursor.i32("column type modifier")?,
    })
}

/// A table as the source described it, owned.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Relation {
    /// The table on the source; with `publish_via_partition_root`, the root.
    pub oid: Oid,
    /// Its schema; never empty.
    pub namespace: String,
    /// Its name.
    pub name: String,
    /// What it sends of the old row.
    pub replica_identity: ReplicaIdentity,
    /// Its published columns, in the order of every tuple.
    pub columns: Vec<Column>,
    fingerprint: FrameDigest,
}

/// A column, owned.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Column {
    /// Its name.
    pub name: String,
    /// Whether it belongs to the replica identity (with FULL: every column does).
    pub key: bool,
    /// Its type on the source.
    pub type_oid: Oid,
    /// `atttypmod`; -1 for none.
    pub type_modifier: i32,
}

impl Relation {
    /// Digest of the description, transaction id left out: two tables that were described by the
    /// same bytes have the same.
    pub fn fingerprint(&self) -> FrameDigest {
        self.fingerprint
    }
}

/// pgoutput leaves out the name of the system schema.
pub(crate) fn schema_name(namespace: &str) -> String {
    let name = if namespace.is_empty() {
        "pg_catalog"
    } else {
        namespace
    };
    name.to_owned()
}

impl From<&RelationBody<'_>> for Relation {
    fn from(body: &RelationBody<'_>) -> Self {
        Relation {
            oid: body.oid,
            namespace: schema_name(body.namespace),
            name: body.name.to_owned(),
            replica_identity: body.replica_identity,
            columns: body.columns.map(Column::from).collect(),
            fingerprint: body.fingerprint(),
        }
    }
}

impl From<ColumnRef<'_>> for Column {
    fn from(column: ColumnRef<'_>) -> Self {
        Column {
            name: column.name.to_owned(),
            key: column.key,
            type_oid: column.type_oid,
            type_modifier: column.type_modifier,
        }
    }
}
