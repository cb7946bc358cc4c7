//! Who the bearer of a certificate is: the names (URI subject alternative names) that farref's workers look for.

use super::error::CertsError;

const WORKER: &str = "farref:worker/";
const OBSERVER: &str = "farref:observer";
/// As many bytes of names as a certificate may have: with them it fits into a message of TLS.
const MAX_BYTES: usize = 16 << 10;

/// Whom a certificate is for.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Bearer {
    /// A worker with one of these names.
    Workers(Vec<String>),
    /// A worker with any name.
    AnyWorker,
    /// One who looks on and does not join.
    Observer,
}

impl Bearer {
    /// Workers with these names.
    pub(crate) fn workers(names: Vec<String>) -> Result<Self, CertsError> {
        for name in &names {
            check_name(name)?;
        }
        let bearer = Self::Workers(names);
        match bearer.uris().iter().map(String::len).sum::<usize>() <= MAX_BYTES {
            true => Ok(bearer),
            false => Err(CertsError::TooManyNames),
        }
    }

    /// The names in its certificate.
    pub(super) fn uris(&self) -> Vec<String> {
        match self {
            Self::Workers(names) => names.iter().map(|name| worker_uri(name)).collect(),
            Self::AnyWorker => vec![format!("{WORKER}*")],
            Self::Observer => vec![OBSERVER.to_owned()],
        }
    }

    /// Whether it answers those who call, as a worker does.
    pub(super) fn answers(&self) -> bool {
        *self != Self::Observer
    }
}

/// An error unless a worker can be called so.
pub(crate) fn check_name(name: &str) -> Result<(), CertsError> {
    let allowed = |c: char| c.is_ascii_alphanumeric() || "-_:.".contains(c);
    match (1..=127).contains(&name.len()) && name.chars().all(allowed) {
        true => Ok(()),
        false => Err(CertsError::Name { name: name.into() }),
    }
}

/// What stands in the certificate of a worker with that name.
fn worker_uri(name: &str) -> String {
    let mut uri = WORKER.to_owned();
    for byte in name.bytes() {
        match byte.is_ascii_alphanumeric() || b"-._~".contains(&byte) {
            true => uri.push(char::from(byte)),
            false => uri.push_str(&format!("%{byte:02X}")),
        }
    }
    uri
}

/// What a name in a certificate means to farref, in words; nothing if it means nothing.
pub(super) fn meaning(uri: &str) -> Option<String> {
    if uri == OBSERVER {
        return Some("observer".to_owned());
    }
    match uri.strip_prefix(WORKER)? {
        "*" => Some("any worker".to_owned()),
        name => Some(format!("worker {}", decoded(name)?.escape_debug())),
    }
}

fn decoded(text: &str) -> Option<String> {
    let mut bytes = Vec::new();
    let mut rest = text.as_bytes();
    while let [first, left @ ..] = rest {
        rest = left;
        if *first != b'%' {
            bytes.push(*first);
            continue;
        }
        let (digits, left) = rest.split_at_checked(2)?;
        let digits = std::str::from_utf8(digits).ok()?;
        // What reads numbers takes a sign, too.
        let is_hex = digits.bytes().all(|digit| digit.is_ascii_hexdigit());
        bytes.push(u8::from_str_radix(digits, 16).ok().filter(|_| is_hex)?);
        rest = left;
    }
    String::from_utf8(bytes).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_name_of_a_worker_is_in_a_certificate_as_a_uri_and_is_read_back()
    -> Result<(), CertsError> {
        for (name, uri) in [
            ("worker0", "farref:worker/worker0"),
            ("a-b_c.d", "farref:worker/a-b_c.d"),
            ("ps:1", "farref:worker/ps%3A1"),
        ] {
            let bearer = Bearer::workers(vec![name.to_owned()])?;
            assert_eq!(bearer.uris(), [uri]);
            assert_eq!(meaning(uri), Some(format!("worker {name}")));
        }
        Ok(())
    }

    #[test]
    fn what_is_no_name_is_refused_before_it_is_in_a_certificate() {
        let long = "x".repeat(128);
        for name in ["", "*", "a/b", "a b", "ä", "a\n", &long] {
            let made = Bearer::workers(vec![name.to_owned()]);
            assert!(matches!(made, Err(CertsError::Name { .. })), "{name:?}");
        }
        assert!(Bearer::workers(vec!["x".repeat(127)]).is_ok());
    }

    #[test]
    fn more_names_than_a_certificate_can_hold_are_refused() {
        let names = |count| (0..count).map(|number| format!("worker{number:06}"));
        assert!(Bearer::workers(names(500).collect()).is_ok());
        let made = Bearer::workers(names(5000).collect());
        assert!(matches!(made, Err(CertsError::TooManyNames)));
    }

    #[test]
    fn a_uri_that_is_not_farrefs_means_nothing() {
        assert_eq!(meaning("farref:observer").as_deref(), Some("observer"));
        assert_eq!(meaning("farref:worker/*").as_deref(), Some("any worker"));
        for uri in [
            "",
            "https://x",
            "farref:worker",
            "farref:worker/%",
            "farref:worker/%+1",
            "farref:worker/%FF",
        ] {
            assert_eq!(meaning(uri), None, "{uri}");
        }
    }
}
