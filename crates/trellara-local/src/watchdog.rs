//! Ends a server when the process that started it is gone, however it went.
//!
//! `Drop` does not run when a test is killed by a signal, and a server left behind holds memory
//! and a port for ever. The kernel's parent-death signal needs `unsafe` and watches a thread, not
//! a process. So each server gets a tiny shell that reads from a pipe which only we hold: when we
//! end, the pipe closes, and the shell ends the server and deletes its folder.

use std::io::Write;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Stdio};

use crate::LocalError;
use crate::error::io;

/// `$1` is the signal that ends the server in an orderly way, `$2` the folder to delete (may be
/// empty). Each line read is the id of the process now to be guarded; an empty line means none.
/// After the signal it waits up to ten seconds before it insists.
const SCRIPT: &str = r#"
trap '' INT TERM HUP QUIT
pid=
while read -r line; do pid=$line; done
if [ -n "$pid" ] && kill -0 "$pid" 2>/dev/null; then
  kill -s "$1" "$pid" 2>/dev/null
  kill -s CONT "$pid" 2>/dev/null
  n=0
  while [ "$n" -lt 100 ] && kill -0 "$pid" 2>/dev/null; do
    case $(cut -d' ' -f3 "/proc/$pid/stat" 2>/dev/null) in Z|X|'') break ;; esac
    sleep 0.1
    n=$((n + 1))
  done
  kill -s KILL "$pid" 2>/dev/null
fi
if [ -n "$2" ]; then rm -rf -- "$2"; fi
"#;

/// The guard of one server and of the folder that goes with it.
#[derive(Debug)]
pub(crate) struct Watchdog {
    shell: Child,
    pipe: Option<ChildStdin>,
}

impl Watchdog {
    /// Starts guarding; `folder` is deleted at the end, `signal` (as `kill -s` names it) is how
    /// the server is ended.
    pub(crate) fn start(signal: &str, folder: Option<&Path>) -> Result<Self, LocalError> {
        let shell_path = PathBuf::from("/bin/sh");
        let mut shell = Command::new(&shell_path)
            .arg("-c")
            .arg(SCRIPT)
            .arg("trellara-watchdog")
            .arg(signal)
            .arg(folder.map(Path::as_os_str).unwrap_or_default())
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .current_dir("/")
            // Its own group: Ctrl-C at the terminal must not end it together with us.
            .process_group(0)
            .spawn()
            .map_err(|source| io("run", &shell_path, source))?;
        let pipe = shell.stdin.take();
        Ok(Self { shell, pipe })
    }

    /// Guards this process from now on; `None` when the server is down.
    pub(crate) fn guard(&mut self, pid: Option<u32>) -> Result<(), LocalError> {
        let line = pid.map_or_else(|| "\n".to_owned(), |pid| format!("{pid}\n"));
        let pipe = self.pipe.as_mut();
        pipe.map_or(Ok(()), |pipe| pipe.write_all(line.as_bytes()))
            .map_err(|source| io("tell", Path::new("the watchdog"), source))
    }
}

impl Drop for Watchdog {
    fn drop(&mut self) {
        // Closing the pipe makes it end what is left and delete the folder; waiting makes sure
        // that a test's servers are gone when the test is.
        drop(self.pipe.take());
        let _ = self.shell.wait();
    }
}
