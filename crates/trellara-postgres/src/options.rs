//! A connection string, resolved.

use std::collections::BTreeMap;

use secrecy::SecretString;

use crate::ConnectStringError;

/// Settings that every one of our sessions sends in its startup packet, so that values are
/// printed and read the same way whatever the role or the database says (B69).
pub const SESSION_SETTINGS: &[(&str, &str)] = &[
    ("client_encoding", "UTF8"),
    ("DateStyle", "ISO"),
    ("IntervalStyle", "postgres"),
    ("extra_float_digits", "3"),
    ("bytea_output", "hex"),
    ("TimeZone", "UTC"),
    ("statement_timeout", "0"),
    ("lock_timeout", "0"),
    ("idle_in_transaction_session_timeout", "0"),
    ("idle_session_timeout", "0"),
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

    #[allow(dead_code)]
    pub(crate) fn get(&self, name: &str) -> Option<&str> {
        self.0.get(name).map(String::as_str)
    }
}

/// One host of the list.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Host {
    /// Name, address, socket directory (starts with `/`) or abstract socket (starts with `@`).
    pub name: String,
    /// Port.
    pub port: u16,
}

/// Where and how to connect. `Debug` shows no secret.
#[derive(Clone)]
pub struct ConnectOptions {
    hosts: Vec<Host>,
    user: String,
    database: String,
    #[allow(dead_code)]
    password: Option<SecretString>,
    parameters: Vec<(String, String)>,
}

impl ConnectOptions {
    /// Reads a connection string (URI or key=value) as libpq does.
    pub fn parse(_text: &str, _environment: &Environment) -> Result<Self, ConnectStringError> {
        Err(ConnectStringError {
            reason: "not available yet".into(),
            hint: String::new(),
        })
    }

    /// The same with another application name.
    pub fn with_application_name(self, name: &str) -> Self {
        self.with_parameter("application_name", name)
    }

    /// The same with a password.
    pub fn with_password(mut self, password: SecretString) -> Self {
        self.password = Some(password);
        self
    }

    /// The same with one more setting in the startup packet; replaces an earlier one.
    pub fn with_parameter(mut self, name: &str, value: &str) -> Self {
        self.parameters.retain(|(n, _)| n != name);
        self.parameters.push((name.into(), value.into()));
        self
    }

    /// For logs: `postgresql://user@h1:5432,h2/db?sslmode=verify-full`.
    pub fn redacted(&self) -> String {
        format!("postgresql://{}@/{}", self.user, self.database)
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
}

impl std::fmt::Debug for ConnectOptions {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "ConnectOptions({})", self.redacted())
    }
}
