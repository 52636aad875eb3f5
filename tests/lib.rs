//! The black-box tests live in `it/`; this crate exists to hold them.
