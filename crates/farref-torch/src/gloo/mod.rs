//! As much of Gloo as a static group needs while it is formed: PyTorch's workers tell each other their names
//! and devices with it, and wait for each other, before RPC is up.
//!
//! | part | job |
//! | --- | --- |
//! | [`rank`] | what each rank publishes in the store, and who connects to whom |
//! | [`mesh`] | a connection between every two ranks |
//! | [`message`] | the header of every message |
//! | [`pair`] | one connection: what was announced, what is awaited, what came |
//! | [`error`] | why ranks do not come together |
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

mod collective;
mod error;
mod mesh;
mod message;
mod pair;
mod rank;

#[cfg(test)]
mod tests;

pub(crate) use collective::Gloo;
pub use error::GlooError;
pub(crate) use mesh::MeshConfig;
pub(crate) use rank::GlooDialect;

/// For `crate::fuzzing`: what a rank publishes, and what it sends.
#[cfg(any(test, feature = "fuzzing"))]
pub(crate) fn fuzz(data: &[u8]) {
    for dialect in [GlooDialect::PairIds, GlooDialect::PortPerPeer] {
        let _ = rank::Published::decode(dialect, data, 3);
    }
    let mut state = pair::PairState::default();
    let slot = message::slot(message::ALL_GATHER, 0);
    for length in [0, 4, 1000] {
        state.receive(slot, length);
        state.send(slot, bytes::Bytes::from(vec![7; length]));
    }
    let asked = state.outgoing().len();
    let mut incoming = bytes::BytesMut::from(data);
    while let Ok(true) = state.take_in(&mut incoming) {}
    // However often it is asked to, it sends each thing once; and it takes no more than it waits for.
    assert!(state.outgoing().len() <= asked + 3 * message::HEADER + 1004);
    let got: usize = std::iter::from_fn(|| state.arrived(slot))
        .map(|body| body.len())
        .sum();
    assert!(got <= 1004);
}
