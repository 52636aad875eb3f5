//! Connections to real servers, PostgreSQL 15 and 18.
//!
//! `support` starts one server a version and makes certificates; `tls` holds the modes and
//! certificates, `login` authentication and hosts, `session` ordinary sessions, `replication` the
//! stream.

mod login;
mod replication;
mod session;
mod support;
mod tls;
