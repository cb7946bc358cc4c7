//! Where a group meets: `tcp://host:port`, `file:///path` or `etcd://host:port/prefix`.

use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;

use crate::etcd_place::EtcdPlace;
use crate::place_text::{ParseRendezvousError, UNLIKE, host_and_port};

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
