//! The applier against real servers.

mod execute;
