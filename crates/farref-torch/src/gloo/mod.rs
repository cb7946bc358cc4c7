//! As much of Gloo as a static group needs while it is formed: PyTorch's workers tell each other their names
//! and devices with it, and wait for each other, before RPC is up.
//!
//! | part | job |
//! | --- | --- |
//! | [`rank`] | what each rank publishes in the store, and who connects to whom |
//! | [`mesh`] | a connection between every two ranks |
//! | [`message`] | the header of every message |
//! | [`pair`] | one connection: what was announced, what is awaited, what came |
//! | [`collective`] | all-gather and barrier, made of sends and receives |
//!
//! # Invariants
//!
//! - **GL-1** Bytes are sent only after the peer has said that it waits for them: until then they are kept
//!   here.
//! - **GL-2** A body is read only if it was waited for, under its slot and with its length. So a peer cannot
//!   make this side keep more than it asked for.
//! - **GL-3** Messages of a later collective may come early: they are counted, up to a limit, and found when
//!   their time comes.
//! - **GL-4** Nothing waits without end: each step has a deadline, and the error names who was waited for.
//! - **GL-5** A rank that is done closes its connections while others are not: that is an error only for those
//!   who still wait for it.

use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use farref::{StoreDialect, StoreError};

mod collective;
mod mesh;
mod message;
mod pair;
mod rank;

#[cfg(test)]
mod tests;

pub(crate) use collective::Gloo;
pub(crate) use mesh::Seat;

/// How the ranks of a group find each other: Gloo has changed it once.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Form {
    /// Each rank has one port, and who connects says which pair is meant.
    PairIds,
    /// As in PyTorch 1.13: each rank has a port for each other one.
    PortPerPeer,
}

impl From<StoreDialect> for Form {
    /// Both were changed between the same versions of PyTorch, as far as they have been seen.
    fn from(dialect: StoreDialect) -> Self {
        match dialect {
            StoreDialect::Greeted => Self::PairIds,
            StoreDialect::Old => Self::PortPerPeer,
        }
    }
}

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

/// For `crate::fuzzing`: what a rank publishes, and what it sends.
#[cfg(any(test, feature = "fuzzing"))]
pub(crate) fn fuzz(data: &[u8]) {
    for form in [Form::PairIds, Form::PortPerPeer] {
        let _ = rank::Published::decode(form, data, 3);
    }
    let mut ledger = pair::Ledger::default();
    let slot = message::slot(message::ALL_GATHER, 0);
    for length in [0, 4, 1000] {
        ledger.receive(slot, length);
        ledger.send(slot, bytes::Bytes::from(vec![7; length]));
    }
    let asked = ledger.outgoing().len();
    let mut incoming = bytes::BytesMut::from(data);
    while let Ok(true) = ledger.take_in(&mut incoming) {}
    // However often it is asked to, it sends each thing once; and it takes no more than it waits for.
    assert!(ledger.outgoing().len() <= asked + 3 * message::HEADER + 1004);
    let got: usize = std::iter::from_fn(|| ledger.arrived(slot))
        .map(|body| body.len())
        .sum();
    assert!(got <= 1004);
}
