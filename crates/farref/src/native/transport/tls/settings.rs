//! The three files of a worker's certificate, and reading them again when they have changed (TL-4).

use std::ffi::OsString;
use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::{Duration, SystemTime};
use std::{fs, io};

use rustls::crypto::ring;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, UnixTime};
use rustls::server::danger::ClientCertVerifier as _;
use rustls::server::{NoServerSessionStorage, WebPkiClientVerifier};
use rustls::{ClientConfig, RootCertStore, ServerConfig, version};
use tokio::time::timeout;
use tracing::{debug, info, warn};

use super::authorities;
use super::bearer::Bearer;
use super::ending;
use super::verifiers::{ShortChains, SignedByAuthority};
use crate::error::TlsError;
use crate::rendezvous::CertificateTag;
use crate::support::clock::Instant;
use crate::support::lock::lock;

#[cfg(test)]
#[path = "settings_tests.rs"]
mod tests;

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
    /// Whose certificate it has to be, if it is in use.
    name: Option<Arc<str>>,
    current: Arc<Mutex<Current>>,
    /// One looks at the files at a time.
    turn: Arc<tokio::sync::Mutex<()>>,
}

#[derive(Debug)]
struct Files {
    certificate: PathBuf,
    key: PathBuf,
    authorities: PathBuf,
}

/// What counts, the state of the files when that was read, and of those that made no sense since, when they were looked at.
#[derive(Clone)]
struct Current {
    configs: Arc<Configs>,
    read: Stamp,
    failed: Option<(Stamp, Instant)>,
}

/// Files that make no sense are read again after this time, though they look the same: who may read them, and what time it is, can
/// have changed.
const AGAIN: Duration = Duration::from_secs(5);

/// How long the files may take to be looked at. Those that take longer, on a file system that does not answer, hold nobody up: what
/// was read before counts.
const LOOKED_AT_WITHIN: Duration = Duration::from_secs(1);

/// What shows that a file was replaced.
type Stamp = [Option<(SystemTime, u64, u64)>; 3];

/// What one state of the files means.
#[derive(Debug)]
pub(super) struct Configs {
    pub(super) client: Arc<ClientConfig>,
    pub(super) server: Arc<ServerConfig>,
    bearer: Bearer,
    tag: CertificateTag,
    /// When the certificate ends, or one of those between it and its authority.
    ends: Option<SystemTime>,
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
        let current = Current {
            configs,
            read,
            failed: None,
        };
        Ok(Self {
            files: Arc::new(files),
            name: None,
            current: Arc::new(Mutex::new(current)),
            turn: Arc::default(),
        })
    }

    /// The files that `FARREF_TLS_CERT`, `FARREF_TLS_KEY` and `FARREF_TLS_CA` name; none if none of these is set.
    ///
    /// ```
    /// assert!(farref::Tls::from_env()?.is_none());
    /// # Ok::<(), farref::TlsError>(())
    /// ```
    pub fn from_env() -> Result<Option<Self>, TlsError> {
        Self::from_variables(|name| std::env::var_os(name))
    }

    fn from_variables(value: impl Fn(&str) -> Option<OsString>) -> Result<Option<Self>, TlsError> {
        let names = ["FARREF_TLS_CERT", "FARREF_TLS_KEY", "FARREF_TLS_CA"];
        let values = names.map(|name| value(name).filter(|value| !value.is_empty()));
        let missing = names.iter().zip(&values).find(|(_, value)| value.is_none());
        match (&values, missing) {
            ([Some(certificate), Some(key), Some(authorities)], _) => {
                Self::from_files(certificate, key, authorities).map(Some)
            }
            ([None, None, None], _) | (_, None) => Ok(None),
            (_, Some((missing, _))) => Err(TlsError::Incomplete { missing }),
        }
    }

    /// When the certificate ends that counts for the next handshake.
    pub(crate) async fn ends(&self) -> Option<SystemTime> {
        self.configs().await.ends
    }

    /// Whom the certificate names that was read last.
    pub(crate) fn bearer(&self) -> Bearer {
        lock(&self.current).configs.bearer.clone()
    }

    /// Of which authorities it is, and which count, by what was read last.
    pub(crate) fn tag(&self) -> CertificateTag {
        lock(&self.current).configs.tag.clone()
    }

    /// The same files, for the worker of that name: others that are not for it are not put to use in their place.
    pub(crate) fn for_worker(&self, name: &str) -> Self {
        Self {
            files: Arc::clone(&self.files),
            name: Some(Arc::from(name)),
            current: Arc::new(Mutex::new(lock(&self.current).clone())),
            turn: Arc::default(),
        }
    }

    /// What counts for the next handshake. Looks at the files, on a thread that may wait.
    pub(super) async fn configs(&self) -> Arc<Configs> {
        let this = self.clone();
        let looking = async {
            let turn = Arc::clone(&self.turn).lock_owned().await;
            let look = tokio::task::spawn_blocking(move || {
                let _turn = turn;
                this.look()
            });
            look.await
        };
        match timeout(LOOKED_AT_WITHIN, looking).await {
            Ok(Ok(configs)) => configs,
            Ok(Err(_)) | Err(_) => {
                debug!(certificate = %self.files.certificate.display(), "the files cannot be looked at");
                Arc::clone(&lock(&self.current).configs)
            }
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
        let loaded = self.files.load().map_err(|error| error.to_string());
        let loaded = loaded.and_then(|configs| self.check_name(configs));
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

    /// What is not for this worker makes no sense to it.
    fn check_name(&self, configs: Configs) -> Result<Configs, String> {
        match &self.name {
            Some(name) if !configs.bearer.may_be(name) => Err(format!(
                "the certificate in {} is that of {}, not of worker {name:?}",
                self.files.certificate.display(),
                configs.bearer
            )),
            _ => Ok(configs),
        }
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
        let authorities = certificates(&self.authorities)?;
        for authority in &authorities {
            roots
                .add(authority.clone())
                .map_err(|error| TlsError::Unreadable {
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
        let others = ShortChains(others);
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

        let tag = authorities::tag(&chain, &authorities);
        let ends = ending::earliest(&chain);
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
            .with_client_cert_verifier(Arc::new(others))
            .with_single_cert(chain, key)
            .map_err(unusable_tls)?;
        server.send_tls13_tickets = 0;
        server.session_storage = Arc::new(NoServerSessionStorage {});
        Ok(Configs {
            client: Arc::new(client),
            server: Arc::new(server),
            bearer,
            tag,
            ends,
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
