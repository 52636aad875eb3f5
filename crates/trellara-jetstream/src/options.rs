//! How to reach and convince a NATS server.

use std::fmt;
use std::path::PathBuf;

use secrecy::SecretString;

/// Everything needed to connect. `Debug` shows no secret, not even one inside the URL.
#[derive(Clone, Default)]
pub struct NatsOptions {
    /// One address or several with commas: `nats://user:password@host:4222,tls://other`.
    /// User and password (or a lone token) in it serve when `credentials` is `None`.
    pub url: String,
    /// How to prove who we are.
    pub credentials: Credentials,
    /// TLS settings; used when the address says `tls://`, the server asks for TLS, or
    /// [`TlsOptions::required`] is set.
    pub tls: TlsOptions,
    /// Shown by the server's monitoring, e.g. `trellara relay shop`.
    pub client_name: String,
    /// Prefix of reply subjects, one for each role (`_INBOX_relay`), so that one user's
    /// permissions need not cover another's replies. Empty means `_INBOX`.
    pub inbox_prefix: String,
}

/// How the client proves who it is.
#[derive(Clone, Default)]
pub enum Credentials {
    /// Nothing beyond what the URL says.
    #[default]
    None,
    /// User and password.
    UserPassword {
        /// User name.
        user: String,
        /// Password.
        password: SecretString,
    },
    /// A token.
    Token(SecretString),
    /// A file with an nkey seed (`SU…`).
    NkeySeedFile(PathBuf),
    /// A `.creds` file with user JWT and seed.
    CredentialsFile(PathBuf),
}

/// TLS settings of the connection; always rustls with ring.
#[derive(Debug, Clone, Default)]
pub struct TlsOptions {
    /// Refuse to speak without TLS.
    pub required: bool,
    /// Handshake before the server's first line (`handshake_first` on the server).
    pub first: bool,
    /// PEM file of authorities to trust instead of the system's.
    pub ca_file: Option<PathBuf>,
    /// PEM file with the client's certificate chain.
    pub certificate_file: Option<PathBuf>,
    /// PEM file with the client's private key.
    pub key_file: Option<PathBuf>,
}

impl fmt::Debug for Credentials {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Credentials::None => f.write_str("None"),
            Credentials::UserPassword { user, .. } => write!(f, "UserPassword({user:?}, …)"),
            Credentials::Token(_) => f.write_str("Token(…)"),
            Credentials::NkeySeedFile(path) => write!(f, "NkeySeedFile({path:?})"),
            Credentials::CredentialsFile(path) => write!(f, "CredentialsFile({path:?})"),
        }
    }
}

impl fmt::Debug for NatsOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("NatsOptions")
            .field("url", &self.redacted_url())
            .field("credentials", &self.credentials)
            .field("tls", &self.tls)
            .field("client_name", &self.client_name)
            .field("inbox_prefix", &self.inbox_prefix)
            .finish()
    }
}

impl NatsOptions {
    /// The URL without what stands before an `@`.
    pub fn redacted_url(&self) -> String {
        let redact = |one: &str| match (one.split_once("://"), one.rsplit_once('@')) {
            (Some((scheme, _)), Some((_, host))) => format!("{scheme}://{host}"),
            (None, Some((_, host))) => host.to_owned(),
            (_, None) => one.to_owned(),
        };
        self.url
            .split(',')
            .map(|one| redact(one.trim()))
            .collect::<Vec<_>>()
            .join(",")
    }
}
