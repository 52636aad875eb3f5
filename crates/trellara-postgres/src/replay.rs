//! Hands a connection that is already authenticated to tokio-postgres.
//!
//! tokio-postgres insists on sending a startup packet of its own, in which it can put neither our
//! session settings nor anything else it does not know. So the connection is made by the one
//! connect path, and tokio-postgres is shown a stream that swallows its startup packet and answers
//! as the server already did.

use std::collections::HashMap;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use bytes::{Buf, BufMut, BytesMut};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use crate::socket::Transport;
use crate::startup::Established;

/// A transport whose first answers are prepared.
pub(crate) struct Replay {
    transport: Transport,
    /// To be read before anything from the transport.
    prepared: BytesMut,
    swallowing: Swallow,
    heard: Arc<Heard>,
}

/// When the server was last heard, whatever it said.
#[derive(Debug)]
pub(crate) struct Heard {
    begun: Instant,
    /// Microseconds after `begun`.
    last: AtomicU64,
}

impl Heard {
    pub(crate) fn new() -> Self {
        Self {
            begun: Instant::now(),
            last: AtomicU64::new(0),
        }
    }

    /// How long ago that was.
    pub(crate) fn ago(&self) -> Duration {
        let last = Duration::from_micros(self.last.load(Ordering::Relaxed));
        self.begun.elapsed().saturating_sub(last)
    }

    fn now(&self) {
        let micros = u64::try_from(self.begun.elapsed().as_micros()).unwrap_or(u64::MAX);
        self.last.store(micros, Ordering::Relaxed);
    }
}

/// How much of the client's startup packet has yet to be swallowed.
enum Swallow {
    /// Its length is not known yet; the bytes of the length seen so far.
    Length(Vec<u8>),
    Rest(usize),
    Done,
}

impl Replay {
    pub(crate) fn new(established: Established, heard: Arc<Heard>) -> Self {
        let Established { wire, pid, secret } = established;
        let mut prepared = answers(&wire.parameters, pid, secret);
        prepared.extend_from_slice(&wire.unread);
        Self {
            transport: wire.transport,
            prepared,
            swallowing: Swallow::Length(Vec::with_capacity(4)),
            heard,
        }
    }
}

/// AuthenticationOk, ParameterStatus …, BackendKeyData, ReadyForQuery.
fn answers(parameters: &HashMap<String, String>, pid: i32, secret: i32) -> BytesMut {
    let mut out = BytesMut::new();
    let mut message = |tag: u8, body: &[u8]| {
        out.put_u8(tag);
        out.put_u32(u32::try_from(body.len() + 4).unwrap_or(u32::MAX));
        out.put_slice(body);
    };
    message(b'R', &0_i32.to_be_bytes());
    for (name, value) in parameters {
        let body = [name.as_bytes(), b"\0", value.as_bytes(), b"\0"].concat();
        message(b'S', &body);
    }
    message(b'K', &[pid.to_be_bytes(), secret.to_be_bytes()].concat());
    message(b'Z', b"I");
    out
}

impl Swallow {
    /// How many bytes at the front of `buffer` belong to the startup packet.
    fn swallow(&mut self, buffer: &[u8]) -> usize {
        let mut taken = 0;
        loop {
            match self {
                Swallow::Length(seen) => {
                    let Some(byte) = buffer.get(taken) else {
                        return taken;
                    };
                    seen.push(*byte);
                    taken += 1;
                    if let [a, b, c, d] = seen[..] {
                        let length = u32::from_be_bytes([a, b, c, d]) as usize;
                        *self = Swallow::Rest(length.saturating_sub(4));
                    }
                }
                Swallow::Rest(rest) => {
                    let now = (*rest).min(buffer.len() - taken);
                    *rest -= now;
                    taken += now;
                    if *rest > 0 {
                        return taken;
                    }
                    *self = Swallow::Done;
                }
                Swallow::Done => return taken,
            }
        }
    }
}

impl AsyncRead for Replay {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        if this.prepared.is_empty() {
            let before = buf.filled().len();
            let polled = Pin::new(&mut this.transport).poll_read(cx, buf);
            if buf.filled().len() > before {
                this.heard.now();
            }
            return polled;
        }
        let count = this.prepared.len().min(buf.remaining());
        buf.put_slice(&this.prepared[..count]);
        this.prepared.advance(count);
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for Replay {
    fn poll_write(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<io::Result<usize>> {
        let this = self.get_mut();
        let swallowed = this.swallowing.swallow(buf);
        if swallowed > 0 {
            return Poll::Ready(Ok(swallowed));
        }
        Pin::new(&mut this.transport).poll_write(cx, buf)
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().transport).poll_flush(cx)
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().transport).poll_shutdown(cx)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_startup_packet_is_swallowed_in_any_pieces() {
        let packet = [0, 0, 0, 9, 1, 2, 3, 4, 5, b'Q', 0, 0, 0, 5, b';'];
        for piece in 1..packet.len() {
            let mut swallow = Swallow::Length(Vec::new());
            let total: usize = packet.chunks(piece).map(|part| swallow.swallow(part)).sum();
            assert_eq!(total, 9, "in pieces of {piece}");
        }
    }
}
