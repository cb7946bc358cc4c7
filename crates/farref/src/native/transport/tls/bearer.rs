//! Whom a certificate names: workers, all workers, or an observer.
//!
//! It stands in subject alternative names that are URIs: `farref:worker/NAME`, with all of NAME but ASCII letters, digits and
//! `-._~` percent-encoded, `farref:worker/*` for any name, and `farref:observer`.

use std::collections::BTreeSet;
use std::fmt;

use rustls::pki_types::CertificateDer;
use webpki::EndEntityCert;

const WORKER: &str = "farref:worker/";
const ANY: &str = "farref:worker/*";
const OBSERVER: &str = "farref:observer";

/// Whom a certificate names.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(crate) struct Bearer {
    workers: BTreeSet<String>,
    any: bool,
    observer: bool,
}

impl Bearer {
    /// None if it names nobody (TL-1).
    pub(super) fn of(certificate: &CertificateDer<'_>) -> Option<Self> {
        let certificate = EndEntityCert::try_from(certificate).ok()?;
        Self::of_uris(certificate.valid_uri_names())
    }

    fn of_uris<'a>(uris: impl Iterator<Item = &'a str>) -> Option<Self> {
        let mut bearer = Self::default();
        for uri in uris {
            match uri {
                ANY => bearer.any = true,
                OBSERVER => bearer.observer = true,
                _ => {
                    let name = uri.strip_prefix(WORKER).and_then(decoded);
                    bearer.workers.extend(name);
                }
            }
        }
        (bearer != Self::default()).then_some(bearer)
    }

    /// Whether it may be the worker of that name.
    pub(crate) fn may_be(&self, name: &str) -> bool {
        self.any || self.workers.contains(name)
    }

    /// Whether it may be a worker at all.
    pub(crate) fn is_worker(&self) -> bool {
        self.any || !self.workers.is_empty()
    }
}

impl fmt::Display for Bearer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let any = self.any.then(|| "any worker".to_owned());
        let workers = self.workers.iter().map(|name| format!("worker {name:?}"));
        let observer = self.observer.then(|| "an observer".to_owned());
        let all: Vec<String> = any.into_iter().chain(workers).chain(observer).collect();
        f.write_str(&all.join(", "))
    }
}

/// A name without its percent signs. None if it is not written as it should be: there is one way to write a name.
fn decoded(text: &str) -> Option<String> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let [first, after @ ..] = rest {
        rest = after;
        match first {
            b'%' => {
                let [high, low, after @ ..] = rest else {
                    return None;
                };
                rest = after;
                let byte = 16 * hex(*high)? + hex(*low)?;
                if is_plain(byte) {
                    return None;
                }
                bytes.push(byte);
            }
            byte if is_plain(*byte) => bytes.push(*byte),
            _ => return None,
        }
    }
    String::from_utf8(bytes)
        .ok()
        .filter(|name| !name.is_empty())
}

fn hex(digit: u8) -> Option<u8> {
    match digit {
        b'0'..=b'9' => Some(digit - b'0'),
        b'A'..=b'F' => Some(digit - b'A' + 10),
        _ => None,
    }
}

fn is_plain(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || b"-._~".contains(&byte)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bearer(uris: &[&str]) -> Option<Bearer> {
        Bearer::of_uris(uris.iter().copied())
    }

    #[test]
    fn a_certificate_names_workers_any_worker_or_an_observer() {
        let two = bearer(&[
            "farref:worker/a",
            "https://b",
            "farref:worker/c%20%C3%A4%2A",
        ]);
        let two = two.expect("somebody");
        assert!(two.may_be("a") && two.may_be("c ä*") && two.is_worker());
        assert!(!two.may_be("b") && !two.may_be("c%20%C3%A4%2A"));
        let any = bearer(&["farref:worker/*"]).expect("somebody");
        assert!(any.may_be("a") && any.is_worker());
        let observer = bearer(&["farref:observer"]).expect("somebody");
        assert!(!observer.may_be("a") && !observer.may_be("observer") && !observer.is_worker());
        assert_eq!(two.to_string(), "worker \"a\", worker \"c ä*\"");
    }

    #[test]
    fn what_is_written_in_another_way_names_nobody() {
        for uri in [
            "farref:worker/",
            "farref:worker/%61",
            "farref:worker/%c3%a4",
            "farref:worker/%C3",
            "farref:worker/a b",
            "farref:worker/a%",
            "farref:worker/a%2",
            "farref:worker/**",
            "farref:workers/a",
            "FARREF:worker/a",
            "https://example.org",
        ] {
            assert_eq!(bearer(&[uri]), None, "{uri}");
        }
        assert_eq!(bearer(&[]), None);
    }
}
