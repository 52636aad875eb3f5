//! Servers, roles and certificates for the tests.

use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use std::time::Duration;

use rcgen::{
    BasicConstraints, CertificateParams, CertificateRevocationListParams, DistinguishedName,
    DnType, IsCa, Issuer, KeyPair, KeyUsagePurpose, RevokedCertParams,
};
use trellara_local::{PostgresOptions, PostgresServer, TlsFiles};
use trellara_postgres::{ConnectOptions, Environment};

/// How long anything here may take; reached only when something hangs.
pub(crate) const LIMIT: Duration = Duration::from_secs(30);

/// Versions that connecting is tried on: the oldest and the newest supported.
pub(crate) const VERSIONS: [u32; 2] = [15, 18];

/// Who may come in how. The superuser is trusted, for setting up.
const HBA: &str = "\
host all postgres all trust
local all all scram-sha-256
hostssl all tls_only all scram-sha-256
hostnossl all tls_only all reject
hostnossl all plain_only all scram-sha-256
hostssl all plain_only all reject
host all md5_user all md5
host all clear_user all password
hostssl all cert_user all cert
host all trusted all trust
host all all all scram-sha-256
";

const ROLES: &str = "\
CREATE ROLE tls_only LOGIN REPLICATION PASSWORD 'secret';
CREATE ROLE plain_only LOGIN REPLICATION PASSWORD 'secret';
CREATE ROLE clear_user LOGIN REPLICATION PASSWORD 'secret';
CREATE ROLE cert_user LOGIN REPLICATION;
CREATE ROLE trusted LOGIN REPLICATION;
CREATE ROLE scram LOGIN REPLICATION PASSWORD 'secret';
CREATE ROLE nobody_special LOGIN PASSWORD 'secret';
SET password_encryption = 'md5';
CREATE ROLE md5_user LOGIN REPLICATION PASSWORD 'secret';
";

/// A server with TLS and every kind of role; one a version and process.
pub(crate) struct Server {
    pub(crate) postgres: PostgresServer,
    pub(crate) files: Files,
}

/// The files that clients use, in the server's own folder, which goes when the server goes.
pub(crate) struct Files {
    folder: PathBuf,
}

impl Files {
    pub(crate) fn path(&self, name: &str) -> String {
        let path: PathBuf = self.folder.join(name);
        path.to_str().expect("a temporary path in UTF-8").to_owned()
    }

    pub(crate) fn write(&self, name: &str, text: &str, mode: u32) -> String {
        let path = self.path(name);
        write_private(Path::new(&path), text, mode);
        path
    }
}

fn write_private(path: &Path, text: &str, mode: u32) {
    use std::os::unix::fs::PermissionsExt;
    std::fs::write(path, text).expect("write a test's file");
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).expect("chmod");
}

/// The server that tests of one version share.
pub(crate) fn server(version: u32) -> &'static Server {
    static SERVERS: [OnceLock<Server>; 2] = [OnceLock::new(), OnceLock::new()];
    let index = VERSIONS
        .iter()
        .position(|v| *v == version)
        .expect("a version we test");
    SERVERS[index].get_or_init(|| start(version, &Authority::new().server("localhost")))
}

/// Starts a server with this certificate; its authority goes into `root.crt`.
pub(crate) fn start(version: u32, identity: &Identity) -> Server {
    let mut options = PostgresOptions::version(version);
    options.hba = Some(HBA.to_owned());
    options.tls = Some(TlsFiles {
        certificate: identity.certificate.clone(),
        key: identity.key.clone(),
        client_authority: Some(identity.authority.clone()),
    });
    let postgres = PostgresServer::start(&options).expect("start PostgreSQL");
    postgres.psql("postgres", ROLES).expect("create the roles");
    let files = Files {
        folder: postgres.socket_dir().join("client"),
    };
    std::fs::create_dir(&files.folder).expect("a folder for the clients' files");
    files.write("root.crt", &identity.authority, 0o644);
    files.write("other.crt", &Authority::new().certificate.pem(), 0o644);
    if let Some((certificate, key)) = &identity.client {
        files.write("client.crt", certificate, 0o644);
        files.write("client.key", key, 0o600);
    }
    Server { postgres, files }
}

impl Server {
    /// Options for this server: key=value behind host and port.
    pub(crate) fn options(&self, rest: &str) -> ConnectOptions {
        let port = self.postgres.port();
        options(&format!(
            "host=localhost hostaddr=127.0.0.1 port={port} dbname=postgres {rest}"
        ))
    }

    pub(crate) fn psql(&self, sql: &str) -> String {
        self.postgres
            .psql("postgres", sql)
            .expect("run SQL as superuser")
    }
}

pub(crate) fn options(text: &str) -> ConnectOptions {
    ConnectOptions::parse(text, &Environment::empty())
        .unwrap_or_else(|error| panic!("{text}: {error}"))
}

/// A certificate authority.
pub(crate) struct Authority {
    issuer: Issuer<'static, KeyPair>,
    certificate: rcgen::Certificate,
}

/// What a server serves, and what its clients may show.
#[derive(Clone)]
pub(crate) struct Identity {
    pub(crate) authority: String,
    pub(crate) certificate: String,
    pub(crate) key: String,
    pub(crate) client: Option<(String, String)>,
}

impl Authority {
    pub(crate) fn new() -> Self {
        let key = KeyPair::generate().expect("a key");
        let mut params = CertificateParams::default();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.distinguished_name = named("Test Authority");
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
        let certificate = params.self_signed(&key).expect("self-signed");
        Self {
            issuer: Issuer::new(params, key),
            certificate,
        }
    }

    /// A server with one alternative name, and a client certificate for `cert_user`.
    pub(crate) fn server(&self, name: &str) -> Identity {
        self.identity(CertificateParams::new([name.to_owned()]).expect("a name"))
    }

    /// A server without alternative names, as `openssl req -subj /CN=…` makes them.
    pub(crate) fn common_name_only(&self, name: &str) -> Identity {
        let mut params = CertificateParams::default();
        params.distinguished_name = named(name);
        self.identity(params)
    }

    /// A server whose certificate has this number, to be revoked by.
    pub(crate) fn numbered(&self, name: &str, number: u64) -> Identity {
        let mut params = CertificateParams::new([name.to_owned()]).expect("a name");
        params.serial_number = Some(number.into());
        self.identity(params)
    }

    /// The authority's list of revoked numbers, as PEM.
    pub(crate) fn revoked(&self, numbers: &[u64]) -> String {
        let revoked = numbers.iter().map(|number| RevokedCertParams {
            serial_number: (*number).into(),
            revocation_time: rcgen::date_time_ymd(2020, 1, 1),
            reason_code: None,
            invalidity_date: None,
        });
        let list = CertificateRevocationListParams {
            this_update: rcgen::date_time_ymd(2020, 1, 1),
            next_update: rcgen::date_time_ymd(2100, 1, 1),
            crl_number: 1.into(),
            issuing_distribution_point: None,
            revoked_certs: revoked.collect(),
            key_identifier_method: rcgen::KeyIdMethod::Sha256,
        };
        list.signed_by(&self.issuer)
            .expect("sign the list")
            .pem()
            .expect("PEM")
    }

    /// A certificate that ended in 2001.
    pub(crate) fn expired(&self, name: &str) -> Identity {
        let mut params = CertificateParams::new([name.to_owned()]).expect("a name");
        params.not_before = rcgen::date_time_ymd(2000, 1, 1);
        params.not_after = rcgen::date_time_ymd(2001, 1, 1);
        self.identity(params)
    }

    fn identity(&self, params: CertificateParams) -> Identity {
        let (certificate, key) = self.sign(&params);
        let mut client = CertificateParams::default();
        client.distinguished_name = named("cert_user");
        Identity {
            authority: self.certificate.pem(),
            certificate,
            key,
            client: Some(self.sign(&client)),
        }
    }

    fn sign(&self, params: &CertificateParams) -> (String, String) {
        let key = KeyPair::generate().expect("a key");
        let certificate = params.signed_by(&key, &self.issuer).expect("sign");
        (certificate.pem(), key.serialize_pem())
    }
}

/// A certificate that signs itself and calls itself an authority, as `openssl req -x509` makes
/// them; it is its own `root.crt`.
pub(crate) fn self_signed(name: &str) -> Identity {
    let key = KeyPair::generate().expect("a key");
    let mut params = CertificateParams::new([name.to_owned()]).expect("a name");
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let certificate = params.self_signed(&key).expect("self-signed").pem();
    Identity {
        authority: certificate.clone(),
        certificate,
        key: key.serialize_pem(),
        client: None,
    }
}

fn named(common_name: &str) -> DistinguishedName {
    let mut name = DistinguishedName::new();
    name.push(DnType::CommonName, common_name);
    name
}
