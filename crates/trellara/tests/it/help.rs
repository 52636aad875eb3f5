//! `--help` is the reference: a change of it is a change that a user sees.

use std::process::Command;

const COMMANDS: [&str; 21] = [
    "check",
    "setup",
    "run",
    "relay",
    "applier",
    "status",
    "backfill",
    "table",
    "wait",
    "verify",
    "inspect",
    "quarantine",
    "pause",
    "resume",
    "rewind",
    "cutover",
    "remove",
    "config",
    "demo",
    "completions",
    "man",
];

fn help(arguments: &[&str]) -> String {
    let output = Command::new(env!("CARGO_BIN_EXE_trellara"))
        .args(arguments)
        .arg("--help")
        .env_remove("TRELLARA_CONFIG")
        .output()
        .expect("the program starts");
    assert!(output.status.success());
    String::from_utf8(output.stdout).expect("help is UTF-8")
}

#[test]
fn help_of_the_program() {
    insta::assert_snapshot!("trellara", help(&[]));
}

#[test]
fn help_of_every_command() {
    for command in COMMANDS {
        let help = help(&[command]);
        for part in ["Reads:", "Writes:", "Examples:"] {
            assert!(help.contains(part), "{command}: no {part}");
        }
        insta::assert_snapshot!(command, help);
    }
}

#[test]
fn help_of_every_command_of_the_desk() {
    for command in ["list", "show", "replay", "discard", "log"] {
        let help = help(&["quarantine", command]);
        for part in ["Reads:", "Writes:", "Exit codes:", "Examples:"] {
            assert!(help.contains(part), "{command}: no {part}");
        }
        insta::assert_snapshot!(format!("quarantine_{command}"), help);
    }
}

#[test]
fn help_of_every_command_about_tables() {
    for command in ["list", "add", "remove", "recopy", "sequences"] {
        let help = help(&["table", command]);
        for part in ["Reads:", "Writes:", "Exit codes:", "Examples:"] {
            assert!(help.contains(part), "{command}: no {part}");
        }
        insta::assert_snapshot!(format!("table_{command}"), help);
    }
}

#[test]
fn every_command_is_covered() {
    let listed = help(&[]);
    let commands = listed
        .split("Commands:")
        .nth(1)
        .and_then(|rest| rest.split("\n\n").next());
    let names: Vec<&str> = commands
        .expect("a list of commands")
        .lines()
        .filter(|line| line.starts_with("  ") && !line.starts_with("   "))
        .filter_map(|line| line.split_whitespace().next())
        .collect();
    assert_eq!(names, COMMANDS);
}

#[test]
fn usage_errors_have_their_code() {
    let run = |arguments: &[&str]| {
        let output = Command::new(env!("CARGO_BIN_EXE_trellara"))
            .args(arguments)
            .output();
        output.expect("the program starts").status.code()
    };
    assert_eq!(run(&["nonsense"]), Some(64));
    assert_eq!(run(&["check", "--nonsense"]), Some(64));
    assert_eq!(
        run(&["--config", "/nonexistent.yml", "config", "check"]),
        Some(78)
    );
    assert_eq!(run(&["config", "schema"]), Some(0));
}

#[test]
fn manual_pages_have_every_option_and_lines_as_they_are() {
    let folder = tempfile::tempdir().expect("a folder");
    let written = Command::new(env!("CARGO_BIN_EXE_trellara"))
        .args(["man", "--directory"])
        .arg(folder.path())
        .status();
    assert!(written.expect("the program starts").success());
    for command in COMMANDS {
        let page = folder.path().join(format!("trellara-{command}.1"));
        let page = std::fs::read_to_string(page).expect("a page");
        for part in [
            format!("trellara {command}"),
            "\\-\\-config".to_owned(),
            "\nExamples:\n".to_owned(),
        ] {
            assert!(page.contains(&part), "{command}: no {part:?} in {page}");
        }
    }
}

#[test]
fn a_reader_of_completions_may_go_away() {
    let mut shell = Command::new(env!("CARGO_BIN_EXE_trellara"))
        .args(["completions", "bash"])
        .stdout(std::process::Stdio::piped())
        .spawn()
        .expect("the program starts");
    drop(shell.stdout.take());
    assert_eq!(shell.wait().expect("it ends").code(), Some(0));
}
