//! Bytes with descriptors over a Unix socket.
//!
//! A descriptor arrives with or before the first byte of the write that it was sent with, and in the order in which it was
//! sent. It may come together with bytes of earlier writes. So whoever receives puts descriptors into a queue, and takes
//! them out of it as the bytes say that there is one.

use std::collections::VecDeque;
use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, recvmsg, sendmsg,
};

use crate::error::ReceiveError;
use crate::sealed::close;

/// The most descriptors of one write.
pub const MAX_DESCRIPTORS: usize = 16;

/// Room for them, and for their alignment.
const SPACE: usize = rustix::cmsg_space!(ScmRights(MAX_DESCRIPTORS));

/// Writes bytes, at least one of them, and descriptors with the first one. Returns how many bytes were written; if any
/// were, the descriptors are on their way.
///
/// Waits if the socket does. A socket into which more descriptors were sent than the system allows for those that
/// nobody has received yet fails with `ETOOMANYREFS`.
pub fn send(
    socket: impl AsFd,
    bytes: &[IoSlice<'_>],
    descriptors: &[BorrowedFd<'_>],
) -> io::Result<usize> {
    let nothing = bytes.iter().all(|slice| slice.is_empty());
    if descriptors.len() > MAX_DESCRIPTORS || (nothing && !descriptors.is_empty()) {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    let mut space = [MaybeUninit::uninit(); SPACE];
    let mut ancillary = SendAncillaryBuffer::new(&mut space);
    if !descriptors.is_empty() && !ancillary.push(SendAncillaryMessage::ScmRights(descriptors)) {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    Ok(sendmsg(socket, bytes, &mut ancillary, SendFlags::NOSIGNAL)?)
}

/// Reads bytes, and puts the descriptors that came with them into a queue. Returns how many bytes; zero is the end of
/// the stream.
///
/// Waits if the socket does. After [`ReceiveError::TooMany`] and [`ReceiveError::NoneLeft`] the connection is of no use any
/// more: descriptors are missing.
pub fn receive(
    socket: impl AsFd,
    buffer: &mut [u8],
    queue: &mut DescriptorQueue,
) -> Result<usize, ReceiveError> {
    let mut space = [MaybeUninit::uninit(); SPACE];
    let mut ancillary = RecvAncillaryBuffer::new(&mut space);
    let mut slices = [IoSliceMut::new(buffer)];
    let received = recvmsg(socket, &mut slices, &mut ancillary, RecvFlags::CMSG_CLOEXEC)
        .map_err(io::Error::from)?;
    let mut refused = false;
    let mut opened = 0;
    for message in ancillary.drain() {
        if let RecvAncillaryMessage::ScmRights(descriptors) = message {
            for descriptor in descriptors {
                refused |= !queue.push(descriptor);
                opened += 1;
            }
        }
    }
    // Those that had no room were never opened here. There was room for so many.
    let missing = received.flags.contains(ReturnFlags::CTRUNC);
    if refused || (missing && opened >= MAX_DESCRIPTORS) {
        return Err(ReceiveError::TooMany { most: queue.most });
    }
    if missing {
        return Err(ReceiveError::NoneLeft);
    }
    Ok(received.bytes)
}

/// Descriptors that have come, and that nobody has asked for yet: at most so many. What is left in it is closed when
/// it is dropped.
#[derive(Debug)]
pub struct DescriptorQueue {
    descriptors: VecDeque<OwnedFd>,
    most: usize,
}

impl DescriptorQueue {
    /// Room for so many.
    pub fn new(most: usize) -> Self {
        Self {
            descriptors: VecDeque::new(),
            most,
        }
    }

    /// The one that came first.
    #[allow(clippy::should_implement_trait, reason = "more of them may come")]
    pub fn next(&mut self) -> Option<OwnedFd> {
        self.descriptors.pop_front()
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.descriptors.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.descriptors.is_empty()
    }

    /// Takes all that another one has, as far as there is room; the rest is closed. Says whether there was room.
    pub fn append(&mut self, other: &mut Self) -> bool {
        let mut room = true;
        while let Some(descriptor) = other.next() {
            room &= self.push(descriptor);
        }
        room
    }

    /// Says whether there was room.
    fn push(&mut self, descriptor: OwnedFd) -> bool {
        let room = self.descriptors.len() < self.most;
        if room {
            self.descriptors.push_back(descriptor);
        } else {
            close(descriptor);
        }
        room
    }
}

impl Drop for DescriptorQueue {
    fn drop(&mut self) {
        self.descriptors.drain(..).for_each(close);
    }
}
