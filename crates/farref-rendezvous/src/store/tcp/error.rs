//! What a peer can do wrong on a connection of the TCPStore protocol.

/// What a peer did wrong.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub(super) enum ProtocolError {
    #[error("request {0} is unknown")]
    UnknownRequest(u8),
    #[error("it began with neither the TCPStore greeting nor a request of an old client")]
    NoGreeting,
    #[error("it speaks as PyTorch 1.13 did, which had no request {0}")]
    NotThen(u8),
    #[error("a {what} of {size} is longer than the {limit} allowed")]
    TooLong {
        what: &'static str,
        size: u64,
        limit: usize,
    },
    #[error("a request came while another one was waiting for its answer")]
    OutOfTurn,
    #[error("an answer was followed by bytes nobody asked for")]
    Unasked,
    #[error("answer {0} is none of those possible")]
    UnknownAnswer(u8),
}
