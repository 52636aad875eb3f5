//! Where and how to connect: a connection string, resolved.

use std::collections::BTreeMap;
use std::fmt;
use std::net::IpAddr;
use std::path::PathBuf;
use std::time::Duration;

use secrecy::SecretString;

use crate::ConnectStringError;
use crate::tls::TlsOptions;

/// Settings that every one of our sessions sends in its startup packet, so that values are
/// printed and read the same way whatever the role or the database says (B69), and no timeout
/// that somebody set for their users ends our long transactions.
///
/// `transaction_timeout`, which PostgreSQL 15 and 16 do not know, is set after the start.
pub const SESSION_SETTINGS: &[(&str, &str)] = &[
    ("client_encoding", "UTF8"),
    ("DateStyle", "ISO"),
    ("IntervalStyle", "postgres"),
    ("extra_float_digits", "3"),
    ("bytea_output", "hex"),
    ("TimeZone", "UTC"),
    ("standard_conforming_strings", "on"),
    // Off, an unquoted NULL in an array is a string of four letters.
    ("array_nulls", "on"),
    // regclass and its kind; values are compared as they are printed.
    ("quote_all_identifiers", "off"),
    // A regclass and its kind are printed with their schema exactly when it is not on the path,
    // and what they print must be readable on the target. It also keeps objects that somebody put
    // into `public` from standing in for PostgreSQL's own.
    ("search_path", "pg_catalog"),
    // money.
    ("lc_monetary", "C"),
    ("statement_timeout", "0"),
    ("lock_timeout", "0"),
    ("idle_in_transaction_session_timeout", "0"),
    ("idle_session_timeout", "0"),
];

/// Server-side settings by which the server notices within half a minute that we are gone, instead
/// of keeping our locks for the two hours of the kernel's default (rule C34).
pub const DEAD_CLIENT_SETTINGS: &[(&str, &str)] = &[
    ("tcp_keepalives_idle", "10"),
    ("tcp_keepalives_interval", "5"),
    ("tcp_keepalives_count", "4"),
    ("tcp_user_timeout", "30000"),
];

/// The `PG*` variables and `HOME`, `USER`, handed in by the program; this crate reads none itself.
#[derive(Clone, Default)]
pub struct Environment(BTreeMap<String, String>);

impl Environment {
    /// An environment without any variable.
    pub fn empty() -> Self {
        Self::default()
    }

    /// Keeps what libpq would look at: `PG*`, `HOME`, `USER`, `LOGNAME`.
    pub fn from_map(variables: impl IntoIterator<Item = (String, String)>) -> Self {
        let wanted =
            |name: &str| name.starts_with("PG") || matches!(name, "HOME" | "USER" | "LOGNAME");
        Self(
            variables
                .into_iter()
                .filter(|(name, _)| wanted(name))
                .collect(),
        )
    }

    pub(crate) fn get(&self, name: &str) -> Option<&str> {
        self.0.get(name).map(String::as_str)
    }
}

impl fmt::Debug for Environment {
    /// Names only: `PGPASSWORD` is among them.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.0.keys()).finish()
    }
}

/// One host of the list.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Host {
    /// Name, address, socket folder (starts with `/`) or abstract socket (starts with `@`). What
    /// `verify-full` compares with the certificate.
    pub name: String,
    /// The address to use instead of looking the name up (`hostaddr`).
    pub address: Option<IpAddr>,
    /// TCP port, or the number in the socket's file name.
    pub port: u16,
}

impl Host {
    /// Whether this is a Unix-domain socket.
    pub fn is_socket(&self) -> bool {
        self.address.is_none() && self.name.starts_with(['/', '@'])
    }
}

impl fmt::Display for Host {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.name.contains(':') {
            write!(f, "[{}]:{}", self.name, self.port)
        } else {
            write!(f, "{}:{}", self.name, self.port)
        }
    }
}

/// Which server of the list will do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum TargetSession {
    Any,
    ReadWrite,
    ReadOnly,
    Primary,
    Standby,
    PreferStandby,
}

/// Whether SCRAM must be bound to the TLS session.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ChannelBinding {
    Disable,
    Prefer,
    Require,
}

/// How the server may let us prove who we are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum AuthMethod {
    None,
    Cleartext,
    Md5,
    Scram,
}

/// TCP settings on our side.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct TcpOptions {
    pub(crate) keepalives: bool,
    pub(crate) idle: Duration,
    pub(crate) interval: Duration,
    pub(crate) count: u32,
    pub(crate) user_timeout: Option<Duration>,
}

/// Where and how to connect. `Debug` shows no secret.
#[derive(Clone)]
pub struct ConnectOptions {
    pub(crate) hosts: Vec<Host>,
    pub(crate) shuffle_hosts: bool,
    pub(crate) user: String,
    pub(crate) database: String,
    pub(crate) password: Option<SecretString>,
    pub(crate) passfile: Option<PathBuf>,
    /// Startup packet parameters beside user, database and [`SESSION_SETTINGS`].
    pub(crate) parameters: Vec<(String, String)>,
    pub(crate) tls: TlsOptions,
    pub(crate) channel_binding: ChannelBinding,
    pub(crate) allowed_auth: Vec<AuthMethod>,
    pub(crate) target_session: TargetSession,
    /// For one host: name, socket, TLS and authentication together. `None` waits for ever.
    pub(crate) connect_timeout: Option<Duration>,
    pub(crate) tcp: TcpOptions,
}

impl ConnectOptions {
    /// Reads a connection string (URI or key=value) with libpq's meaning; what it leaves open
    /// comes from the service file, then from the `PG*` variables, then from libpq's defaults
    /// (except that an unset `connect_timeout` means 30 s, and unset TCP keepalives half a minute).
    ///
    /// Certificates and password files are read when connecting, so they may change meanwhile.
    ///
    /// # Errors
    /// An unknown, refused or malformed option, named; never a value that could be a secret.
    pub fn parse(text: &str, environment: &Environment) -> Result<Self, ConnectStringError> {
        crate::resolve::resolve(crate::conninfo::split(text)?, environment)
    }

    /// The same with another application name.
    #[must_use]
    pub fn with_application_name(self, name: &str) -> Self {
        self.with_parameter("application_name", name)
    }

    /// The same with a password, which goes before one in the string or in a password file.
    #[must_use]
    pub fn with_password(mut self, password: SecretString) -> Self {
        self.password = Some(password);
        self
    }

    /// The same with one more setting in the startup packet; replaces an earlier one.
    ///
    /// [`SESSION_SETTINGS`] can be replaced too, which is how a caller sets a timeout.
    #[must_use]
    pub fn with_parameter(mut self, name: &str, value: &str) -> Self {
        self.parameters
            .retain(|(known, _)| !known.eq_ignore_ascii_case(name));
        self.parameters.push((name.into(), value.into()));
        self
    }

    /// The same with [`DEAD_CLIENT_SETTINGS`].
    #[must_use]
    pub fn with_dead_client_detection(self) -> Self {
        DEAD_CLIENT_SETTINGS
            .iter()
            .fold(self, |options, (name, value)| {
                options.with_parameter(name, value)
            })
    }

    /// The same with another database on the same server.
    #[must_use]
    pub fn with_database(mut self, database: &str) -> Self {
        self.database = database.into();
        self
    }

    /// For logs and messages: `postgresql://user@h1:5432,h2:5432/db?sslmode=verify-full`, without
    /// password and without anything that could hold one.
    pub fn redacted(&self) -> String {
        let hosts: Vec<String> = self.hosts.iter().map(Host::to_string).collect();
        format!(
            "postgresql://{}@{}/{}?sslmode={}",
            self.user,
            hosts.join(","),
            self.database,
            self.tls.mode.as_str()
        )
    }

    /// The database.
    pub fn database(&self) -> &str {
        &self.database
    }

    /// The user.
    pub fn user(&self) -> &str {
        &self.user
    }

    /// The hosts in the order written.
    pub fn hosts(&self) -> &[Host] {
        &self.hosts
    }

    /// The application name, if one was given.
    pub fn application_name(&self) -> Option<&str> {
        self.parameters
            .iter()
            .find(|(name, _)| name == "application_name")
            .map(|(_, value)| value.as_str())
    }

    /// Every parameter of the startup packet beside user, database and replication.
    pub(crate) fn startup_parameters(&self) -> Vec<(&str, &str)> {
        let replaced = |name: &str| {
            self.parameters
                .iter()
                .any(|(own, _)| own.eq_ignore_ascii_case(name))
        };
        SESSION_SETTINGS
            .iter()
            .copied()
            .filter(|(name, _)| !replaced(name))
            .chain(
                self.parameters
                    .iter()
                    .map(|(name, value)| (name.as_str(), value.as_str())),
            )
            .collect()
    }
}

impl fmt::Debug for ConnectOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ConnectOptions({})", self.redacted())
    }
}
