//! An authority for tests, and the certificates that it signs, as files.

use std::fs;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU32, Ordering};

use farref::Tls;
use rcgen::{
    BasicConstraints, CertificateParams, CertifiedIssuer, DnType, IsCa, KeyPair, SanType,
    date_time_ymd,
};

/// An authority. Its folder goes with it.
pub(crate) struct Authority {
    folder: PathBuf,
    issuer: CertifiedIssuer<'static, KeyPair>,
}

impl Authority {
    pub(crate) fn new() -> Self {
        static MADE: AtomicU32 = AtomicU32::new(0);
        let number = MADE.fetch_add(1, Ordering::Relaxed);
        let folder = format!("farref-authority-{}-{number}", std::process::id());
        let folder = std::env::temp_dir().join(folder);
        fs::create_dir_all(&folder).expect("a folder");
        let mut params = CertificateParams::default();
        let name = format!("authority {number}");
        params.distinguished_name.push(DnType::CommonName, name);
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let key = KeyPair::generate().expect("a key");
        let issuer = CertifiedIssuer::self_signed(params, key).expect("an authority");
        let authority = Self { folder, issuer };
        fs::write(authority.file("ca.pem"), authority.pem()).expect("a file");
        authority
    }

    /// Its own certificate.
    pub(crate) fn pem(&self) -> String {
        self.issuer.pem()
    }

    pub(crate) fn file(&self, name: &str) -> PathBuf {
        self.folder.join(name)
    }

    /// Certificate, key and authority, as files: for whoever these URIs name.
    pub(crate) fn issue(&self, file: &str, uris: &[&str]) -> [PathBuf; 3] {
        self.issue_until(file, uris, 4000)
    }

    /// The same, valid until that year.
    pub(crate) fn issue_until(&self, file: &str, uris: &[&str], year: i32) -> [PathBuf; 3] {
        let (certificate, key) = self.pair(uris, year);
        let paths = ["pem", "key"].map(|end| self.file(&format!("{file}.{end}")));
        for (path, text) in paths.iter().zip([certificate, key]) {
            fs::write(path, text).expect("a file");
        }
        let [certificate, key] = paths;
        [certificate, key, self.file("ca.pem")]
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

    /// What the worker of that name has.
    pub(crate) fn worker(&self, name: &str) -> Tls {
        let uri = format!("farref:worker/{}", name.replace('#', "%23"));
        tls(self.issue(&name.replace('#', "-"), &[&uri]))
    }
}

impl Default for Authority {
    fn default() -> Self {
        Self::new()
    }
}

impl Drop for Authority {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.folder);
    }
}

pub(crate) fn tls([certificate, key, authorities]: [PathBuf; 3]) -> Tls {
    Tls::from_files(certificate, key, authorities).expect("files that make sense")
}
