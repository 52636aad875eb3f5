//! The demo leaves nothing behind, also when it is interrupted.

use std::io::{BufRead, BufReader, Read};
use std::path::Path;
use std::process::{Command, Stdio};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

/// Command lines of running processes that name `path`.
fn processes_about(path: &Path) -> Vec<String> {
    let needle = path.to_str().expect("UTF-8");
    let processes = std::fs::read_dir("/proc").expect("/proc").flatten();
    processes
        .filter_map(|process| std::fs::read(process.path().join("cmdline")).ok())
        .map(|line| String::from_utf8_lossy(&line).replace('\0', " "))
        .filter(|line| line.contains(needle))
        .collect()
}

#[test]
fn an_interrupted_demo_leaves_no_process_and_no_folder() {
    let folder = tempfile::tempdir().expect("a folder");
    for (signal, wait_for) in [
        (Signal::SIGINT, "starting two PostgreSQL servers"),
        (Signal::SIGTERM, "act 1"),
    ] {
        let mut demo = Command::new(env!("CARGO_BIN_EXE_trellara"))
            .arg("demo")
            .env("TMPDIR", folder.path())
            .stderr(Stdio::piped())
            .spawn()
            .expect("the demo starts");
        let mut said = BufReader::new(demo.stderr.take().expect("a pipe"));
        let mut line = String::new();
        while !line.contains(wait_for) {
            line.clear();
            assert_ne!(said.read_line(&mut line).expect("a line"), 0, "it ended");
        }
        let pid = Pid::from_raw(i32::try_from(demo.id()).expect("a pid"));
        kill(pid, signal).expect("it is there");
        let mut rest = String::new();
        said.read_to_string(&mut rest).expect("the rest");
        assert_eq!(demo.wait().expect("it ends").code(), Some(1), "{rest}");
        assert!(rest.contains("the demo ended early"), "{rest}");
        assert_eq!(processes_about(folder.path()), Vec::<String>::new());
        let left = std::fs::read_dir(folder.path()).expect("the folder");
        assert_eq!(left.count(), 0, "folders are left");
    }
}
