//! What a rank publishes in the store: where it listens, in one of two forms; and who connects to whom.
//!
//! Addresses are as the system keeps them in memory (`sockaddr_storage`), and only the beginning of it is in
//! use. PyTorch leaves in the rest whatever was there; here it is zeros.

use std::cmp::Ordering;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use farref::StoreDialect;

const STORAGE: usize = 128;
/// An address, and a number that is not in use here and says -1.
const ADDRESS: usize = STORAGE + 8;
const IPV4: u16 = 2;
const IPV6: u16 = 10;

/// How the ranks of a group find each other: Gloo has changed it once.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum GlooDialect {
    /// Each rank has one port, and who connects says which pair is meant.
    PairIds,
    /// As in PyTorch 1.13: each rank has a port for each other one.
    PortPerPeer,
}

impl From<StoreDialect> for GlooDialect {
    /// Both were changed between the same versions of PyTorch, as far as they have been seen.
    fn from(dialect: StoreDialect) -> Self {
        match dialect {
            StoreDialect::Greeted => Self::PairIds,
            StoreDialect::Old => Self::PortPerPeer,
        }
    }
}

/// What a rank publishes.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum Published {
    PairIds {
        hostname: Vec<u8>,
        address: SocketAddr,
        /// By which number this rank knows the connection with each rank. If there are none, it is the
        /// rank.
        ids: Vec<u64>,
    },
    /// One for each rank but itself.
    PortPerPeer(Vec<SocketAddr>),
}

impl Published {
    pub(super) fn encode(&self) -> Vec<u8> {
        match self {
            Self::PairIds {
                hostname,
                address,
                ids,
            } => {
                let mut bytes = Vec::new();
                bytes.extend((hostname.len() as u64).to_le_bytes());
                bytes.extend(hostname);
                bytes.extend((ADDRESS as u64).to_le_bytes());
                bytes.extend(encode_address(*address));
                ids.iter().for_each(|id| bytes.extend(id.to_le_bytes()));
                bytes
            }
            Self::PortPerPeer(addresses) => addresses
                .iter()
                .flat_map(|address| encode_address(*address))
                .collect(),
        }
    }

    /// Reads what a rank of a group of this size has published.
    pub(super) fn decode(dialect: GlooDialect, bytes: &[u8], world: u16) -> Result<Self, String> {
        let read = match dialect {
            GlooDialect::PairIds => Self::decode_ids(bytes, world),
            GlooDialect::PortPerPeer => Self::decode_ports(bytes, world),
        };
        let error = match read {
            Ok(published) => return Ok(published),
            Err(error) => error,
        };
        let other = match dialect {
            GlooDialect::PairIds => Self::decode_ports(bytes, world),
            GlooDialect::PortPerPeer => Self::decode_ids(bytes, world),
        };
        Err(match other {
            Ok(_) => {
                "it is in the form of another generation of PyTorch; ranks of PyTorch 1.13 and of \
                      today cannot be in one static group"
                    .to_owned()
            }
            Err(_) => error,
        })
    }

    fn decode_ids(bytes: &[u8], world: u16) -> Result<Self, String> {
        let short = || "it ends in the middle".to_owned();
        let (length, rest) = number(bytes).ok_or_else(short)?;
        let length = usize::try_from(length).map_err(|_| short())?;
        let (hostname, rest) = rest.split_at_checked(length).ok_or_else(short)?;
        let (size, rest) = number(rest).ok_or_else(short)?;
        if size != ADDRESS as u64 {
            return Err(format!("its address has {size} bytes and not {ADDRESS}"));
        }
        let (address, rest) = rest.split_first_chunk().ok_or_else(short)?;
        let (ids, rest) = rest.as_chunks();
        let all = ids.len() == usize::from(world);
        if !rest.is_empty() || !(all || ids.is_empty()) {
            return Err(format!(
                "it does not know each of {world} ranks by a number"
            ));
        }
        Ok(Self::PairIds {
            hostname: hostname.to_vec(),
            address: decode_address(address)?,
            ids: ids.iter().map(|id| u64::from_le_bytes(*id)).collect(),
        })
    }

    fn decode_ports(bytes: &[u8], world: u16) -> Result<Self, String> {
        let (addresses, rest) = bytes.as_chunks();
        if !rest.is_empty() || addresses.len() + 1 != usize::from(world) {
            return Err(format!(
                "{} bytes are not the addresses for a group of {world}",
                bytes.len()
            ));
        }
        let addresses = addresses.iter().map(decode_address);
        addresses.collect::<Result<_, _>>().map(Self::PortPerPeer)
    }

    /// Where the rank that has published this listens for rank `peer`, and what it wants to hear first.
    pub(super) fn for_peer(&self, own: u16, peer: u16) -> Option<(SocketAddr, Option<u64>)> {
        match self {
            Self::PairIds { address, ids, .. } => {
                let id = match ids.is_empty() {
                    true => Some(u64::from(peer)),
                    false => ids.get(usize::from(peer)).copied(),
                };
                Some((*address, Some(id?)))
            }
            Self::PortPerPeer(addresses) => {
                let address = addresses.get(port_index(own, peer)?)?;
                Some((*address, None))
            }
        }
    }
}

/// Which of a rank's ports is for `peer`: there is none for itself.
pub(super) fn port_index(own: u16, peer: u16) -> Option<usize> {
    match peer.cmp(&own) {
        Ordering::Less => Some(usize::from(peer)),
        Ordering::Equal => None,
        Ordering::Greater => Some(usize::from(peer) - 1),
    }
}

/// Whether the rank at `mine` connects to the one at `theirs`, and not the other way round. `None` if their
/// families differ.
pub(super) fn connects(mine: SocketAddr, theirs: SocketAddr) -> Option<bool> {
    let ip = match (mine.ip(), theirs.ip()) {
        (IpAddr::V4(mine), IpAddr::V4(theirs)) => mine.octets().cmp(&theirs.octets()),
        (IpAddr::V6(mine), IpAddr::V6(theirs)) => mine.octets().cmp(&theirs.octets()),
        _ => return None,
    };
    // Gloo compares ports as they lie in memory, and forgets that they lie there the other way round.
    let port = |address: SocketAddr| address.port().swap_bytes();
    Some(ip.then(port(mine).cmp(&port(theirs))).is_gt())
}

fn encode_address(address: SocketAddr) -> [u8; ADDRESS] {
    let mut bytes = [0; ADDRESS];
    bytes[2..4].copy_from_slice(&address.port().to_be_bytes());
    let family = match address {
        SocketAddr::V4(address) => {
            bytes[4..8].copy_from_slice(&address.ip().octets());
            IPV4
        }
        SocketAddr::V6(address) => {
            bytes[8..24].copy_from_slice(&address.ip().octets());
            bytes[24..28].copy_from_slice(&address.scope_id().to_le_bytes());
            IPV6
        }
    };
    bytes[..2].copy_from_slice(&family.to_le_bytes());
    bytes[STORAGE..].copy_from_slice(&(-1i64).to_le_bytes());
    bytes
}

fn decode_address(bytes: &[u8; ADDRESS]) -> Result<SocketAddr, String> {
    let part = |from: usize| -> Option<[u8; 4]> { bytes.get(from..)?.first_chunk().copied() };
    let [family, more, high, low] = part(0).unwrap_or_default();
    let port = u16::from_be_bytes([high, low]);
    let ip: IpAddr = match u16::from_le_bytes([family, more]) {
        IPV4 => Ipv4Addr::from(part(4).unwrap_or_default()).into(),
        IPV6 => {
            let octets: Option<[u8; 16]> = bytes[8..].first_chunk().copied();
            let ip = Ipv6Addr::from(octets.unwrap_or_default());
            let scope = u32::from_le_bytes(part(24).unwrap_or_default());
            return Ok(std::net::SocketAddrV6::new(ip, port, 0, scope).into());
        }
        other => return Err(format!("its address is of family {other}")),
    };
    Ok(SocketAddr::new(ip, port))
}

fn number(bytes: &[u8]) -> Option<(u64, &[u8])> {
    let (number, rest) = bytes.split_first_chunk()?;
    Some((u64::from_le_bytes(*number), rest))
}
