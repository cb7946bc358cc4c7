//! Frames out of bytes, in whatever pieces they come. No I/O: whoever reads asks for the
//! [`space`](Decoder::space) to read into, and then for the frames that are [`next`](Decoder::next). What is to be
//! read out of the peer's memory is [taken](Decoder::take_named), and [put back](Decoder::put_named) when it was.
//!
//! Holds FR-1 to FR-3, FR-5 and the receiver's half of FR-4. Heads and small bodies are read into one
//! buffer; a body is a slice of it. Parts get a buffer of their own each, even small ones: programs
//! keep them, and a slice would keep the whole buffer alive.

use std::mem::take;
use std::sync::Arc;
use std::time::Duration;

use bytes::{Buf, Bytes, BytesMut};
use farref_proto::Frame;

use super::error::FrameError;
use super::filling::{Filling, Space};
use super::head::{ADDRESS, FrameHead, MemoryFrame, PREFIX, Place, map_payload, read_part_entry};
use super::limits::Limits;
use super::packet::{ReceivedMessage, assemble};
use super::plain;
use super::recycle::Recycler;
use crate::codec::{Owned, Part, Payload, Width};

/// The read buffer's size.
const BUFFER: usize = 64 << 10;
/// The least room to read into that is worth a system call.
const MIN_SPACE: usize = 8 << 10;
/// So many places of messages are kept.
const SPARE: usize = 64;
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

/// A part that is to be read out of the peer's memory.
#[derive(Debug)]
pub(crate) struct NamedPiece {
    /// Where it is there.
    pub(crate) address: u64,
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
    /// The part that is read out of the peer's memory.
    named: Named,
}

/// How far a part is that is read out of the peer's memory.
#[derive(Debug, Default)]
enum Named {
    /// There is none.
    #[default]
    Nothing,
    /// Its address has come.
    Wanted(NamedPiece),
    /// Somebody reads it.
    Taken,
    /// It has been read.
    Read(Filling),
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
        }
    }

    /// From now on the peer may name its memory (FR-5).
    pub(crate) fn permit_names(&mut self) {
        self.may_be_named = true;
    }

    /// The part that is to be read out of the peer's memory before anything else is read, if there is one.
    pub(crate) fn take_named(&mut self) -> Option<NamedPiece> {
        let named = &mut self.pending.as_mut()?.named;
        match take(named) {
            Named::Wanted(piece) => {
                *named = Named::Taken;
                Some(piece)
            }
            other => {
                *named = other;
                None
            }
        }
    }

    /// The part that was taken has been read.
    pub(crate) fn put_named(&mut self, filling: Filling) {
        if let Some(pending) = &mut self.pending {
            pending.named = Named::Read(filling);
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
                HeadOutcome::Incomplete => return Ok(None),
                HeadOutcome::Whole(frame) => return Ok(Some(frame)),
                HeadOutcome::Partial(partial) => self.pending = Some(partial),
            }
        }
        let Some(pending) = &mut self.pending else {
            return Ok(None);
        };
        if !pending.collect(&mut self.buffer, &self.recycler)? {
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
        self.buffer.advance(PREFIX + head_length);
        if body_length > 0
            && let Frame::Data { payload, .. } = &mut frame
        {
            let body = self.buffer.split_to(body_length).freeze();
            let parts = Vec::new();
            // Plain messages have payloads.
            payload.add_payload(Payload { body, parts }).ok()?;
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
        let too_large = FrameError::MessageTooLarge {
            limit: message_bytes,
        };
        let table_length = size_of::<u64>() as u64 * u64::from(parts);
        let mut total = u64::from(head_length) + table_length;
        total = total.checked_add(body).ok_or_else(|| too_large.clone())?;
        if total > message_bytes {
            return Err(too_large);
        }

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
            total = total.checked_add(length).ok_or_else(|| too_large.clone())?;
            if total > message_bytes {
                return Err(too_large);
            }
            if !length.is_multiple_of(width.bytes() as u64) {
                return Err(FrameError::UnevenPart { length, width });
            }
            let place = place.ok_or(FrameError::UnknownPlace)?;
            // FR-5
            if place == Place::Named && !self.may_be_named {
                return Err(FrameError::Unpermitted);
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
        if is_whole {
            // Nearly all are.
            let body = match body_length {
                0 => Bytes::new(),
                length => self.buffer.split_to(length).freeze(),
            };
            let parts = Vec::new();
            return finish(announced, Payload { body, parts }).map(HeadOutcome::Whole);
        }
        Ok(HeadOutcome::Partial(PartialFrame {
            announced,
            body_length,
            body: None,
            parts: Vec::with_capacity(part_table.len()),
            part_table,
            filling: None,
            named: Named::Nothing,
        }))
    }
}

fn to_size(length: u64) -> Result<usize, FrameError> {
    usize::try_from(length).map_err(|_| FrameError::OutOfMemory(length))
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
            Ok(assemble(
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
    fn collect(
        &mut self,
        buffer: &mut BytesMut,
        recycler: &Arc<Recycler>,
    ) -> Result<bool, FrameError> {
        if self.body.is_none() {
            self.body = if self.body_length == 0 {
                Some(Bytes::new())
            } else if self.body_length > INLINE_BODY {
                self.fill(self.body_length, Width::One, buffer, recycler)?
                    .map(Owned::into_bytes)
            } else if buffer.len() >= self.body_length {
                Some(buffer.split_to(self.body_length).freeze())
            } else {
                None
            };
            if self.body.is_none() {
                return Ok(false);
            }
        }
        while let Some(&(length, width, place)) = self.part_table.get(self.parts.len()) {
            let part = match place {
                Place::Inline => self.fill(length, width, buffer, recycler)?,
                Place::Named => self.fill_named(length, width, buffer, recycler)?,
            };
            let Some(part) = part else {
                return Ok(false);
            };
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
        if filling.take_from(buffer)? {
            return Ok(Some(recycler.lend(filling.finish())));
        }
        self.filling = Some(filling);
        Ok(None)
    }

    /// The next part, if it has been read out of the peer's memory.
    fn fill_named(
        &mut self,
        length: usize,
        width: Width,
        buffer: &mut BytesMut,
        recycler: &Arc<Recycler>,
    ) -> Result<Option<Arc<Owned>>, FrameError> {
        match take(&mut self.named) {
            Named::Read(filling) => return Ok(Some(recycler.lend(filling.finish()))),
            Named::Nothing => {
                let Some(address) = buffer.get(..ADDRESS).map(|mut bytes| bytes.get_u64_le())
                else {
                    return Ok(None);
                };
                buffer.advance(ADDRESS);
                let filling = Filling::new(length, width, recycler.take(length, width))?;
                if length == 0 {
                    return Ok(Some(recycler.lend(filling.finish())));
                }
                self.named = Named::Wanted(NamedPiece { address, filling });
            }
            under_way => self.named = under_way,
        }
        Ok(None)
    }

    /// What it brought. It is of no use afterwards; taken by reference because it is large.
    fn finish(&mut self) -> Result<DecodedFrame, FrameError> {
        let payload = Payload {
            body: self.body.take().unwrap_or_default(),
            parts: take(&mut self.parts),
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
