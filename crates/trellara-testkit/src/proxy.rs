//! A TCP proxy in this process that misbehaves on demand.
//!
//! It never alters bytes: a network loses connections and time, not single bytes, so what is held
//! back is delivered later or the connection is cut. Counters and the number of connections are
//! signals that a test can wait for.

use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::tcp::{ReadHalf, WriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{broadcast, mpsc, watch};
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep_until};

/// Bytes read at once; also what a delayed direction may hold is a multiple of it.
const READ_BYTES: usize = 64 * 1024;
/// Reads that may be under way in one delayed direction before reading stops.
const DELAYED_READS: usize = 64;

/// Which way bytes flow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    /// From the client to the server.
    ToServer,
    /// From the server to the client.
    ToClient,
}

/// Who is told that a connection is cut.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    /// Both ends are reset.
    Both,
    /// Only the client is reset; the server's connection stays open and silent.
    Client,
    /// Only the server is reset; the client's connection stays open and silent.
    Server,
    /// Nobody: both connections stay open and silent.
    Neither,
}

/// How one direction behaves; applies to open and new connections at once.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct Rules {
    /// Nothing passes; what was sent waits and is delivered when this ends.
    pub hold: bool,
    /// Each read is delivered this much later; order is kept.
    pub delay: Duration,
    /// Writes are cut into pieces of at most this many bytes, each sent alone.
    pub slice: Option<usize>,
    /// Each connection delivers this many bytes a second.
    pub bytes_per_second: Option<u64>,
    /// Cut both ends after exactly this many bytes, counted over all connections from the start
    /// of the proxy (see [`Proxy::bytes`]).
    pub cut_at: Option<u64>,
}

struct Shared {
    rules: [watch::Sender<Rules>; 2],
    bytes: [watch::Sender<u64>; 2],
    open: watch::Sender<usize>,
    accepted: AtomicUsize,
    cut: broadcast::Sender<Side>,
    upstream: watch::Sender<SocketAddr>,
}

/// A proxy in front of one server. Dropping it ends the listener and every connection.
pub struct Proxy {
    address: SocketAddr,
    shared: Arc<Shared>,
    listening: watch::Sender<bool>,
    task: JoinHandle<()>,
}

impl std::fmt::Debug for Proxy {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Proxy")
            .field("address", &self.address)
            .finish_non_exhaustive()
    }
}

impl Proxy {
    /// Listens on a free loopback port and passes connections on to `upstream`.
    pub async fn start(upstream: SocketAddr) -> io::Result<Self> {
        let port = trellara_local::free_port().map_err(io::Error::other)?;
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, port)).await?;
        let address = listener.local_addr()?;
        let shared = Arc::new(Shared {
            rules: [watch::Sender::default(), watch::Sender::default()],
            bytes: [watch::Sender::default(), watch::Sender::default()],
            open: watch::Sender::default(),
            accepted: AtomicUsize::new(0),
            cut: broadcast::Sender::new(16),
            upstream: watch::Sender::new(upstream),
        });
        let listening = watch::Sender::new(true);
        let task = tokio::spawn(accept(
            listener,
            address,
            Arc::clone(&shared),
            listening.subscribe(),
        ));
        Ok(Self {
            address,
            shared,
            listening,
            task,
        })
    }

    /// In front of a port of this machine.
    pub async fn to_port(port: u16) -> io::Result<Self> {
        Self::start(SocketAddr::from((Ipv4Addr::LOCALHOST, port))).await
    }

    /// Where clients connect to.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// The port where clients connect to.
    pub fn port(&self) -> u16 {
        self.address.port()
    }

    /// `url` with its `127.0.0.1:port` replaced by this proxy's, for servers of this machine.
    pub fn url(&self, url: &str) -> String {
        let upstream = self.shared.upstream.borrow().to_string();
        url.replacen(&upstream, &self.address.to_string(), 1)
    }

    /// New connections go to this server from now on; open ones stay where they are.
    pub fn set_upstream(&self, upstream: SocketAddr) {
        self.shared.upstream.send_replace(upstream);
    }

    /// Replaces the rules of one direction.
    pub fn set(&self, direction: Direction, rules: Rules) {
        self.shared.rules[direction as usize].send_replace(rules);
    }

    /// Holds one direction back.
    pub fn hold(&self, direction: Direction) {
        self.shared.rules[direction as usize].send_modify(|rules| rules.hold = true);
    }

    /// A partition: nothing passes in either direction, and nobody is told. New connections are
    /// accepted and stay silent.
    pub fn black_hole(&self) {
        self.hold(Direction::ToServer);
        self.hold(Direction::ToClient);
    }

    /// Back to passing everything on at once.
    pub fn heal(&self) {
        self.set(Direction::ToServer, Rules::default());
        self.set(Direction::ToClient, Rules::default());
    }

    /// Resets every open connection on this side; what was held back is lost, and nothing passes on
    /// them any more.
    pub fn cut(&self, side: Side) {
        // Nobody listens when there is no connection, and that is as good as cut.
        let _ = self.shared.cut.send(side);
    }

    /// Refuses new connections (or takes them again); open ones stay. Returns at once: the
    /// listener closes within the next turn of the runtime.
    pub fn listen(&self, listening: bool) {
        self.listening.send_replace(listening);
    }

    /// Bytes delivered in this direction since the start, over all connections.
    pub fn bytes(&self, direction: Direction) -> u64 {
        *self.shared.bytes[direction as usize].borrow()
    }

    /// Connections accepted since the start.
    pub fn accepted(&self) -> usize {
        self.shared.accepted.load(Ordering::Relaxed)
    }

    /// Waits until at least this many bytes were delivered in this direction.
    pub async fn wait_bytes(&self, direction: Direction, at_least: u64) {
        let mut bytes = self.shared.bytes[direction as usize].subscribe();
        // The sender lives in `self`, so the wait ends by the condition only.
        let _ = bytes.wait_for(|bytes| *bytes >= at_least).await;
    }

    /// Waits until the number of open connections fits.
    pub async fn wait_open(&self, mut fits: impl FnMut(usize) -> bool) {
        let mut open = self.shared.open.subscribe();
        let _ = open.wait_for(|open| fits(*open)).await;
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// Accepts while it should; its connections end with it.
async fn accept(
    listener: TcpListener,
    address: SocketAddr,
    shared: Arc<Shared>,
    mut listening: watch::Receiver<bool>,
) {
    let mut connections = tokio::task::JoinSet::new();
    let mut listener = Some(listener);
    loop {
        if *listening.borrow_and_update() {
            if listener.is_none() {
                // The port is outside of what the system gives away, so it is still ours.
                listener = TcpListener::bind(address).await.ok();
            }
        } else {
            listener = None;
        }
        let accepted = async {
            match &listener {
                Some(listener) => listener.accept().await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            changed = listening.changed() => if changed.is_err() { return },
            Some(_) = connections.join_next() => {}
            Ok((client, _)) = accepted => {
                shared.accepted.fetch_add(1, Ordering::Relaxed);
                // Subscribed before the task runs: a cut from now on is not missed.
                let cut = shared.cut.subscribe();
                connections.spawn(connection(client, cut, Arc::clone(&shared)));
            }
        }
    }
}

/// One connection until either end closes both ways, or it is cut.
async fn connection(
    mut client: TcpStream,
    mut cut: broadcast::Receiver<Side>,
    shared: Arc<Shared>,
) {
    let upstream = *shared.upstream.borrow();
    let Ok(mut server) = TcpStream::connect(upstream).await else {
        return;
    };
    let _ = (client.set_nodelay(true), server.set_nodelay(true));
    shared.open.send_modify(|open| *open += 1);
    let side = {
        let (client_read, client_write) = client.split();
        let (server_read, server_write) = server.split();
        let both = async {
            tokio::try_join!(
                pump(client_read, server_write, Direction::ToServer, &shared),
                pump(server_read, client_write, Direction::ToClient, &shared),
            )
        };
        tokio::select! {
            ended = both => if ended.is_ok() { None } else { Some(Side::Both) },
            side = cut.recv() => Some(side.unwrap_or(Side::Both)),
        }
    };
    shared.open.send_modify(|open| *open -= 1);
    match side {
        None => {}
        Some(Side::Both) => {
            reset(client);
            reset(server);
        }
        Some(Side::Client) => {
            reset(client);
            until_next_cut(server, &mut cut).await;
        }
        Some(Side::Server) => {
            reset(server);
            until_next_cut(client, &mut cut).await;
        }
        Some(Side::Neither) => {
            until_next_cut(client, &mut cut).await;
            reset(server);
        }
    }
}

/// A half-open connection stays so until the next cut that names its side, or the proxy's end.
async fn until_next_cut(stream: TcpStream, cut: &mut broadcast::Receiver<Side>) {
    let _ = cut.recv().await;
    reset(stream);
}

/// Closes with a reset instead of an orderly end.
fn reset(stream: TcpStream) {
    let _ = stream.set_zero_linger();
    drop(stream);
}

/// Reads, waits as the rules say, delivers. An error means that the connection is to be reset.
async fn pump(
    mut from: ReadHalf<'_>,
    mut to: WriteHalf<'_>,
    direction: Direction,
    shared: &Shared,
) -> io::Result<()> {
    let rules = &shared.rules[direction as usize];
    let (queue, mut queued) = mpsc::channel::<(Instant, Bytes)>(DELAYED_READS);
    let reading = async move {
        let mut rules = rules.subscribe();
        let mut buffer = BytesMut::new();
        loop {
            let _ = rules.wait_for(|rules| !rules.hold).await;
            buffer.reserve(READ_BYTES);
            if from.read_buf(&mut buffer).await? == 0 {
                return Ok::<(), io::Error>(());
            }
            let due = Instant::now() + rules.borrow().delay;
            if queue.send((due, buffer.split().freeze())).await.is_err() {
                return Ok(());
            }
        }
    };
    let writing = async {
        let mut rules = rules.subscribe();
        while let Some((due, bytes)) = queued.recv().await {
            sleep_until(due).await;
            let mut rest = &bytes[..];
            while !rest.is_empty() {
                // A hold that began meanwhile keeps what is not written yet.
                let now = rules
                    .wait_for(|rules| !rules.hold)
                    .await
                    .map(|rules| rules.clone())
                    .unwrap_or_default();
                rest = deliver(&mut to, rest, &now, &shared.bytes[direction as usize]).await?;
            }
        }
        to.shutdown().await
    };
    tokio::try_join!(reading, writing).map(|_| ())
}

/// Writes one piece of `bytes` and returns the rest.
async fn deliver<'b>(
    to: &mut WriteHalf<'_>,
    bytes: &'b [u8],
    rules: &Rules,
    counter: &watch::Sender<u64>,
) -> io::Result<&'b [u8]> {
    let passed = *counter.borrow();
    let until_cut = rules.cut_at.map(|at| at.saturating_sub(passed));
    let allowed = until_cut.map_or(usize::MAX, |left| {
        usize::try_from(left).unwrap_or(usize::MAX)
    });
    let piece = bytes
        .len()
        .min(rules.slice.unwrap_or(usize::MAX).max(1))
        .min(allowed);
    to.write_all(&bytes[..piece]).await?;
    if let Some(rate) = rules.bytes_per_second {
        tokio::time::sleep(Duration::from_secs_f64(piece as f64 / rate.max(1) as f64)).await;
    }
    if rules.slice.is_some() {
        // Gives the peer the chance to see this piece alone.
        tokio::task::yield_now().await;
    }
    counter.send_modify(|passed| *passed += piece as u64);
    if piece == allowed {
        return Err(io::ErrorKind::ConnectionReset.into());
    }
    Ok(&bytes[piece..])
}

#[cfg(test)]
mod tests;
