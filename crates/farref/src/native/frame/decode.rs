//! Frames out of bytes, in whatever pieces they come. No I/O: whoever reads asks for the
//! [`space`](Decoder::space) to read into, and then for the frames that are [`next`](Decoder::next). What is to be
//! read out of the peer's memory is [taken](Decoder::take_named), and [put back](Decoder::put_named) when it was.
//! Descriptors are [put](Decoder::put_descriptors) before the bytes that they came with are looked at.
//!
//! Holds FR-1 to FR-3, FR-5, FR-6 and the receiver's half of FR-4. Heads and small bodies are read into one
//! buffer; a body is a slice of it. Parts get a buffer of their own each, even small ones: programs
//! keep them, and a slice would keep the whole buffer alive.

use std::collections::VecDeque;
use std::mem::take;
use std::sync::Arc;
use std::time::Duration;

use bytes::{Buf, Bytes, BytesMut};
use farref_proto::Frame;

use super::error::FrameError;
use super::filling::{Filling, Space};
use super::head::{ADDRESS, FrameHead, MemoryFrame, PREFIX, Place, map_payload, read_part_entry};
use super::limits::Limits;
use super::plain;
use super::received::{ReceivedMessage, assemble};
use super::recycle::Recycler;
use crate::codec::{Owned, Part, Payload, SharedBytes, Width};
use crate::native::transport::{Descriptors, PassedRegion, RegionFault, SealedRegion};

/// The read buffer's size.
const BUFFER: usize = 64 << 10;
/// The least room to read into that is worth a system call.
const MIN_SPACE: usize = 8 << 10;
/// So many places of messages are kept.
const SPARE: usize = 64;
/// So many parts are read out of the peer's memory at once.
const NAMED_AT_ONCE: usize = 32;
/// Bodies above this size get a buffer of their own.
const INLINE_BODY: usize = 32 << 10;

/// What a frame brought.
#[derive(Debug)]
pub(crate) enum DecodedFrame {
    /// A frame of the session.
    Session(Frame<ReceivedMessage>),
    /// The peer has bulk data to send, and no stream for it.
    OpenBulk,
    /// Something about the peer's memory, or ours.
    Memory(MemoryFrame),
}

/// Where a part is that is not in the stream.
#[derive(Debug)]
pub(crate) enum PieceSource {
    /// At an address in the peer's memory.
    Memory(u64),
    /// In a region of which there are too many to read them in place.
    Region(SealedRegion),
}

/// A part that is to be read out of the peer's memory.
#[derive(Debug)]
pub(crate) struct NamedPiece {
    /// Where it is.
    pub(crate) source: PieceSource,
    /// Where it is to go.
    pub(crate) filling: Filling,
}

/// Makes frames of bytes. After an error it is of no use any more.
#[derive(Debug)]
pub(crate) struct Decoder {
    limits: Limits,
    recycler: Arc<Recycler>,
    buffer: BytesMut,
    /// The frame whose head has come.
    pending: Option<PartialFrame>,
    /// Places of messages that have been delivered, for others.
    spare: Vec<ReceivedMessage>,
    /// Whether the peer was told that it may name its memory (FR-5).
    may_be_named: bool,
    /// Descriptors that came, if the peer was told that it may send some.
    descriptors: Option<Descriptors>,
    /// How many bytes of parts are read in place.
    in_place: u64,
}

/// A frame as its head announces it.
#[derive(Debug)]
enum Announced {
    /// Its message has no payload yet.
    Session(Frame<ReceivedMessage>),
    /// The ends' own, complete.
    Own(DecodedFrame),
}

/// What came of reading a head.
#[expect(
    clippy::large_enum_variant,
    reason = "it is taken apart where it is made"
)]
enum HeadOutcome {
    /// Some of it has not come.
    Incomplete,
    /// Its frame has come in full.
    Whole(DecodedFrame),
    /// The rest of its frame is still to come, or to be put where it belongs.
    Partial(PartialFrame),
}

/// A frame whose head has come.
#[derive(Debug)]
struct PartialFrame {
    announced: Announced,
    body_length: usize,
    body: Option<Bytes>,
    part_table: Vec<(usize, Width, Place)>,
    /// Those parts that have come.
    parts: Vec<Part>,
    /// The body or part that is on its way into a buffer of its own.
    filling: Option<Filling>,
    /// The parts that are read out of the peer's memory.
    named: Named,
    /// So many of those that come next have their address, or their descriptor, out of the stream already.
    taken: usize,
    /// Set if its payload is not taken in (FR-7).
    refused: Option<RefusedPayload>,
}

/// A payload that is not taken in.
#[derive(Debug)]
struct RefusedPayload {
    why: String,
    /// How many bytes it has.
    bytes: usize,
    /// How many of the stream's bytes belong to it and have not come.
    left: usize,
}

/// How far parts are that are read out of the peer's memory.
#[derive(Debug, Default)]
enum Named {
    /// There is none.
    #[default]
    Nothing,
    /// Their addresses have come.
    Wanted(Vec<NamedPiece>),
    /// Somebody reads them.
    Taken,
    /// They have been read.
    Read(VecDeque<Filling>),
}

/// What a frame is put together from.
struct Intake<'a> {
    buffer: &'a mut BytesMut,
    recycler: &'a Arc<Recycler>,
    descriptors: Option<&'a mut Descriptors>,
    in_place: &'a mut u64,
}

/// A part that is in a region.
enum PassedPart {
    InPlace(SharedBytes),
    /// None as long as it is not copied.
    Copied(Option<Arc<Owned>>),
}

impl Decoder {
    pub(crate) fn new(limits: Limits, recycler: Arc<Recycler>) -> Self {
        Self {
            limits,
            recycler,
            buffer: BytesMut::new(),
            pending: None,
            spare: Vec::new(),
            may_be_named: false,
            descriptors: None,
            in_place: 0,
        }
    }

    /// The peer may send regions (FR-5).
    pub(crate) fn permit_regions(&mut self) {
        self.descriptors = Some(Descriptors::new());
    }

    /// Takes descriptors that came with what was read last.
    pub(crate) fn put_descriptors(&mut self, come: &mut Descriptors) -> Result<(), FrameError> {
        if come.is_empty() {
            return Ok(());
        }
        let waiting = self.descriptors.as_mut();
        let has_room = waiting.is_some_and(|waiting| waiting.append(come));
        has_room.then_some(()).ok_or(FrameError::StrayDescriptors)
    }

    /// How many bytes of parts came in regions that are read in place since this was last asked.
    pub(crate) fn take_in_place(&mut self) -> u64 {
        take(&mut self.in_place)
    }

    /// FR-6: what came with frames that are complete belonged to them.
    fn check_descriptors(&self) -> Result<(), FrameError> {
        let left = self.descriptors.as_ref();
        let is_stray = self.buffer.is_empty() && left.is_some_and(|left| !left.is_empty());
        if is_stray {
            return Err(FrameError::StrayDescriptors);
        }
        Ok(())
    }

    /// From now on the peer may name its memory (FR-5).
    pub(crate) fn permit_names(&mut self) {
        self.may_be_named = true;
    }

    /// The parts that are to be read out of the peer's memory before anything else is read, if there are any: as many as
    /// follow each other.
    pub(crate) fn take_named(&mut self) -> Option<Vec<NamedPiece>> {
        let named = &mut self.pending.as_mut()?.named;
        match take(named) {
            Named::Wanted(pieces) => {
                *named = Named::Taken;
                Some(pieces)
            }
            other => {
                *named = other;
                None
            }
        }
    }

    /// The parts that were taken have been read.
    pub(crate) fn put_named(&mut self, fillings: Vec<Filling>) {
        if let Some(pending) = &mut self.pending {
            pending.named = Named::Read(fillings.into());
        }
    }

    /// There was no memory for one of the parts that were taken: their message is passed over (FR-7).
    pub(crate) fn refuse_named(&mut self, bytes: u64) {
        if let Some(pending) = &mut self.pending {
            pending.refuse(no_memory(bytes));
        }
    }

    /// Takes back what messages came in that have been delivered.
    pub(crate) fn reclaim(&mut self, delivered: impl Iterator<Item = ReceivedMessage>) {
        let room = SPARE.saturating_sub(self.spare.len());
        let emptied = delivered.take(room).map(|mut place| {
            place.empty();
            place
        });
        self.spare.extend(emptied);
    }

    /// Where to put what is read next. Has room for at least one byte.
    pub(crate) fn space(&mut self) -> Space<'_> {
        if let Some(PartialFrame {
            filling: Some(filling),
            ..
        }) = &mut self.pending
        {
            return filling.space();
        }
        if self.buffer.capacity() - self.buffer.len() < MIN_SPACE {
            self.buffer.reserve(BUFFER);
        }
        Space::Buffer(&mut self.buffer)
    }

    /// The next frame that has come in full.
    pub(crate) fn next(&mut self) -> Result<Option<DecodedFrame>, FrameError> {
        if self.pending.is_none() {
            if let Some(frame) = self.next_plain() {
                return Ok(Some(DecodedFrame::Session(frame)));
            }
            match self.read_head()? {
                HeadOutcome::Incomplete => return self.check_descriptors().map(|()| None),
                HeadOutcome::Whole(frame) => return Ok(Some(frame)),
                HeadOutcome::Partial(partial) => self.pending = Some(partial),
            }
        }
        let Some(pending) = &mut self.pending else {
            return Ok(None);
        };
        let mut intake = Intake {
            buffer: &mut self.buffer,
            recycler: &self.recycler,
            descriptors: self.descriptors.as_mut(),
            in_place: &mut self.in_place,
        };
        if !pending.collect(&mut intake)? {
            return Ok(None);
        }
        let received = pending.finish();
        self.pending = None;
        received.map(Some)
    }

    /// The next frame, if it has come in full and brings a plain message: as nearly all do. What is wrong with one is
    /// for others to say.
    fn next_plain(&mut self) -> Option<Frame<ReceivedMessage>> {
        let (mut prefix, rest) = self.buffer.split_at_checked(PREFIX)?;
        let head_length = prefix.get_u32_le();
        let parts = prefix.get_u32_le();
        let body = prefix.get_u64_le();
        // FR-1
        if parts > 0
            || head_length > self.limits.head_bytes
            || body > INLINE_BODY as u64
            || body + u64::from(head_length) > self.limits.message_bytes
        {
            return None;
        }
        let (head_length, body_length) = (head_length as usize, body as usize);
        if rest.len() < head_length + body_length {
            return None;
        }
        let mut frame = plain::read(rest.get(..head_length)?, &mut self.spare)?;
        let payload = match &mut frame {
            Frame::Data { payload, .. } if body_length > 0 => Some(payload.payload_mut()?),
            _ => None,
        };
        self.buffer.advance(PREFIX + head_length);
        if let Some(payload) = payload {
            payload.body = self.buffer.split_to(body_length).freeze();
        }
        Some(frame)
    }

    fn read_head(&mut self) -> Result<HeadOutcome, FrameError> {
        let Some((mut prefix, rest)) = self.buffer.split_at_checked(PREFIX) else {
            return Ok(HeadOutcome::Incomplete);
        };
        let head_length = prefix.get_u32_le();
        let parts = prefix.get_u32_le();
        let body = prefix.get_u64_le();
        let Limits {
            message_bytes,
            head_bytes,
            parts: most_parts,
        } = self.limits;
        // FR-1
        if head_length > head_bytes {
            return Err(FrameError::HeadTooLarge {
                length: head_length,
                limit: head_bytes,
            });
        }
        if parts > most_parts {
            return Err(FrameError::TooManyParts {
                parts,
                limit: most_parts,
            });
        }
        let table_length = size_of::<u64>() as u64 * u64::from(parts);
        let mut total = u64::from(head_length) + table_length;
        total = total.checked_add(body).ok_or(FrameError::BeyondAll)?;

        let Some((head, rest)) = rest.split_at_checked(head_length as usize) else {
            return Ok(HeadOutcome::Incomplete);
        };
        let Some((mut table, rest)) = rest.split_at_checked(table_length as usize) else {
            return Ok(HeadOutcome::Incomplete);
        };
        let body_length = to_size(body)?;
        let is_whole = parts == 0 && body_length <= INLINE_BODY && body_length <= rest.len();
        let consumed = PREFIX + head.len() + table.len();
        let mut part_table = Vec::with_capacity(parts as usize);
        while table.has_remaining() {
            let (length, width, place) = read_part_entry(table.get_u64_le());
            total = total.checked_add(length).ok_or(FrameError::BeyondAll)?;
            if !length.is_multiple_of(width.bytes() as u64) {
                return Err(FrameError::UnevenPart { length, width });
            }
            let place = place.ok_or(FrameError::UnknownPlace)?;
            // FR-5
            if place == Place::Named && !self.may_be_named {
                return Err(FrameError::Unpermitted);
            }
            if place == Place::Region && self.descriptors.is_none() {
                return Err(FrameError::RegionUnpermitted);
            }
            part_table.push((to_size(length)?, width, place));
        }
        // What is whole was found not to be plain.
        let announced = match (!is_whole)
            .then(|| plain::read(head, &mut self.spare))
            .flatten()
        {
            Some(frame) => Announced::Session(frame),
            None => decode_head(head, &mut self.spare)?,
        };
        let is_data = matches!(announced, Announced::Session(Frame::Data { .. }));
        if !is_data && total > u64::from(head_length) {
            return Err(FrameError::UnexpectedPayload);
        }
        self.buffer.advance(consumed);
        let is_too_large = total > message_bytes;
        if is_whole && !is_too_large {
            // Nearly all are.
            let body = match body_length {
                0 => Bytes::new(),
                length => self.buffer.split_to(length).freeze(),
            };
            let parts = Vec::new();
            return finish(announced, Payload { body, parts }).map(HeadOutcome::Whole);
        }
        let mut partial = PartialFrame {
            announced,
            body_length,
            body: None,
            parts: Vec::with_capacity(part_table.len()),
            part_table,
            filling: None,
            named: Named::Nothing,
            taken: 0,
            refused: None,
        };
        if is_too_large {
            // A worker's limit is its own: whoever sends more need not know it.
            partial.refuse(format!(
                "it has {total} bytes, and the worker that it was sent to takes at most {message_bytes} in one message \
                 (`max_message_bytes`)"
            ));
        }
        Ok(HeadOutcome::Partial(partial))
    }
}

/// The address that stands in the place of a part.
fn take_address(buffer: &mut BytesMut) -> Option<u64> {
    let address = buffer.get(..ADDRESS).map(|mut bytes| bytes.get_u64_le())?;
    buffer.advance(ADDRESS);
    Some(address)
}

fn to_size(length: u64) -> Result<usize, FrameError> {
    usize::try_from(length).map_err(|_| FrameError::OutOfMemory(length))
}

/// Why a payload is passed over that has a piece of so many bytes (FR-7).
fn no_memory(bytes: u64) -> String {
    format!("there is no memory for {bytes} of its bytes")
}

/// Both parts of a head. Only data has the second.
fn decode_head(bytes: &[u8], spare: &mut Vec<ReceivedMessage>) -> Result<Announced, FrameError> {
    let (wire, mut rest) = postcard::take_from_bytes(bytes).map_err(FrameError::BadHead)?;
    let announced = match wire {
        FrameHead::OpenBulk => Announced::Own(DecodedFrame::OpenBulk),
        FrameHead::Memory(memory) => Announced::Own(DecodedFrame::Memory(memory)),
        FrameHead::Session(frame) => Announced::Session(map_payload(frame, |age| {
            let (head, beyond) = postcard::take_from_bytes(rest).map_err(FrameError::BadHead)?;
            rest = beyond;
            Ok::<_, FrameError>(assemble(
                head,
                Duration::from_nanos(age.unwrap_or(0)),
                spare,
            ))
        })?),
    };
    if !rest.is_empty() {
        return Err(FrameError::TrailingHead(rest.len()));
    }
    Ok(announced)
}

impl PartialFrame {
    /// Takes what has come. Says whether that is all.
    fn collect(&mut self, intake: &mut Intake<'_>) -> Result<bool, FrameError> {
        if self.refused.is_none() {
            match self.take_in(intake) {
                Err(FrameError::OutOfMemory(bytes)) => self.refuse(no_memory(bytes)),
                taken => return taken,
            }
        }
        self.discard(intake)
    }

    /// FR-7: from now on what comes of its payload is not kept.
    fn refuse(&mut self, why: String) {
        let come = self.filling.take().map_or(0, |filling| filling.filled());
        let body = match self.body {
            Some(_) => 0,
            None => self.body_length,
        };
        let next = self.parts.len() + take(&mut self.taken);
        let missing = self.part_table.iter().skip(next);
        let left = missing.map(|(length, _, place)| match place {
            Place::Inline => *length,
            Place::Named => ADDRESS,
            Place::Region => 0,
        });
        let lengths = self.part_table.iter().map(|(length, ..)| *length);
        self.refused = Some(RefusedPayload {
            why,
            bytes: lengths.fold(self.body_length, usize::saturating_add),
            left: left.fold(body, usize::saturating_add) - come,
        });
        // Those whose descriptors are still to be taken.
        self.part_table.drain(..next.min(self.part_table.len()));
        self.part_table
            .retain(|(.., place)| *place == Place::Region);
        self.parts = Vec::new();
        self.body = None;
        self.named = Named::Nothing;
    }

    /// Lets what has come of a payload go that is not taken in. Says whether that is all.
    fn discard(&mut self, intake: &mut Intake<'_>) -> Result<bool, FrameError> {
        let Some(refused) = &mut self.refused else {
            return Ok(true);
        };
        let gone = refused.left.min(intake.buffer.len());
        intake.buffer.advance(gone);
        refused.left -= gone;
        if refused.left > 0 {
            return Ok(false);
        }
        for (length, ..) in self.part_table.drain(..) {
            let descriptors = intake.descriptors.as_mut();
            let descriptors = descriptors.ok_or(FrameError::RegionUnpermitted)?;
            drop(descriptors.next_region(length)?);
        }
        Ok(true)
    }

    /// Takes what has come in. Says whether that is all.
    fn take_in(&mut self, intake: &mut Intake<'_>) -> Result<bool, FrameError> {
        let recycler = intake.recycler;
        if self.body.is_none() {
            self.body = if self.body_length == 0 {
                Some(Bytes::new())
            } else if self.body_length > INLINE_BODY {
                self.fill(self.body_length, Width::One, intake.buffer, recycler)?
                    .map(Owned::into_bytes)
            } else if intake.buffer.len() >= self.body_length {
                Some(intake.buffer.split_to(self.body_length).freeze())
            } else {
                None
            };
            if self.body.is_none() {
                return Ok(false);
            }
        }
        while let Some(&(length, width, place)) = self.part_table.get(self.parts.len()) {
            let part = match place {
                Place::Inline => self.fill(length, width, intake.buffer, recycler)?,
                Place::Named => self.fill_named(length, width, intake.buffer, recycler)?,
                Place::Region => match self.take_region(length, width, intake)? {
                    PassedPart::Copied(part) => part,
                    PassedPart::InPlace(shared) => {
                        *intake.in_place += length as u64;
                        self.parts.push(Part::from_shared(shared, width));
                        continue;
                    }
                },
            };
            let Some(part) = part else {
                return Ok(false);
            };
            self.taken = self.taken.saturating_sub(1);
            self.parts.push(Part::from_owned(part));
        }
        Ok(true)
    }

    /// The next piece, if all of it has come.
    fn fill(
        &mut self,
        length: usize,
        width: Width,
        buffer: &mut BytesMut,
        recycler: &Arc<Recycler>,
    ) -> Result<Option<Arc<Owned>>, FrameError> {
        let mut filling = match self.filling.take() {
            Some(filling) => filling,
            None => Filling::new(length, width, recycler.take(length, width))?,
        };
        let taken = filling.take_from(buffer);
        if taken == Ok(true) {
            return Ok(Some(recycler.lend(filling.finish())));
        }
        self.filling = Some(filling);
        taken.map(|_| None)
    }

    /// The next part, if it has been read out of the peer's memory.
    fn fill_named(
        &mut self,
        length: usize,
        width: Width,
        buffer: &mut BytesMut,
        recycler: &Arc<Recycler>,
    ) -> Result<Option<Arc<Owned>>, FrameError> {
        if let Some(filling) = self.next_read() {
            return Ok(Some(recycler.lend(filling.finish())));
        }
        if !matches!(self.named, Named::Nothing) {
            return Ok(None);
        }
        let Some(address) = take_address(buffer) else {
            return Ok(None);
        };
        self.taken = 1;
        let filling = Filling::new(length, width, recycler.take(length, width))?;
        if length == 0 {
            return Ok(Some(recycler.lend(filling.finish())));
        }
        let source = PieceSource::Memory(address);
        let mut pieces = vec![NamedPiece { source, filling }];
        // One thread reads them all: to wake one takes as long as to read a small one.
        let following = self.part_table.iter().skip(self.parts.len() + 1);
        for &(length, width, place) in following.take(NAMED_AT_ONCE - 1) {
            if place != Place::Named || length == 0 {
                break;
            }
            let Some(address) = take_address(buffer) else {
                break;
            };
            self.taken += 1;
            let source = PieceSource::Memory(address);
            let filling = Filling::new(length, width, recycler.take(length, width))?;
            pieces.push(NamedPiece { source, filling });
        }
        self.named = Named::Wanted(pieces);
        Ok(None)
    }

    /// The next of those parts that have been read.
    fn next_read(&mut self) -> Option<Filling> {
        let Named::Read(fillings) = &mut self.named else {
            return None;
        };
        let next = fillings.pop_front();
        if fillings.is_empty() {
            self.named = Named::Nothing;
        }
        next
    }

    /// The next part, which is in a region: as such, or if it has been copied.
    fn take_region(
        &mut self,
        length: usize,
        width: Width,
        intake: &mut Intake<'_>,
    ) -> Result<PassedPart, FrameError> {
        if let Some(filling) = self.next_read() {
            let part = intake.recycler.lend(filling.finish());
            return Ok(PassedPart::Copied(Some(part)));
        }
        match take(&mut self.named) {
            Named::Nothing => {
                let descriptors = intake.descriptors.as_mut();
                let descriptors = descriptors.ok_or(FrameError::RegionUnpermitted)?;
                match descriptors.next_region(length)? {
                    PassedRegion::InPlace(shared) => return Ok(PassedPart::InPlace(shared)),
                    PassedRegion::ToCopy(region) => {
                        self.taken = 1;
                        let used = intake.recycler.take(length, width);
                        let filling = Filling::new(length, width, used)?;
                        if length == 0 {
                            let part = intake.recycler.lend(filling.finish());
                            return Ok(PassedPart::Copied(Some(part)));
                        }
                        let source = PieceSource::Region(region);
                        self.named = Named::Wanted(vec![NamedPiece { source, filling }]);
                    }
                }
            }
            under_way => self.named = under_way,
        }
        Ok(PassedPart::Copied(None))
    }

    /// What it brought. It is of no use afterwards; taken by reference because it is large.
    fn finish(&mut self) -> Result<DecodedFrame, FrameError> {
        let payload = match self.refused.take() {
            None => Payload {
                body: self.body.take().unwrap_or_default(),
                parts: take(&mut self.parts),
            },
            Some(refused) => Payload {
                body: Bytes::new(),
                parts: vec![Part::refused(refused.bytes, refused.why)],
            },
        };
        let nothing = Announced::Own(DecodedFrame::OpenBulk);
        finish(std::mem::replace(&mut self.announced, nothing), payload)
    }
}

/// A frame with its payload.
fn finish(announced: Announced, payload: Payload) -> Result<DecodedFrame, FrameError> {
    let mut frame = match announced {
        Announced::Session(frame) => frame,
        Announced::Own(own) => return Ok(own),
    };
    if let Frame::Data {
        payload: message, ..
    } = &mut frame
    {
        message.add_payload(payload)?;
    }
    Ok(DecodedFrame::Session(frame))
}

impl From<RegionFault> for FrameError {
    fn from(fault: RegionFault) -> Self {
        match fault {
            RegionFault::Peers(why) => Self::BadRegion(why),
            RegionFault::Ours(why) => Self::RegionUnreadable(why),
        }
    }
}
