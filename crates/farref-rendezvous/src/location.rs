//! Where a group meets: `tcp://host:port`, `file:///path` or `etcd://host:port/prefix`.

use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;

use crate::etcd_place::EtcdPlace;

/// Where the workers of a group find each other.
///
/// ```
/// use farref_rendezvous::Rendezvous;
///
/// let place: Rendezvous = "tcp://[::1]:29500".parse()?;
/// assert_eq!(place, Rendezvous::Tcp { host: "::1".to_owned(), port: 29500 });
/// assert_eq!(place.to_string(), "tcp://[::1]:29500");
///
/// let place: Rendezvous = "file:///shared/group".parse()?;
/// assert_eq!(place, Rendezvous::File("/shared/group".into()));
/// # Ok::<(), farref_rendezvous::ParseRendezvousError>(())
/// ```
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub enum Rendezvous {
    /// A store that listens at this host and port.
    Tcp {
        /// Name or address of the host, without the brackets of an IPv6 address.
        host: String,
        /// The port.
        port: u16,
    },
    /// A file that all workers can read and write.
    File(PathBuf),
    /// A prefix in an etcd: needs the feature `etcd`.
    Etcd(EtcdPlace),
}

/// The text is not a rendezvous. Says what one looks like.
///
/// ```
/// use farref_rendezvous::{ParseRendezvousError, Rendezvous};
///
/// for text in ["localhost:29500", "tcp://localhost", "file://relative/path"] {
///     let error: ParseRendezvousError = text.parse::<Rendezvous>().unwrap_err();
///     assert_eq!(error.to_string(), "expected tcp://host:port, file:///path or etcd://host:port/prefix");
/// }
/// ```
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("{reason}")]
pub struct ParseRendezvousError {
    reason: &'static str,
}

impl ParseRendezvousError {
    /// What is wrong. It repeats nothing of the text, which may have a password in it.
    pub(crate) const fn because(reason: &'static str) -> Self {
        Self { reason }
    }
}

/// The text looks like no rendezvous at all.
pub(crate) const UNLIKE: ParseRendezvousError = ParseRendezvousError::because(
    "expected tcp://host:port, file:///path or etcd://host:port/prefix",
);

impl FromStr for Rendezvous {
    type Err = ParseRendezvousError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        if let Some(path) = text.strip_prefix("file://") {
            return match path.starts_with('/') && path.len() > 1 {
                true => Ok(Self::File(path.into())),
                false => Err(UNLIKE),
            };
        }
        if text.starts_with("etcd://") || text.starts_with("etcds://") {
            return Ok(Self::Etcd(text.parse()?));
        }
        let rest = text.strip_prefix("tcp://").ok_or(UNLIKE)?;
        let (host, port) = host_and_port(rest)?;
        Ok(Self::Tcp { host, port })
    }
}

impl fmt::Display for Rendezvous {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tcp { host, port } if host.contains(':') => write!(f, "tcp://[{host}]:{port}"),
            Self::Tcp { host, port } => write!(f, "tcp://{host}:{port}"),
            Self::File(path) => write!(f, "file://{}", path.display()),
            Self::Etcd(place) => place.fmt(f),
        }
    }
}

/// The same text for errors and logs: what looks like a password in it is left out.
pub fn without_password(text: &str) -> String {
    let start = text.find("://").map_or(0, |at| at + 3);
    let Some(end) = text.rfind('@').filter(|end| *end >= start) else {
        return text.to_owned();
    };
    let (Some(before), Some(user), Some(after)) =
        (text.get(..start), text.get(start..end), text.get(end..))
    else {
        return text.to_owned();
    };
    match user.split_once(':') {
        Some((user, _)) => format!("{before}{user}:***{after}"),
        None => text.to_owned(),
    }
}

/// Reads `host:port`, or `[address]:port`.
pub(crate) fn host_and_port(text: &str) -> Result<(String, u16), ParseRendezvousError> {
    let (host, port) = text.rsplit_once(':').ok_or(UNLIKE)?;
    let host = match host.strip_prefix('[') {
        Some(bracketed) => bracketed.strip_suffix(']').ok_or(UNLIKE)?,
        // An IPv6 address without brackets leaves open where the port begins.
        None if host.contains(':') => return Err(UNLIKE),
        None => host,
    };
    let port = port.parse().map_err(|_| UNLIKE)?;
    match is_host(host) && port != 0 {
        true => Ok((host.to_owned(), port)),
        false => Err(UNLIKE),
    }
}

/// Whether the text can be a host's name or address: enough to catch a URL or a list in its place.
pub(crate) fn is_host(text: &str) -> bool {
    let allowed = |c: char| c.is_ascii_alphanumeric() || "-_.:%".contains(c);
    (1..=253).contains(&text.len()) && text.chars().all(allowed)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_displayed_parses_to_the_same() {
        for text in [
            "tcp://localhost:29500",
            "tcp://10.0.0.1:1",
            "tcp://[fe80::1%eth0]:65535",
            "file:///tmp/group 1/store",
        ] {
            let parsed: Rendezvous = text.parse().unwrap();
            assert_eq!(parsed.to_string(), text);
        }
    }

    #[test]
    fn a_password_is_left_out() {
        for (text, shown) in [
            ("etcd://bob:pw@h:1/x", "etcd://bob:***@h:1/x"),
            ("etcd://bob:p@:/w@h:1/x", "etcd://bob:***@h:1/x"),
            ("bob:pw@h", "bob:***@h"),
            ("etcd://bob@h:1/x", "etcd://bob@h:1/x"),
            ("tcp://h:1", "tcp://h:1"),
            ("@", "@"),
        ] {
            assert_eq!(without_password(text), shown);
        }
    }

    #[test]
    fn what_leaves_host_port_or_path_open_is_refused() {
        for text in [
            "",
            "localhost:1",
            "tcp://",
            "tcp://host",
            "tcp://:1",
            "tcp://host:0",
            "tcp://host:65536",
            "tcp://host:1/path",
            "tcp://::1:29500",
            "tcp://[::1:29500",
            "tcp://a b:1",
            "file://relative",
            "file:///",
            "file://",
            "http://host:1",
        ] {
            assert!(text.parse::<Rendezvous>().is_err(), "{text}");
        }
    }
}
