//! The words of the machine: what it is told and what it says.

use std::time::Duration;

use bytes::Bytes;
use trellara_envelope::{
    AbortedRange, AbortedSet, CopyOrder, FlowName, FrameDigest, FrameOrdinal, Halt, Incarnation,
    Lsn, Marker, PositionReport, SourceHistory, StreamSequence, Xid,
};
use trellara_jetstream::publish::Outcome;
use trellara_source::stream::Feedback;

use super::resent::LastTransaction;
use super::space::StreamSpace;
use crate::Acknowledge;

/// The last frame of a stream, as far as the chain needs it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Tail {
    /// Where it is stored.
    pub sequence: StreamSequence,
    /// Its number.
    pub ordinal: FrameOrdinal,
    /// Its digest.
    pub digest: FrameDigest,
    /// End LSN of everything complete up to and including it.
    pub position: Lsn,
    /// Its writer.
    pub incarnation: Incarnation,
}

/// The answer to [`Command::ReadTail`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum TailAnswer {
    /// The last frame.
    Frame(Tail),
    /// The last frame, and where it stands: what stood behind it, up to the tail's sequence, was
    /// removed.
    Before(Tail, StreamSequence),
    /// There is no stream, or no message in it.
    Gone,
    /// The last message is not a frame of ours; why.
    Foreign(String),
    /// No answer; why.
    Failed(String),
}

/// The answer to [`Command::ReadFooting`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum FootingAnswer {
    /// The digest of the frame there.
    Frame(FrameDigest),
    /// There is none.
    Missing,
    /// No answer; why.
    Failed(String),
}

/// What the source answered to [`Command::ProbeSource`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ProbeAnswer {
    /// It takes no new connections because it shuts down (57P03).
    ShuttingDown,
    /// Anything else.
    Other,
}

/// What happened.
#[derive(Debug, Clone)]
pub enum Event<'a> {
    /// The payload of one CopyData message.
    CopyData(&'a [u8]),
    /// The last message of a gulp was handed in.
    GulpEnd,
    /// A publish was answered.
    Published {
        /// The frame.
        ordinal: FrameOrdinal,
        /// Which of its attempts.
        attempt: u32,
        /// The answer.
        outcome: Outcome,
    },
    /// The stream's tail was read.
    Tail(TailAnswer),
    /// The frame that the marker names was read again.
    Footing(FootingAnswer),
    /// A position report came.
    Report(PositionReport),
    /// The target said what of its copy is missing.
    CopyOrder(CopyOrder),
    /// A report's frame was read from the stream; whether it is that frame.
    ReportChecked(PositionReport, bool),
    /// The stream's facts were read.
    Stream {
        /// Sizes.
        space: StreamSpace,
        /// The registered target.
        target: Option<String>,
        /// [`MachineStatus::last_sequence`] when they were asked for.
        floor: StreamSequence,
    },
    /// The largest message that the broker and the stream take, in bytes.
    MaxPayload(usize),
    /// The publication still has the members of the marker (C06).
    MembershipPassed,
    /// That could not be checked; why.
    MembershipUnchecked(String),
    /// Whether commits on the source wait for this relay (C05).
    SynchronousStandby(bool),
    /// The source answered a probe.
    Probed(ProbeAnswer),
    /// Which of the subtransactions asked about were rolled back; the error says why that cannot
    /// be known.
    Subtransactions(Result<AbortedSet, String>),
    /// Time has passed.
    Tick,
}

/// A frame to publish.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Publish {
    /// The frame's number.
    pub ordinal: FrameOrdinal,
    /// Which attempt this is, from 1.
    pub attempt: u32,
    /// Subject.
    pub subject: String,
    /// The frame.
    pub payload: Bytes,
    /// The stream's last sequence before it.
    pub expected_last: StreamSequence,
    /// Message id, where the broker can be trusted with one.
    pub message_id: Option<String>,
    /// For people.
    pub headers: Vec<(&'static str, String)>,
}

/// What is to be done.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Command {
    /// Publish a frame; answered by [`Event::Published`].
    Publish(Publish),
    /// Tell the source; `reply` asks it for its position.
    Feedback {
        /// The positions.
        feedback: Feedback,
        /// Whether an answer is wanted.
        reply: bool,
    },
    /// Read the stream's tail from its leader; answered by [`Event::Tail`].
    ReadTail,
    /// Read the frame that the marker names as the one before it, from the leader; answered by
    /// [`Event::Footing`].
    ReadFooting(StreamSequence),
    /// Read the frame that a report names; answered by [`Event::ReportChecked`].
    CheckReport(PositionReport),
    /// Open an ordinary connection to the source; answered by [`Event::Probed`].
    ProbeSource,
    /// Ask the source which of these subtransactions were rolled back; answered, within a bound, by
    /// [`Event::Subtransactions`].
    AskSubtransactions {
        /// Their transaction, which has committed.
        xid: Xid,
        /// Their ids.
        asked: Vec<AbortedRange>,
    },
    /// Remove the chunks of a transaction that was rolled back, below a sequence.
    Purge {
        /// Subject or filter.
        subject: String,
        /// Messages from here on stay.
        below: StreamSequence,
    },
    /// A transaction takes more than half of what the stream has for data: say so, once.
    Warn(LargeTransaction),
    /// End this incarnation and begin another.
    Restart(Restart),
    /// Stop.
    Halt(Halt),
}

/// A transaction that may turn out not to fit into the stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LargeTransaction {
    /// Its id on the source.
    pub xid: Xid,
    /// What it takes in the stream so far.
    pub bytes: u64,
    /// What the stream has for data.
    pub limit: u64,
}

/// Why and how to begin another incarnation.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Restart {
    /// Why, for logs and status.
    pub reason: String,
    /// Whether the next incarnation reads large transactions only after their commit (C12).
    pub streaming_off: bool,
}

/// Settings of a machine; sizes in bytes.
#[derive(Debug, Clone)]
pub struct Settings {
    /// The flow.
    pub flow: FlowName,
    /// When a position is confirmed.
    pub acknowledge: Acknowledge,
    /// Whether the broker can be trusted with message ids.
    pub message_ids: bool,
    /// See [`crate::RelayOptions`].
    pub window_bytes: usize,
    /// See [`crate::RelayOptions`].
    pub bundle_bytes: usize,
    /// See [`crate::RelayOptions`].
    pub chunk_bytes: usize,
    /// See [`crate::RelayOptions`].
    pub unfinished_bytes: usize,
    /// See [`crate::RelayOptions`].
    pub open_bytes: Option<u64>,
    /// See [`crate::RelayOptions`].
    pub shutdown_grace: Duration,
    /// See [`crate::RelayOptions`].
    pub heartbeat_interval: Duration,
    /// See [`crate::RelayOptions`].
    pub membership_interval: Duration,
    /// The largest message that the broker and the stream take.
    pub max_payload: usize,
}

/// Where an incarnation begins; the resume table has agreed.
#[derive(Debug, Clone)]
pub struct Start {
    /// This incarnation.
    pub incarnation: Incarnation,
    /// The source's timelines.
    pub history: SourceHistory,
    /// The stream's tail.
    pub tail: Tail,
    /// Where the tail's frame stands: at its sequence, or before it when something else stands,
    /// or stood, behind it.
    pub tail_at: StreamSequence,
    /// The newest transaction in the stream.
    pub last_transaction: LastTransaction,
    /// The slot's confirmed position S.
    pub confirmed: Lsn,
    /// The marker; `continues_at` is set here.
    pub marker: Marker,
    /// The registered target.
    pub target: Option<String>,
    /// How full the stream is.
    pub space: StreamSpace,
}

/// What an endpoint wants to know.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct MachineStatus {
    /// Whether the marker is acknowledged.
    pub streaming: bool,
    /// Why nothing moves; empty when it does.
    pub waiting_for: String,
    /// A halt that may pass by itself.
    pub halt: Option<Halt>,
    /// End of what was received.
    pub lsn_received: Lsn,
    /// End of the acknowledged prefix.
    pub lsn_published: Lsn,
    /// What the source was told.
    pub lsn_confirmed: Lsn,
    /// What the target has said.
    pub lsn_applied: Lsn,
    /// Last sequence of the acknowledged prefix.
    pub last_sequence: StreamSequence,
    /// Unacknowledged bytes.
    pub window_bytes: u64,
    /// Bytes in the stream of transactions open on the source.
    pub open_bytes: u64,
    /// How many there are.
    pub open_transactions: u64,
    /// Frames acknowledged.
    pub frames: u64,
    /// Bytes in them.
    pub frame_bytes: u64,
    /// Transactions in them.
    pub transactions: u64,
    /// Doubts met.
    pub doubts: u64,
}
