//! What was applied to a target, remembered in memory, so that the target need not be asked.
//!
//! Deduplication in Trellara is exact: the ledger in the target decides. This crate only makes the
//! question short. For a batch of identities it says up to which ordinal of the ledger none of
//! them occurs ([`Cache::verify`]); with a warm cache that is the newest ordinal, and nobody asks
//! the target at all. Whenever there is any doubt it says −1, "cannot vouch", which is always
//! sound. A known identity is a hint to ask, never a verdict.
//!
//! ```text
//!            verify                         applied
//!              │                               │
//!   filter  filter  filter  filter             │   16 bits per identity, one cache line per "no"
//!     │        │       │       │               │
//!  ┌──┴──┬─────┴──┬────┴───┬───┴────────────┐  ▼
//!  │ run │  run   │  run   │ runs … blocks  │ buffer   16 bytes per identity, 4096 to a block
//!  └─────┴────────┴────────┴────────────────┘
//!  oldest generation                   newest: its blocks are merged into one run by and by
//! ```
//!
//! - [`Ring`] keeps the identities of one lane in the order they were applied and drops them from
//!   the oldest end. It is exact, never allocates more than 64 KiB at once, and answers a "no" by
//!   its filters.
//! - [`Cache`] keeps a ring for each lane and the rule when it may vouch: born complete by a
//!   [`Hydration`] from the ledger, bound to epoch and history, disqualified by every gap, inside
//!   one byte budget for all lanes.
//!
//! It is pure: time is passed in, there is no I/O, no chance, no runtime, and no dependency.
//!
//! ```
//! use std::time::Duration;
//! use trellara_dedup::{Binding, Cache, Identity, Moment, Ordinal, Settings, Stamp};
//!
//! let cache: Cache<u32> = Cache::new(Settings::default());
//! let binding = Binding { epoch: 1, history: 7, identity: 1, window: Duration::from_secs(3600) };
//! let now = Moment(0);
//!
//! // Nothing is known: everything is to be probed.
//! let batch = [Identity(0xA), Identity(0xB)];
//! assert_eq!(cache.verify(&0, &batch, Ordinal(0), now).through, Ordinal::NONE);
//!
//! // Filled from the ledger, whose rows are 1 (with an identity) and 2 (progress alone).
//! let mut hydration = cache.hydrate(&0, &binding, Some(2), now).expect("there is room");
//! hydration.push(Ordinal(1), &[Identity(0xA)], Stamp(1_000)).expect("the first row");
//! hydration.push(Ordinal(2), &[], Stamp(2_000)).expect("it follows");
//! cache.finish(hydration, Ordinal(0), Ordinal(2), now).expect("complete");
//!
//! let verdict = cache.verify(&0, &batch, Ordinal(0), now);
//! assert_eq!(verdict.verified_through(0), Ordinal::NONE); // known: ask the ledger
//! assert_eq!(verdict.verified_through(1), Ordinal(2)); // not applied up to 2: no need to ask
//!
//! cache.applied(&0, Ordinal(3), &[Identity(0xB)], Stamp(3_000), now);
//! assert_eq!(cache.verify(&0, &[Identity(0xB)], Ordinal(0), now).hits, [0]);
//! ```

mod accounts;
mod budget;
mod cache;
mod entry;
mod filter;
mod generation;
mod hydration;
mod merge;
mod pressure;
mod ring;
mod run;
mod settings;
mod slot;
mod sorted;
mod stats;
mod words;

pub use cache::{Applied, Cache, Wants};
pub use entry::{Binding, State, Verdict};
pub use hydration::{Hydration, Refused};
pub use pressure::{Pressure, Suppressed};
pub use ring::{MAX_CEILING, Maybes, Ring};
pub use settings::Settings;
pub use stats::Stats;
pub use words::{Identity, Moment, Ordinal, Stamp};
