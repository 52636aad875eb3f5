//! Setting up the connection: credentials, TLS, events, and telling failures apart.

use std::error::Error as _;
use std::fmt;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use async_nats::{Client, ConnectErrorKind, ConnectOptions, Event, ServerError};
use rustls_pki_types::pem::PemObject;
use rustls_pki_types::{CertificateDer, PrivateKeyDer};
use secrecy::ExposeSecret;
use tokio::sync::{broadcast, watch};

use crate::broker::{BrokerEvent, Connection};
use crate::replies::Replies;
use crate::{BrokerError, BrokerErrorKind, Credentials, NatsOptions, TlsOptions};

/// A dead peer is noticed after two unanswered pings and one period more: about 15 s.
const PING_INTERVAL: Duration = Duration::from_secs(5);
/// For the handshake of one attempt.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// Longest pause between two attempts to connect again.
const MAX_RECONNECT_DELAY: Duration = Duration::from_secs(5);
/// Commands that may wait for the connection; above it a publish is refused, not queued.
const COMMAND_CAPACITY: usize = 16_384;
/// Messages that may wait in one subscription: more than all answers and pulls in flight.
pub(crate) const SUBSCRIPTION_CAPACITY: usize = 32_768;
/// Events that may wait for a slow listener.
const EVENT_CAPACITY: usize = 256;

/// What the connection's tasks and its users share.
pub(crate) struct Shared {
    pub(crate) replies: Arc<Replies>,
    pub(crate) events: broadcast::Sender<BrokerEvent>,
    pub(crate) connection: watch::Sender<Connection>,
    last_failure: Mutex<Option<String>>,
}

pub(crate) fn doing(options: &NatsOptions) -> String {
    format!("connect to NATS at {}", options.redacted_url())
}

/// Connects once.
pub(crate) async fn connect(options: &NatsOptions) -> Result<(Client, Arc<Shared>), BrokerError> {
    // async-nats builds its TLS configuration with the process' default provider, and that panics
    // when two providers happen to be compiled in. If another was installed before, it serves too.
    let _ = rustls::crypto::ring::default_provider().install_default();
    let addresses = options.addresses()?;
    let credentials = match &options.credentials {
        Credentials::None => &addresses.credentials,
        given => given,
    };
    let shared = Arc::new(Shared {
        replies: Replies::new(),
        events: broadcast::channel(EVENT_CAPACITY).0,
        connection: watch::channel(Connection {
            generation: 1,
            connected: true,
        })
        .0,
        last_failure: Mutex::new(None),
    });
    let for_events = Arc::downgrade(&shared);
    let mut connect = ConnectOptions::new()
        .name(&options.client_name)
        .connection_timeout(CONNECT_TIMEOUT)
        .ping_interval(PING_INTERVAL)
        .client_capacity(COMMAND_CAPACITY)
        .subscription_capacity(SUBSCRIPTION_CAPACITY)
        .max_reconnects(None)
        .reconnect_delay_callback(reconnect_delay)
        .event_callback(move |event| {
            if let Some(shared) = for_events.upgrade() {
                shared.on_event(event);
            }
            std::future::ready(())
        });
    if !options.inbox_prefix.is_empty() {
        connect = connect.custom_inbox_prefix(&options.inbox_prefix);
    }
    connect = with_credentials(connect, credentials).await?;
    connect = with_tls(connect, &options.tls)?;
    let client = connect.connect(addresses.servers).await;
    let client = client.map_err(|error| connect_error(options, &error))?;
    Ok((client, shared))
}

/// 0 for the first attempt, then about 100 ms doubling to 5 s, between half and the whole of it,
/// so that many clients of a restarted server do not come at once.
fn reconnect_delay(attempts: usize) -> Duration {
    if attempts <= 1 {
        return Duration::ZERO;
    }
    let doublings = u32::try_from(attempts - 2).unwrap_or(u32::MAX).min(6);
    let delay = (Duration::from_millis(100) * 2_u32.pow(doublings)).min(MAX_RECONNECT_DELAY);
    delay.mul_f64(rand::random_range(0.5..=1.0))
}

async fn with_credentials(
    connect: ConnectOptions,
    credentials: &Credentials,
) -> Result<ConnectOptions, BrokerError> {
    Ok(match credentials {
        Credentials::None => connect,
        Credentials::UserPassword { user, password } => {
            connect.user_and_password(user.clone(), password.expose_secret().to_owned())
        }
        Credentials::Token(token) => connect.token(token.expose_secret().to_owned()),
        Credentials::NkeySeedFile(path) => {
            let text = tokio::fs::read_to_string(path).await;
            let text = text.map_err(|error| file_error("nkey seed", path, error))?;
            // A seed may stand alone or in a decorated file.
            let seed = text
                .lines()
                .map(str::trim)
                .find(|line| line.starts_with("SU"));
            let seed = seed.ok_or_else(|| file_error("nkey seed", path, "no line with SU…"))?;
            connect.nkey(seed.to_owned())
        }
        Credentials::CredentialsFile(path) => {
            let with = connect.credentials_file(path).await;
            with.map_err(|error| file_error("credentials", path, error))?
        }
    })
}

/// Reads the files first: async-nats would read them at the first handshake and not name them.
fn with_tls(mut connect: ConnectOptions, tls: &TlsOptions) -> Result<ConnectOptions, BrokerError> {
    if let Some(path) = &tls.ca_file {
        check_certificates("authorities", path)?;
        connect = connect.add_root_certificates(path.clone());
    }
    match (&tls.certificate_file, &tls.key_file) {
        (Some(certificate), Some(key)) => {
            check_certificates("client certificate", certificate)?;
            PrivateKeyDer::from_pem_file(key).map_err(|error| file_error("key", key, error))?;
            connect = connect.add_client_certificate(certificate.clone(), key.clone());
        }
        (None, None) => {}
        _ => {
            let what = "a client certificate needs both its file and its key's file";
            return Err(BrokerError::configuration("nats TLS settings", what));
        }
    }
    if tls.first {
        connect = connect.tls_first();
    }
    Ok(connect.require_tls(tls.required || tls.first))
}

fn check_certificates(what: &str, path: &Path) -> Result<(), BrokerError> {
    let read = CertificateDer::pem_file_iter(path)
        .and_then(|certificates| certificates.collect::<Result<Vec<_>, _>>());
    match read {
        Ok(found) if found.is_empty() => Err(file_error(what, path, "no certificate in it")),
        Ok(_) => Ok(()),
        Err(error) => Err(file_error(what, path, error)),
    }
}

fn file_error(what: &str, path: &Path, error: impl fmt::Display) -> BrokerError {
    BrokerError::configuration(format!("read {what} file {}", path.display()), error)
}

/// What a failed first connection means.
fn connect_error(options: &NatsOptions, error: &async_nats::ConnectError) -> BrokerError {
    let doing = doing(options);
    match error.kind() {
        ConnectErrorKind::AuthorizationViolation | ConnectErrorKind::Authentication => {
            let subject = String::new();
            let what = "the server refuses the credentials";
            BrokerError::new(BrokerErrorKind::Permission { subject }, doing, what)
                .with_hint("check user, password, token, nkey or .creds file against the server")
        }
        ConnectErrorKind::ServerParse => BrokerError::configuration(doing, describe(error)),
        ConnectErrorKind::Tls => BrokerError::configuration(doing, describe(error)),
        ConnectErrorKind::Io if is_tls(error) => BrokerError::configuration(doing, describe(error))
            .with_hint("check the server's certificate, its name, and nats TLS settings"),
        ConnectErrorKind::Io
        | ConnectErrorKind::Dns
        | ConnectErrorKind::TimedOut
        | ConnectErrorKind::MaxReconnects => BrokerError::passing(doing, describe(error)),
    }
}

/// async-nats reports a failed handshake as an I/O error around the real one.
fn is_tls(error: &async_nats::ConnectError) -> bool {
    let mut cause = error.source();
    while let Some(error) = cause {
        if error.is::<rustls::Error>() {
            return true;
        }
        let io = error.downcast_ref::<std::io::Error>();
        let inner = io.and_then(std::io::Error::get_ref);
        if inner.is_some_and(|inner| inner.is::<rustls::Error>()) {
            return true;
        }
        cause = error.source();
    }
    false
}

/// The error with its causes, without saying anything twice.
fn describe(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        let next = error.to_string();
        if !text.contains(&next) {
            text = format!("{text}: {next}");
        }
        cause = error.source();
    }
    text
}

impl Shared {
    pub(crate) fn last_failure(&self) -> Option<String> {
        let last = self.last_failure.lock();
        last.unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn failed(&self, text: &str) {
        let last = self.last_failure.lock();
        *last.unwrap_or_else(PoisonError::into_inner) = Some(text.to_owned());
    }

    fn on_event(&self, event: Event) {
        let event = match event {
            Event::Connected => {
                self.connection.send_if_modified(|now| {
                    // The first connection is announced here too; it has its number already.
                    let again = !now.connected;
                    now.generation += u64::from(again);
                    now.connected = true;
                    again
                });
                BrokerEvent::Connected
            }
            Event::Disconnected | Event::Closed => {
                self.connection.send_modify(|now| now.connected = false);
                self.replies.connection_lost();
                BrokerEvent::Disconnected
            }
            Event::LameDuckMode => BrokerEvent::LameDuck,
            Event::Draining => return,
            Event::SlowConsumer(_) => {
                BrokerEvent::Other("a subscription dropped messages: its reader is too slow".into())
            }
            Event::ServerError(ServerError::Other(text)) => self.server_said(text),
            Event::ServerError(error) => self.other(&error.to_string()),
            Event::ClientError(error) => self.other(&error.to_string()),
        };
        // Nobody need listen.
        let _ = self.events.send(event);
    }

    fn other(&self, text: &str) -> BrokerEvent {
        self.failed(text);
        BrokerEvent::Other(text.to_owned())
    }

    fn server_said(&self, text: String) -> BrokerEvent {
        self.failed(&text);
        let Some((publish, subject)) = permission_violation(&text) else {
            return BrokerEvent::Other(text);
        };
        if publish {
            self.replies.publish_denied(&subject);
        } else if subject.contains(".r.*") {
            self.replies.inbox_denied(&subject);
        }
        BrokerEvent::PermissionDenied { publish, subject }
    }
}

/// Reads `Permissions Violation for Publish to "subject"` and its sister for subscriptions.
fn permission_violation(text: &str) -> Option<(bool, String)> {
    let (_, rest) = text.split_once("Permissions Violation for ")?;
    let publish = rest.starts_with("Publish");
    let (_, quoted) = rest.split_once('"')?;
    let (subject, _) = quoted.split_once('"')?;
    Some((publish, subject.to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn permission_violations_name_their_subject() {
        let read = |text| permission_violation(text);
        let publish = r#"Permissions Violation for Publish to "trellara.shop.mark""#;
        let subscribe = r#"Permissions Violation for Subscription to "_INBOX.x.r.*""#;
        assert_eq!(read(publish), Some((true, "trellara.shop.mark".to_owned())));
        assert_eq!(read(subscribe), Some((false, "_INBOX.x.r.*".to_owned())));
        assert_eq!(read("Stale Connection"), None);
    }

    #[test]
    fn reconnecting_is_quick_at_first_and_never_slower_than_the_limit() {
        assert_eq!(reconnect_delay(1), Duration::ZERO);
        assert!(reconnect_delay(2) <= Duration::from_millis(100));
        for attempts in [3, 10, 1000, usize::MAX] {
            let delay = reconnect_delay(attempts);
            assert!(delay <= MAX_RECONNECT_DELAY && delay >= Duration::from_millis(100));
        }
    }
}
