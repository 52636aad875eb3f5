//! Sockets: TCP and Unix-domain, plain and under TLS, for async use and afterwards for blocking.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};

use socket2::{SockRef, TcpKeepalive};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpStream, UnixStream};
use tokio_rustls::client::TlsStream;

use crate::Host;
use crate::options::TcpOptions;

/// A connected socket.
#[derive(Debug)]
pub(crate) enum Socket {
    Tcp(TcpStream),
    Unix(UnixStream),
}

/// One place to try: a host name may stand for several addresses, and all of them are tried (B131).
#[derive(Debug, Clone)]
pub(crate) enum Endpoint {
    Tcp(std::net::SocketAddr),
    Unix(String),
}

/// The places a host stands for.
pub(crate) async fn endpoints(host: &Host) -> io::Result<Vec<Endpoint>> {
    if host.is_socket() {
        let name = host.name.trim_end_matches('/');
        let path = format!("{name}/.s.PGSQL.{}", host.port);
        // An @ stands for the NUL byte that begins an abstract name.
        let path = match path.strip_prefix('@') {
            Some(name) => format!("\0{name}"),
            None => path,
        };
        return Ok(vec![Endpoint::Unix(path)]);
    }
    if let Some(address) = host.address {
        return Ok(vec![Endpoint::Tcp((address, host.port).into())]);
    }
    let found = tokio::net::lookup_host((host.name.as_str(), host.port)).await?;
    let mut endpoints: Vec<Endpoint> = Vec::new();
    for address in found {
        let known = |e: &Endpoint| matches!(e, Endpoint::Tcp(known) if *known == address);
        if !endpoints.iter().any(known) {
            endpoints.push(Endpoint::Tcp(address));
        }
    }
    Ok(endpoints)
}

impl Socket {
    /// Connects and sets what makes a dead peer noticed.
    pub(crate) async fn connect(endpoint: &Endpoint, options: &TcpOptions) -> io::Result<Self> {
        match endpoint {
            Endpoint::Unix(path) => Ok(Socket::Unix(UnixStream::connect(path).await?)),
            Endpoint::Tcp(address) => {
                let stream = TcpStream::connect(address).await?;
                stream.set_nodelay(true)?;
                let socket = SockRef::from(&stream);
                if options.keepalives {
                    socket.set_tcp_keepalive(
                        &TcpKeepalive::new()
                            .with_time(options.idle)
                            .with_interval(options.interval)
                            .with_retries(options.count),
                    )?;
                }
                socket.set_tcp_user_timeout(options.user_timeout)?;
                Ok(Socket::Tcp(stream))
            }
        }
    }
}

/// A socket, under TLS or not.
#[derive(Debug)]
pub(crate) enum Transport {
    Plain(Socket),
    Tls(Box<TlsStream<Socket>>),
}

macro_rules! forward {
    ($type:ident, $($variant:ident),+) => {
        impl AsyncRead for $type {
            fn poll_read(
                self: Pin<&mut Self>,
                cx: &mut Context<'_>,
                buf: &mut ReadBuf<'_>,
            ) -> Poll<io::Result<()>> {
                match self.get_mut() {
                    $($type::$variant(inner) => Pin::new(inner).poll_read(cx, buf),)+
                }
            }
        }

        impl AsyncWrite for $type {
            fn poll_write(
                self: Pin<&mut Self>,
                cx: &mut Context<'_>,
                buf: &[u8],
            ) -> Poll<io::Result<usize>> {
                match self.get_mut() {
                    $($type::$variant(inner) => Pin::new(inner).poll_write(cx, buf),)+
                }
            }

            fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
                match self.get_mut() {
                    $($type::$variant(inner) => Pin::new(inner).poll_flush(cx),)+
                }
            }

            fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
                match self.get_mut() {
                    $($type::$variant(inner) => Pin::new(inner).poll_shutdown(cx),)+
                }
            }
        }
    };
}

forward!(Socket, Tcp, Unix);
forward!(Transport, Plain, Tls);

/// A socket for blocking use.
#[derive(Debug)]
pub(crate) enum BlockingSocket {
    Tcp(std::net::TcpStream),
    Unix(std::os::unix::net::UnixStream),
}

macro_rules! each {
    ($socket:expr, $inner:ident => $do:expr) => {
        match $socket {
            BlockingSocket::Tcp($inner) => $do,
            BlockingSocket::Unix($inner) => $do,
        }
    };
}

impl BlockingSocket {
    /// Takes the socket from the async runtime.
    pub(crate) fn from_async(socket: Socket) -> io::Result<Self> {
        let socket = match socket {
            Socket::Tcp(stream) => BlockingSocket::Tcp(stream.into_std()?),
            Socket::Unix(stream) => BlockingSocket::Unix(stream.into_std()?),
        };
        each!(&socket, inner => inner.set_nonblocking(false))?;
        Ok(socket)
    }

    pub(crate) fn try_clone(&self) -> io::Result<Self> {
        Ok(match self {
            BlockingSocket::Tcp(inner) => BlockingSocket::Tcp(inner.try_clone()?),
            BlockingSocket::Unix(inner) => BlockingSocket::Unix(inner.try_clone()?),
        })
    }

    pub(crate) fn set_read_timeout(&self, timeout: Option<std::time::Duration>) -> io::Result<()> {
        each!(self, inner => inner.set_read_timeout(timeout))
    }

    pub(crate) fn set_write_timeout(&self, timeout: Option<std::time::Duration>) -> io::Result<()> {
        each!(self, inner => inner.set_write_timeout(timeout))
    }

    pub(crate) fn shutdown(&self) -> io::Result<()> {
        each!(self, inner => inner.shutdown(std::net::Shutdown::Both))
    }

    /// One receive; interrupted ones are taken up again.
    pub(crate) fn receive(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        loop {
            let result = each!(self, inner => io::Read::read(inner, buffer));
            match result {
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                other => return other,
            }
        }
    }

    pub(crate) fn send_all(&mut self, bytes: &[u8]) -> io::Result<()> {
        each!(self, inner => io::Write::write_all(inner, bytes))
    }
}
