//! The three files of a worker's certificate, and reading them again when they have changed (TL-4).

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant, SystemTime};
use std::{fs, io};

use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::client::verify_server_cert_signed_by_trust_anchor;
use rustls::crypto::{CryptoProvider, ring, verify_tls13_signature};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime};
use rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use rustls::server::{NoServerSessionStorage, ParsedCertificate, WebPkiClientVerifier};
use rustls::{
    ClientConfig, DigitallySignedStruct, DistinguishedName, RootCertStore, ServerConfig,
    SignatureScheme, version,
};
use tracing::{info, warn};

use super::bearer::Bearer;
use crate::error::TlsError;
use crate::support::lock::lock;

/// A worker's certificate, its key, and the authority that signed all certificates of the group: with it, what goes over TCP is
/// encrypted, and both ends know whom they talk to.
///
/// All three are files in PEM form. `farref certs` makes them, and so does whatever makes certificates in your organisation: the
/// worker's name stands in a subject alternative name, a URI of the form `farref:worker/NAME`. When the files are replaced,
/// the next connection uses the new ones; there is no need to start a worker anew.
///
/// ```no_run
/// use farref::{Tls, Worker};
///
/// # #[tokio::main]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let tls = Tls::from_files("certs/trainer.pem", "certs/trainer.key", "certs/ca.pem")?;
/// let worker = Worker::builder("trainer")
///     .rendezvous("tcp://10.1.0.7:29500")
///     .tls(tls)
///     .join()
///     .await?;
/// # worker.shutdown().await?;
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct Tls {
    files: Arc<Files>,
    current: Arc<Mutex<Current>>,
}

#[derive(Debug)]
struct Files {
    certificate: PathBuf,
    key: PathBuf,
    authorities: PathBuf,
}

/// What counts, the state of the files when that was read, and of those that made no sense since, when they were looked at.
struct Current {
    configs: Arc<Configs>,
    read: Stamp,
    failed: Option<(Stamp, Instant)>,
}

/// Files that make no sense are read again after this time, though they look the same: who may read them, and what time it is, can
/// have changed.
const AGAIN: Duration = Duration::from_secs(5);

/// The most certificates between a worker's and its authority's: each takes time to be looked at, of whoever shows it.
const MOST_BETWEEN: usize = 3;

/// What shows that a file was replaced.
type Stamp = [Option<(SystemTime, u64, u64)>; 3];

/// What one state of the files means.
#[derive(Debug)]
pub(super) struct Configs {
    pub(super) client: Arc<ClientConfig>,
    pub(super) server: Arc<ServerConfig>,
    bearer: Bearer,
}

impl Tls {
    /// Reads a certificate (with those between it and the authority behind it, if there are any), its key, and the certificates
    /// of the authorities that count.
    pub fn from_files(
        certificate: impl Into<PathBuf>,
        key: impl Into<PathBuf>,
        authorities: impl Into<PathBuf>,
    ) -> Result<Self, TlsError> {
        let files = Files {
            certificate: certificate.into(),
            key: key.into(),
            authorities: authorities.into(),
        };
        let read = files.stamp();
        let configs = Arc::new(files.load()?);
        Ok(Self {
            files: Arc::new(files),
            current: Arc::new(Mutex::new(Current {
                configs,
                read,
                failed: None,
            })),
        })
    }

    /// The files that `FARREF_TLS_CERT`, `FARREF_TLS_KEY` and `FARREF_TLS_CA` name; none if none of these is set.
    ///
    /// ```
    /// assert!(farref::Tls::from_env()?.is_none());
    /// # Ok::<(), farref::TlsError>(())
    /// ```
    pub fn from_env() -> Result<Option<Self>, TlsError> {
        let names = ["FARREF_TLS_CERT", "FARREF_TLS_KEY", "FARREF_TLS_CA"];
        let values = names.map(|name| std::env::var_os(name).filter(|value| !value.is_empty()));
        let missing = names.iter().zip(&values).find(|(_, value)| value.is_none());
        match (&values, missing) {
            ([Some(certificate), Some(key), Some(authorities)], _) => {
                Self::from_files(certificate, key, authorities).map(Some)
            }
            ([None, None, None], _) | (_, None) => Ok(None),
            (_, Some((missing, _))) => Err(TlsError::Incomplete { missing }),
        }
    }

    /// Whom the certificate names that was read last.
    pub(crate) fn bearer(&self) -> Bearer {
        lock(&self.current).configs.bearer.clone()
    }

    /// What counts for the next handshake. Looks at the files, on a thread that may wait.
    pub(super) async fn configs(&self) -> Arc<Configs> {
        let this = self.clone();
        let looking = tokio::task::spawn_blocking(move || this.look());
        match looking.await {
            Ok(configs) => configs,
            Err(_) => Arc::clone(&lock(&self.current).configs),
        }
    }

    fn look(&self) -> Arc<Configs> {
        let stamp = self.files.stamp();
        let is_new = {
            let current = lock(&self.current);
            let known = match &current.failed {
                Some((failed, when)) => *failed == stamp && when.elapsed() < AGAIN,
                None => false,
            };
            if stamp == current.read || known {
                return Arc::clone(&current.configs);
            }
            current.failed.is_none_or(|(failed, _)| failed != stamp)
        };
        let loaded = self.files.load();
        let mut current = lock(&self.current);
        match loaded {
            Ok(configs) => {
                current.read = stamp;
                current.failed = None;
                info!(certificate = %self.files.certificate.display(), "another certificate is used from now on");
                current.configs = Arc::new(configs);
            }
            // A pair of files is perhaps just being replaced; they are looked at again.
            Err(error) => {
                current.failed = Some((stamp, Instant::now()));
                if is_new {
                    warn!(%error, "the former certificate stays in use");
                }
            }
        }
        Arc::clone(&current.configs)
    }
}

impl fmt::Debug for Tls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.files.fmt(f)
    }
}

impl Files {
    fn stamp(&self) -> Stamp {
        [&self.certificate, &self.key, &self.authorities].map(|path| {
            let metadata = fs::metadata(path).ok()?;
            #[cfg(unix)]
            let number = std::os::unix::fs::MetadataExt::ino(&metadata);
            #[cfg(not(unix))]
            let number = 0;
            Some((metadata.modified().ok()?, metadata.len(), number))
        })
    }

    fn load(&self) -> Result<Configs, TlsError> {
        let provider = Arc::new(ring::default_provider());
        let chain = certificates(&self.certificate)?;
        let key = read(&self.key)?;
        let key = PrivateKeyDer::from_pem_slice(&key).map_err(|_| TlsError::Empty {
            what: "private key",
            path: self.key.clone(),
        })?;
        let mut roots = RootCertStore::empty();
        for authority in certificates(&self.authorities)? {
            roots.add(authority).map_err(|error| TlsError::Unreadable {
                path: self.authorities.clone(),
                reason: error.to_string(),
            })?;
        }
        let roots = Arc::new(roots);
        let unusable = |reason: String| TlsError::Unusable {
            certificate: self.certificate.clone(),
            reason,
        };
        let unusable_tls = |error: rustls::Error| unusable(error.to_string());
        let verifier = SignedByAuthority {
            roots: Arc::clone(&roots),
            provider: Arc::clone(&provider),
        };
        let others = WebPkiClientVerifier::builder_with_provider(roots, Arc::clone(&provider))
            .build()
            .map_err(|error| unusable(error.to_string()))?;
        // Whoever dials shows it, and a worker is dialed, too.
        let (own, between) = chain.split_first().ok_or_else(|| unusable("none".into()))?;
        let untrusted = |error: rustls::Error| TlsError::Untrusted {
            certificate: self.certificate.clone(),
            authorities: self.authorities.clone(),
            reason: error.to_string(),
        };
        let now = UnixTime::now();
        others
            .verify_client_cert(own, between, now)
            .map_err(untrusted)?;
        let bearer = Bearer::of(own).ok_or_else(|| TlsError::Nameless {
            certificate: self.certificate.clone(),
        })?;
        if bearer.is_worker() {
            verifier.check(own, between, now).map_err(untrusted)?;
        }

        let versions = &[&version::TLS13];
        let mut client = ClientConfig::builder_with_provider(Arc::clone(&provider))
            .with_protocol_versions(versions)
            .map_err(unusable_tls)?
            .dangerous()
            .with_custom_certificate_verifier(Arc::new(verifier))
            .with_client_auth_cert(chain.clone(), key.clone_key())
            .map_err(unusable_tls)?;
        // Both ends prove anew who they are, each time.
        client.resumption = rustls::client::Resumption::disabled();
        client.enable_sni = false;
        let mut server = ServerConfig::builder_with_provider(provider)
            .with_protocol_versions(versions)
            .map_err(unusable_tls)?
            .with_client_cert_verifier(Arc::new(ShortChains(others)))
            .with_single_cert(chain, key)
            .map_err(unusable_tls)?;
        server.send_tls13_tickets = 0;
        server.session_storage = Arc::new(NoServerSessionStorage {});
        Ok(Configs {
            client: Arc::new(client),
            server: Arc::new(server),
            bearer,
        })
    }
}

fn read(path: &Path) -> Result<Vec<u8>, TlsError> {
    fs::read(path).map_err(|error: io::Error| TlsError::Unreadable {
        path: path.to_owned(),
        reason: error.to_string(),
    })
}

fn certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>, TlsError> {
    let text = read(path)?;
    let certificates: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(&text).collect();
    match certificates {
        Ok(certificates) if !certificates.is_empty() => Ok(certificates),
        _ => Err(TlsError::Empty {
            what: "certificate",
            path: path.to_owned(),
        }),
    }
}

/// Takes a certificate that the authority signed, whatever host it is for: which worker it names is looked at after the
/// handshake, when it is known which one is meant.
#[derive(Debug)]
struct SignedByAuthority {
    roots: Arc<RootCertStore>,
    provider: Arc<CryptoProvider>,
}

impl SignedByAuthority {
    fn check(
        &self,
        certificate: &CertificateDer<'_>,
        between: &[CertificateDer<'_>],
        now: UnixTime,
    ) -> Result<(), rustls::Error> {
        check_length(between)?;
        let certificate = ParsedCertificate::try_from(certificate)?;
        let algorithms = self.provider.signature_verification_algorithms.all;
        verify_server_cert_signed_by_trust_anchor(
            &certificate,
            &self.roots,
            between,
            now,
            algorithms,
        )
    }
}

impl ServerCertVerifier for SignedByAuthority {
    fn verify_server_cert(
        &self,
        certificate: &CertificateDer<'_>,
        between: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        self.check(certificate, between, now)?;
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        _: &[u8],
        _: &CertificateDer<'_>,
        _: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        // No such version is offered.
        Err(rustls::PeerIncompatible::Tls12NotOffered.into())
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        let algorithms = &self.provider.signature_verification_algorithms;
        verify_tls13_signature(message, certificate, signed, algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        let algorithms = &self.provider.signature_verification_algorithms;
        algorithms.supported_schemes()
    }
}

fn check_length(between: &[CertificateDer<'_>]) -> Result<(), rustls::Error> {
    match between.len() {
        ..=MOST_BETWEEN => Ok(()),
        _ => Err(rustls::CertificateError::UnknownIssuer.into()),
    }
}

/// Looks at no long chains, and does all else as it is told.
#[derive(Debug)]
struct ShortChains(Arc<dyn ClientCertVerifier>);

impl ClientCertVerifier for ShortChains {
    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        self.0.root_hint_subjects()
    }

    fn verify_client_cert(
        &self,
        certificate: &CertificateDer<'_>,
        between: &[CertificateDer<'_>],
        now: UnixTime,
    ) -> Result<ClientCertVerified, rustls::Error> {
        check_length(between)?;
        self.0.verify_client_cert(certificate, between, now)
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        self.0.verify_tls12_signature(message, certificate, signed)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        self.0.verify_tls13_signature(message, certificate, signed)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.0.supported_verify_schemes()
    }
}
