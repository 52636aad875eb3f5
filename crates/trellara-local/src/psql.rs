//! SQL through `psql`: tests of any crate can ask a server without a client library.

use std::io::Write;
use std::path::Path;
use std::process::{Command, Stdio};

use crate::LocalError;
use crate::binaries;
use crate::error::{finished, io};

/// Runs SQL with the `psql` of that major version, statement by statement, and returns its rows
/// (unaligned, `|` between columns, without the last line's end). The first error ends it.
pub fn psql(version: u32, url: &str, sql: &str) -> Result<String, LocalError> {
    run_in(&binaries::postgres_bin(version)?, url, sql)
}

pub(crate) fn run_in(bin: &Path, url: &str, sql: &str) -> Result<String, LocalError> {
    let program = bin.join("psql");
    let mut child = Command::new(&program)
        .args([
            "-X",
            "-A",
            "-t",
            "-q",
            "-v",
            "ON_ERROR_STOP=1",
            "-f",
            "-",
            "-d",
            url,
        ])
        .current_dir("/")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .map_err(|e| io("run", &program, e))?;
    let input = child.stdin.take();
    let output = std::thread::scope(|scope| {
        // psql ends early on an error; what it did not read is then no concern of ours.
        scope.spawn(|| input.map(|mut pipe| pipe.write_all(sql.as_bytes())));
        child.wait_with_output()
    });
    let output = output.map_err(|e| io("run", &program, e))?;
    finished("psql", &output).map(|rows| rows.trim_end_matches('\n').to_owned())
}
