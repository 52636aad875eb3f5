//! TLS as libpq's options mean it, over rustls with ring.
//!
//! The crypto provider is always named: if another crate switched a second one on,
//! `ClientConfig::builder()` would panic.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, CertificateRevocationListDer, PrivateKeyDer, ServerName};
use rustls::{CertificateError, ClientConfig};

use crate::verifier::Verifier;

/// The protocol name that servers of version 17 and newer insist on in a direct handshake.
pub(crate) const ALPN: &[u8] = b"postgresql";

/// libpq's six modes, from weakest to strongest.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum SslMode {
    Disable,
    Allow,
    Prefer,
    Require,
    VerifyCa,
    VerifyFull,
}

impl SslMode {
    /// The default first.
    pub(crate) const ALL: [SslMode; 6] = [
        SslMode::Prefer,
        SslMode::Disable,
        SslMode::Allow,
        SslMode::Require,
        SslMode::VerifyCa,
        SslMode::VerifyFull,
    ];

    pub(crate) fn as_str(self) -> &'static str {
        match self {
            SslMode::Disable => "disable",
            SslMode::Allow => "allow",
            SslMode::Prefer => "prefer",
            SslMode::Require => "require",
            SslMode::VerifyCa => "verify-ca",
            SslMode::VerifyFull => "verify-full",
        }
    }
}

/// Whom we believe about the server.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Roots {
    /// `~/.postgresql/root.crt`, if it is there.
    Default(Option<PathBuf>),
    /// The file named.
    File(PathBuf),
    /// What the operating system trusts.
    System,
}

/// Everything about TLS in a connection string.
#[derive(Debug, Clone)]
pub(crate) struct TlsOptions {
    pub(crate) mode: SslMode,
    /// Start with the handshake instead of asking first.
    pub(crate) direct: bool,
    pub(crate) roots: Roots,
    pub(crate) certificate: Option<PathBuf>,
    pub(crate) key: Option<PathBuf>,
    pub(crate) default_certificate: Option<PathBuf>,
    pub(crate) default_key: Option<PathBuf>,
    pub(crate) no_certificate: bool,
    pub(crate) revoked: Option<PathBuf>,
    pub(crate) revoked_folder: Option<PathBuf>,
    pub(crate) default_revoked: Option<PathBuf>,
    pub(crate) send_name: bool,
    pub(crate) tls12: bool,
    pub(crate) tls13: bool,
}

/// A TLS file cannot be used.
#[derive(Debug)]
pub(crate) struct TlsSetupError {
    pub(crate) reason: String,
    pub(crate) hint: String,
}

type Result<T, E = TlsSetupError> = std::result::Result<T, E>;

pub(crate) fn unusable(reason: String, hint: &str) -> TlsSetupError {
    TlsSetupError {
        reason,
        hint: hint.to_owned(),
    }
}

/// The rustls configuration; files are read now, so renewed certificates need no restart.
pub(crate) fn client_config(options: &TlsOptions) -> Result<Arc<ClientConfig>> {
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let verifier = Verifier::new(options, &provider)?;
    let versions: Vec<_> = [
        options.tls13.then_some(&rustls::version::TLS13),
        options.tls12.then_some(&rustls::version::TLS12),
    ]
    .into_iter()
    .flatten()
    .collect();
    let builder = ClientConfig::builder_with_provider(provider)
        .with_protocol_versions(&versions)
        .map_err(|error| unusable(error.to_string(), "check ssl_min_protocol_version"))?
        .dangerous()
        .with_custom_certificate_verifier(Arc::new(verifier));
    let mut config = match client_certificate(options)? {
        Some((chain, key)) => builder.with_client_auth_cert(chain, key).map_err(|error| {
            unusable(
                format!("the client certificate cannot be used: {error}"),
                "sslcert and sslkey must belong together",
            )
        })?,
        None => builder.with_no_client_auth(),
    };
    config.alpn_protocols = vec![ALPN.to_vec()];
    config.enable_sni = options.send_name;
    Ok(Arc::new(config))
}

/// The name to verify and to send; `None` when the host cannot be one and nothing depends on it.
pub(crate) fn server_name(host: &str, mode: SslMode) -> Result<ServerName<'static>> {
    // A trailing dot makes a name absolute, but certificates do not carry it.
    let name = host.strip_suffix('.').unwrap_or(host);
    match ServerName::try_from(name.to_owned()) {
        Ok(name) => Ok(name),
        Err(_) if mode < SslMode::VerifyFull => Ok(ServerName::IpAddress(
            std::net::Ipv4Addr::UNSPECIFIED.into(),
        )),
        Err(_) => Err(unusable(
            format!("{host:?} cannot be the name in a certificate"),
            "use the name that the server's certificate carries, or sslmode=verify-ca",
        )),
    }
}

pub(crate) fn certificates(path: &Path, what: &str) -> Result<Vec<CertificateDer<'static>>> {
    let shown = path.display();
    let hint = format!("{what} must name a file of PEM certificates that this user may read");
    let read: std::result::Result<Vec<_>, _> =
        CertificateDer::pem_file_iter(path).and_then(Iterator::collect);
    match read {
        Ok(list) if !list.is_empty() => Ok(list),
        Ok(_) => Err(unusable(format!("{shown} holds no certificate"), &hint)),
        Err(error) => Err(unusable(format!("{shown} cannot be read: {error}"), &hint)),
    }
}

type ClientCertificate = (Vec<CertificateDer<'static>>, PrivateKeyDer<'static>);

fn client_certificate(options: &TlsOptions) -> Result<Option<ClientCertificate>> {
    if options.no_certificate {
        return Ok(None);
    }
    let default = options
        .default_certificate
        .clone()
        .filter(|path| path.exists());
    let Some(path) = options.certificate.clone().or(default) else {
        return Ok(None);
    };
    let chain = certificates(&path, "sslcert")?;
    let Some(key_path) = options.key.clone().or_else(|| options.default_key.clone()) else {
        return Err(unusable(
            "sslcert without sslkey".into(),
            "name the key in sslkey",
        ));
    };
    let shown = key_path.display();
    let metadata = fs::metadata(&key_path).map_err(|error| {
        unusable(
            format!("the private key {shown} cannot be read: {error}"),
            "name the key of sslcert in sslkey",
        )
    })?;
    // libpq's rule: a group may read a key that belongs to root, nobody else any other.
    let forbidden = if metadata.uid() == 0 { 0o037 } else { 0o077 };
    if metadata.mode() & forbidden != 0 {
        return Err(unusable(
            format!("others may read the private key {shown}"),
            "chmod 0600 (or 0640 when root owns it)",
        ));
    }
    let key = PrivateKeyDer::from_pem_file(&key_path).map_err(|error| {
        unusable(
            format!("{shown} is not a usable private key: {error}"),
            "store it as PEM without a passphrase (openssl pkcs8 -topk8 -nocrypt)",
        )
    })?;
    Ok(Some((chain, key)))
}

pub(crate) fn revocation_lists(
    options: &TlsOptions,
) -> Result<Vec<CertificateRevocationListDer<'static>>> {
    let default = options.default_revoked.clone().filter(|path| path.exists());
    let mut files: Vec<PathBuf> = options.revoked.clone().or(default).into_iter().collect();
    if let Some(folder) = &options.revoked_folder {
        let entries = fs::read_dir(folder).map_err(|error| {
            unusable(
                format!("{} cannot be read: {error}", folder.display()),
                "sslcrldir must name a folder of PEM revocation lists",
            )
        })?;
        files.extend(
            entries
                .flatten()
                .map(|entry| entry.path())
                .filter(|path| path.is_file()),
        );
    }
    let mut lists = Vec::new();
    for path in files {
        let read: std::result::Result<Vec<_>, _> =
            CertificateRevocationListDer::pem_file_iter(&path).and_then(Iterator::collect);
        lists.extend(read.map_err(|error| {
            unusable(
                format!("{} cannot be read: {error}", path.display()),
                "sslcrl must name a file of PEM revocation lists",
            )
        })?);
    }
    Ok(lists)
}

/// What to check after a failed handshake, or after a connection that died of one.
pub(crate) fn hint(error: &rustls::Error) -> &'static str {
    use CertificateError::*;
    match error {
        rustls::Error::InvalidCertificate(reason) => match reason {
            UnknownIssuer => {
                "sslrootcert must hold the authority that signed the server's certificate"
            }
            Expired | ExpiredContext { .. } => "the server's certificate has expired; renew it",
            NotValidYet | NotValidYetContext { .. } => {
                "the server's certificate is not valid yet; compare the clocks"
            }
            NotValidForName | NotValidForNameContext { .. } => {
                "connect by a name in the server's certificate, or give that name as host and the \
                 address as hostaddr; sslmode=verify-ca does not check the name"
            }
            Revoked => "the server's certificate is revoked",
            UnknownRevocationStatus => "sslcrl lacks a list of the certificate's issuer",
            _ => {
                "the server's certificate must be X.509 version 3 with subjectAltName; one made by \
                 `openssl x509 -req` without -extfile may be version 1"
            }
        },
        rustls::Error::AlertReceived(_) => {
            "the server refused our side of TLS; it may demand a client certificate (sslcert, \
             sslkey) signed by an authority in its ssl_ca_file, or another TLS version"
        }
        _ => "check that a PostgreSQL server with ssl=on answers on this port",
    }
}
