//! The end-to-end oracle: what the target shows must at every moment be a prefix of what the
//! source committed.
//!
//! The truth is an independent reader: PostgreSQL's own `test_decoding` on a slot of its own,
//! which shares no code with Trellara. A [`workload`] writes tables whose content tells which
//! transactions are in; an [`observer`] photographs the target while things are being killed; and
//! the [`verdict`] replays the truth and compares every photograph with the prefix that its
//! checkpoint claims (H1 to H6).

pub mod observer;
pub mod truth;
pub mod verdict;
pub mod workload;

pub use observer::{IdSet, Observation, Observer};
pub use truth::{Truth, TruthTransaction};
pub use verdict::{LedgerCount, Verdict, judge, judge_ledger, judge_photographs};
pub use workload::{Workload, WorkloadOptions, WorkloadTotals};
