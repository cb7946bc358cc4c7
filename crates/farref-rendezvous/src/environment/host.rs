//! Under which address others reach this worker, and which host it runs on.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};

use crate::error::RendezvousError;
use crate::location::Rendezvous;

/// The address to advertise: the caller's own choice if there is one, or else the address of the
/// interface that leads to the rendezvous. Workers that meet in a file are taken to share a host.
///
/// Many hosts have their own name at a loopback address, where no other host finds them. Who
/// may talk to other hosts (`outward`) advertises the address of the interface that leads away instead.
pub async fn advertised_address(
    chosen: Option<IpAddr>,
    rendezvous: Option<&Rendezvous>,
    outward: bool,
) -> Result<IpAddr, RendezvousError> {
    let places = match (chosen, rendezvous) {
        (Some(address), _) => return Ok(address),
        (None, Some(Rendezvous::Tcp { host, port })) => vec![(host, *port)],
        (None, Some(Rendezvous::Etcd(place))) => {
            let places = place.endpoints.iter();
            places.map(|(host, port)| (host, *port)).collect()
        }
        (None, Some(Rendezvous::File(_)) | None) => Vec::new(),
    };
    let mut failure = None;
    // Of several one that is known is enough, as one that answers is.
    for (host, port) in places {
        match address_towards(host, port).await {
            Ok(address) if outward && is_own_name(host, address) => {
                return Ok(leading_away(address).unwrap_or(address));
            }
            Ok(address) => return Ok(address),
            Err(source) => {
                let host = host.clone();
                failure.get_or_insert(RendezvousError::NoAddress { host, source });
            }
        }
    }
    failure.map_or(Ok(Ipv4Addr::LOCALHOST.into()), Err)
}

async fn address_towards(host: &str, port: u16) -> io::Result<IpAddr> {
    let targets = tokio::net::lookup_host((host, port)).await?;
    let mut failure = io::Error::new(io::ErrorKind::NotFound, "the name has no address");
    for target in targets {
        match towards(target) {
            Ok(address) => return Ok(address),
            Err(error) => failure = error,
        }
    }
    Err(failure)
}

/// Whether a name that stands for this address is this host's own, rather than one that says that all are on one host.
fn is_own_name(host: &str, address: IpAddr) -> bool {
    let says_loopback = host.parse::<IpAddr>().is_ok()
        || ["localhost", "ip6-"]
            .iter()
            .any(|word| host.to_ascii_lowercase().starts_with(word));
    address.is_loopback() && !says_loopback
}

/// The address of the interface by which this host reaches others, if it does. The ones asked for are documentation's: nobody
/// is there, and nothing is sent.
fn leading_away(like: IpAddr) -> Option<IpAddr> {
    let v4 = SocketAddr::from((Ipv4Addr::new(192, 0, 2, 1), 9));
    let v6 = SocketAddr::from((Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 1), 9));
    let targets = match like {
        IpAddr::V4(_) => [v4, v6],
        IpAddr::V6(_) => [v6, v4],
    };
    let found = targets.into_iter().find_map(|target| towards(target).ok());
    found.filter(|address| !address.is_loopback() && !address.is_unspecified())
}

/// The address of the interface that leads to `target`.
fn towards(target: SocketAddr) -> io::Result<IpAddr> {
    if target.ip().is_loopback() {
        return Ok(target.ip());
    }
    let any: IpAddr = match target {
        SocketAddr::V4(_) => Ipv4Addr::UNSPECIFIED.into(),
        SocketAddr::V6(_) => Ipv6Addr::UNSPECIFIED.into(),
    };
    // Connecting a UDP socket only asks the routing table; no packet is sent.
    let socket = UdpSocket::bind((any, 0))?;
    socket.connect(target)?;
    Ok(socket.local_addr()?.ip())
}

/// Equal for two workers if and only if they run on one host, as far as can be known.
///
/// The boot id also tells apart two hosts made from the same image. Containers on one host share it,
/// though not their Unix sockets: that a peer has our host id is a reason to try, not a promise.
pub fn host_id() -> String {
    let read = |path| {
        let text = std::fs::read_to_string(path).ok()?;
        let text = text.trim();
        (!text.is_empty() && text.len() <= 128).then(|| text.to_owned())
    };
    read("/proc/sys/kernel/random/boot_id").unwrap_or_else(|| {
        let machine = read("/etc/machine-id").unwrap_or_default();
        let name = read("/proc/sys/kernel/hostname")
            .or_else(|| read("/etc/hostname"))
            .unwrap_or_default();
        format!("{name}/{machine}")
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn the_callers_choice_comes_first_and_loopback_stays_loopback() {
        let at = |text: &str| text.parse::<Rendezvous>().unwrap();
        let chosen: IpAddr = "10.9.8.7".parse().unwrap();
        let found =
            advertised_address(Some(chosen), Some(&at("tcp://nowhere.invalid:1")), true).await;
        assert_eq!(found.unwrap(), chosen);
        for (text, expected) in [
            ("tcp://127.0.0.2:5", "127.0.0.2"),
            ("file:///f", "127.0.0.1"),
        ] {
            let found = advertised_address(None, Some(&at(text)), true)
                .await
                .unwrap();
            assert_eq!(found.to_string(), expected);
        }
    }

    #[tokio::test]
    async fn a_host_without_an_address_is_named() {
        let at = "tcp://nowhere.invalid:1".parse().unwrap();
        let error = advertised_address(None, Some(&at), true).await.unwrap_err();
        assert!(error.to_string().contains("nowhere.invalid"), "{error}");
    }

    /// Of several places one that is known is enough.
    #[tokio::test]
    async fn a_place_without_an_address_is_left_for_the_next() {
        let at: Rendezvous = "etcd://nowhere.invalid:1,127.0.0.3:2379/x".parse().unwrap();
        let found = advertised_address(None, Some(&at), true).await.unwrap();
        assert_eq!(found.to_string(), "127.0.0.3");
        let at: Rendezvous = "etcd://nowhere.invalid:1,not.invalid:1/x".parse().unwrap();
        let error = advertised_address(None, Some(&at), true).await.unwrap_err();
        assert!(error.to_string().contains("nowhere.invalid"), "{error}");
    }

    /// Debian and others give the host's own name to 127.0.1.1.
    #[test]
    fn a_name_at_loopback_is_the_hosts_own_unless_it_says_loopback() {
        let own: IpAddr = "127.0.1.1".parse().unwrap();
        assert!(is_own_name("node7", own));
        assert!(!is_own_name("node7", "10.0.0.7".parse().unwrap()));
        for plain in [
            "localhost",
            "LOCALHOST",
            "localhost.localdomain",
            "127.0.1.1",
            "::1",
            "ip6-localhost",
        ] {
            assert!(!is_own_name(plain, own), "{plain}");
        }
        assert_ne!(
            leading_away(own).map(|address| address.is_loopback()),
            Some(true)
        );
    }

    #[test]
    fn a_host_is_itself() {
        assert_eq!(host_id(), host_id());
        assert!((1..=255).contains(&host_id().len()));
    }
}
