//! The copy of what is there already, and its hand-over to the stream.
//!
//! - `source_loss`: a slot's snapshot read too early loses rows of the source, and ours does not.

mod source_loss;
