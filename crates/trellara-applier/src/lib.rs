//! Rows, dedup record and checkpoint together, or not at all.

mod execute;
mod plan;
mod target;

pub use execute::{APPLY_SETTINGS, Applied, ApplyError, ApplyErrorKind, Executor, ExecutorOptions};
pub use target::Catalog;
