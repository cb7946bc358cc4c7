//! Under which address others find this worker. PyTorch takes the address of an interface that a variable
//! names, or else one of the host's own name, and if there is neither it takes 127.0.0.1 and goes on.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};

use nix::ifaddrs::getifaddrs;
use tokio::net::{TcpListener, lookup_host};

/// Names the interface for RPC.
pub(crate) const RPC_INTERFACE: &str = "TP_SOCKET_IFNAME";
/// Names the interface for Gloo.
pub(crate) const GLOO_INTERFACE: &str = "GLOO_SOCKET_IFNAME";

/// The address to publish: the one chosen, or else what PyTorch would take with this variable.
pub(crate) async fn published_ip(chosen: Option<IpAddr>, variable: &'static str) -> IpAddr {
    if let Some(ip) = chosen {
        return ip;
    }
    let interface = std::env::var(variable).ok();
    let interface = interface.as_deref().filter(|name| !name.is_empty());
    match local_ip(interface, &hostname()).await {
        Ok(ip) => ip,
        Err(reason) => {
            let ip = IpAddr::V4(Ipv4Addr::LOCALHOST);
            tracing::warn!(%ip, reason, "others will find this worker on this host only");
            ip
        }
    }
}

/// The name of this host; empty if it has none that is a text.
pub(crate) fn hostname() -> String {
    let name = nix::unistd::gethostname().ok();
    name.and_then(|name| name.into_string().ok())
        .unwrap_or_default()
}

async fn local_ip(interface: Option<&str>, hostname: &str) -> Result<IpAddr, String> {
    match interface {
        Some(name) => of_interface(name),
        None => of_host(hostname).await,
    }
}

/// The first address of an interface.
fn of_interface(name: &str) -> Result<IpAddr, String> {
    let all = getifaddrs().map_err(|error| format!("interfaces cannot be listed: {error}"))?;
    for interface in all.filter(|interface| interface.interface_name == name) {
        let address = interface.address.as_ref();
        if let Some(ipv4) = address.and_then(|address| address.as_sockaddr_in()) {
            return Ok(ipv4.ip().into());
        }
        if let Some(ipv6) = address.and_then(|address| address.as_sockaddr_in6()) {
            return Ok(ipv6.ip().into());
        }
    }
    Err(format!("there is no interface {name:?} with an address"))
}

/// The first address of a host's name that is one of this host.
async fn of_host(name: &str) -> Result<IpAddr, String> {
    let found = lookup_host((name, 0)).await;
    let found = found.map_err(|error| format!("the name {name:?} has no address: {error}"))?;
    let mut last = format!("the name {name:?} has no address");
    for ip in found.map(|address| address.ip()) {
        match TcpListener::bind(SocketAddr::new(ip, 0)).await {
            Ok(_) => return Ok(ip),
            Err(error) => last = format!("{ip}, which {name:?} stands for: {error}"),
        }
    }
    Err(last)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn an_interface_that_is_named_gives_its_address() {
        let loopback = local_ip(Some("lo"), "nowhere.invalid").await.unwrap();
        assert!(loopback.is_loopback(), "{loopback}");
        let error = local_ip(Some("no such one"), "localhost").await;
        assert!(error.unwrap_err().contains("no such one"));
    }

    #[tokio::test]
    async fn the_hosts_name_stands_for_an_address_that_can_be_bound() {
        assert!(local_ip(None, "localhost").await.unwrap().is_loopback());
        let error = local_ip(None, "nowhere.invalid").await.unwrap_err();
        assert!(error.contains("nowhere.invalid"), "{error}");
        // An address that is set aside for documentation and nobody's.
        let error = local_ip(None, "203.0.113.9").await.unwrap_err();
        assert!(error.contains("203.0.113.9"), "{error}");
    }

    #[tokio::test]
    async fn a_choice_comes_first_and_without_one_there_is_always_an_address() {
        let chosen: IpAddr = "10.9.8.7".parse().unwrap();
        assert_eq!(published_ip(Some(chosen), RPC_INTERFACE).await, chosen);
        let found = published_ip(None, "FARREF_TEST_VARIABLE_THAT_NOBODY_SETS").await;
        assert!(TcpListener::bind((found, 0)).await.is_ok());
    }
}
