//! Why ranks do not come together.

use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use farref::StoreError;

/// Why the ranks of a static group did not come together.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum GlooError {
    /// The store failed, or a rank did not publish where it is.
    #[error("{doing}: {source}")]
    Store {
        /// What was being done.
        doing: String,
        /// What the store said.
        source: StoreError,
    },
    /// What a rank has published cannot be read.
    #[error("rank {rank} has published what is no address of Gloo: {reason}")]
    Published {
        /// The rank.
        rank: u16,
        /// What is wrong with it.
        reason: String,
    },
    /// Two ranks have addresses of different families.
    #[error(
        "rank {rank} is at {theirs} and this one at {mine}: Gloo connects no IPv4 with an IPv6 address; \
         name an interface in GLOO_SOCKET_IFNAME, or an address for this worker"
    )]
    Family {
        /// The other rank.
        rank: u16,
        /// This rank's address.
        mine: SocketAddr,
        /// The other rank's address.
        theirs: SocketAddr,
    },
    /// This rank cannot listen for the others.
    #[error("cannot listen at {address}: {source}; is it an address of this host?")]
    Listen {
        /// The address, without a port.
        address: std::net::IpAddr,
        /// What the system said.
        source: io::Error,
    },
    /// Not all ranks were connected in time.
    #[error(
        "no connection with rank {} within {waited:.1?}{}; do they run, and do their hosts reach each other?",
        listed(.ranks), reason(.last)
    )]
    Missing {
        /// The ranks.
        ranks: Vec<u16>,
        /// How long was waited.
        waited: Duration,
        /// What the last attempt to reach one of them ran into.
        last: Option<io::Error>,
    },
    /// A connection broke.
    #[error("the connection with rank {rank} broke ({source}); has that worker failed?")]
    Lost {
        /// The other rank.
        rank: u16,
        /// What the connection ran into.
        source: io::Error,
    },
    /// A rank does not keep to the protocol.
    #[error("rank {rank} does not speak Gloo as PyTorch's RPC does: {reason}")]
    Misbehaved {
        /// The other rank.
        rank: u16,
        /// What it did.
        reason: String,
    },
    /// Others took too long.
    #[error("{doing} did not end within {waited:.1?}: rank {} has not taken part", listed(.ranks))]
    TimedOut {
        /// What was being done.
        doing: &'static str,
        /// Whom this rank waited for.
        ranks: Vec<u16>,
        /// How long was waited.
        waited: Duration,
    },
}

/// Names a few ranks of a list that may be long.
fn listed(ranks: &[u16]) -> String {
    const SHOWN: usize = 16;
    let shown: Vec<_> = ranks.iter().take(SHOWN).map(u16::to_string).collect();
    match ranks.len().checked_sub(SHOWN) {
        Some(more) if more > 0 => format!("{} and {more} more", shown.join(", ")),
        _ => shown.join(", "),
    }
}

fn reason(last: &Option<io::Error>) -> String {
    last.as_ref()
        .map(|error| format!(" ({error})"))
        .unwrap_or_default()
}
