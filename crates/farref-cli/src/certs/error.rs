//! What can go wrong with certificates, and what to do then.

use std::io;
use std::path::{Path, PathBuf};

/// Why there is no certificate.
#[derive(Debug, thiserror::Error)]
pub(crate) enum CertsError {
    #[error("{name:?} cannot be a worker's name: take 1 to 127 letters, digits and -_:.")]
    Name { name: String },
    #[error(
        "{name:?} cannot be an authority's name: take 1 to 64 letters, digits and other signs on one line"
    )]
    AuthorityName { name: String },
    #[error("these names are too many for one certificate: leave --as away, or take --any-worker")]
    TooManyNames,
    #[error("there is no folder {}: make an authority in it with `farref certs init`", path.display())]
    NoFolder { path: PathBuf },
    #[error("{} has no {missing}: make an authority with `farref certs init`, or name the folder that has one", folder.display())]
    NoAuthority {
        folder: PathBuf,
        missing: &'static str,
    },
    #[error("{} is there already, and is not replaced: take another folder, or move it away", path.display())]
    Exists { path: PathBuf },
    #[error(
        "{} is there already, and is not a certificate for {wanted}: with --as NAME there are files of another name, with \
         --out in another folder",
        path.display()
    )]
    ForAnother { path: PathBuf, wanted: String },
    #[error(
        "{} is the authority's own certificate, wherever there are others: with --as NAME there are files of another name",
        path.display()
    )]
    AuthoritysName { path: PathBuf },
    #[error(
        "{} is another authority's, so what is issued here would not count there: take another folder for --out, or add \
         the text of {} to it",
        path.display(), issuing.display()
    )]
    OtherAuthority { path: PathBuf, issuing: PathBuf },
    #[error("the authority in {} has ended, on {ended}: make another one with `farref certs init`", path.display())]
    Expired { path: PathBuf, ended: String },
    #[error("the key in {} does not belong to the certificate in {}: one of them is another authority's", key.display(), certificate.display())]
    OtherKey { key: PathBuf, certificate: PathBuf },
    #[error("the certificate in {} is nobody's authority: it must not sign others", path.display())]
    NotAnAuthority { path: PathBuf },
    #[error("{} is no certificate: a PEM file with `-----BEGIN CERTIFICATE-----` is expected", path.display())]
    NotACertificate { path: PathBuf },
    #[error(
        "{} is no key that can be read ({why}): a PEM file with `-----BEGIN PRIVATE KEY-----` is expected, as `openssl \
         pkcs8 -topk8 -nocrypt` writes it",
        path.display()
    )]
    NotAKey { path: PathBuf, why: String },
    #[error("cannot read {}: {error}", path.display())]
    Read { path: PathBuf, error: io::Error },
    #[error("cannot write {}: {error}", path.display())]
    Write { path: PathBuf, error: io::Error },
    #[error("cannot make a certificate: {0}")]
    Make(#[from] rcgen::Error),
}

impl CertsError {
    pub(super) fn read(path: &Path) -> impl FnOnce(io::Error) -> Self {
        let path = path.to_owned();
        move |error| Self::Read { path, error }
    }

    pub(super) fn write(path: &Path) -> impl FnOnce(io::Error) -> Self {
        let path = path.to_owned();
        move |error| match error.kind() {
            io::ErrorKind::AlreadyExists => Self::Exists { path },
            _ => Self::Write { path, error },
        }
    }
}
