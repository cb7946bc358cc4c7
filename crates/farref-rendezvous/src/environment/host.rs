//! Under which address others reach this worker, and which host it runs on.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};

use crate::error::RendezvousError;
use crate::location::Rendezvous;

/// The address to advertise: the caller's own choice if there is one, or else the address of the
/// interface that leads to the rendezvous. Workers that meet in a file are taken to share a host.
pub async fn advertised_address(
    chosen: Option<IpAddr>,
    rendezvous: Option<&Rendezvous>,
) -> Result<IpAddr, RendezvousError> {
    let (host, port) = match (chosen, rendezvous) {
        (Some(address), _) => return Ok(address),
        (None, Some(Rendezvous::Tcp { host, port })) => (host.as_str(), *port),
        (None, Some(Rendezvous::Etcd(place))) => match place.endpoints.first() {
            Some((host, port)) => (host.as_str(), *port),
            None => return Ok(Ipv4Addr::LOCALHOST.into()),
        },
        (None, Some(Rendezvous::File(_)) | None) => return Ok(Ipv4Addr::LOCALHOST.into()),
    };
    let failed = |source| RendezvousError::NoAddress {
        host: host.to_owned(),
        source,
    };
    let targets = tokio::net::lookup_host((host, port))
        .await
        .map_err(failed)?;
    let mut last = io::Error::new(io::ErrorKind::NotFound, "the name has no address");
    for target in targets {
        match towards(target) {
            Ok(address) => return Ok(address),
            Err(error) => last = error,
        }
    }
    Err(failed(last))
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
        let found = advertised_address(Some(chosen), Some(&at("tcp://nowhere.invalid:1"))).await;
        assert_eq!(found.unwrap(), chosen);
        for (text, expected) in [
            ("tcp://127.0.0.2:5", "127.0.0.2"),
            ("file:///f", "127.0.0.1"),
        ] {
            let found = advertised_address(None, Some(&at(text))).await.unwrap();
            assert_eq!(found.to_string(), expected);
        }
    }

    #[tokio::test]
    async fn a_host_without_an_address_is_named() {
        let at = "tcp://nowhere.invalid:1".parse().unwrap();
        let error = advertised_address(None, Some(&at)).await.unwrap_err();
        assert!(error.to_string().contains("nowhere.invalid"), "{error}");
    }

    #[test]
    fn a_host_is_itself() {
        assert_eq!(host_id(), host_id());
        assert!((1..=255).contains(&host_id().len()));
    }
}
