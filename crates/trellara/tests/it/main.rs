//! The program from outside: its words, its exit codes, and what it does to real servers.

mod bad_input;
mod demo;
mod flow;
mod help;
mod servers;
