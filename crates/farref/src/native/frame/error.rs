//! What no correct peer sends.

use crate::codec::Width;

/// What no correct peer sends. The connection is of no use any more.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub(crate) enum FrameError {
    #[error("peer announces a head of {length} bytes, at most {limit} are taken")]
    HeadTooLarge { length: u32, limit: u32 },
    #[error("peer announces a message of {parts} parts, at most {limit} are taken")]
    TooManyParts { parts: u32, limit: u32 },
    #[error("peer announces a message of more bytes than there are numbers for")]
    BeyondAll,
    #[error("peer announces a part of {length} bytes with elements of {}", width.bytes())]
    UnevenPart { length: u64, width: Width },
    #[error("peer announces a part in a place that nobody knows")]
    UnknownPlace,
    #[error("peer names its memory, which it was not told that it may")]
    Unpermitted,
    #[error("peer says that a part is in a region, which it was not told that it may")]
    RegionUnpermitted,
    #[error("peer sent no region where one belongs: {0}")]
    BadRegion(String),
    #[error("peer sent descriptors that belong to nothing")]
    StrayDescriptors,
    #[error("peer sent a head that cannot be read: {0}")]
    BadHead(postcard::Error),
    #[error("peer sent a head with {0} bytes too many")]
    TrailingHead(usize),
    #[error("peer sent a payload where none belongs")]
    UnexpectedPayload,
    /// Not the peer's fault, and no less the end of this message.
    #[error("there is no memory for a message of {0} bytes")]
    OutOfMemory(u64),
    /// Not the peer's fault either.
    #[error("a region of the peer's cannot be read: {0}")]
    RegionUnreadable(String),
}
