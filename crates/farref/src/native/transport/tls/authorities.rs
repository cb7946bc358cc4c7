//! Which authorities stand behind a certificate, as far as the files say: what a worker's card tells of it, so that those who cannot
//! talk are told so before they are a group.

use rustls::pki_types::CertificateDer;
use webpki::EndEntityCert;

use crate::rendezvous::CertificateTag;

/// Of the authorities from which a chain of certificates follows, and of those that count. Where one of them cannot be read, or
/// the chain leads to somebody who is not in the files, that is not said.
pub(super) fn tag(
    chain: &[CertificateDer<'_>],
    authorities: &[CertificateDer<'_>],
) -> CertificateTag {
    let read = |certificates: &[CertificateDer<'_>]| {
        let parts = certificates.iter().map(Parts::of);
        parts.collect::<Option<Vec<Parts>>>()
    };
    let (Some(chain), Some(authorities)) = (read(chain), read(authorities)) else {
        return CertificateTag::default();
    };
    let between = chain.get(1..).unwrap_or_default();
    let is_known = |parts: &Parts| {
        let mut issuers = between.iter().chain(&authorities);
        issuers.any(|issuer| issuer.subject == parts.issuer)
    };
    let has_signed = |authority: &&Parts| {
        let mut signed = chain.iter();
        signed.any(|parts| parts.issuer == authority.subject)
    };
    let signers: Vec<&[u8]> = match chain.iter().all(is_known) {
        true => {
            let authorities = authorities.iter().filter(has_signed);
            between.iter().chain(authorities).map(Parts::key).collect()
        }
        false => Vec::new(),
    };
    CertificateTag::new(signers, authorities.iter().map(Parts::key))
}

/// What says who has signed what.
struct Parts {
    subject: Vec<u8>,
    issuer: Vec<u8>,
    key: Vec<u8>,
}

impl Parts {
    fn of(certificate: &CertificateDer<'_>) -> Option<Self> {
        let certificate = EndEntityCert::try_from(certificate).ok()?;
        Some(Self {
            subject: certificate.subject().to_vec(),
            issuer: certificate.issuer().to_vec(),
            key: certificate.subject_public_key_info().to_vec(),
        })
    }

    fn key(&self) -> &[u8] {
        &self.key
    }
}
