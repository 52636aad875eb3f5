//! Which statements carry which changes; pure.
