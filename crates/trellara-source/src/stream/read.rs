//! The reading thread: one receive per wake, and a short sleep only while much is coming.

use std::io::ErrorKind;
use std::ops::Range;
use std::time::{Duration, Instant};

use bytes::BytesMut;
use tokio::sync::mpsc::UnboundedSender;
use trellara_postgres::{CopyReader, ServerMessage};

use super::gate::Gate;
use super::{Gulp, StreamEnd, StreamEvent};

/// Much is coming when this many bytes came within [`BUSY_WINDOW`]. Judged by time: judged by the
/// size of the last receive, a reader falls into waking per message and stays there.
const BUSY_BYTES: usize = 4 << 10;
const BUSY_WINDOW: Duration = Duration::from_millis(1);
/// Long enough for TCP to merge the walsender's small writes, short enough to cost no latency
/// (measured 0.3 to 1 ms: 1 ms is best, 5 ms as bad as none).
const GATHER: Duration = Duration::from_millis(1);
/// Before a CopyData payload: tag and length.
const HEADER_BYTES: usize = 5;
const LENGTH_BYTES: usize = 4;

type Sender = UnboundedSender<(StreamEvent, usize)>;

/// Reads until the stream ends, one way or another; the last event says how.
pub(super) fn run(mut reader: CopyReader, sender: &Sender, gate: &Gate) {
    let end = read(&mut reader, sender, gate);
    // Nobody listens any more when this fails: then nobody needs to know.
    let _ = sender.send((StreamEvent::Ended(end), 0));
}

fn read(reader: &mut CopyReader, sender: &Sender, gate: &Gate) -> StreamEnd {
    let mut buffer = BytesMut::new();
    let mut pace = Pace::default();
    loop {
        let received = match reader.read_some(&mut buffer) {
            Ok(0) => return StreamEnd::Lost("the server closed the connection".to_owned()),
            Ok(received) => received,
            Err(error) if error.kind() == ErrorKind::Interrupted => continue,
            Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => {
                return StreamEnd::Lost("it has said nothing for too long".to_owned());
            }
            Err(error) => return StreamEnd::Lost(error.to_string()),
        };
        let read_at = Instant::now();
        if let Err(end) = pass_on(&mut buffer, read_at, sender, gate) {
            return end;
        }
        if pace.is_busy(received, read_at) {
            std::thread::sleep(GATHER);
        }
    }
}

/// Sends on everything complete in the buffer.
fn pass_on(
    buffer: &mut BytesMut,
    read_at: Instant,
    sender: &Sender,
    gate: &Gate,
) -> Result<(), StreamEnd> {
    loop {
        let (length, messages) = copy_data_run(buffer);
        if length > 0 {
            let gulp = Gulp {
                bytes: buffer.split_to(length).freeze(),
                messages,
                read_at,
            };
            send(StreamEvent::Gulp(gulp), length, sender, gate)?;
        }
        if buffer.first().is_none_or(|tag| *tag == b'd') {
            return Ok(());
        }
        let message = ServerMessage::take(buffer)
            .map_err(|error| StreamEnd::Lost(format!("not a message of the server: {error}")))?;
        match message {
            None => return Ok(()),
            Some(ServerMessage::Notice(fault)) => {
                send(StreamEvent::Notice(fault), 0, sender, gate)?;
            }
            Some(ServerMessage::Error(fault)) => return Err(StreamEnd::Error(Box::new(fault))),
            Some(ServerMessage::CopyDone) => return Err(StreamEnd::Done),
            Some(ServerMessage::CopyData(_) | ServerMessage::Other(_)) => {}
        }
    }
}

fn send(event: StreamEvent, bytes: usize, sender: &Sender, gate: &Gate) -> Result<(), StreamEnd> {
    if gate.enter(bytes) && sender.send((event, bytes)).is_ok() {
        Ok(())
    } else {
        Err(StreamEnd::Lost("closed by the relay".to_owned()))
    }
}

/// The complete CopyData messages at the beginning of the buffer: their length in all, and where
/// their payloads are. Room for a large message that has only begun is made at once, so that it
/// is not copied again and again while it grows.
fn copy_data_run(buffer: &mut BytesMut) -> (usize, Vec<Range<usize>>) {
    let mut messages = Vec::new();
    let mut at = 0;
    while let Some((header, _)) = buffer[at..].split_first_chunk::<HEADER_BYTES>() {
        let [tag, length @ ..] = *header;
        // A length below its own size is left to `ServerMessage::take`, which refuses it.
        let length = u32::from_be_bytes(length) as usize;
        if tag != b'd' || length < LENGTH_BYTES {
            break;
        }
        let end = at + 1 + length;
        if end > buffer.len() {
            let missing = end - buffer.len();
            buffer.reserve(missing);
            break;
        }
        messages.push(at + HEADER_BYTES..end);
        at = end;
    }
    (at, messages)
}

/// Whether much is coming.
#[derive(Debug, Default)]
struct Pace {
    /// When the present window began, and what came in it.
    window: Option<(Instant, usize)>,
}

impl Pace {
    fn is_busy(&mut self, received: usize, now: Instant) -> bool {
        let (began, bytes) = match self.window {
            // The sleep itself is part of the window that follows.
            Some((began, bytes)) if now - began <= BUSY_WINDOW + GATHER => {
                (began, bytes + received)
            }
            _ => (now, received),
        };
        let busy = bytes >= BUSY_BYTES;
        self.window = if busy || now - began > BUSY_WINDOW {
            Some((now, 0))
        } else {
            Some((began, bytes))
        };
        busy
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn copy_data(payload: &[u8]) -> Vec<u8> {
        let mut message = vec![b'd'];
        message.extend_from_slice(&(payload.len() as u32 + 4).to_be_bytes());
        message.extend_from_slice(payload);
        message
    }

    #[test]
    fn only_complete_messages_leave() {
        let mut bytes = copy_data(b"one");
        bytes.extend(copy_data(b""));
        let complete = bytes.len();
        bytes.extend(&copy_data(b"three")[..6]);
        let mut buffer = BytesMut::from(&bytes[..]);
        let (length, messages) = copy_data_run(&mut buffer);
        assert_eq!(length, complete);
        let payloads: Vec<&[u8]> = messages.iter().map(|range| &bytes[range.clone()]).collect();
        assert_eq!(payloads, [&b"one"[..], &b""[..]]);
    }

    #[test]
    fn other_messages_end_the_run() {
        let mut bytes = copy_data(b"one");
        let complete = bytes.len();
        bytes.extend(b"N\0\0\0\x05\0");
        bytes.extend(copy_data(b"two"));
        let mut buffer = BytesMut::from(&bytes[..]);
        assert_eq!(copy_data_run(&mut buffer).0, complete);
    }

    #[test]
    fn busy_is_judged_by_time_not_by_one_receive() {
        let start = Instant::now();
        let mut pace = Pace::default();
        let at = |us: u64| start + Duration::from_micros(us);
        assert!(!pace.is_busy(100, at(0)), "a lone message leaves at once");
        assert!(!pace.is_busy(100, at(50_000)));
        let busy = (1..=50).any(|i| pace.is_busy(100, at(50_000 + i * 20)));
        assert!(busy, "5 KB in one millisecond are many");
        assert!(!pace.is_busy(100, at(200_000)), "and then it is over");
    }
}
