//! A committed transaction as a value, and its one form on the wire.
//!
//! This crate holds the words that relay and applier share: positions ([`Lsn`]), identities
//! ([`TransactionIdentity`], [`RecordKey`]), and frames ([`Frame`]), the JetStream messages that
//! carry transactions. It is pure: no I/O, no clock, no randomness, no async runtime.
//!
//! The relay never interprets values, so a frame's payload is a run of [`records`]: pgoutput
//! messages exactly as PostgreSQL sent them, each behind a four-byte length.

mod aborted;
mod codec;
mod copy;
mod digest;
mod frame;
mod halt;
mod history;
mod ident;
mod lsn;
mod names;
pub mod records;
mod report;

pub use aborted::AbortedSet;
pub use codec::{DecodeError, FORMAT_VERSION, FRAME_PREFIX_BYTES, MAX_HEAD_BYTES};
pub use copy::{CopyBegin, CopyEvent, CopyFrame, CopyHeader, CopyOrder, CopyTable, CopyWanted};
pub use digest::{FrameDigest, RunningDigest, TransactionHash};
pub use frame::{
    Abort, AbortedRange, Body, BundleEntry, Chunk, Frame, FrameKind, Genesis, Header, Heartbeat,
    LaneLink, Manifest, Marker, PublicationMember, RelationCount,
};
pub use halt::{Halt, HaltCode};
pub use history::{ParseSourceIdError, SourceHistory, SourceId, SystemId, Timeline};
pub use ident::{
    CommitTime, FrameOrdinal, Incarnation, Lane, LaneEpoch, LedgerOrdinal, Oid, RecordKey,
    StreamSequence, TransactionIdentity, Xid,
};
pub use lsn::{Lsn, ParseLsnError};
pub use names::{FlowName, InvalidFlowName};
pub use report::PositionReport;
