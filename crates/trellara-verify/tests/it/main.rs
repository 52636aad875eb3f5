//! Two real databases, PostgreSQL 15 and 18: every difference that is planted is found, with its
//! key and kind, and nothing else is.
//!
//! `types` plants in each type; `planted` what other tools were blind to; `keyless` multisets;
//! `random` all kinds at once; `select` samples; `borders` ranges; `shapes` publications and tables of other shapes;
//! `hostile` settings, rights and lost sessions; `meanwhile` what happens during a run; `beside` what
//! is no row.

mod beside;
mod borders;
mod held;
mod hostile;
mod keyless;
mod lanes;
mod meanwhile;
mod planted;
mod random;
mod select;
mod shapes;
mod support;
mod types;
