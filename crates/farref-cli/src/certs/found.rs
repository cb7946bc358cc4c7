//! Certificates as they are found in files.

use std::fs::File;
use std::io::{self, Read as _};
use std::path::Path;

use x509_parser::certificate::X509Certificate;
use x509_parser::extensions::{GeneralName, ParsedExtension};
use x509_parser::pem::Pem;

use super::error::CertsError;

/// Files with certificates and keys are small; who names another file by mistake need not wait for all of it.
const MAX_BYTES: u64 = 4 << 20;

/// What a certificate says.
#[derive(Debug)]
pub(super) struct Found {
    pub(super) der: Vec<u8>,
    pub(super) public_key: Vec<u8>,
    /// It may sign others.
    pub(super) is_authority: bool,
    /// The URIs that it has for names.
    pub(super) uris: Vec<String>,
    pub(super) subject: String,
    pub(super) issuer: String,
    /// By which its key and its issuer's are told from others: names need not differ.
    pub(super) key_id: Option<String>,
    pub(super) issuers_key_id: Option<String>,
    /// From when until when it counts, in seconds since 1970.
    pub(super) begins: i64,
    pub(super) ends: i64,
}

impl Found {
    fn new(der: &[u8]) -> Option<Self> {
        let (_, parsed) = x509_parser::parse_x509_certificate(der).ok()?;
        let validity = parsed.validity();
        let (mut key_id, mut issuers_key_id) = (None, None);
        for extension in parsed.extensions() {
            match extension.parsed_extension() {
                ParsedExtension::SubjectKeyIdentifier(id) => key_id = Some(shortened(id.0)),
                ParsedExtension::AuthorityKeyIdentifier(id) => {
                    issuers_key_id = id.key_identifier.as_ref().map(|id| shortened(id.0));
                }
                _ => {}
            }
        }
        Some(Self {
            key_id,
            issuers_key_id,
            public_key: parsed.public_key().subject_public_key.data.to_vec(),
            is_authority: parsed.is_ca(),
            uris: uris(&parsed)?,
            subject: parsed.subject().to_string(),
            issuer: parsed.issuer().to_string(),
            begins: validity.not_before.timestamp(),
            ends: validity.not_after.timestamp(),
            der: der.to_vec(),
        })
    }
}

/// As much of an identifier as people compare.
fn shortened(id: &[u8]) -> String {
    let bytes = id.iter().take(8);
    bytes.map(|byte| format!("{byte:02x}")).collect()
}

fn uris(certificate: &X509Certificate<'_>) -> Option<Vec<String>> {
    let Some(names) = certificate.subject_alternative_name().ok()? else {
        return Some(Vec::new());
    };
    let names = names.value.general_names.iter();
    let uris = names.filter_map(|name| match name {
        GeneralName::URI(uri) => Some((*uri).to_owned()),
        _ => None,
    });
    Some(uris.collect())
}

/// All certificates in a file, at least one.
pub(super) fn certificates(path: &Path) -> Result<Vec<Found>, CertsError> {
    let text = read(path).map_err(CertsError::read(path))?;
    let certificates: Option<Vec<Found>> = Pem::iter_from_buffer(text.as_bytes())
        .filter(|block| {
            block
                .as_ref()
                .map_or(true, |block| block.label == "CERTIFICATE")
        })
        .map(|block| Found::new(&block.ok()?.contents))
        .collect();
    match certificates {
        Some(certificates) if !certificates.is_empty() => Ok(certificates),
        _ => Err(CertsError::NotACertificate { path: path.into() }),
    }
}

/// The text of a file.
pub(super) fn read(path: &Path) -> io::Result<String> {
    let mut bytes = Vec::new();
    File::open(path)?.take(MAX_BYTES).read_to_end(&mut bytes)?;
    // What is no text is no certificate and no key either.
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}
