//! The replication stream: blocking halves for a dedicated thread.
//!
//! The walsender sends every message by itself, and a reader that the async runtime wakes for each
//! costs three times the CPU on both sides. So the socket leaves the runtime here, and whoever
//! reads decides how long to let messages gather.
//!
//! Under TLS both halves share one rustls session. The reader receives without any lock and holds
//! the session's only while it decrypts what came; writers hold the socket's writing side first and
//! the session's second, so records leave in the order in which they were encrypted.

use std::io::{self, Read, Write};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bytes::{Buf, Bytes, BytesMut};
use postgres_protocol::message::backend::Message;
use rustls::ClientConnection;

use crate::Fault;
use crate::socket::{BlockingSocket, Transport};
use crate::wire::message_length;

/// What one receive takes at most; large enough for all that gathers in a millisecond.
const RECEIVE_BYTES_MAX: usize = 1 << 20;
/// A status update is 39 bytes; a server that does not take it for this long is gone.
const WRITE_TIMEOUT: Duration = Duration::from_secs(30);

/// Both directions of a started replication stream.
pub struct CopyBoth {
    /// For the one thread that reads.
    pub reader: CopyReader,
    /// For whoever answers.
    pub writer: CopyWriter,
}

impl CopyBoth {
    /// Takes the transport from the runtime; `unread` was received and not yet looked at.
    pub(crate) fn from_wire(transport: Transport, unread: BytesMut) -> io::Result<Self> {
        let mut pending = unread;
        let (socket, session) = match transport {
            Transport::Plain(socket) => (socket, None),
            Transport::Tls(stream) => {
                let (socket, mut session) = stream.into_inner();
                // What rustls has already decrypted belongs to the stream, and so does the end of
                // it: the reader's next receive will meet that again.
                read_plaintext(&mut session, &mut pending)?;
                // What is written goes out at once; rustls must not refuse a part of it.
                session.set_buffer_limit(None);
                (socket, Some(Arc::new(Mutex::new(session))))
            }
        };
        let socket = BlockingSocket::from_async(socket)?;
        socket.set_write_timeout(Some(WRITE_TIMEOUT))?;
        let writer = CopyWriter {
            shared: Arc::new(Shared {
                sending: Mutex::new(Sending {
                    socket: socket.try_clone()?,
                    buffer: Vec::new(),
                    broken: false,
                }),
                waking: socket.try_clone()?,
                session: session.clone(),
            }),
        };
        let reader = CopyReader {
            socket,
            received: vec![0; RECEIVE_BYTES_MAX].into_boxed_slice(),
            pending,
            session,
            writer: writer.clone(),
        };
        Ok(Self { reader, writer })
    }
}

/// A thread that panicked with the lock left the session as it was between two calls of rustls.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Copies out what rustls has decrypted; whether the server said that nothing more will come.
fn read_plaintext(session: &mut ClientConnection, out: &mut BytesMut) -> io::Result<bool> {
    let mut chunk = [0; 16 << 10];
    loop {
        match session.reader().read(&mut chunk) {
            Ok(0) => return Ok(true),
            Ok(n) => out.extend_from_slice(&chunk[..n]),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(false),
            Err(error) => return Err(error),
        }
    }
}

/// One message of the server inside a replication stream.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ServerMessage {
    /// The payload of a CopyData.
    CopyData(Bytes),
    /// A notice or warning (rule C06: never to be ignored).
    Notice(Fault),
    /// The server ends the stream with an error.
    Error(Fault),
    /// The server is done.
    CopyDone,
    /// Anything else, by its tag; nothing to do.
    Other(u8),
}

impl ServerMessage {
    /// Takes the next whole message off `buffer`; `None` when it is not complete yet.
    ///
    /// # Errors
    /// What is there is not a message.
    pub fn take(buffer: &mut BytesMut) -> io::Result<Option<ServerMessage>> {
        let Some(length) = message_length(buffer)? else {
            return Ok(None);
        };
        if buffer.len() < length {
            return Ok(None);
        }
        let mut message = buffer.split_to(length);
        let tag = message[0];
        Ok(Some(match tag {
            b'd' => {
                message.advance(5);
                ServerMessage::CopyData(message.freeze())
            }
            b'c' => ServerMessage::CopyDone,
            b'E' | b'N' => match Message::parse(&mut message)? {
                Some(Message::ErrorResponse(body)) => {
                    ServerMessage::Error(Fault::from_fields(&mut body.fields())?)
                }
                Some(Message::NoticeResponse(body)) => {
                    ServerMessage::Notice(Fault::from_fields(&mut body.fields())?)
                }
                _ => ServerMessage::Other(tag),
            },
            other => ServerMessage::Other(other),
        }))
    }
}

/// The reading half.
pub struct CopyReader {
    socket: BlockingSocket,
    received: Box<[u8]>,
    /// Received before the stream became blocking.
    pending: BytesMut,
    session: Option<Arc<Mutex<ClientConnection>>>,
    /// rustls may have to answer (a key update) what was read.
    writer: CopyWriter,
}

impl CopyReader {
    /// One blocking receive, appended to `buffer` (messages with tag and length, cut anywhere);
    /// returns how many bytes were appended, 0 when the server has closed the connection. Under
    /// TLS another receive follows when the first did not complete a record.
    ///
    /// # Errors
    /// `WouldBlock` or `TimedOut` when the read timeout passes, which harms nothing; any other
    /// error means that the connection is lost.
    pub fn read_some(&mut self, buffer: &mut BytesMut) -> io::Result<usize> {
        if !self.pending.is_empty() {
            let count = self.pending.len();
            buffer.unsplit(self.pending.split());
            return Ok(count);
        }
        loop {
            let count = self.socket.receive(&mut self.received)?;
            let Some(session) = &self.session else {
                buffer.extend_from_slice(&self.received[..count]);
                return Ok(count);
            };
            if count == 0 {
                return Ok(0);
            }
            let before = buffer.len();
            let (ended, answers) = decrypt(&mut lock(session), &self.received[..count], buffer)?;
            if answers {
                self.writer.send_encrypted(|_| Ok(()))?;
            }
            if buffer.len() > before || ended {
                return Ok(buffer.len() - before);
            }
        }
    }

    /// How long `read_some` waits; `None` for ever. Zero is refused.
    ///
    /// # Errors
    /// The socket does not take it.
    pub fn set_read_timeout(&self, timeout: Option<Duration>) -> io::Result<()> {
        self.socket.set_read_timeout(timeout)
    }
}

/// Decrypts what came; whether the server has said its last, and whether rustls wants to answer.
fn decrypt(
    session: &mut ClientConnection,
    mut received: &[u8],
    out: &mut BytesMut,
) -> io::Result<(bool, bool)> {
    let mut ended = false;
    while !received.is_empty() && !ended {
        session.read_tls(&mut received)?;
        session
            .process_new_packets()
            .map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error))?;
        // Each round, because rustls takes no more while plaintext waits.
        ended = read_plaintext(session, out)?;
    }
    Ok((ended, session.wants_write()))
}

/// The writing half; clones write to the same connection, from any thread, while the reader waits.
#[derive(Clone)]
pub struct CopyWriter {
    shared: Arc<Shared>,
}

struct Shared {
    sending: Mutex<Sending>,
    /// For `shutdown`, which must not wait for a writer that is stuck.
    waking: BlockingSocket,
    session: Option<Arc<Mutex<ClientConnection>>>,
}

struct Sending {
    socket: BlockingSocket,
    buffer: Vec<u8>,
    /// A message was cut off half-way; anything sent after it would be read as its rest.
    broken: bool,
}

impl CopyWriter {
    /// Sends one CopyData message; returns when the kernel has it.
    ///
    /// # Errors
    /// The connection is lost, or the server has taken nothing for 30 s; nothing can be sent any
    /// more after that.
    pub fn send_copy_data(&self, payload: &[u8]) -> io::Result<()> {
        let length = u32::try_from(payload.len() + 4)
            .map_err(|_| io::Error::new(io::ErrorKind::InvalidInput, "longer than a message"))?;
        self.send(&[b"d", &length.to_be_bytes()[..], payload].concat())
    }

    /// Sends CopyDone: we want no more.
    ///
    /// # Errors
    /// As [`CopyWriter::send_copy_data`].
    pub fn send_copy_done(&self) -> io::Result<()> {
        self.send(b"c\0\0\0\x04")
    }

    /// Shuts the socket down, which wakes the reader: it reads the end.
    pub fn shutdown(&self) {
        // It fails only when the connection is already gone.
        let _ = self.shared.waking.shutdown();
    }

    fn send(&self, message: &[u8]) -> io::Result<()> {
        if self.shared.session.is_some() {
            return self.send_encrypted(|session| session.writer().write_all(message));
        }
        lock(&self.shared.sending).send_with(|buffer| {
            buffer.extend_from_slice(message);
            Ok(())
        })
    }

    /// Lets `write` put plaintext into the session, and sends all that rustls then has to send.
    fn send_encrypted(
        &self,
        write: impl FnOnce(&mut ClientConnection) -> io::Result<()>,
    ) -> io::Result<()> {
        let Some(session) = &self.shared.session else {
            return Ok(());
        };
        lock(&self.shared.sending).send_with(|buffer| {
            let mut session = lock(session);
            write(&mut session)?;
            while session.wants_write() {
                session.write_tls(buffer)?;
            }
            Ok(())
        })
    }
}

impl Sending {
    fn send_with(&mut self, fill: impl FnOnce(&mut Vec<u8>) -> io::Result<()>) -> io::Result<()> {
        if self.broken {
            return Err(io::ErrorKind::BrokenPipe.into());
        }
        self.buffer.clear();
        self.broken = true;
        fill(&mut self.buffer)?;
        self.socket.send_all(&self.buffer)?;
        self.broken = false;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use rustls::pki_types::{PrivateKeyDer, ServerName};
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::UnixStream;
    use tokio_rustls::{TlsAcceptor, TlsConnector};

    use super::*;
    use crate::socket::Socket;

    const LIMIT: Duration = Duration::from_secs(10);

    /// Everything that comes, until `wanted` bytes are there.
    fn read_all(mut stream: CopyBoth, wanted: usize) -> (CopyBoth, BytesMut) {
        let mut buffer = BytesMut::new();
        stream
            .reader
            .set_read_timeout(Some(LIMIT))
            .expect("a timeout");
        while buffer.len() < wanted {
            assert_ne!(stream.reader.read_some(&mut buffer).expect("read"), 0);
        }
        (stream, buffer)
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn nothing_received_before_the_conversion_is_lost() {
        let (ours, mut theirs) = UnixStream::pair().expect("a pair");
        theirs.write_all(b"def").await.expect("write");
        let unread = BytesMut::from(&b"abc"[..]);
        let stream = CopyBoth::from_wire(Transport::Plain(Socket::Unix(ours)), unread);
        let stream = stream.expect("convert");
        let reading = tokio::task::spawn_blocking(move || read_all(stream, 6));
        let (_, got) = reading.await.expect("the thread");
        assert_eq!(&got[..], b"abcdef");
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn nothing_decrypted_before_the_conversion_is_lost() {
        let (ours, theirs) = UnixStream::pair().expect("a pair");
        let (client, server) = tls_configs();
        let name = ServerName::try_from("localhost").expect("a name");
        let (client, server) = tokio::join!(
            TlsConnector::from(client).connect(name, Socket::Unix(ours)),
            TlsAcceptor::from(server).accept(theirs),
        );
        let (mut client, mut server) = (client.expect("client"), server.expect("server"));
        server.write_all(b"abcdef").await.expect("write");
        server.flush().await.expect("flush");
        // One record: rustls decrypts all of it, and one byte is taken out.
        assert_eq!(client.read_u8().await.expect("read"), b'a');
        let unread = BytesMut::from(&b"a"[..]);
        let stream = CopyBoth::from_wire(Transport::Tls(Box::new(client)), unread);
        let stream = stream.expect("convert");
        // Before anything more arrives: nobody would wake a reader that waits for it.
        let reading = tokio::task::spawn_blocking(move || read_all(stream, 6));
        let (stream, got) = reading.await.expect("the thread");
        assert_eq!(&got[..], b"abcdef");
        server.write_all(&[b'g'; 100_000]).await.expect("write");
        server.flush().await.expect("flush");
        let reading = tokio::task::spawn_blocking(move || read_all(stream, 100_000));
        let (stream, got) = reading.await.expect("the thread");
        assert!(got.len() == 100_000 && got.iter().all(|byte| *byte == b'g'));
        // And the other direction, larger than what rustls keeps back by default.
        let sending = tokio::task::spawn_blocking(move || {
            stream
                .writer
                .send_copy_data(&vec![7; 300_000])
                .expect("send");
        });
        let mut message = vec![0; 300_005];
        server.read_exact(&mut message).await.expect("read");
        sending.await.expect("the thread");
        assert_eq!((message[0], message[300_004]), (b'd', 7));
    }

    fn tls_configs() -> (Arc<rustls::ClientConfig>, Arc<rustls::ServerConfig>) {
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let made = rcgen::generate_simple_self_signed(["localhost".to_owned()]).expect("made");
        let key = PrivateKeyDer::try_from(made.signing_key.serialize_der()).expect("a key");
        let server = rustls::ServerConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .expect("versions")
            .with_no_client_auth()
            .with_single_cert(vec![made.cert.der().clone()], key)
            .expect("a server");
        let options = crate::ConnectOptions::parse(
            "host=localhost user=u sslmode=require",
            &crate::Environment::empty(),
        );
        let client = crate::tls::client_config(&options.expect("options").tls).expect("a client");
        (client, Arc::new(server))
    }
}
