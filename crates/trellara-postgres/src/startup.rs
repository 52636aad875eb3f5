//! From a connected socket to a backend that is ready: TLS, startup packet, and the answers that
//! decide. Authentication itself is in [`crate::login`].

use std::io;

use bytes::BytesMut;
use postgres_protocol::message::backend::Message;
use postgres_protocol::message::frontend;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio_rustls::TlsConnector;

use crate::socket::{Socket, Transport};
use crate::tls::{self, SslMode};
use crate::wire::{Incoming, Wire};
use crate::{ConnectError, ConnectErrorKind, ConnectOptions, Fault, Host};

/// What the connection will be used for; everything before that is the same (B129).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Purpose {
    Ordinary,
    Replication,
}

/// Whether this attempt encrypts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Encryption {
    Never,
    IfOffered,
    Always,
}

/// An authenticated connection that is ready for its first command.
pub(crate) struct Established {
    pub(crate) wire: Wire,
    pub(crate) pid: i32,
    pub(crate) secret: i32,
}

/// One attempt: everything that its steps need.
pub(crate) struct Attempt<'a> {
    pub(crate) options: &'a ConnectOptions,
    pub(crate) host: &'a Host,
    pub(crate) purpose: Purpose,
}

impl Attempt<'_> {
    pub(crate) fn error(
        &self,
        kind: ConnectErrorKind,
        reason: impl Into<String>,
        hint: impl Into<String>,
    ) -> ConnectError {
        ConnectError {
            kind,
            host: self.host.to_string(),
            reason: reason.into(),
            hint: hint.into(),
            fault: None,
        }
    }

    /// An I/O error, which may be TLS's in disguise: a server that does not like our certificate
    /// says so only after the handshake.
    pub(crate) fn io(&self, error: &io::Error) -> ConnectError {
        match error
            .get_ref()
            .and_then(|inner| inner.downcast_ref::<rustls::Error>())
        {
            Some(tls) => self.error(ConnectErrorKind::Tls, format!("TLS: {tls}"), tls::hint(tls)),
            None if error.kind() == io::ErrorKind::InvalidData
                || error.kind() == io::ErrorKind::InvalidInput =>
            {
                self.error(
                    ConnectErrorKind::Protocol,
                    error.to_string(),
                    "check that a PostgreSQL server answers on this port",
                )
            }
            None => self.error(
                ConnectErrorKind::Unreachable,
                error.to_string(),
                "check host, port, listen_addresses and firewalls",
            ),
        }
    }

    /// Encrypts the socket as demanded; whether it is encrypted.
    pub(crate) async fn encrypt(
        &self,
        mut socket: Socket,
        encryption: Encryption,
    ) -> Result<(Transport, bool), ConnectError> {
        if encryption == Encryption::Never {
            return Ok((Transport::Plain(socket), false));
        }
        let tls = &self.options.tls;
        if !tls.direct {
            let mut request = BytesMut::new();
            frontend::ssl_request(&mut request);
            socket.write_all(&request).await.map_err(|e| self.io(&e))?;
            // Exactly one byte, so that nothing sent before the handshake can be taken for
            // something sent inside it.
            match socket.read_u8().await.map_err(|e| self.io(&e))? {
                b'S' => {}
                b'N' if encryption == Encryption::IfOffered => {
                    return Ok((Transport::Plain(socket), false));
                }
                b'N' => {
                    return Err(self.error(
                        ConnectErrorKind::Tls,
                        format!("sslmode={} and the server offers no TLS", tls.mode.as_str()),
                        "switch on ssl on the server; sslmode=prefer goes on without",
                    ));
                }
                b'E' => {
                    return Err(self.error(
                        ConnectErrorKind::Unreachable,
                        "the server answered with an error before TLS could begin",
                        "see the server's log",
                    ));
                }
                _ => return Err(self.foreign()),
            }
        }
        let setup =
            |error: tls::TlsSetupError| self.error(ConnectErrorKind::Tls, error.reason, error.hint);
        let config = tls::client_config(tls).map_err(setup)?;
        let name = tls::server_name(&self.host.name, tls.mode).map_err(setup)?;
        let stream = TlsConnector::from(config)
            .connect(name, socket)
            .await
            .map_err(|error| match self.io(&error) {
                // A server below 17 takes a direct handshake for rubbish and hangs up.
                lost if tls.direct && lost.kind == ConnectErrorKind::Unreachable => self.error(
                    ConnectErrorKind::Tls,
                    format!("the direct TLS handshake failed: {}", lost.reason),
                    "sslnegotiation=direct needs PostgreSQL 17 with ssl on",
                ),
                other => other,
            })?;
        if tls.direct && stream.get_ref().1.alpn_protocol() != Some(tls::ALPN) {
            return Err(self.error(
                ConnectErrorKind::Tls,
                "the server did not agree to speak PostgreSQL inside TLS (ALPN)",
                "sslnegotiation=direct needs PostgreSQL 17 and no TLS terminator in between",
            ));
        }
        Ok((Transport::Tls(Box::new(stream)), true))
    }

    pub(crate) fn foreign(&self) -> ConnectError {
        self.error(
            ConnectErrorKind::Protocol,
            "the answer is not PostgreSQL's",
            "check that a PostgreSQL server answers on this port",
        )
    }

    /// Sends the startup packet and goes on until the backend is ready.
    pub(crate) async fn start(&self, transport: Transport) -> Result<Established, ConnectError> {
        let mut wire = Wire::new(transport);
        let mut parameters = vec![
            ("user", self.options.user.as_str()),
            ("database", self.options.database.as_str()),
        ];
        if self.purpose == Purpose::Replication {
            parameters.push(("replication", "database"));
        }
        parameters.extend(self.options.startup_parameters());
        let mut packet = BytesMut::new();
        frontend::startup_message(parameters, &mut packet).map_err(|_| {
            self.error(
                ConnectErrorKind::Refused,
                "a name or setting of the connection holds a NUL character",
                "",
            )
        })?;
        self.send(&mut wire, &packet).await?;
        self.authenticate(&mut wire).await?;
        let (mut pid, mut secret) = (0, 0);
        loop {
            match self.receive(&mut wire).await? {
                Message::BackendKeyData(body) => {
                    (pid, secret) = (body.process_id(), body.secret_key());
                }
                Message::ReadyForQuery(_) => return Ok(Established { wire, pid, secret }),
                _ => return Err(self.foreign()),
            }
        }
    }

    pub(crate) async fn send(&self, wire: &mut Wire, bytes: &[u8]) -> Result<(), ConnectError> {
        wire.send(bytes).await.map_err(|error| self.io(&error))
    }

    /// The next message; an error of the server is one of ours.
    pub(crate) async fn receive(&self, wire: &mut Wire) -> Result<Message, ConnectError> {
        match wire.receive().await.map_err(|error| self.io(&error))? {
            Incoming::Known(Message::ErrorResponse(body)) => {
                let fault = Fault::from_fields(&mut body.fields()).map_err(|e| self.io(&e))?;
                Err(self.refused_by_server(fault))
            }
            Incoming::Known(message) => Ok(message),
            Incoming::CopyBoth => Err(self.foreign()),
        }
    }

    /// The server's own words, with what they mean for the caller.
    fn refused_by_server(&self, fault: Fault) -> ConnectError {
        let kind = match fault.sqlstate.as_str() {
            "57P03" => ConnectErrorKind::ServerStarting,
            "53300" => ConnectErrorKind::TooManyConnections,
            "3D000" | "42501" => ConnectErrorKind::Refused,
            code if code.starts_with("28") => ConnectErrorKind::Refused,
            _ => ConnectErrorKind::Server,
        };
        ConnectError {
            kind,
            host: self.host.to_string(),
            reason: fault.to_string(),
            hint: self.hint(&fault),
            fault: Some(Box::new(fault)),
        }
    }

    fn hint(&self, fault: &Fault) -> String {
        let ConnectOptions { user, database, .. } = self.options;
        // Pools know only a handful of startup settings, and older ones no replication.
        if fault.message.contains("unsupported startup parameter") {
            return "a pooler such as pgbouncer is in between; connect to PostgreSQL itself".into();
        }
        match fault.sqlstate.as_str() {
            "28P01" => format!("check the password of {user}, or the password file"),
            "28000" => format!(
                "pg_hba.conf must let user {user} into database {database} from this address{}",
                match self.options.tls.mode {
                    SslMode::Disable => ", and sslmode=disable does not fit a hostssl line",
                    _ => "",
                }
            ),
            "3D000" => format!("create the database {database}, or name another"),
            // "must be superuser or replication role …" in 15, "permission denied to start WAL
            // sender" since 16.
            "42501" if self.purpose == Purpose::Replication => {
                format!(
                    "ALTER ROLE \"{user}\" REPLICATION, and GRANT CONNECT ON DATABASE \"{database}\""
                )
            }
            "42501" => format!("GRANT CONNECT ON DATABASE \"{database}\" TO \"{user}\""),
            "53300" if self.purpose == Purpose::Replication => {
                "raise max_wal_senders or max_connections, or end connections".into()
            }
            "53300" => "raise max_connections or the role's connection limit".into(),
            "57P03" => "wait: the server is starting, stopping or in recovery".into(),
            _ => String::new(),
        }
    }
}
