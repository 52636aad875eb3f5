//! How a comparison is shown: as text and as a page for people, as a document and as events for
//! programs.

mod beside;
mod document;
mod events;
mod html;
pub(crate) mod metrics;
pub(crate) mod progress;
pub(crate) mod repair;
mod text;

pub(crate) use document::{Circumstances, begun, of};
pub(crate) use events::Events;
pub(crate) use html::page;
pub(crate) use text::text;

#[cfg(test)]
mod sample;
