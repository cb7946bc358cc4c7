//! What is wrong with a worker's certificate.

use std::path::PathBuf;

/// What is wrong with the files of a [`Tls`](crate::Tls).
///
/// ```
/// use farref::{Tls, TlsError};
///
/// let error = Tls::from_files("no.pem", "no.key", "no-ca.pem").unwrap_err();
/// assert!(matches!(error, TlsError::Unreadable { .. }));
/// ```
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TlsError {
    /// A file cannot be read.
    #[error("{} cannot be read: {reason}", path.display())]
    Unreadable {
        /// Which one.
        path: PathBuf,
        /// What the system says.
        reason: String,
    },
    /// A file has nothing in it of what it should have.
    #[error("there is no {what} in {}: it has to be in PEM form", path.display())]
    Empty {
        /// What is missing.
        what: &'static str,
        /// Where.
        path: PathBuf,
    },
    /// Certificate and key do not belong together, or are of a kind that is not supported.
    #[error("the certificate in {} cannot be used with its key: {reason}", certificate.display())]
    Unusable {
        /// The certificate's file.
        certificate: PathBuf,
        /// What is wrong.
        reason: String,
    },
    /// The authority did not sign the certificate, or it is not valid now. The other workers would refuse it.
    #[error(
        "the certificate in {} does not count with the authority in {}: {reason}; let `farref certs issue`, or whoever \
         signs your certificates, make another", certificate.display(), authorities.display()
    )]
    Untrusted {
        /// The certificate's file.
        certificate: PathBuf,
        /// The authorities' file.
        authorities: PathBuf,
        /// What is wrong.
        reason: String,
    },
    /// The certificate names neither a worker nor an observer.
    #[error(
        "the certificate in {} names no worker: it needs a subject alternative name like URI:farref:worker/NAME",
        certificate.display()
    )]
    Nameless {
        /// The certificate's file.
        certificate: PathBuf,
    },
    /// Only some of the three variables are set.
    #[error(
        "{missing} is not set: FARREF_TLS_CERT, FARREF_TLS_KEY and FARREF_TLS_CA belong together"
    )]
    Incomplete {
        /// One that is missing.
        missing: &'static str,
    },
}
