//! Who the server is: chain and name as libpq's modes ask for them.

use std::sync::Arc;

use rustls::client::WebPkiServerVerifier;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::{CryptoProvider, WebPkiSupportedAlgorithms};
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::server::ParsedCertificate;
use rustls::{CertificateError, DigitallySignedStruct, RootCertStore, SignatureScheme};

use crate::certificate;
use crate::tls::{
    Roots, SslMode, TlsOptions, TlsSetupError, certificates, revocation_lists, unusable,
};

/// Chain and name by webpki, with the freedoms that libpq's modes give.
#[derive(Debug)]
pub(crate) struct Verifier {
    /// `None`: encrypt without asking who it is (`require` and weaker without a root certificate).
    chain: Option<Arc<WebPkiServerVerifier>>,
    /// The trusted certificates themselves: one of them may be the server's own.
    trusted: Vec<CertificateDer<'static>>,
    check_name: bool,
    algorithms: WebPkiSupportedAlgorithms,
}

impl Verifier {
    /// Reads the trusted certificates.
    pub(crate) fn new(
        options: &TlsOptions,
        provider: &Arc<CryptoProvider>,
    ) -> Result<Self, TlsSetupError> {
        let trusted = match &options.roots {
            Roots::System => Some(rustls_native_certs::load_native_certs().certs),
            Roots::File(path) => Some(certificates(path, "sslrootcert")?),
            // libpq's rule: a root certificate that is there is used in every mode.
            Roots::Default(Some(path)) if path.exists() => Some(certificates(path, "sslrootcert")?),
            Roots::Default(path) if options.mode >= SslMode::VerifyCa => {
                let looked = path
                    .as_ref()
                    .map(|path| format!(" (looked for {})", path.display()));
                return Err(unusable(
                    format!(
                        "sslmode={} needs a root certificate, and there is none{}",
                        options.mode.as_str(),
                        looked.unwrap_or_default()
                    ),
                    "name the authority's certificate in sslrootcert, or use sslrootcert=system",
                ));
            }
            Roots::Default(_) => None,
        };
        let chain = match &trusted {
            None => None,
            Some(trusted) => {
                let mut store = RootCertStore::empty();
                let (added, _) = store.add_parsable_certificates(trusted.iter().cloned());
                if added == 0 {
                    return Err(unusable(
                        "no usable root certificate".into(),
                        "sslrootcert must name PEM certificates of the authority",
                    ));
                }
                let verifier =
                    WebPkiServerVerifier::builder_with_provider(Arc::new(store), provider.clone())
                        .with_crls(revocation_lists(options)?)
                        .build()
                        .map_err(|error| unusable(error.to_string(), "check sslcrl"))?;
                Some(verifier)
            }
        };
        Ok(Self {
            chain,
            trusted: trusted.unwrap_or_default(),
            check_name: options.mode == SslMode::VerifyFull,
            algorithms: provider.signature_verification_algorithms,
        })
    }

    /// The name rule of libpq, which knows the common name where webpki does not.
    fn name_fits(&self, end_entity: &CertificateDer<'_>, name: &ServerName<'_>) -> bool {
        !self.check_name || certificate::common_name_fits(end_entity, &name.to_str())
    }
}

impl ServerCertVerifier for Verifier {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        server_name: &ServerName<'_>,
        ocsp_response: &[u8],
        now: UnixTime,
    ) -> std::result::Result<ServerCertVerified, rustls::Error> {
        use CertificateError::{NotValidForName, NotValidForNameContext};
        let Some(chain) = &self.chain else {
            return Ok(ServerCertVerified::assertion());
        };
        // A self-signed certificate that the operator trusts by itself: webpki takes a certificate
        // either for an authority's or for a server's, OpenSSL takes it for both.
        if self.trusted.iter().any(|trusted| trusted == end_entity) {
            certificate::check_validity(end_entity, now)?;
            let fits = !self.check_name
                || ParsedCertificate::try_from(end_entity)
                    .and_then(|parsed| rustls::client::verify_server_name(&parsed, server_name))
                    .is_ok()
                || self.name_fits(end_entity, server_name);
            return if fits {
                Ok(ServerCertVerified::assertion())
            } else {
                Err(NotValidForName.into())
            };
        }
        let verdict =
            chain.verify_server_cert(end_entity, intermediates, server_name, ocsp_response, now);
        // The name is what webpki checks last, so behind this error the chain is sound.
        match verdict {
            Err(rustls::Error::InvalidCertificate(
                NotValidForName | NotValidForNameContext { .. },
            )) if self.name_fits(end_entity, server_name) => Ok(ServerCertVerified::assertion()),
            other => other,
        }
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> std::result::Result<HandshakeSignatureValid, rustls::Error> {
        rustls::crypto::verify_tls12_signature(message, cert, dss, &self.algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> std::result::Result<HandshakeSignatureValid, rustls::Error> {
        // Without a chain to check, a certificate of version 1 (what `openssl x509 -req` made for
        // years) is good enough to encrypt with; webpki does not read it, its key alone it does.
        // The signature counts even then: channel binding relies on the server owning the key.
        if self.chain.is_none()
            && ParsedCertificate::try_from(cert).is_err()
            && let Some(key) = certificate::public_key(cert)
        {
            return rustls::crypto::verify_tls13_signature_with_raw_key(
                message,
                &key,
                dss,
                &self.algorithms,
            );
        }
        rustls::crypto::verify_tls13_signature(message, cert, dss, &self.algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.algorithms.supported_schemes()
    }
}
