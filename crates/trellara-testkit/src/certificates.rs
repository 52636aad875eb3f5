//! Certificates for servers and clients of one test.

use anyhow::Result;
use rcgen::{
    BasicConstraints, CertificateParams, DistinguishedName, DnType, IsCa, Issuer, KeyPair,
    KeyUsagePurpose,
};

/// A certificate authority of one test's own.
pub struct Authority {
    issuer: Issuer<'static, KeyPair>,
    /// Its certificate, PEM: what `sslrootcert` names.
    pub certificate: String,
}

/// A certificate and its private key, PEM.
#[derive(Clone)]
pub struct Identity {
    /// The certificate.
    pub certificate: String,
    /// The key.
    pub key: String,
}

impl Authority {
    /// A fresh one.
    pub fn new() -> Result<Self> {
        let key = KeyPair::generate()?;
        let mut params = CertificateParams::default();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.distinguished_name = named("Test Authority");
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
        let certificate = params.self_signed(&key)?.pem();
        Ok(Self {
            issuer: Issuer::new(params, key),
            certificate,
        })
    }

    /// A server reached by this name or address.
    pub fn server(&self, name: &str) -> Result<Identity> {
        self.sign(&CertificateParams::new([name.to_owned()])?)
    }

    /// The same, ended in 2001.
    pub fn expired(&self, name: &str) -> Result<Identity> {
        let mut params = CertificateParams::new([name.to_owned()])?;
        params.not_before = rcgen::date_time_ymd(2000, 1, 1);
        params.not_after = rcgen::date_time_ymd(2001, 1, 1);
        self.sign(&params)
    }

    /// A client that is this role.
    pub fn client(&self, role: &str) -> Result<Identity> {
        let mut params = CertificateParams::default();
        params.distinguished_name = named(role);
        self.sign(&params)
    }

    fn sign(&self, params: &CertificateParams) -> Result<Identity> {
        let key = KeyPair::generate()?;
        let certificate = params.signed_by(&key, &self.issuer)?.pem();
        Ok(Identity {
            certificate,
            key: key.serialize_pem(),
        })
    }
}

fn named(common_name: &str) -> DistinguishedName {
    let mut name = DistinguishedName::new();
    name.push(DnType::CommonName, common_name);
    name
}
