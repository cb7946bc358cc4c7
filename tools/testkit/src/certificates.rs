//! A certificate authority, and the certificates that it signs, as files.

use std::fs;
use std::path::{Path, PathBuf};

use rcgen::{
    BasicConstraints, CertificateParams, CertifiedIssuer, DnType, IsCa, KeyPair, SanType,
    date_time_ymd,
};

use crate::Scratch;

/// A certificate authority. Its files are removed with it.
pub struct Authority {
    scratch: Scratch,
    issuer: CertifiedIssuer<'static, KeyPair>,
}

impl std::fmt::Debug for Authority {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Authority").field(&self.scratch).finish()
    }
}

impl Authority {
    /// A new authority, with its own certificate in `ca.pem`.
    ///
    /// # Panics
    ///
    /// As the other methods do: if a key cannot be generated or a file cannot be written.
    #[expect(clippy::new_without_default, reason = "it writes files")]
    pub fn new() -> Self {
        let scratch = Scratch::new().expect("a folder");
        let mut params = CertificateParams::default();
        let name = format!("authority {}", scratch.path().display());
        params.distinguished_name.push(DnType::CommonName, name);
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let key = KeyPair::generate().expect("a key");
        let issuer = CertifiedIssuer::self_signed(params, key).expect("an authority");
        let authority = Self { scratch, issuer };
        fs::write(authority.file("ca.pem"), authority.pem()).expect("a file");
        authority
    }

    /// Its own certificate.
    pub fn pem(&self) -> String {
        self.issuer.pem()
    }

    /// The folder with all files.
    pub fn folder(&self) -> &Path {
        self.scratch.path()
    }

    /// The path of one of the files.
    pub fn file(&self, name: &str) -> PathBuf {
        self.scratch.path().join(name)
    }

    /// Certificate, key and authority, as files, for the worker that these URIs name.
    pub fn issue(&self, file: &str, uris: &[&str]) -> [PathBuf; 3] {
        self.issue_until(file, uris, 4000)
    }

    /// Like [`Authority::issue`], valid until the first day of a year.
    pub fn issue_until(&self, file: &str, uris: &[&str], year: i32) -> [PathBuf; 3] {
        let (certificate, key) = self.pair(uris, year);
        let paths = ["pem", "key"].map(|end| self.file(&format!("{file}.{end}")));
        for (path, text) in paths.iter().zip([certificate, key]) {
            fs::write(path, text).expect("a file");
        }
        let [certificate, key] = paths;
        [certificate, key, self.file("ca.pem")]
    }

    /// Certificate, key and authority, as files, for the worker of that name.
    pub fn worker(&self, name: &str) -> [PathBuf; 3] {
        let uri = format!("farref:worker/{}", name.replace('#', "%23"));
        self.issue(&name.replace('#', "-"), &[&uri])
    }

    fn pair(&self, uris: &[&str], year: i32) -> (String, String) {
        let mut params = CertificateParams::default();
        params.not_after = date_time_ymd(year, 1, 1);
        for uri in uris {
            let uri = (*uri).try_into().expect("ASCII");
            params.subject_alt_names.push(SanType::URI(uri));
        }
        let key = KeyPair::generate().expect("a key");
        let signed = params.signed_by(&key, &self.issuer);
        (signed.expect("a certificate").pem(), key.serialize_pem())
    }
}
