//! The few things in an X.509 certificate that rustls does not tell: its common name, its dates
//! when it is trusted by itself, and the hash that SCRAM is bound to.

use rustls::CertificateError;
use rustls::pki_types::{CertificateDer, SubjectPublicKeyInfoDer, UnixTime};
use sha2::{Digest, Sha256, Sha384, Sha512};
use x509_cert::Certificate;
use x509_cert::der::{Decode, Encode};
use x509_cert::ext::pkix::SubjectAltName;
use x509_cert::ext::pkix::name::GeneralName;

/// libpq's rule for names: the common name counts only when no alternative name does. A `*` stands
/// for the first label alone.
pub(crate) fn common_name_fits(certificate: &CertificateDer<'_>, host: &str) -> bool {
    let Ok(parsed) = Certificate::from_der(certificate) else {
        return false;
    };
    match parsed.tbs_certificate.get::<SubjectAltName>() {
        Ok(None) => {}
        Ok(Some((_, names))) => {
            let counts = |name: &GeneralName| {
                matches!(name, GeneralName::DnsName(_) | GeneralName::IpAddress(_))
            };
            if names.0.iter().any(counts) {
                return false;
            }
        }
        Err(_) => return false,
    }
    common_name(&parsed).is_some_and(|name| name_fits(&name, host))
}

fn common_name(certificate: &Certificate) -> Option<String> {
    const COMMON_NAME: &str = "2.5.4.3";
    let mut attributes = certificate
        .tbs_certificate
        .subject
        .0
        .iter()
        .flat_map(|set| set.0.iter());
    let value = attributes
        .rfind(|attribute| attribute.oid.to_string() == COMMON_NAME)?
        .value
        .value();
    String::from_utf8(value.to_vec()).ok()
}

fn name_fits(pattern: &str, host: &str) -> bool {
    if pattern.eq_ignore_ascii_case(host) {
        return true;
    }
    let is_address = host.parse::<std::net::IpAddr>().is_ok();
    match (pattern.strip_prefix("*."), host.split_once('.')) {
        (Some(parent), Some((label, rest))) => {
            !is_address && !label.is_empty() && parent.eq_ignore_ascii_case(rest)
        }
        _ => false,
    }
}

/// Whether `now` lies between the certificate's dates.
pub(crate) fn check_validity(
    certificate: &CertificateDer<'_>,
    now: UnixTime,
) -> Result<(), CertificateError> {
    let parsed = Certificate::from_der(certificate).map_err(|_| CertificateError::BadEncoding)?;
    let validity = parsed.tbs_certificate.validity;
    let now = now.as_secs();
    if now < validity.not_before.to_unix_duration().as_secs() {
        Err(CertificateError::NotValidYet)
    } else if now > validity.not_after.to_unix_duration().as_secs() {
        Err(CertificateError::Expired)
    } else {
        Ok(())
    }
}

/// The public key, for certificates too old for webpki.
pub(crate) fn public_key(
    certificate: &CertificateDer<'_>,
) -> Option<SubjectPublicKeyInfoDer<'static>> {
    let parsed = Certificate::from_der(certificate).ok()?;
    let key = parsed
        .tbs_certificate
        .subject_public_key_info
        .to_der()
        .ok()?;
    Some(SubjectPublicKeyInfoDer::from(key))
}

/// The `tls-server-end-point` binding of RFC 5929: the certificate hashed with the hash of its own
/// signature, MD5 and SHA-1 replaced by SHA-256. `None` for signatures without a separate hash
/// (Ed25519), which cannot be bound.
pub(crate) fn end_point_binding(certificate: &CertificateDer<'_>) -> Option<Vec<u8>> {
    let parsed = Certificate::from_der(certificate).ok()?;
    match parsed.signature_algorithm.oid.to_string().as_str() {
        // RSA with MD5, SHA-1, SHA-256; ECDSA with SHA-1, SHA-256.
        "1.2.840.113549.1.1.4"
        | "1.2.840.113549.1.1.5"
        | "1.2.840.113549.1.1.11"
        | "1.2.840.10045.4.1"
        | "1.2.840.10045.4.3.2" => Some(Sha256::digest(certificate).to_vec()),
        "1.2.840.113549.1.1.12" | "1.2.840.10045.4.3.3" => {
            Some(Sha384::digest(certificate).to_vec())
        }
        "1.2.840.113549.1.1.13" | "1.2.840.10045.4.3.4" => {
            Some(Sha512::digest(certificate).to_vec())
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_star_stands_for_one_label() {
        assert!(name_fits("DB1.example.org", "db1.example.ORG"));
        assert!(name_fits("*.example.org", "db1.example.org"));
        assert!(!name_fits("*.example.org", "a.db1.example.org"));
        assert!(!name_fits("*.example.org", ".example.org"));
        assert!(!name_fits("*.0.0.1", "127.0.0.1"));
        assert!(!name_fits("db1", "db1.example.org"));
    }
}
