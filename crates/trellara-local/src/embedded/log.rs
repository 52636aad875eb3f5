//! The broker's own log, passed on.

use std::collections::VecDeque;
use std::io::{BufRead, BufReader, Read};
use std::process::ChildStderr;
use std::sync::{Arc, Mutex, PoisonError};

/// A longer line is passed on in pieces.
const LINE_BYTES: u64 = 16 * 1024;
/// Kept for the error message of a broker that does not start.
const KEPT_LINES: usize = 20;

/// The last lines that the broker wrote.
#[derive(Clone, Debug, Default)]
pub(super) struct LastLines(Arc<Mutex<VecDeque<String>>>);

impl LastLines {
    fn push(&self, line: String) {
        let mut lines = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if lines.len() == KEPT_LINES {
            lines.pop_front();
        }
        lines.push_back(line);
    }

    pub(super) fn text(&self) -> String {
        let lines = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        lines
            .iter()
            .map(String::as_str)
            .collect::<Vec<_>>()
            .join("\n")
    }
}

/// Passes lines on until the broker closes its end, which it does when it ends.
pub(super) fn pass_on(stderr: ChildStderr, last: &LastLines) {
    let mut reader = BufReader::new(stderr);
    let mut line = Vec::new();
    loop {
        line.clear();
        match reader
            .by_ref()
            .take(LINE_BYTES)
            .read_until(b'\n', &mut line)
        {
            Ok(0) | Err(_) => return,
            Ok(_) => {
                let text = String::from_utf8_lossy(&line);
                let text = text.trim_end();
                tell(text);
                last.push(text.to_owned());
            }
        }
    }
}

/// The password is of our making and in a file that only we can read; and while it starts we ask
/// it whether it is up.
fn is_of_our_making(warning: &str) -> bool {
    warning.starts_with("Plaintext passwords detected")
        || (warning.starts_with("Healthcheck failed")
            && warning.contains("failed to be ready for connections"))
}

/// `[1234] [INF] text`: what is news to the broker is detail to our reader; what it finds worth a
/// warning is one for us too.
fn tell(line: &str) {
    let text = |mark: &str| {
        line.split_once(mark)
            .map(|(_, text)| text.trim_start().to_owned())
    };
    if let Some(text) = text("[FTL]").or_else(|| text("[ERR]")) {
        tracing::error!(target: "trellara_local::broker", "nats-server: {text}");
    } else if let Some(text) = text("[WRN]").filter(|text| !is_of_our_making(text)) {
        tracing::warn!(target: "trellara_local::broker", "nats-server: {text}");
    } else {
        let text = text("[INF]")
            .or_else(|| text("[WRN]"))
            .unwrap_or_else(|| line.to_owned());
        tracing::debug!(target: "trellara_local::broker", "nats-server: {text}");
    }
}
