//! Where to look: the address of a worker or of a rendezvous, as a person writes it.

use std::net::SocketAddr;
use std::str::FromStr;

use super::ObserveError;
use crate::rendezvous::{Address, Rendezvous, without_password};

/// An address that a person gave.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum ObservedAddress {
    /// A worker on this host.
    Worker(Address),
    /// A worker or a store: the port alone does not say which.
    Either { host: String, port: u16 },
    /// A store that is a file, or in etcd.
    Store(Rendezvous),
}

impl FromStr for ObservedAddress {
    type Err = ObserveError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let text = text.trim();
        if let Some(name) = text.strip_prefix("unix:")
            && !name.is_empty()
        {
            return Ok(Self::Worker(Address::Unix(name.to_owned())));
        }
        let place = match text.contains("://") {
            true => text.parse(),
            false => format!("tcp://{text}").parse(),
        };
        match place {
            Ok(Rendezvous::Tcp { host, port }) => Ok(Self::Either { host, port }),
            Ok(store @ (Rendezvous::File(_) | Rendezvous::Etcd(_))) => Ok(Self::Store(store)),
            Err(_) => Err(ObserveError::Address {
                text: without_password(text),
            }),
        }
    }
}

/// Reads an address as snapshots show it.
pub(super) fn shown_address(text: &str) -> Option<Address> {
    match text.split_once(':')? {
        ("unix", name) => Some(Address::Unix(name.to_owned())),
        ("tcp", rest) => {
            let address: SocketAddr = rest.strip_prefix("//")?.parse().ok()?;
            Some(Address::Tcp(address))
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_way_to_write_an_address_is_understood() {
        let either = |host: &str, port| ObservedAddress::Either {
            host: host.to_owned(),
            port,
        };
        for (text, place) in [
            ("localhost:29500", either("localhost", 29500)),
            ("tcp://10.0.0.1:1", either("10.0.0.1", 1)),
            (" [::1]:80 ", either("::1", 80)),
            (
                "unix:@farref-1",
                ObservedAddress::Worker(Address::Unix("@farref-1".to_owned())),
            ),
            (
                "file:///shared/group",
                ObservedAddress::Store(Rendezvous::File("/shared/group".into())),
            ),
        ] {
            assert_eq!(text.parse::<ObservedAddress>().expect(text), place);
        }
    }

    #[test]
    fn what_is_no_address_is_said_to_be_none() {
        for text in [
            "",
            "localhost",
            "a:b",
            "http://x:1",
            "unix:",
            "::1:80",
            ":1",
        ] {
            let error = text.parse::<ObservedAddress>().expect_err(text);
            assert!(matches!(error, ObserveError::Address { .. }), "{text}");
        }
    }

    #[test]
    fn a_password_that_should_not_be_there_is_not_repeated() {
        let text = "etcd://bob:secret@h:1/x";
        let error = text.parse::<ObservedAddress>().expect_err(text);
        assert!(!error.to_string().contains("secret"), "{error}");
        assert!(error.to_string().contains("etcd://bob:"), "{error}");
    }

    #[test]
    fn what_a_snapshot_shows_can_be_connected_to() {
        for address in [
            Address::Tcp("[::1]:4000".parse().expect("an address")),
            Address::Tcp("10.1.2.3:80".parse().expect("an address")),
            Address::Unix("@farref-7".to_owned()),
        ] {
            assert_eq!(shown_address(&address.to_string()), Some(address));
        }
        assert_eq!(shown_address("memory:worker0"), None);
    }
}
