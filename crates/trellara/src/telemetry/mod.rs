//! Logs and metrics of the process.

mod logs;
mod metrics;

pub(crate) use logs::{LogFormat, start as start_logs};
pub(crate) use metrics::{Metrics, States};
