//! The relay: nothing is confirmed to PostgreSQL before it is stored.
//!
//! One run of [`run`] carries a flow's committed transactions from the replication slot into the
//! stream, for ever: it reconnects by itself and returns only when it is cancelled or when
//! something needs an operator ([`trellara_envelope::Halt`]).
//!
//! The rule, in the order in which it is kept:
//!
//! 1. START_REPLICATION succeeds: the slot is ours (R3). Only now facts are read, and
//!    [`resume`], a pure table, says whether and how to go on.
//! 2. The incarnation's marker is published at the tail's next sequence. A relay that is not the
//!    newest is refused here.
//! 3. pgoutput messages become frames without being interpreted; each frame names its
//!    predecessor's digest and the sequence at which it must be stored, so that nothing can be
//!    stored out of order, twice, or behind a hole.
//! 4. A position is confirmed when every frame up to it was acknowledged at its expected
//!    sequence (`published`), or when the registered target has said that it is durable there
//!    (`applied`), never by a maximum over acknowledgements (R1, R2).
//! 5. After any doubt about a publish the stream's tail decides, not memory (R4). A tail written
//!    by a newer incarnation ends this relay; it never goes on from memory (C08).
//!
//! Deciding lives in [`machine`] (no await, no clock, no randomness) and [`resume`]; acting lives
//! in the run loop. The relay keeps nothing on disk (R5), and status updates flow from a thread
//! that never waits for the broker (R6).

mod asking;
mod copy;
mod ending;
mod facts;
mod genesis;
mod incarnation;
pub mod machine;
mod metrics;
mod opening;
mod options;
pub mod rehearsal;
pub mod resume;
mod run;
mod standby;
mod status;

pub use copy::{CopyOptions, CopySnapshot};
pub use genesis::genesis_frame;
pub use options::{Acknowledge, RelayOptions};
pub use run::run;
pub use status::{RelayState, RelayStatus, StatusSnapshot};
