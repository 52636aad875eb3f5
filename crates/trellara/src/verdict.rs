//! How a comparison is shown: as a table for people, as one document for programs.

mod beside;
mod document;
pub(crate) mod progress;
mod text;

pub(crate) use document::{Circumstances, of};
pub(crate) use text::text;

#[cfg(test)]
mod sample;
