//! What others learned the hard way, a test each.

mod lane;
mod pressure;
mod vouching;
