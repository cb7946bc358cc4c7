//! Frames on their way into a stream: small pieces copied together, large ones where they are.
//!
//! Holds the sender's half of FR-4, and of what a part's [`Source`](crate::Source) is promised:
//!
//! - **BA-1** A source is looked at for the time of one write, which does not wait, and never while
//!   another one is.
//! - **BA-2** A source is not looked at where code of the program is barred (UC-1): what is before it is
//!   written, and then [`UserCodeBarred`] says that somebody else has to go on.
//! - **BA-3** The address of a part leaves in its place only where the peer has said that it may, and the message
//!   that the part is in is stored until the peer acknowledges it, which it does after it has read. What is here need not
//!   have the part.
//! - **BA-4** The descriptors of a frame's regions leave with its first byte, which is the first of a write: whoever reads
//!   what comes before cannot come upon them.
//! - **BA-5** At most [`MOST_IN_FLIGHT`] descriptors have left with frames that are not acknowledged; other regions go as
//!   other parts do. The system counts those that nobody has received for all processes of a user together, and lets
//!   them have about a thousand: a peer that does not read must not keep them from others.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::io::{self, IoSlice};
use std::ops::Range;

use bytes::Bytes;
use farref_proto::{Frame, Time};

use super::head::{FrameHead, MemoryFrame, PREFIX, Place, map_payload, part_entry};
use super::packet::Packet;
use super::plain::{self, DataHead, MAX_DATA};
use crate::codec::{Part, PartBytes, SharedBytes, Width};
use crate::native::transport::MOST_PASSED;
use crate::support::mutation::mutated;
use crate::support::user_code;

/// Pieces up to this size are copied: cheaper than an entry in a vectored write.
const COPY_LIMIT: usize = 16 << 10;
/// The most slices of one write.
const MAX_SLICES: usize = 64;
/// The most bytes of a source that are looked at for one write: it may have to fetch them.
const LOOK_LIMIT: usize = 1 << 20;
/// From this size on a part is worth more than the socket: what the system has to do for the peer to read it, and a
/// thread of the peer's to be woken for that, takes less time than two copies.
pub(super) const NAME_FROM: usize = farref_shm::THRESHOLD;
/// A copy buffer above this size is not kept.
const KEEP: usize = 256 << 10;
/// No [`FrameHead`] without data is longer: two tags and four numbers; or an address and a beacon.
const MAX_FRAME_HEAD: usize = 96;

/// So many descriptors may be on their way (BA-5).
const MOST_IN_FLIGHT: usize = 64;

/// What comes next is behind a source, which this thread must not look at (BA-2).
#[derive(Debug, thiserror::Error)]
#[error("a buffer of the program's has to be looked at elsewhere")]
pub(crate) struct UserCodeBarred;

/// Frames that are being written, and how far that has got.
#[derive(Debug, Default)]
pub(crate) struct Batch {
    /// Frames that are not encoded yet.
    frames: Vec<Frame<Packet>>,
    copied: Vec<u8>,
    pieces: Vec<Piece>,
    /// The first piece that is not written, and how much of it is.
    next: usize,
    offset: usize,
    /// What has been written of the program's buffers and of large regions, for whoever may drop them.
    written: Vec<Part>,
    /// Whether large parts are named, and how many bytes have been (BA-3).
    may_name: bool,
    named: u64,
    /// Whether regions leave as descriptors, and those that are to leave with the first byte of a piece (BA-4).
    may_pass: bool,
    passing: VecDeque<Passing>,
    /// The numbers of frames that left with regions and are not acknowledged, and how many regions each has (BA-5).
    in_flight: VecDeque<(u64, usize)>,
}

/// The regions of one frame.
#[derive(Debug)]
struct Passing {
    /// Its first piece.
    piece: usize,
    regions: Vec<SharedBytes>,
}

/// The lengths fit: a packet keeps to limits that are of these types.
fn prefix(head: usize, parts: usize, body: usize) -> [u8; PREFIX] {
    let mut prefix = [0; PREFIX];
    prefix[..4].copy_from_slice(&(head as u32).to_le_bytes());
    prefix[4..8].copy_from_slice(&(parts as u32).to_le_bytes());
    prefix[8..].copy_from_slice(&(body as u64).to_le_bytes());
    prefix
}

#[derive(Debug)]
enum Piece {
    Copied(Range<usize>),
    /// What an encoder of this crate's wrote: no code of the program is needed to drop it.
    Body(Bytes),
    Part(Part),
}

/// Which parts of a frame are in regions that leave with it: the first so many that are in one.
struct Places {
    passed: usize,
}

/// Those regions that take long to give back: they are dropped as buffers of the program's are.
pub(crate) fn large_regions(
    regions: impl Iterator<Item = SharedBytes>,
) -> impl Iterator<Item = Part> {
    let parts = regions.map(|region| Part::from_shared(region, Width::One));
    parts.filter(Part::is_programs)
}

impl Places {
    /// Asked of each part in its turn.
    fn is_passed(&mut self, part: &Part) -> bool {
        let is_passed = self.passed > 0 && part.shared().is_some();
        self.passed -= usize::from(is_passed);
        is_passed
    }
}

impl Batch {
    pub(crate) fn is_empty(&self) -> bool {
        self.pieces.is_empty()
    }

    /// Whether part of it is written and part is not.
    pub(crate) fn is_under_way(&self) -> bool {
        self.next > 0 || self.offset > 0
    }

    /// How many frames are not encoded yet.
    pub(crate) fn waiting(&self) -> usize {
        self.frames.len()
    }

    /// Appends a frame of the session, to be encoded when the session's lock is released.
    pub(crate) fn push(&mut self, frame: Frame<Packet>) {
        self.frames.push(frame);
    }

    /// Says whether the peer takes descriptors of regions, which it does not until this was said; and which frame is
    /// the first that it has not acknowledged. All frames with regions are of one lane.
    pub(crate) fn permit_regions(&mut self, may_pass: bool, acknowledged: u64) {
        self.may_pass = may_pass;
        let is_over = |(seq, _): &(u64, usize)| *seq < acknowledged;
        while self.in_flight.front().is_some_and(is_over) {
            self.in_flight.pop_front();
        }
    }

    /// The regions whose descriptors have to leave with the next write.
    pub(crate) fn due_regions(&self) -> Vec<SharedBytes> {
        match self.passing.front() {
            Some(Passing { piece, regions }) if *piece == self.next => regions.clone(),
            _ => Vec::new(),
        }
    }

    /// Encodes the frames that were appended. They leave now. `may_name` says whether the peer reads large parts out
    /// of this process' memory.
    pub(crate) fn encode(&mut self, now: Time, may_name: bool) {
        self.may_name = may_name;
        let mut frames = std::mem::take(&mut self.frames);
        for frame in frames.drain(..) {
            self.encode_frame(frame, now);
        }
        self.frames = frames;
    }

    fn encode_frame(&mut self, frame: Frame<Packet>, now: Time) {
        let frame = match frame {
            Frame::Data {
                lane,
                seq,
                acks,
                payload: packet,
            } => return self.push_data((lane, seq, acks, packet.age(now)), &packet),
            other => other,
        };
        let Ok(frame) = map_payload(frame, |_| Ok::<_, Infallible>(None));
        self.push_frame_head(&FrameHead::Session(frame));
    }

    /// Appends the request for a stream for bulk data.
    pub(crate) fn push_open_bulk(&mut self) {
        self.push_frame_head(&FrameHead::OpenBulk);
    }

    /// Appends something about the memory of either end.
    pub(crate) fn push_memory(&mut self, frame: MemoryFrame) {
        self.push_frame_head(&FrameHead::Memory(frame));
    }

    /// How many bytes of parts have been named, or passed in regions, since this was last asked.
    pub(crate) fn take_named(&mut self) -> u64 {
        std::mem::take(&mut self.named)
    }

    fn push_frame_head(&mut self, frame_head: &FrameHead) {
        let mut buffer = [0; MAX_FRAME_HEAD];
        let Ok(frame_head) = postcard::to_slice(frame_head, &mut buffer) else {
            debug_assert!(false, "MAX_FRAME_HEAD is too small");
            return;
        };
        self.copy(&prefix(frame_head.len(), 0, 0));
        self.copy(frame_head);
    }

    /// Appends a message.
    fn push_data(&mut self, data: DataHead, packet: &Packet) {
        let mut buffer = [0; PREFIX + MAX_DATA];
        let Some((before, data_head)) = buffer.split_first_chunk_mut::<PREFIX>() else {
            return;
        };
        let data_head = data_head.first_chunk_mut::<MAX_DATA>();
        let Some(length) = data_head.and_then(|buffer| plain::write_data(data, buffer)) else {
            debug_assert!(false, "MAX_DATA is too small");
            return;
        };
        let head = packet.head();
        let payload = packet.payload();
        let regions = self.regions(&payload.parts);
        let passed = regions.len();
        if passed > 0 {
            self.in_flight.push_back((data.1, passed));
            let piece = self.pieces.len();
            self.passing.push_back(Passing { piece, regions });
            // A piece of its own.
            let at = self.copied.len();
            self.pieces.push(Piece::Copied(at..at));
        }
        let mut places = Places { passed };
        *before = prefix(length + head.len(), payload.parts.len(), payload.body.len());
        self.copy(buffer.get(..PREFIX + length).unwrap_or_default());
        self.copy(head);
        for part in &payload.parts {
            let place = match (places.is_passed(part), self.address(part)) {
                (true, _) => Place::Region,
                (false, Some(_)) => Place::Named,
                (false, None) => Place::Inline,
            };
            self.copy(&part_entry(part.len(), part.width(), place).to_le_bytes());
        }
        match payload.body.len() {
            0 => {}
            1..=COPY_LIMIT => self.copy(&payload.body),
            _ => self.pieces.push(Piece::Body(payload.body.clone())),
        }
        let mut places = Places { passed };
        for part in &payload.parts {
            match (places.is_passed(part), self.address(part)) {
                (true, _) => self.named += part.len() as u64,
                (false, Some(address)) => {
                    self.copy(&address.to_le_bytes());
                    self.named += part.len() as u64;
                }
                (false, None) => self.share(part),
            }
        }
    }

    /// The regions that the peer gets as such: no more than fit into one write, or may be on their way.
    fn regions(&self, parts: &[Part]) -> Vec<SharedBytes> {
        if !self.may_pass {
            return Vec::new();
        }
        let in_flight: usize = self.in_flight.iter().map(|(_, regions)| regions).sum();
        let room = MOST_PASSED.min(MOST_IN_FLIGHT.saturating_sub(in_flight));
        let shared = parts.iter().filter_map(Part::shared).take(room);
        shared.cloned().collect()
    }

    /// Where a part is, if the peer is to read it there.
    fn address(&self, part: &Part) -> Option<u64> {
        if !self.may_name || part.len() < NAME_FROM {
            return None;
        }
        part.address()
    }

    fn copy(&mut self, bytes: &[u8]) {
        let start = self.copied.len();
        self.copied.extend_from_slice(bytes);
        let end = self.copied.len();
        if let Some(Piece::Copied(range)) = self.pieces.last_mut() {
            range.end = end;
        } else if start < end {
            self.pieces.push(Piece::Copied(start..end));
        }
    }

    fn share(&mut self, part: &Part) {
        match part.place() {
            PartBytes::Here(bytes) if bytes.len() <= COPY_LIMIT => self.copy(bytes),
            PartBytes::Behind(seen) if seen.len() == 0 => {}
            // Also a small source: it is looked at when it leaves.
            _ => self.pieces.push(Piece::Part(part.clone())),
        }
    }

    /// Gives what is not written yet to `write` and takes note of how much of it was. Returns that.
    pub(crate) fn write(
        &mut self,
        write: impl FnOnce(&[IoSlice<'_>]) -> io::Result<usize>,
    ) -> io::Result<usize> {
        // BA-4
        let is_due = |passing: &&Passing| passing.piece > self.next;
        let end = match self.passing.iter().find(is_due) {
            Some(passing) => passing.piece,
            None => self.pieces.len(),
        };
        let pieces = self.pieces.get(self.next..end).unwrap_or_default();
        if let [piece] = pieces
            && let PartBytes::Here(bytes) = self.place(piece)
        {
            // The common case, made cheap.
            let rest = bytes.get(self.offset..).unwrap_or_default();
            let mut written = write(&[IoSlice::new(rest)])?;
            if mutated!(PartIsAll) {
                written = rest.len();
            }
            self.advance(written);
            return Ok(written);
        }
        let mut slices = [IoSlice::new(&[]); MAX_SLICES];
        let mut skip = self.offset;
        let mut count = 0;
        let mut source = None;
        for (slice, piece) in slices.iter_mut().zip(pieces) {
            match self.place(piece) {
                PartBytes::Here(bytes) => {
                    *slice = IoSlice::new(bytes.get(skip..).unwrap_or_default())
                }
                PartBytes::Behind(seen) => {
                    // BA-1: the last of this write.
                    source = Some(seen);
                    break;
                }
            }
            skip = 0;
            count += 1;
        }
        let written = match source {
            None => write(slices.get(..count).unwrap_or_default()),
            // BA-2
            Some(_) if user_code::is_barred() && count == 0 => {
                Err(io::Error::other(UserCodeBarred))
            }
            Some(_) if user_code::is_barred() => write(slices.get(..count).unwrap_or_default()),
            Some(seen) => {
                let end = seen.len().min(skip.saturating_add(LOOK_LIMIT));
                let look = |bytes: &[u8]| {
                    let mut slices = slices;
                    if let Some(slice) = slices.get_mut(count) {
                        *slice = IoSlice::new(bytes);
                    }
                    write(slices.get(..=count).unwrap_or_default())
                };
                seen.look(skip..end, look)
                    .unwrap_or_else(|bad| Err(io::Error::other(bad)))
            }
        }?;
        self.advance(written);
        Ok(written)
    }

    fn place<'a>(&'a self, piece: &'a Piece) -> PartBytes<'a> {
        match piece {
            Piece::Copied(range) => {
                PartBytes::Here(self.copied.get(range.clone()).unwrap_or_default())
            }
            Piece::Body(body) => PartBytes::Here(body),
            Piece::Part(part) => part.place(),
        }
    }

    fn advance(&mut self, written: usize) {
        let mut left = written + self.offset;
        while let Some(piece) = self.pieces.get(self.next) {
            let length = match piece {
                Piece::Copied(range) => range.len(),
                Piece::Body(body) => body.len(),
                Piece::Part(part) => part.len(),
            };
            if left < length {
                break;
            }
            left -= length;
            self.next += 1;
        }
        self.offset = left;
        let has_left = |passing: &Passing| {
            passing.piece < self.next || (passing.piece == self.next && left > 0)
        };
        while self.passing.front().is_some_and(has_left) {
            let regions = self.passing.pop_front().map(|passing| passing.regions);
            self.written
                .extend(large_regions(regions.into_iter().flatten()));
        }
        if self.next == self.pieces.len() {
            self.clear();
        }
    }

    /// The program's buffers that have been written, or never will be if this is the end.
    pub(crate) fn take_written(&mut self) -> Vec<Part> {
        std::mem::take(&mut self.written)
    }

    /// Gives all up that is not written.
    pub(crate) fn abandon(&mut self) -> (Vec<Part>, Vec<Frame<Packet>>) {
        self.clear();
        (self.take_written(), std::mem::take(&mut self.frames))
    }

    fn clear(&mut self) {
        let shared = self.pieces.drain(..).filter_map(|piece| match piece {
            Piece::Part(part) if part.is_programs() => Some(part),
            _ => None,
        });
        self.written.extend(shared);
        let regions = self.passing.drain(..).flat_map(|passing| passing.regions);
        self.written.extend(large_regions(regions));
        self.copied.clear();
        self.copied.shrink_to(KEEP);
        self.pieces.shrink_to(1024);
        self.next = 0;
        self.offset = 0;
    }
}

#[cfg(test)]
impl Batch {
    /// All of its bytes.
    pub(crate) fn written(&mut self) -> Vec<u8> {
        let mut bytes = Vec::new();
        while !self.is_empty() {
            let written = self.write(|slices| {
                slices
                    .iter()
                    .for_each(|slice| bytes.extend_from_slice(slice));
                Ok(slices.iter().map(|slice| slice.len()).sum())
            });
            assert!(written.is_ok());
        }
        bytes
    }
}
