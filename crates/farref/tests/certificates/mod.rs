//! Certificates for workers in tests.

use std::path::PathBuf;

use farref::Tls;
pub(crate) use farref_testkit::Authority;

/// Reads a certificate, its key and the authority behind it.
pub(crate) fn tls([certificate, key, authorities]: [PathBuf; 3]) -> Tls {
    Tls::from_files(certificate, key, authorities).expect("files that make sense")
}

/// The certificate of the worker of that name.
pub(crate) fn worker_tls(authority: &Authority, name: &str) -> Tls {
    tls(authority.worker(name))
}
