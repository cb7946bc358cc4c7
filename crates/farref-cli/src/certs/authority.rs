//! A certificate authority for a group: whoever it vouches for can join. `farref certs` keeps one in a folder,
//! `farref launch` has one for as long as it takes to issue.
//!
//! Keys are for ECDSA on P-256. The certificate of a worker is good for both ends of a connection, that of an observer for
//! the one that dials only. No certificate outlives its authority. They begin an hour before they were made, because
//! clocks differ.

use std::fmt;
use std::path::Path;

use rcgen::{
    BasicConstraints, CertificateParams, DistinguishedName, DnType, ExtendedKeyUsagePurpose, IsCa,
    Issuer, KeyPair, KeyUsagePurpose, SanType,
};

use super::bearer::Bearer;
use super::error::CertsError;
use super::found::{self, Found};
use super::moment::{self, date};

/// What an authority is kept in.
pub(crate) const CERTIFICATE: &str = "ca.pem";
pub(super) const KEY: &str = "ca-key.pem";

/// How far clocks may be apart, in seconds.
const SKEW: i64 = 60 * 60;
/// As long as the name of somebody in a certificate may be.
const MAX_NAME: usize = 64;

/// Who vouches for the members of a group.
#[derive(Debug)]
pub(crate) struct Authority {
    issuer: Issuer<'static, KeyPair>,
    der: Vec<u8>,
    /// In seconds since 1970.
    ends: i64,
}

/// A certificate with its key.
pub(crate) struct Pair {
    pub(super) certificate: String,
    pub(super) key: String,
    /// Until when it counts, in seconds since 1970.
    pub(super) ends: i64,
}

impl Authority {
    /// A new one, and its certificate.
    pub(crate) fn make(name: &str, days: u32) -> Result<(Self, String), CertsError> {
        let is_on_one_line = !name.chars().any(char::is_control) && !name.trim().is_empty();
        if !is_on_one_line || name.chars().count() > MAX_NAME {
            return Err(CertsError::AuthorityName { name: name.into() });
        }
        let ends = moment::days_after(moment::now(), days);
        let mut params = params(name, ends);
        // It signs members, and no other authorities.
        params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
        let key = KeyPair::generate()?;
        let certificate = params.self_signed(&key)?;
        let made = Self {
            der: certificate.der().to_vec(),
            issuer: Issuer::new(params, key),
            ends,
        };
        Ok((made, certificate.pem()))
    }

    /// The one that is kept in a folder.
    pub(super) fn load(folder: &Path) -> Result<Self, CertsError> {
        if !folder.is_dir() {
            return Err(CertsError::NoFolder {
                path: folder.into(),
            });
        }
        for missing in [CERTIFICATE, KEY] {
            let path = folder.join(missing);
            // One that is not for this user to look at is not missing.
            if !path.try_exists().map_err(CertsError::read(&path))? {
                let folder = folder.into();
                return Err(CertsError::NoAuthority { folder, missing });
            }
        }
        let (path, key_path) = (folder.join(CERTIFICATE), folder.join(KEY));
        let key = found::read(&key_path).map_err(CertsError::read(&key_path))?;
        let key = KeyPair::from_pem(&key).map_err(|why| CertsError::NotAKey {
            path: key_path.clone(),
            why: why.to_string(),
        })?;
        // While one authority takes another's place, both are in there.
        let mut certificates = found::certificates(&path)?.into_iter();
        let Some(own) = certificates.find(|found| found.public_key == key.public_key_raw()) else {
            return Err(CertsError::OtherKey {
                key: key_path,
                certificate: path,
            });
        };
        Self::new(own, key, &path)
    }

    fn new(own: Found, key: KeyPair, path: &Path) -> Result<Self, CertsError> {
        if !own.is_authority {
            return Err(CertsError::NotAnAuthority { path: path.into() });
        }
        if own.ends <= moment::now() {
            return Err(CertsError::Expired {
                path: path.into(),
                ended: moment::spoken(own.ends),
            });
        }
        Ok(Self {
            issuer: Issuer::from_ca_cert_der(&own.der.as_slice().into(), key)?,
            der: own.der,
            ends: own.ends,
        })
    }

    /// Its key, which is to be kept from everybody.
    pub(super) fn key(&self) -> String {
        self.issuer.key().serialize_pem()
    }

    /// Whether one of these is its own certificate.
    pub(super) fn is_among(&self, certificates: &[Found]) -> bool {
        certificates.iter().any(|found| found.der == self.der)
    }

    /// A key of its own for somebody, and a certificate that says who that is. What it is called in it is for people.
    pub(crate) fn issue(
        &self,
        bearer: &Bearer,
        label: &str,
        days: u32,
    ) -> Result<Pair, CertsError> {
        let ends = moment::days_after(moment::now(), days).min(self.ends);
        let mut params = params(label, ends);
        for uri in bearer.uris() {
            params.subject_alt_names.push(SanType::URI(uri.try_into()?));
        }
        params.is_ca = IsCa::ExplicitNoCa;
        params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth];
        if bearer.answers() {
            let answers = ExtendedKeyUsagePurpose::ServerAuth;
            params.extended_key_usages.push(answers);
        }
        params.use_authority_key_identifier_extension = true;
        let key = KeyPair::generate()?;
        Ok(Pair {
            certificate: params.signed_by(&key, &self.issuer)?.pem(),
            key: key.serialize_pem(),
            ends,
        })
    }
}

fn params(name: &str, ends: i64) -> CertificateParams {
    let mut subject = DistinguishedName::new();
    let name: String = name.chars().take(MAX_NAME).collect();
    subject.push(DnType::CommonName, name);
    let mut params = CertificateParams::default();
    params.distinguished_name = subject;
    params.not_before = date!(moment::now() - SKEW);
    params.not_after = date!(ends);
    params
}

impl fmt::Debug for Pair {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("(hidden)")
    }
}
