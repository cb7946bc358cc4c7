//! What a worker shows to etcd, and whom it trusts: passwords and certificates, out of files.

use std::path::Path;
use std::sync::Arc;

use tokio_rustls::rustls::pki_types::pem::PemObject as _;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio_rustls::rustls::{ClientConfig, RootCertStore, crypto};

use crate::etcd_place::EtcdPlace;
use crate::store::error::StoreError;

pub(super) fn password(place: &EtcdPlace) -> Result<Option<String>, StoreError> {
    if place.user.is_none() {
        return Ok(None);
    }
    match &place.password_file {
        Some(path) => {
            let text = std::fs::read_to_string(path);
            let text = text.map_err(|error| setup("password", path, &error.to_string()))?;
            Ok(Some(text.trim_end_matches(['\r', '\n']).to_owned()))
        }
        None => Ok(std::env::var("FARREF_ETCD_PASSWORD").ok()),
    }
}

pub(super) fn tls_config(place: &EtcdPlace) -> Result<ClientConfig, StoreError> {
    let mut roots = RootCertStore::empty();
    if let Some(ca) = &place.ca {
        for certificate in certificates("authority's certificate", ca)? {
            let added = roots.add(certificate);
            added.map_err(|error| setup("authority's certificate", ca, &error.to_string()))?;
        }
    }
    let provider = Arc::new(crypto::ring::default_provider());
    let versions =
        ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions();
    let wrong = |error: &dyn std::fmt::Display| StoreError::Setup {
        what: "the certificates".to_owned(),
        reason: error.to_string(),
    };
    let config = versions.map_err(|error| wrong(&error))?;
    let config = config.with_root_certificates(roots);
    match (&place.cert, &place.key) {
        (Some(cert), Some(key)) => {
            let chain = certificates("certificate", cert)?;
            let key = PrivateKeyDer::from_pem_file(key)
                .map_err(|error| setup("key", key, &error.to_string()))?;
            config
                .with_client_auth_cert(chain, key)
                .map_err(|error| wrong(&error))
        }
        _ => Ok(config.with_no_client_auth()),
    }
}

fn certificates(what: &str, path: &Path) -> Result<Vec<CertificateDer<'static>>, StoreError> {
    let read = CertificateDer::pem_file_iter(path).and_then(Iterator::collect::<Result<Vec<_>, _>>);
    let found: Vec<_> = read.map_err(|error| setup(what, path, &error.to_string()))?;
    match found.is_empty() {
        true => Err(setup(what, path, "there is none in it")),
        false => Ok(found),
    }
}

fn setup(what: &str, path: &Path, reason: &str) -> StoreError {
    StoreError::Setup {
        what: format!("the {what} in {}", path.display()),
        reason: reason.to_owned(),
    }
}
