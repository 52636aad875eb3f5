//! The proxy against a server that echoes.

use std::net::SocketAddr;
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::time::{Instant, timeout};

use super::{Direction, Proxy, Rules, Side};

/// Nothing arriving within this time counts as silence.
const SILENCE: Duration = Duration::from_millis(100);

async fn echo_server() -> std::io::Result<SocketAddr> {
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let address = listener.local_addr()?;
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            tokio::spawn(async move {
                let (mut read, mut write) = stream.split();
                tokio::io::copy(&mut read, &mut write).await
            });
        }
    });
    Ok(address)
}

async fn proxied() -> anyhow::Result<(Proxy, TcpStream)> {
    let proxy = Proxy::start(echo_server().await?).await?;
    let client = TcpStream::connect(proxy.address()).await?;
    Ok((proxy, client))
}

async fn read(client: &mut TcpStream, length: usize) -> std::io::Result<Vec<u8>> {
    let mut bytes = vec![0; length];
    client.read_exact(&mut bytes).await?;
    Ok(bytes)
}

#[tokio::test]
async fn passes_bytes_and_counts_them() -> anyhow::Result<()> {
    let (proxy, mut client) = proxied().await?;
    client.write_all(b"hello").await?;
    assert_eq!(read(&mut client, 5).await?, b"hello");
    proxy.wait_bytes(Direction::ToClient, 5).await;
    assert_eq!(
        (
            proxy.bytes(Direction::ToServer),
            proxy.bytes(Direction::ToClient)
        ),
        (5, 5)
    );
    assert_eq!(proxy.accepted(), 1);
    drop(client);
    proxy.wait_open(|open| open == 0).await;
    Ok(())
}

#[tokio::test]
async fn a_black_hole_is_silent_and_delivers_after_it_heals() -> anyhow::Result<()> {
    let (proxy, mut client) = proxied().await?;
    proxy.wait_open(|open| open == 1).await;
    proxy.black_hole();
    client.write_all(b"hello").await?;
    assert!(timeout(SILENCE, client.read_u8()).await.is_err());
    proxy.heal();
    assert_eq!(read(&mut client, 5).await?, b"hello");
    Ok(())
}

#[tokio::test]
async fn one_way_holds_only_that_way() -> anyhow::Result<()> {
    let (proxy, mut client) = proxied().await?;
    proxy.hold(Direction::ToClient);
    client.write_all(b"hello").await?;
    proxy.wait_bytes(Direction::ToServer, 5).await;
    assert!(timeout(SILENCE, client.read_u8()).await.is_err());
    assert_eq!(proxy.bytes(Direction::ToClient), 0);
    Ok(())
}

#[tokio::test]
async fn a_cut_resets_and_new_connections_work() -> anyhow::Result<()> {
    let (proxy, mut client) = proxied().await?;
    proxy.wait_open(|open| open == 1).await;
    proxy.cut(Side::Both);
    let error = client.read_u8().await.err().map(|error| error.kind());
    assert_eq!(error, Some(std::io::ErrorKind::ConnectionReset));
    let mut again = TcpStream::connect(proxy.address()).await?;
    again.write_all(b"x").await?;
    assert_eq!(read(&mut again, 1).await?, b"x");
    Ok(())
}

#[tokio::test]
async fn half_a_cut_leaves_the_client_waiting() -> anyhow::Result<()> {
    let (proxy, mut client) = proxied().await?;
    proxy.wait_open(|open| open == 1).await;
    proxy.cut(Side::Server);
    proxy.wait_open(|open| open == 0).await;
    client.write_all(b"hello").await?;
    assert!(timeout(SILENCE, client.read_u8()).await.is_err());
    proxy.cut(Side::Client);
    assert!(client.read_u8().await.is_err());
    Ok(())
}

#[tokio::test]
async fn cuts_after_exactly_that_many_bytes() -> anyhow::Result<()> {
    let (proxy, mut client) = proxied().await?;
    proxy.set(
        Direction::ToServer,
        Rules {
            cut_at: Some(3),
            ..Rules::default()
        },
    );
    client.write_all(b"hello").await?;
    assert!(read(&mut client, 4).await.is_err());
    assert_eq!(proxy.bytes(Direction::ToServer), 3);
    Ok(())
}

#[tokio::test]
async fn slices_and_delays_keep_order() -> anyhow::Result<()> {
    let (proxy, mut client) = proxied().await?;
    let delay = Duration::from_millis(30);
    let rules = Rules {
        slice: Some(1),
        delay,
        ..Rules::default()
    };
    proxy.set(Direction::ToServer, rules);
    let text: Vec<u8> = (0..=255).collect();
    let sent = Instant::now();
    client.write_all(&text).await?;
    assert_eq!(read(&mut client, text.len()).await?, text);
    assert!(sent.elapsed() >= delay);
    Ok(())
}

#[tokio::test]
async fn refuses_and_takes_connections_again() -> anyhow::Result<()> {
    let (proxy, client) = proxied().await?;
    drop(client);
    proxy.listen(false);
    while TcpStream::connect(proxy.address()).await.is_ok() {
        tokio::task::yield_now().await;
    }
    proxy.listen(true);
    while TcpStream::connect(proxy.address()).await.is_err() {
        tokio::task::yield_now().await;
    }
    Ok(())
}
