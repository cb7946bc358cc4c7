//! Messages that are ready to be sent.

use bytes::Bytes;
use farref::Part;

use super::tensors;
use crate::rpc::{GlobalId, Kind, Message};
use crate::transport::Outgoing;

/// A message without tensors.
pub(super) fn ready(kind: Kind, id: i64, payload: Vec<u8>) -> Outgoing<Part> {
    Outgoing {
        kind: kind.code(),
        id,
        payload: payload.into(),
        tensor_list: Bytes::from_static(tensors::NO_TENSORS),
        storages: Vec::new(),
    }
}

/// A request failed before it was a call.
pub(super) fn exception_message(text: &str) -> (Kind, Vec<u8>) {
    let text = text.as_bytes();
    Message::Exception { text }.encode()
}

/// An answer as PyTorch's legacy profiler wants it, if it asked for it: with a list of what happened here, which is
/// empty, because nothing is recorded.
pub(super) fn profiled(
    (kind, inner): (Kind, Vec<u8>),
    profile: Option<GlobalId>,
) -> (Kind, Vec<u8>) {
    match profile {
        None => (kind, inner),
        Some(profile) => {
            let message = Message::Profiled {
                request: false,
                kind,
                inner: &inner,
                profile,
                rows: Vec::new(),
            };
            message.encode()
        }
    }
}
