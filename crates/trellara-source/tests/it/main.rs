//! What is asked of a source, against real servers.

mod definition;
mod settled;
