//! The reading thread: one receive per wake, and a short sleep only while much is coming.

use std::io::ErrorKind;
use std::ops::Range;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::BytesMut;
use tokio::sync::mpsc::UnboundedSender;
use trellara_postgres::{CopyReader, ServerMessage};

use super::gate::{Gate, Pass};
use super::large::{LARGE_BYTES, Large};
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

type Sender = UnboundedSender<StreamEvent>;

/// Reads until the stream ends, one way or another; the last event says how.
pub(super) fn run(mut reader: CopyReader, sender: &Sender, gate: &Arc<Gate>) {
    let end = read(&mut reader, sender, gate);
    // Nobody listens any more when this fails: then nobody needs to know.
    let _ = sender.send(StreamEvent::Ended(end));
}

fn read(reader: &mut CopyReader, sender: &Sender, gate: &Arc<Gate>) -> StreamEnd {
    let mut received = Received::default();
    let mut pace = Pace::default();
    loop {
        let count = match reader.read_some(&mut received.buffer) {
            Ok(0) => return StreamEnd::Lost("the server closed the connection".to_owned()),
            Ok(count) => count,
            Err(error) if error.kind() == ErrorKind::Interrupted => continue,
            Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => {
                return StreamEnd::Lost("it has said nothing for too long".to_owned());
            }
            Err(error) => return StreamEnd::Lost(error.to_string()),
        };
        let read_at = Instant::now();
        if let Err(end) = pass_on(&mut received, read_at, sender, gate) {
            return end;
        }
        if pace.is_busy(count, read_at) {
            std::thread::sleep(GATHER);
        }
    }
}

/// What was received and not passed on.
#[derive(Debug, Default)]
struct Received {
    buffer: BytesMut,
    /// What is in the buffer comes behind this.
    large: Option<Large>,
}

/// Sends on everything complete, and makes room for what has only begun.
fn pass_on(
    received: &mut Received,
    read_at: Instant,
    sender: &Sender,
    gate: &Arc<Gate>,
) -> Result<(), StreamEnd> {
    let Received { buffer, large } = received;
    loop {
        if let Some(mut begun) = large.take() {
            if !begun.take_from(buffer) {
                *large = Some(begun);
                return Ok(());
            }
            let (bytes, pass) = begun.into_parts();
            let gulp = Gulp {
                messages: std::iter::once(HEADER_BYTES..bytes.len()).collect(),
                bytes,
                read_at,
                pass,
            };
            send(StreamEvent::Gulp(gulp), sender)?;
        }
        let run = copy_data_run(buffer);
        if run.length > 0 {
            let gulp = Gulp {
                pass: enter(gate, run.length)?,
                bytes: buffer.split_to(run.length).freeze(),
                messages: run.messages,
                read_at,
            };
            send(StreamEvent::Gulp(gulp), sender)?;
        }
        match run.begun {
            Some(length) if length > LARGE_BYTES => {
                *large = Some(Large::new(length, enter(gate, length)?));
                continue;
            }
            // At once, so that it is not copied again and again while it grows.
            Some(length) => buffer.reserve(length - buffer.len()),
            None => {}
        }
        if buffer.first().is_none_or(|tag| *tag == b'd') {
            return Ok(());
        }
        let message = ServerMessage::take(buffer)
            .map_err(|error| StreamEnd::Lost(format!("not a message of the server: {error}")))?;
        match message {
            None => return Ok(()),
            Some(ServerMessage::Notice(fault)) => send(StreamEvent::Notice(fault), sender)?,
            Some(ServerMessage::Error(fault)) => return Err(StreamEnd::Error(Box::new(fault))),
            Some(ServerMessage::CopyDone) => return Err(StreamEnd::Done),
            Some(ServerMessage::CopyData(_) | ServerMessage::Other(_)) => {}
        }
    }
}

fn enter(gate: &Arc<Gate>, bytes: usize) -> Result<Pass, StreamEnd> {
    gate.enter(bytes).ok_or_else(closed)
}

fn send(event: StreamEvent, sender: &Sender) -> Result<(), StreamEnd> {
    sender.send(event).map_err(|_| closed())
}

fn closed() -> StreamEnd {
    StreamEnd::Lost("closed by the relay".to_owned())
}

/// The complete CopyData messages at the beginning of a buffer.
#[derive(Debug)]
struct Run {
    /// Bytes of all of them.
    length: usize,
    /// Where their payloads are.
    messages: Vec<Range<usize>>,
    /// Bytes of the CopyData message behind them that is not complete, once that is known.
    begun: Option<usize>,
}

fn copy_data_run(buffer: &[u8]) -> Run {
    let mut messages = Vec::new();
    let mut begun = None;
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
            begun = Some(end - at);
            break;
        }
        messages.push(at + HEADER_BYTES..end);
        at = end;
    }
    Run {
        length: at,
        messages,
        begun,
    }
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
    use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};

    use super::super::UNREAD_BYTES;
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
        let run = copy_data_run(&bytes);
        assert_eq!((run.length, run.begun), (complete, Some(10)));
        let payloads: Vec<&[u8]> = run.messages.iter().map(|m| &bytes[m.clone()]).collect();
        assert_eq!(payloads, [&b"one"[..], &b""[..]]);
    }

    #[test]
    fn other_messages_end_the_run() {
        let mut bytes = copy_data(b"one");
        let complete = bytes.len();
        bytes.extend(b"N\0\0\0\x05\0");
        bytes.extend(copy_data(b"two"));
        let run = copy_data_run(&bytes);
        assert_eq!((run.length, run.begun), (complete, None));
    }

    /// What a reading thread has, without a socket.
    struct Reading {
        received: Received,
        sender: Sender,
        gate: Arc<Gate>,
        events: UnboundedReceiver<StreamEvent>,
    }

    impl Reading {
        fn new(unread: usize) -> Self {
            let (sender, events) = unbounded_channel();
            Self {
                received: Received::default(),
                sender,
                gate: Arc::new(Gate::new(unread)),
                events,
            }
        }

        /// As if `bytes` had been received, a mebibyte at a time.
        fn receive(&mut self, bytes: &[u8]) -> Result<(), StreamEnd> {
            for some in bytes.chunks(1 << 20) {
                self.received.buffer.extend_from_slice(some);
                pass_on(&mut self.received, Instant::now(), &self.sender, &self.gate)?;
            }
            Ok(())
        }

        fn gulp(&mut self) -> Gulp {
            match self.events.try_recv() {
                Ok(StreamEvent::Gulp(gulp)) => gulp,
                other => panic!("{other:?} is no gulp"),
            }
        }
    }

    fn payloads(gulp: &Gulp) -> Vec<usize> {
        gulp.payloads().map(<[u8]>::len).collect()
    }

    #[test]
    fn a_large_message_takes_memory_of_its_size_and_leaves_none_behind() {
        const LARGE: usize = 20 << 20;
        let mut reading = Reading::new(2 * LARGE);
        for _ in 0..3 {
            let mut bytes = copy_data(b"before");
            bytes.extend(copy_data(&vec![7; LARGE]));
            bytes.extend(copy_data(b"after"));
            reading.receive(&bytes).expect("let in");
            assert_eq!(payloads(&reading.gulp()), [6]);
            let gulp = reading.gulp();
            assert_eq!(payloads(&gulp), [LARGE]);
            assert!(gulp.bytes.ends_with(&[7; 1000]));
            let memory = gulp.bytes.try_into_mut().expect("nobody else has it");
            assert_eq!(memory.capacity(), LARGE + HEADER_BYTES);
            assert_eq!(payloads(&reading.gulp()), [5]);
            let kept = reading.received.buffer.capacity();
            assert!(kept <= 4 * LARGE_BYTES, "{kept} bytes for the next receive");
        }
    }

    #[test]
    fn a_large_message_is_received_only_when_the_one_before_it_is_gone() {
        const LARGE: usize = 20 << 20;
        let large = copy_data(&vec![7; LARGE]);
        let mut reading = Reading::new(UNREAD_BYTES);
        reading.receive(&large).expect("let in");
        let gulp = reading.gulp();
        assert_eq!(reading.gate.inside(), large.len(), "taken and still held");
        drop(gulp);
        assert_eq!(reading.gate.inside(), 0);
        reading.receive(&large[..100]).expect("let in");
        assert_eq!(reading.gate.inside(), large.len(), "counted before it came");
        reading.receive(&large[100..]).expect("let in already");
        let _held = reading.gulp();
        // What would wait at an open gate is turned away at a closed one: its beginning is enough.
        reading.gate.close();
        assert_eq!(reading.receive(&large[..100]), Err(closed()));
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
