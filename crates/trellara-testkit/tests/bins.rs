//! Black-box tests start programs of this crate. That it has a test of its own makes cargo build
//! them with the tests, so that none of them is an old one.

use std::process::Command;

#[test]
fn an_applier_that_is_told_nothing_says_what_it_wants() {
    let mut applier = Command::new(env!("CARGO_BIN_EXE_applier"));
    let said = applier.output().expect("it starts");
    assert!(!said.status.success());
    let text = String::from_utf8_lossy(&said.stderr);
    assert!(text.contains("usage: applier FLOW MEMORY"), "{text}");
}
