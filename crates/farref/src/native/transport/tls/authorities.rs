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

#[cfg(test)]
mod tests {
    use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, DnType, IsCa, KeyPair};

    use super::*;

    type Issuer = CertifiedIssuer<'static, KeyPair>;

    fn authority(name: &str) -> (CertificateParams, KeyPair) {
        let mut params = CertificateParams::default();
        params.distinguished_name.push(DnType::CommonName, name);
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        (params, KeyPair::generate().expect("a key"))
    }

    fn root(name: &str) -> Issuer {
        let (params, key) = authority(name);
        Issuer::self_signed(params, key).expect("an authority")
    }

    fn worker(issuer: &Issuer) -> CertificateDer<'static> {
        let key = KeyPair::generate().expect("a key");
        let signed = CertificateParams::default().signed_by(&key, issuer);
        signed.expect("a certificate").der().clone()
    }

    fn own(issuer: &Issuer) -> CertificateDer<'static> {
        issuer.as_ref().der().clone()
    }

    /// The tag of one that shows these behind its own, and takes those of this authority.
    fn tagged(issuer: &Issuer, shown: &[&Issuer], takes: &Issuer) -> CertificateTag {
        let shown = shown.iter().map(|issuer| own(issuer));
        let chain: Vec<_> = [worker(issuer)].into_iter().chain(shown).collect();
        tag(&chain, &[own(takes)])
    }

    #[test]
    fn a_chain_leads_to_the_authority_and_to_those_in_between() {
        let [ours, theirs] = ["one name", "one name"].map(root);
        let (params, key) = authority("between");
        let between = Issuer::signed_by(params, key, &ours).expect("an authority");
        let fits = |one: &CertificateTag, other: &CertificateTag| {
            CertificateTag::conflict(Some(one), Some(other)).is_none()
        };
        let direct = tagged(&ours, &[], &ours);
        let long = tagged(&between, &[&between], &ours);
        let partly = tagged(&between, &[&between], &between);
        let strange = tagged(&theirs, &[], &theirs);
        assert!(fits(&direct, &direct) && fits(&direct, &long));
        assert!(fits(&long, &partly), "in between is an authority, too");
        for one in [&direct, &long] {
            assert!(!fits(one, &strange), "it has the same name and another key");
        }
        // Who signed the one in between is not in its files.
        assert!(fits(&partly, &tagged(&between, &[], &theirs)));
        assert!(!fits(&long, &tagged(&between, &[&between], &theirs)));
    }

    #[test]
    fn of_what_cannot_be_read_nothing_is_said() {
        let ours = root("ours");
        let garbage = CertificateDer::from(b"garbage".as_slice());
        let nothing = CertificateTag::default();
        assert_eq!(
            tag(&[worker(&ours)], &[garbage.clone(), own(&ours)]),
            nothing
        );
        assert_eq!(tag(&[garbage], &[own(&ours)]), nothing);
    }
}
