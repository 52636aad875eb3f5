//! Authentication: passwords in clear text, MD5, SCRAM with and without channel binding.

use std::io;

use bytes::BytesMut;
use fallible_iterator::FallibleIterator;
use postgres_protocol::authentication::md5_hash;
use postgres_protocol::authentication::sasl::{self, ScramSha256};
use postgres_protocol::message::backend::{AuthenticationSaslBody, Message};
use postgres_protocol::message::frontend;
use secrecy::{ExposeSecret, SecretString};

use crate::options::{AuthMethod, ChannelBinding};
use crate::passfile::{self, Lookup};
use crate::socket::Transport;
use crate::startup::Attempt;
use crate::wire::Wire;
use crate::{ConnectError, ConnectErrorKind, certificate};

impl Attempt<'_> {
    /// Answers whatever the server asks for, within `require_auth` and `channel_binding`.
    pub(crate) async fn authenticate(&self, wire: &mut Wire) -> Result<(), ConnectError> {
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
        let (mechanism, binding) = self.mechanism(wire, &offered)?;
        let bound = mechanism == sasl::SCRAM_SHA_256_PLUS;
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

    /// The strongest mechanism that both sides can, within `channel_binding`.
    fn mechanism(
        &self,
        wire: &Wire,
        offered: &[String],
    ) -> Result<(&'static str, sasl::ChannelBinding), ConnectError> {
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
        if wanted == ChannelBinding::Require && mechanism != sasl::SCRAM_SHA_256_PLUS {
            return Err(self.error(
                ConnectErrorKind::Refused,
                "channel_binding=require, and the channel cannot be bound",
                "it needs TLS on both sides and a certificate signed with RSA or ECDSA",
            ));
        }
        Ok((mechanism, binding))
    }
}
