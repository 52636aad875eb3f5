//! Messages of the frontend/backend protocol on an async transport, while a connection is ours.

use std::collections::HashMap;
use std::io;

use bytes::BytesMut;
use fallible_iterator::FallibleIterator;
use postgres_protocol::message::backend::{DataRowBody, Message};
use postgres_protocol::message::frontend;
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use crate::socket::Transport;
use crate::{Fault, QueryError, Row};

/// Longest message that is read before a replication stream starts. The largest honest one is a
/// row of a query of ours; a foreign server must not make us allocate more.
const MESSAGE_BYTES_MAX: usize = 64 << 20;

/// A message that postgres-protocol does not know, or one that it does.
pub(crate) enum Incoming {
    Known(Message),
    /// `W`: the replication stream begins.
    CopyBoth,
}

/// A transport with what was read but not yet looked at, and what the server said about itself.
pub(crate) struct Wire {
    pub(crate) transport: Transport,
    pub(crate) unread: BytesMut,
    /// Every ParameterStatus so far.
    pub(crate) parameters: HashMap<String, String>,
}

impl Wire {
    pub(crate) fn new(transport: Transport) -> Self {
        Self {
            transport,
            unread: BytesMut::with_capacity(8 << 10),
            parameters: HashMap::new(),
        }
    }

    /// Sends bytes and flushes them (TLS keeps some back otherwise).
    pub(crate) async fn send(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.transport.write_all(bytes).await?;
        self.transport.flush().await
    }

    /// The next message; parameters and notices are taken care of and not returned.
    pub(crate) async fn receive(&mut self) -> io::Result<Incoming> {
        const NEGOTIATE_PROTOCOL_VERSION: u8 = b'v';
        const COPY_BOTH_RESPONSE: u8 = b'W';
        loop {
            let length = self.fill().await?;
            match self.unread[0] {
                NEGOTIATE_PROTOCOL_VERSION => {
                    let _ = self.unread.split_to(length);
                    continue;
                }
                COPY_BOTH_RESPONSE => {
                    let _ = self.unread.split_to(length);
                    return Ok(Incoming::CopyBoth);
                }
                _ => {}
            }
            let message = Message::parse(&mut self.unread)?
                .ok_or_else(|| io::Error::other("a whole message was not read whole"))?;
            match message {
                Message::ParameterStatus(body) => {
                    self.parameters
                        .insert(body.name()?.to_owned(), body.value()?.to_owned());
                }
                Message::NoticeResponse(body) => {
                    let notice = Fault::from_fields(&mut body.fields())?;
                    notice.log_notice();
                }
                other => return Ok(Incoming::Known(other)),
            }
        }
    }

    /// A simple query; the rows of its last result. After a refusal the connection goes on.
    pub(crate) async fn query(&mut self, sql: &str) -> Result<Vec<Row>, QueryError> {
        let mut request = BytesMut::new();
        frontend::query(sql, &mut request)
            .map_err(|_| QueryError::Protocol("the statement holds a NUL character".into()))?;
        self.send(&request).await.map_err(QueryError::Connection)?;
        let mut rows = Vec::new();
        let mut refused = None;
        loop {
            match self.receive().await.map_err(QueryError::Connection)? {
                Incoming::Known(Message::ReadyForQuery(_)) => {
                    return refused.map_or(Ok(rows), |fault| Err(QueryError::Server(fault)));
                }
                Incoming::Known(Message::RowDescription(_)) => rows.clear(),
                Incoming::Known(Message::DataRow(body)) => {
                    rows.push(row(&body).map_err(QueryError::Connection)?);
                }
                Incoming::Known(Message::ErrorResponse(body)) => {
                    let fault = Fault::from_fields(&mut body.fields());
                    refused = Some(Box::new(fault.map_err(QueryError::Connection)?));
                }
                Incoming::Known(
                    Message::CommandComplete(_)
                    | Message::EmptyQueryResponse
                    | Message::NotificationResponse(_),
                ) => {}
                Incoming::Known(_) | Incoming::CopyBoth => {
                    return Err(QueryError::Protocol(
                        "an answer that a simple query does not have".into(),
                    ));
                }
            }
        }
    }

    /// Reads until a whole message is there; its length with the tag.
    async fn fill(&mut self) -> io::Result<usize> {
        loop {
            if let Some(length) = message_length(&self.unread)? {
                if length > MESSAGE_BYTES_MAX {
                    return Err(io::Error::new(
                        io::ErrorKind::InvalidData,
                        "the server's message is longer than any it should send here",
                    ));
                }
                if self.unread.len() >= length {
                    return Ok(length);
                }
                self.unread.reserve(length - self.unread.len());
            }
            if self.transport.read_buf(&mut self.unread).await? == 0 {
                return Err(io::Error::new(
                    io::ErrorKind::UnexpectedEof,
                    "the server closed the connection",
                ));
            }
        }
    }
}

fn row(body: &DataRowBody) -> io::Result<Row> {
    let buffer = body.buffer();
    body.ranges()
        .map(|range| Ok(range.map(|r| String::from_utf8_lossy(&buffer[r]).into_owned())))
        .collect()
}

/// Length of the message at the front, tag included; `None` when even that is not known yet.
pub(crate) fn message_length(buffer: &[u8]) -> io::Result<Option<usize>> {
    let Some(header) = buffer.first_chunk::<5>() else {
        return Ok(None);
    };
    let length = u32::from_be_bytes([header[1], header[2], header[3], header[4]]);
    if length < 4 {
        return Err(io::Error::new(
            io::ErrorKind::InvalidData,
            "a message of the server has an impossible length",
        ));
    }
    Ok(Some(length as usize + 1))
}
