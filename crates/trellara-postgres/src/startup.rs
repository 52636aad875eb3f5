//! From a connected socket to an authenticated backend: TLS, startup packet, authentication.

use std::io;

use bytes::BytesMut;
use fallible_iterator::FallibleIterator;
use postgres_protocol::authentication::md5_hash;
use postgres_protocol::authentication::sasl::{self, ScramSha256};
use postgres_protocol::message::backend::{AuthenticationSaslBody, Message};
use postgres_protocol::message::frontend;
use secrecy::{ExposeSecret, SecretString};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio_rustls::TlsConnector;

use crate::options::{AuthMethod, ChannelBinding};
use crate::passfile::{self, Lookup};
use crate::socket::{Socket, Transport};
use crate::tls::{self, SslMode};
use crate::wire::{Incoming, Wire};
use crate::{ConnectError, ConnectErrorKind, ConnectOptions, Fault, Host, certificate};

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

    fn foreign(&self) -> ConnectError {
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

    async fn send(&self, wire: &mut Wire, bytes: &[u8]) -> Result<(), ConnectError> {
        wire.send(bytes).await.map_err(|error| self.io(&error))
    }

    /// The next message; an error of the server is one of ours.
    async fn receive(&self, wire: &mut Wire) -> Result<Message, ConnectError> {
        match wire.receive().await.map_err(|error| self.io(&error))? {
            Incoming::Known(Message::ErrorResponse(body)) => {
                let fault = Fault::from_fields(&mut body.fields()).map_err(|e| self.io(&e))?;
                Err(self.refused_by_server(fault))
            }
            Incoming::Known(message) => Ok(message),
            Incoming::CopyBoth => Err(self.foreign()),
        }
    }

    async fn authenticate(&self, wire: &mut Wire) -> Result<(), ConnectError> {
        let mut used = AuthMethod::None;
        let mut bound = false;
        loop {
            match self.receive(wire).await? {
                Message::AuthenticationOk => break,
                Message::AuthenticationCleartextPassword => {
                    used = self.allow(AuthMethod::Cleartext, "a password in clear text")?;
                    let password = self.password()?;
                    self.send_password(wire, password.expose_secret().as_bytes())
                        .await?;
                }
                Message::AuthenticationMd5Password(body) => {
                    used = self.allow(AuthMethod::Md5, "md5")?;
                    let password = self.password()?;
                    let hash = md5_hash(
                        self.options.user.as_bytes(),
                        password.expose_secret().as_bytes(),
                        body.salt(),
                    );
                    self.send_password(wire, hash.as_bytes()).await?;
                }
                Message::AuthenticationSasl(body) => {
                    used = self.allow(AuthMethod::Scram, "scram-sha-256")?;
                    bound = self.scram(wire, &body).await?;
                }
                Message::AuthenticationGss
                | Message::AuthenticationSspi
                | Message::AuthenticationKerberosV5
                | Message::AuthenticationScmCredential => {
                    return Err(self.error(
                        ConnectErrorKind::Refused,
                        "the server asks for GSSAPI, SSPI or Kerberos, which is not supported",
                        "give this user scram-sha-256 or cert in pg_hba.conf",
                    ));
                }
                _ => return Err(self.foreign()),
            }
        }
        if used == AuthMethod::None {
            self.allow(AuthMethod::None, "no authentication at all")?;
        }
        if self.options.channel_binding == ChannelBinding::Require && !bound {
            return Err(self.error(
                ConnectErrorKind::Refused,
                "channel_binding=require, and the server let us in without binding the channel",
                "use scram-sha-256 for this user in pg_hba.conf, over TLS",
            ));
        }
        Ok(())
    }

    /// Whether `require_auth` lets us prove ourselves this way.
    fn allow(&self, method: AuthMethod, name: &str) -> Result<AuthMethod, ConnectError> {
        if self.options.allowed_auth.contains(&method) {
            return Ok(method);
        }
        Err(self.error(
            ConnectErrorKind::Refused,
            format!("the server asks for {name}, which require_auth forbids"),
            "change the method in pg_hba.conf, or require_auth",
        ))
    }

    fn password(&self) -> Result<SecretString, ConnectError> {
        if let Some(password) = &self.options.password {
            return Ok(password.clone());
        }
        let missing = |hint: String| {
            self.error(
                ConnectErrorKind::Refused,
                "the server asks for a password",
                hint,
            )
        };
        let Some(path) = &self.options.passfile else {
            return Err(missing(
                "give one in the connection string or in a password file".into(),
            ));
        };
        // libpq's rule: the server behind the default socket is called localhost in the file.
        let default_socket = ["/tmp", "/var/run/postgresql"].contains(&self.host.name.as_str());
        let host = if default_socket {
            "localhost"
        } else {
            &self.host.name
        };
        let (database, user) = (&self.options.database, &self.options.user);
        match passfile::look_up(path, host, self.host.port, database, user) {
            Lookup::Found(password) => Ok(password),
            Lookup::Ignored(why) => Err(missing(why)),
            Lookup::Absent => Err(missing(format!(
                "give one in the connection string, or a line {host}:{}:{database}:{user}:… in {}",
                self.host.port,
                path.display()
            ))),
        }
    }

    async fn send_password(&self, wire: &mut Wire, password: &[u8]) -> Result<(), ConnectError> {
        let mut message = BytesMut::new();
        frontend::password_message(password, &mut message).map_err(|_| {
            self.error(
                ConnectErrorKind::Refused,
                "the password holds a NUL character",
                "",
            )
        })?;
        self.send(wire, &message).await
    }

    /// SCRAM-SHA-256, bound to the TLS session where both sides can; whether it was bound.
    async fn scram(
        &self,
        wire: &mut Wire,
        body: &AuthenticationSaslBody,
    ) -> Result<bool, ConnectError> {
        let offered: Vec<String> = body
            .mechanisms()
            .map(|mechanism| Ok(mechanism.to_owned()))
            .collect()
            .map_err(|error| self.io(&error))?;
        let offers = |mechanism: &str| offered.iter().any(|offer| offer == mechanism);
        let wanted = self.options.channel_binding;
        let binding = match &wire.transport {
            Transport::Tls(stream) if wanted != ChannelBinding::Disable => {
                let certificates = stream.get_ref().1.peer_certificates();
                certificates
                    .and_then(|list| list.first())
                    .and_then(certificate::end_point_binding)
            }
            _ => None,
        };
        let (mechanism, binding) = match binding {
            Some(hash) if offers(sasl::SCRAM_SHA_256_PLUS) => {
                let binding = sasl::ChannelBinding::tls_server_end_point(hash);
                (sasl::SCRAM_SHA_256_PLUS, binding)
            }
            _ if !offers(sasl::SCRAM_SHA_256) => {
                return Err(self.error(
                    ConnectErrorKind::Refused,
                    format!("the server offers only {}", offered.join(", ")),
                    "give this user scram-sha-256 in pg_hba.conf",
                ));
            }
            // "We could have bound, you did not offer it": lets the server notice somebody who
            // took its offer away.
            Some(_) => (sasl::SCRAM_SHA_256, sasl::ChannelBinding::unrequested()),
            None => (sasl::SCRAM_SHA_256, sasl::ChannelBinding::unsupported()),
        };
        let bound = mechanism == sasl::SCRAM_SHA_256_PLUS;
        if wanted == ChannelBinding::Require && !bound {
            return Err(self.error(
                ConnectErrorKind::Refused,
                "channel_binding=require, and the channel cannot be bound",
                "it needs TLS on both sides and a certificate signed with RSA or ECDSA",
            ));
        }
        let password = self.password()?;
        let mut scram = ScramSha256::new(password.expose_secret().as_bytes(), binding);
        let impostor = |error: io::Error| {
            self.error(
                ConnectErrorKind::Refused,
                format!("SCRAM failed: {error}"),
                "the server could not prove that it knows the password",
            )
        };
        let mut message = BytesMut::new();
        frontend::sasl_initial_response(mechanism, scram.message(), &mut message)
            .map_err(|error| self.io(&error))?;
        self.send(wire, &message).await?;
        let Message::AuthenticationSaslContinue(challenge) = self.receive(wire).await? else {
            return Err(self.foreign());
        };
        scram.update(challenge.data()).map_err(impostor)?;
        message.clear();
        frontend::sasl_response(scram.message(), &mut message).map_err(|error| self.io(&error))?;
        self.send(wire, &message).await?;
        let Message::AuthenticationSaslFinal(proof) = self.receive(wire).await? else {
            return Err(self.foreign());
        };
        scram.finish(proof.data()).map_err(impostor)?;
        Ok(bound)
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
