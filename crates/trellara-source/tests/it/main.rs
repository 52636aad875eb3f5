//! What is asked of a source, against real servers.

mod definition;
mod durable;
mod settled;
