//! How to reach and convince a NATS server.

use std::fmt;
use std::path::PathBuf;

use percent_encoding::percent_decode_str;
use secrecy::SecretString;

use crate::BrokerError;

/// Everything needed to connect. `Debug` shows no secret, not even one inside the URL.
#[derive(Clone, Default)]
pub struct NatsOptions {
    /// One address or several with commas: `nats://user:password@host:4222,tls://other`.
    /// User and password in it are percent-encoded; a user alone is a token. They serve when
    /// `credentials` is `None`.
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

/// The URL taken apart: addresses without secrets, and what stood before the `@`.
pub(crate) struct Addresses {
    pub(crate) servers: Vec<String>,
    pub(crate) credentials: Credentials,
}

impl NatsOptions {
    /// The URL without what stands before an `@`.
    pub fn redacted_url(&self) -> String {
        let servers = self.url.split(',').map(|one| split(one.trim()));
        let servers: Vec<String> = servers
            .map(|(scheme, _, host)| match scheme {
                Some(scheme) => format!("{scheme}://{host}"),
                None => host.to_owned(),
            })
            .collect();
        servers.join(",")
    }

    /// Takes the URL apart. async-nats sends user and password as they stand in the URL; here
    /// they are percent-decoded first, so that a password may hold any character (B128).
    pub(crate) fn addresses(&self) -> Result<Addresses, BrokerError> {
        let mut servers = Vec::new();
        let mut user_infos: Vec<&str> = Vec::new();
        for one in self
            .url
            .split(',')
            .map(str::trim)
            .filter(|one| !one.is_empty())
        {
            let (scheme, user_info, host) = split(one);
            let scheme = scheme.unwrap_or("nats");
            if !matches!(scheme, "nats" | "tls") {
                let what = format!("the address scheme {scheme:?} is not nats or tls");
                return Err(BrokerError::configuration("nats.url", what));
            }
            servers.push(format!("{scheme}://{host}"));
            user_infos.extend(user_info);
        }
        user_infos.dedup();
        match (servers.is_empty(), user_infos.as_slice()) {
            (true, _) => Err(BrokerError::configuration("nats.url", "no address given")),
            (false, []) => Ok(Addresses {
                servers,
                credentials: Credentials::None,
            }),
            (false, [one]) => {
                let credentials = credentials_of(one)?;
                Ok(Addresses {
                    servers,
                    credentials,
                })
            }
            (false, _) => {
                let what = "the addresses carry different users or passwords; one is enough";
                Err(BrokerError::configuration("nats.url", what))
            }
        }
    }
}

/// Scheme, user info and the rest of one address.
fn split(one: &str) -> (Option<&str>, Option<&str>, &str) {
    let (scheme, rest) = match one.split_once("://") {
        Some((scheme, rest)) => (Some(scheme), rest),
        None => (None, one),
    };
    match rest.rsplit_once('@') {
        Some((user_info, host)) => (scheme, Some(user_info), host),
        None => (scheme, None, rest),
    }
}

fn credentials_of(user_info: &str) -> Result<Credentials, BrokerError> {
    let decode = |text: &str| {
        let decoded = percent_decode_str(text).decode_utf8();
        decoded.map(|text| text.into_owned()).map_err(|_| {
            BrokerError::configuration("nats.url", "user or password is not percent-encoded UTF-8")
        })
    };
    Ok(match user_info.split_once(':') {
        Some((user, password)) => Credentials::UserPassword {
            user: decode(user)?,
            password: decode(password)?.into(),
        },
        None => Credentials::Token(decode(user_info)?.into()),
    })
}

#[cfg(test)]
mod tests {
    use secrecy::ExposeSecret;

    use super::*;

    fn options(url: &str) -> NatsOptions {
        NatsOptions {
            url: url.to_owned(),
            ..NatsOptions::default()
        }
    }

    #[test]
    fn b128_a_password_may_hold_any_character() {
        let addresses = options("nats://me:a%40b%3Ac%2Fd%25@h1:4222, tls://h2").addresses();
        let addresses = addresses.expect("it is legal");
        assert_eq!(addresses.servers, ["nats://h1:4222", "tls://h2"]);
        let Credentials::UserPassword { user, password } = addresses.credentials else {
            panic!("not a password");
        };
        assert_eq!(
            (user.as_str(), password.expose_secret()),
            ("me", "a@b:c/d%")
        );
    }

    #[test]
    fn a_lone_user_is_a_token() {
        let addresses = options("nats://s3cret@h").addresses().expect("it is legal");
        let Credentials::Token(token) = addresses.credentials else {
            panic!("not a token");
        };
        assert_eq!(token.expose_secret(), "s3cret");
    }

    #[test]
    fn debug_shows_no_secret() {
        let mut options = options("nats://me:topsecret@h1,other:topsecret@h2");
        options.credentials = Credentials::Token("topsecret".to_owned().into());
        let shown = format!("{options:?}");
        assert!(!shown.contains("topsecret"), "{shown}");
        assert!(shown.contains("nats://h1,h2"), "{shown}");
    }

    #[test]
    fn what_cannot_work_is_refused_before_connecting() {
        for url in ["", " , ", "http://h", "nats://a:b@h1,nats://c:d@h2"] {
            let error = options(url).addresses().err().expect(url);
            assert_eq!(error.kind(), &crate::BrokerErrorKind::Configuration);
        }
    }
}
