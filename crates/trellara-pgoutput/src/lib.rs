//! pgoutput bytes in, messages out.
//!
//! The decoder knows protocol versions 1 and 2 of PostgreSQL's logical replication (15 to 18 send
//! the same bytes), borrows everything from its input and allocates nothing for tuples. Three
//! readers use it: the relay [`peek`]s at each message and never looks at values; the applier and
//! `inspect` read a transaction's records through a [`ChangeReader`].
//!
//! It is pure: no I/O, no clock, no async runtime. Only the private `cursor` module takes a message
//! apart, and it checks every length before it uses it. Errors carry kinds, counts and object ids,
//! never values.

mod cursor;
mod decode;
mod error;
mod kind;
mod message;
mod peek;
mod reader;
mod relation;
mod relation_map;
mod tuple;
mod walsender;

pub use decode::decode;
pub use error::Error;
pub use kind::Kind;
pub use message::{LogicalMessage, Message, OldTuple, TruncateOptions, TypeBody};
pub use peek::{Oids, Peek, peek};
pub use reader::{ChangeReader, MAX_RECORD_BYTES, ReadChange};
pub use relation::{Column, ColumnRef, Columns, Relation, RelationBody, ReplicaIdentity};
pub use relation_map::{RelationMap, TypeName};
pub use tuple::{TupleRef, Value, Values};
pub use walsender::{STATUS_UPDATE_BYTES, Walsender, status_update, walsender};
