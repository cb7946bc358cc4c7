//! TL-1 and TL-4: which certificates count, those included that no worker of farref's would show, and when their files are
//! read again.

use std::fs::File;

use rcgen::{
    BasicConstraints, CertificateParams, CertifiedIssuer, DnType, ExtendedKeyUsagePurpose, IsCa,
    KeyPair, SanType,
};
use rustls::sign::{CertifiedKey, SingleCertAndKey};

use super::super::failure::TlsFailure;
use super::super::tests::streams;
use super::*;
use crate::native::tests::tls::certificates::{Authority, tls, worker_tls};

/// Certificates of an authority's with others between them, as files in a folder that goes with this.
struct Chain {
    folder: PathBuf,
    /// The authority first.
    issuers: Vec<CertifiedIssuer<'static, KeyPair>>,
}

fn issuer(number: usize) -> (CertificateParams, KeyPair) {
    let mut params = CertificateParams::default();
    let name = format!("issuer {number}");
    params.distinguished_name.push(DnType::CommonName, name);
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    (params, KeyPair::generate().expect("a key"))
}

impl Chain {
    fn new(name: &str, between: usize) -> Self {
        let folder = format!("farref-chain-{name}-{}", std::process::id());
        let folder = std::env::temp_dir().join(folder);
        fs::create_dir_all(&folder).expect("a folder");
        let (params, key) = issuer(0);
        let authority = CertifiedIssuer::self_signed(params, key).expect("an authority");
        fs::write(folder.join("ca.pem"), authority.pem()).expect("a file");
        let chain = Self {
            folder,
            issuers: vec![authority],
        };
        (0..between).fold(chain, |chain, _| chain.prolonged())
    }

    /// The same with one more in between.
    fn prolonged(mut self) -> Self {
        let (params, key) = issuer(self.issuers.len());
        let last = self.issuers.last().expect("an authority");
        let signed = CertifiedIssuer::signed_by(params, key, last);
        self.issuers.push(signed.expect("an authority"));
        self
    }

    /// Certificate, key and authority of whoever this names, good for this.
    fn issue(&self, uri: &str, purposes: &[ExtendedKeyUsagePurpose]) -> [PathBuf; 3] {
        let mut params = CertificateParams::default();
        let uri = uri.try_into().expect("ASCII");
        params.subject_alt_names.push(SanType::URI(uri));
        params.extended_key_usages = purposes.to_vec();
        let key = KeyPair::generate().expect("a key");
        let issuer = self.issuers.last().expect("an authority");
        let mut text = params.signed_by(&key, issuer).expect("a certificate").pem();
        for between in self.issuers.iter().skip(1).rev() {
            text += &between.pem();
        }
        let number = fastrand::u64(..);
        let files = ["pem", "key"].map(|end| self.folder.join(format!("{number:x}.{end}")));
        let [certificate, key_file] = files;
        fs::write(&certificate, text).expect("a file");
        fs::write(&key_file, key.serialize_pem()).expect("a file");
        [certificate, key_file, self.folder.join("ca.pem")]
    }
}

impl Drop for Chain {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.folder);
    }
}

fn loaded([certificate, key, authorities]: [PathBuf; 3]) -> Result<Tls, TlsError> {
    Tls::from_files(certificate, key, authorities)
}

/// The same, but that it shows this certificate without having looked at it.
fn showing(tls: &Tls, [certificate, key, _]: &[PathBuf; 3]) -> Tls {
    let chain = certificates(certificate).expect("certificates");
    let key = PrivateKeyDer::from_pem_file(key).expect("a key");
    let shown = CertifiedKey::from_der(chain, key, &ring::default_provider()).expect("a pair");
    let shown = Arc::new(SingleCertAndKey::from(shown));
    let current = lock(&tls.current);
    let mut client = ClientConfig::clone(&current.configs.client);
    client.client_auth_cert_resolver = shown.clone();
    let mut server = ServerConfig::clone(&current.configs.server);
    server.cert_resolver = shown;
    let configs = Configs {
        client: Arc::new(client),
        server: Arc::new(server),
        bearer: current.configs.bearer.clone(),
        tag: current.configs.tag.clone(),
        ends: current.configs.ends,
    };
    Tls {
        files: Arc::clone(&tls.files),
        name: None,
        turn: Arc::default(),
        current: Arc::new(Mutex::new(Current {
            configs: Arc::new(configs),
            read: current.read,
            failed: None,
        })),
    }
}

/// Of several files that follow each other, the end is that of the one that counts.
#[tokio::test]
async fn the_end_of_a_certificate_is_known_and_that_of_the_next_when_it_is_replaced() {
    let authority = Authority::new();
    let uris = ["farref:worker/a"];
    let tls = tls(authority.issue_until("a", &uris, 2100));
    let ends = async || {
        let since = tls.ends().await?.duration_since(SystemTime::UNIX_EPOCH);
        since.ok().map(|since| since.as_secs())
    };
    assert_eq!(ends().await, Some(4_102_444_800));
    authority.issue_until("a", &uris, 2200);
    assert_eq!(ends().await, Some(7_258_118_400));
}

/// TL-1: each takes time to be looked at, of whoever shows it.
#[tokio::test]
async fn of_certificates_between_a_workers_and_its_authoritys_there_are_three_at_most() {
    let enough = Chain::new("three", 3);
    let [a, b] = ["farref:worker/a", "farref:worker/b"]
        .map(|uri| loaded(enough.issue(uri, &[])).expect("three are few enough"));
    for stream in streams(&a, &b).await {
        stream.expect("a stream");
    }
    let more = enough.prolonged();
    for uri in ["farref:worker/a", "farref:observer"] {
        let files = more.issue(uri, &[]);
        let error = loaded(files.clone()).expect_err("four are too many");
        assert!(
            matches!(error, TlsError::Untrusted { .. }),
            "{uri}: {error}"
        );
        let [_, accepted] = streams(&showing(&a, &files), &b).await;
        assert!(
            matches!(accepted, Err(TlsFailure::Untrusted(_))),
            "{accepted:?}"
        );
        let [dialed, _] = streams(&a, &showing(&b, &files)).await;
        assert!(
            matches!(dialed, Err(TlsFailure::Untrusted(_))),
            "{dialed:?}"
        );
    }
}

/// TL-1: what is not said to be anybody's is not taken for a stream without certificates.
#[tokio::test]
async fn a_certificate_that_names_nobody_is_good_for_no_end_of_a_stream() {
    let authority = Authority::new();
    let [a, b] = ["a", "b"].map(|name| worker_tls(&authority, name));
    let nobody = authority.issue("nobody", &["https://example.org"]);
    let [_, accepted] = streams(&showing(&a, &nobody), &b).await;
    assert!(
        matches!(accepted, Err(TlsFailure::Nameless)),
        "{accepted:?}"
    );
    let [dialed, _] = streams(&a, &showing(&b, &nobody)).await;
    assert!(matches!(dialed, Err(TlsFailure::Nameless)), "{dialed:?}");
}

/// TL-1: a worker finds out when it reads its files, and not when the first peer dials.
#[test]
fn a_worker_s_certificate_has_to_be_good_for_both_ends() {
    use ExtendedKeyUsagePurpose::{ClientAuth, ServerAuth};
    let chain = Chain::new("purposes", 0);
    loaded(chain.issue("farref:worker/a", &[ClientAuth, ServerAuth])).expect("good for both");
    loaded(chain.issue("farref:observer", &[ClientAuth])).expect("an observer only dials");
    for (uri, purpose) in [
        ("farref:worker/a", ClientAuth),
        ("farref:worker/*", ClientAuth),
        ("farref:worker/a", ServerAuth),
        ("farref:observer", ServerAuth),
    ] {
        let error = loaded(chain.issue(uri, &[purpose])).expect_err("good for one end");
        assert!(
            matches!(error, TlsError::Untrusted { .. }),
            "{uri}: {error}"
        );
    }
}

/// TL-4: who may read them and what time it is can have changed.
#[test]
fn files_that_made_no_sense_are_read_again_though_they_look_the_same() {
    let authority = Authority::new();
    let files = authority.issue("a", &["farref:worker/a"]);
    let [certificate, ..] = &files;
    let tls = tls(files.clone());
    let sense = fs::read(certificate).expect("a file");
    // All that shows that a file was replaced stays as it is.
    let put = |text: &[u8], modified| {
        fs::write(certificate, text).expect("a file");
        let file = File::options().write(true).open(certificate);
        let set = file.expect("a file").set_modified(modified);
        set.expect("a moment");
    };
    let later = SystemTime::now() + Duration::from_secs(1000);
    put(&vec![b'x'; sense.len()], later);
    let before = tls.look();
    let failed = || lock(&tls.current).failed;
    assert!(failed().is_some());
    put(&sense, later);
    assert!(
        Arc::ptr_eq(&before, &tls.look()),
        "they were just looked at"
    );
    let mut current = lock(&tls.current);
    let (_, when) = current.failed.as_mut().expect("they made no sense");
    *when = when
        .checked_sub(AGAIN)
        .expect("a machine that was not started just now");
    drop(current);
    assert!(!Arc::ptr_eq(&before, &tls.look()), "they make sense");
    assert!(failed().is_none());
}

#[test]
fn variables_that_name_some_of_the_files_are_refused_with_the_one_that_is_missing() {
    let authority = Authority::new();
    let names = ["FARREF_TLS_CERT", "FARREF_TLS_KEY", "FARREF_TLS_CA"];
    let files = authority.issue("a", &["farref:worker/a"]);
    let set = |is_set: [bool; 3]| {
        Tls::from_variables(|name| {
            let index = names.iter().position(|known| *known == name)?;
            // What is empty is not set.
            let file = is_set[index].then(|| files[index].clone().into_os_string());
            Some(file.unwrap_or_default())
        })
    };
    assert!(matches!(set([true; 3]), Ok(Some(_))));
    assert!(matches!(set([false; 3]), Ok(None)));
    assert!(matches!(Tls::from_variables(|_| None), Ok(None)));
    for (is_set, first) in [
        ([true, true, false], 2),
        ([true, false, true], 1),
        ([false, true, true], 0),
        ([true, false, false], 1),
        ([false, true, false], 0),
        ([false, false, true], 0),
    ] {
        let found = set(is_set);
        assert!(
            matches!(&found, Err(TlsError::Incomplete { missing }) if *missing == names[first]),
            "{is_set:?}: {found:?}"
        );
    }
}
