//! Why there is no stream with TLS.

use std::io;

use rustls::AlertDescription;

/// Why there is no stream with TLS.
#[derive(Debug, thiserror::Error)]
pub(crate) enum TlsFailure {
    #[error(transparent)]
    Io(#[from] io::Error),
    #[error("the other end speaks without TLS")]
    Plain,
    #[error("the other end does not take this worker's certificate ({0:?})")]
    Refused(AlertDescription),
    #[error("the other end's certificate does not count here: {0}")]
    Untrusted(String),
    #[error("the other end's certificate names neither a worker nor an observer")]
    Nameless,
    #[error("TLS failed: {0}")]
    Protocol(rustls::Error),
}

impl From<rustls::Error> for TlsFailure {
    fn from(error: rustls::Error) -> Self {
        match error {
            rustls::Error::AlertReceived(alert) if is_about_certificates(alert) => {
                Self::Refused(alert)
            }
            rustls::Error::InvalidCertificate(why) => Self::Untrusted(why.to_string()),
            rustls::Error::NoCertificatesPresented => Self::Untrusted("it has none".to_owned()),
            other => Self::Protocol(other),
        }
    }
}

fn is_about_certificates(alert: AlertDescription) -> bool {
    use AlertDescription::{
        AccessDenied, BadCertificate, CertificateExpired, CertificateRequired, CertificateRevoked,
        CertificateUnknown, DecryptError, UnknownCA, UnsupportedCertificate,
    };
    matches!(
        alert,
        AccessDenied
            | BadCertificate
            | CertificateExpired
            | CertificateRequired
            | CertificateRevoked
            | CertificateUnknown
            | DecryptError
            | UnknownCA
            | UnsupportedCertificate
    )
}
