//! One buffer beside a value, wherever its bytes are.
//!
//! A part is not copied when it is cloned, stored until it is acknowledged, or sent again. Its bytes
//! may belong to the program and be behind a lock; then they are looked at for a moment at a time.

use std::fmt;
use std::mem::take;
use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, OnceLock, Weak};

use bytemuck::Pod;
use bytes::Bytes;

use super::elements::{Elements, Width, copied};
use super::error::CodecError;
use super::shared::SharedBytes;

/// To give a region of this size back takes the system some 100 µs.
const LARGE_REGION: usize = 1 << 20;

/// Bytes that belong to something else and can be looked at for a moment.
///
/// Through it the storage of a tensor, say, is sent from where it is, though a lock is around it: the
/// lock is held while the system takes bytes from there into the socket, never while waiting for the
/// socket or for the peer. What is sent is what is there at that time, a piece at a time, and again if a
/// connection breaks: whoever writes to it meanwhile makes the receiver see some of both. And whoever
/// keeps it from being looked at holds up all that is to be sent after it: no call is to be made while
/// the lock is held.
///
/// ```
/// use std::ops::Range;
/// use std::sync::{Arc, RwLock};
///
/// use farref::{Buffer, Source, Width};
///
/// struct Storage {
///     values: RwLock<Vec<u8>>,
///     len: usize,
/// }
///
/// impl Source for Storage {
///     fn len(&self) -> usize {
///         self.len
///     }
///
///     fn width(&self) -> Width {
///         Width::One
///     }
///
///     fn look(&self, range: Range<usize>, look: &mut dyn FnMut(&[u8])) {
///         look(&self.values.read().unwrap()[range]);
///     }
/// }
///
/// let values = RwLock::new(vec![1, 2, 3]);
/// let storage = Arc::new(Storage { values, len: 3 });
/// let buffer = Buffer::from_source(storage);
/// assert_eq!(buffer.into_vec::<u8>()?, [1, 2, 3]);
/// # Ok::<(), farref::CodecError>(())
/// ```
// It is asked for its length once, to announce it; emptiness is nobody's question.
#[allow(clippy::len_without_is_empty)]
pub trait Source: Send + Sync + 'static {
    /// How many bytes there are: a multiple of the width, and always the same.
    fn len(&self) -> usize;

    /// The size of one element.
    fn width(&self) -> Width;

    /// Calls `look` once with the bytes in `range`, which is within the length.
    ///
    /// `look` never waits, and calls no other source. It may be called on any thread. A source that
    /// panics, or shows another number of bytes, cannot be sent: the connection is given up rather than
    /// anything else delivered in its place.
    fn look(&self, range: Range<usize>, look: &mut dyn FnMut(&[u8]));

    /// Where the bytes are in this process' memory, if they stay at one place for as long as there is this source,
    /// and are always there to be read.
    ///
    /// It is asked once, when the source is made part of a value. A peer on the same host may then
    /// [read](crate::WorkerBuilder::shared_memory) them from there, without any lock, at any time until it has the
    /// message: that is one copy less, and nobody is held up meanwhile. As with [`look`](Self::look), whoever writes there
    /// meanwhile makes the receiver see some of both. Memory that is given back or moved nevertheless does this process no
    /// harm, but the receiver sees what is there then, which may be anything. By default the place is not known, and
    /// the bytes are looked at.
    fn address(&self) -> Option<usize> {
        None
    }
}

/// One buffer beside a value. Cheap to clone.
///
/// Only those who bring another [wire](crate::agent) deal with parts; programs have
/// [`Blob`](crate::Blob) and [`Buffer`](crate::Buffer).
///
/// ```
/// use farref::{Part, Width};
///
/// let part = Part::from(bytes::Bytes::from_static(b"bytes"));
/// assert_eq!((part.len(), part.width()), (5, Width::One));
/// assert_eq!(part.into_bytes()?, "bytes");
/// # Ok::<(), farref::CodecError>(())
/// ```
#[derive(Clone)]
pub struct Part(PartKind);

#[derive(Clone)]
enum PartKind {
    Bytes(Bytes),
    Owned(Arc<Owned>),
    Source(Seen),
    Shared(SharedBytes, Width),
    /// It was not taken in.
    Refused(Arc<Refusal>),
}

/// Why a payload was not taken in.
#[derive(Debug)]
struct Refusal {
    /// How many bytes it had.
    bytes: usize,
    why: String,
}

/// A source, and what it said of itself when it was first seen: nothing that is announced changes.
#[derive(Clone)]
pub(crate) struct Seen {
    source: Arc<dyn Source>,
    len: usize,
    width: Width,
    address: Option<usize>,
}

/// Why a source's bytes are not to be had.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("a buffer's source {0}")]
pub(crate) struct BadSource(&'static str);

/// Whoever wants the memory of elements back that nobody uses any more.
pub(crate) trait BufferRecycler: fmt::Debug + Send + Sync {
    fn keep(&self, elements: Elements);
}

/// Elements that belong to nothing else.
#[derive(Debug)]
pub(crate) struct Owned {
    elements: Elements,
    /// Where their memory goes in the end if nobody has made it his own.
    recycler: OnceLock<Weak<dyn BufferRecycler>>,
}

/// Where the bytes of a part are.
pub(crate) enum PartBytes<'a> {
    /// In plain sight.
    Here(&'a [u8]),
    /// Behind a source.
    Behind(&'a Seen),
}

impl Part {
    /// How many bytes it has.
    ///
    /// ```
    /// use farref::Part;
    ///
    /// assert_eq!(Part::from(bytes::Bytes::from(vec![0; 7])).len(), 7);
    /// ```
    pub fn len(&self) -> usize {
        match &self.0 {
            PartKind::Bytes(bytes) => bytes.len(),
            PartKind::Owned(owned) => owned.elements.bytes().len(),
            PartKind::Source(seen) => seen.len,
            PartKind::Shared(shared, _) => shared.bytes().len(),
            PartKind::Refused(refusal) => refusal.bytes,
        }
    }

    /// Whether it has none.
    ///
    /// ```
    /// use farref::Part;
    ///
    /// assert!(Part::from(bytes::Bytes::new()).is_empty());
    /// ```
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The size of one element: whoever receives the part is to have memory that is aligned to it.
    ///
    /// ```
    /// use farref::{Part, Width};
    ///
    /// // Bytes that an agent has read; nothing is known of what they mean.
    /// assert_eq!(Part::from(bytes::Bytes::from(vec![0; 8])).width(), Width::One);
    /// ```
    pub fn width(&self) -> Width {
        match &self.0 {
            PartKind::Bytes(_) | PartKind::Refused(_) => Width::One,
            PartKind::Owned(owned) => owned.elements.width(),
            PartKind::Source(seen) => seen.width,
            PartKind::Shared(_, width) => *width,
        }
    }

    /// The bytes. They are copied only if a [`Source`] has them.
    ///
    /// ```
    /// use farref::Part;
    ///
    /// let bytes = bytes::Bytes::from(vec![1, 2, 3]);
    /// let at = bytes.as_ptr();
    /// let same = Part::from(bytes).into_bytes()?;
    /// assert_eq!(same.as_ptr(), at);
    /// # Ok::<(), farref::CodecError>(())
    /// ```
    pub fn into_bytes(self) -> Result<Bytes, CodecError> {
        Ok(match self.0 {
            PartKind::Bytes(bytes) => bytes,
            PartKind::Source(seen) => seen.copy::<u8>()?.into(),
            PartKind::Owned(owned) => owned.into_bytes(),
            PartKind::Shared(shared, _) => Bytes::from_owner(shared),
            PartKind::Refused(refusal) => return Err(CodecError::new(&refusal.why)),
        })
    }

    /// A part of these elements, which whoever reads it out as elements of that size gets without a copy.
    ///
    /// ```
    /// use farref::{Part, Width};
    ///
    /// let part = Part::from_vec(vec![1.0_f32, 2.0]);
    /// assert_eq!((part.len(), part.width()), (8, Width::Four));
    /// ```
    pub fn from_vec<T: Pod>(elements: Vec<T>) -> Self {
        Self::from_owned(Owned::new(Elements::from_vec(elements), None))
    }

    /// Calls `look` once with the bytes in `range`. If they are a [`Source`]'s, whatever lock is around
    /// them is held only meanwhile.
    ///
    /// ```
    /// use farref::Part;
    ///
    /// let part = Part::from_vec(vec![1_u8, 2, 3]);
    /// assert_eq!(part.look(1..3, <[u8]>::to_vec)?, [2, 3]);
    /// assert!(part.look(1..4, <[u8]>::to_vec).is_err());
    /// # Ok::<(), farref::CodecError>(())
    /// ```
    pub fn look<R>(
        &self,
        range: Range<usize>,
        look: impl FnOnce(&[u8]) -> R,
    ) -> Result<R, CodecError> {
        let beyond = || CodecError::new("a part has fewer bytes than are asked for");
        match self.place() {
            PartBytes::Here(bytes) => bytes.get(range).map(look).ok_or_else(beyond),
            PartBytes::Behind(seen) if range.start > range.end || range.end > seen.len() => {
                Err(beyond())
            }
            PartBytes::Behind(seen) => seen.look(range, look).map_err(CodecError::new),
        }
    }

    /// The elements of a source.
    pub(crate) fn from_source(source: Arc<dyn Source>) -> Self {
        let (len, width) = (source.len(), source.width());
        // No peer takes half an element, and bytes are whole in any case.
        let even = len.is_multiple_of(width.bytes());
        let width = if even { width } else { Width::One };
        let address = source.address();
        Self(PartKind::Source(Seen {
            source,
            len,
            width,
            address,
        }))
    }

    pub(crate) fn from_owned(owned: Arc<Owned>) -> Self {
        Self(PartKind::Owned(owned))
    }

    /// Stands for a payload of so many bytes that was not taken in. Whoever reads it is told why.
    pub(crate) fn refused(bytes: usize, why: String) -> Self {
        Self(PartKind::Refused(Arc::new(Refusal { bytes, why })))
    }

    /// Why it was not taken in, if it was not.
    pub(crate) fn why_refused(&self) -> Option<&str> {
        match &self.0 {
            PartKind::Refused(refusal) => Some(&refusal.why),
            _ => None,
        }
    }

    /// What other processes can read where it is. The length must be a multiple of the width.
    pub(crate) fn from_shared(shared: SharedBytes, width: Width) -> Self {
        Self(PartKind::Shared(shared, width))
    }

    /// Its bytes in memory that other processes can read, if that is where they are.
    pub(crate) fn shared(&self) -> Option<&SharedBytes> {
        match &self.0 {
            PartKind::Shared(shared, _) => Some(shared),
            PartKind::Bytes(_)
            | PartKind::Owned(_)
            | PartKind::Source(_)
            | PartKind::Refused(_) => None,
        }
    }

    /// Its elements: the vector itself if it is one and nobody else has it, a copy otherwise.
    pub(crate) fn into_vec<T: Pod>(self) -> Result<Vec<T>, CodecError> {
        let kind = match self.0 {
            PartKind::Bytes(bytes) if align_of::<T>() == 1 => {
                // No copy if this is all there is of them.
                PartKind::Owned(Owned::new(Elements::One(bytes.into()), None))
            }
            kind => kind,
        };
        match kind {
            PartKind::Bytes(bytes) => copy(&bytes),
            PartKind::Source(seen) => seen.copy(),
            PartKind::Shared(shared, _) => copy(shared.bytes()),
            PartKind::Refused(refusal) => Err(CodecError::new(&refusal.why)),
            PartKind::Owned(mut owned) => match Arc::get_mut(&mut owned) {
                Some(only) => take(&mut only.elements)
                    .into_vec()
                    .or_else(|elements| copy(elements.bytes())),
                None => copy(owned.elements.bytes()),
            },
        }
    }

    /// Where its bytes are in this process' memory, for as long as somebody has it, if they stay there.
    pub fn address(&self) -> Option<u64> {
        let address = match &self.0 {
            PartKind::Bytes(bytes) => bytes.as_ptr().addr(),
            PartKind::Owned(owned) => owned.elements.bytes().as_ptr().addr(),
            PartKind::Source(seen) => seen.address?,
            PartKind::Shared(shared, _) => shared.bytes().as_ptr().addr(),
            PartKind::Refused(_) => return None,
        };
        u64::try_from(address).ok()
    }

    /// Where its memory is to go when nobody has the part any more, if it is the part's own and goes nowhere yet.
    pub(crate) fn recycle_to(
        &self,
        recycler: impl FnOnce(usize) -> Option<Weak<dyn BufferRecycler>>,
    ) {
        if let PartKind::Owned(owned) = &self.0
            && owned.recycler.get().is_none()
            && let Some(recycler) = recycler(owned.elements.capacity())
        {
            // Whoever was faster means the same.
            let _ = owned.recycler.set(recycler);
        }
    }

    /// Whether its destructor may be the program's, or takes as long as one of those may: that is for others than whoever
    /// reads, writes or delivers.
    pub(crate) fn is_programs(&self) -> bool {
        match &self.0 {
            PartKind::Bytes(_) | PartKind::Source(_) => true,
            // The last one of a region gives its memory back, page by page.
            PartKind::Shared(shared, _) => shared.bytes().len() >= LARGE_REGION,
            PartKind::Owned(_) | PartKind::Refused(_) => false,
        }
    }

    /// Where its bytes are.
    pub(crate) fn place(&self) -> PartBytes<'_> {
        match &self.0 {
            PartKind::Bytes(bytes) => PartBytes::Here(bytes),
            PartKind::Owned(owned) => PartBytes::Here(owned.elements.bytes()),
            PartKind::Source(seen) => PartBytes::Behind(seen),
            PartKind::Shared(shared, _) => PartBytes::Here(shared.bytes()),
            PartKind::Refused(_) => PartBytes::Here(&[]),
        }
    }
}

fn copy<T: Pod>(from: &[u8]) -> Result<Vec<T>, CodecError> {
    copied(from.len(), |to| {
        to.copy_from_slice(from);
        Ok(())
    })
}

impl Seen {
    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// Calls `look` with some of the bytes and returns what it does. Whatever lock is around them is
    /// held only meanwhile.
    pub(crate) fn look<R>(
        &self,
        range: Range<usize>,
        look: impl FnOnce(&[u8]) -> R,
    ) -> Result<R, BadSource> {
        let length = range.len();
        let mut look = Some(look);
        let mut seen = Err(BadSource("shows nothing"));
        let once = &mut |bytes: &[u8]| {
            if bytes.len() != length {
                seen = Err(BadSource("shows another number of bytes than it has"));
            } else if let Some(look) = look.take() {
                seen = Ok(look(bytes));
            }
        };
        // A panic must not leave whoever writes with half a message; nothing of ours is torn by it.
        catch_unwind(AssertUnwindSafe(|| self.source.look(range, once)))
            .map_err(|_| BadSource("panicked"))?;
        seen
    }

    fn copy<T: Pod>(&self) -> Result<Vec<T>, CodecError> {
        copied(self.len, |to| {
            self.look(0..self.len, |from| to.copy_from_slice(from))
                .map_err(CodecError::new)
        })
    }
}

impl Owned {
    pub(crate) fn new(elements: Elements, recycler: Option<Weak<dyn BufferRecycler>>) -> Arc<Self> {
        let recycler = recycler.map_or_else(OnceLock::new, OnceLock::from);
        Arc::new(Self { elements, recycler })
    }

    /// Their bytes, where they are.
    pub(crate) fn into_bytes(mut self: Arc<Self>) -> Bytes {
        match Arc::get_mut(&mut self) {
            // What is recycled is so as it is.
            Some(Self {
                elements: Elements::One(bytes),
                recycler,
            }) if recycler.get().is_none() => take(bytes).into(),
            _ => Bytes::from_owner(SharedOwned(self)),
        }
    }
}

impl Drop for Owned {
    fn drop(&mut self) {
        if let Some(recycler) = self.recycler.take().and_then(|recycler| recycler.upgrade()) {
            recycler.keep(take(&mut self.elements));
        }
    }
}

/// Elements as the owner of bytes.
struct SharedOwned(Arc<Owned>);

impl AsRef<[u8]> for SharedOwned {
    fn as_ref(&self) -> &[u8] {
        self.0.elements.bytes()
    }
}

impl From<Bytes> for Part {
    fn from(bytes: Bytes) -> Self {
        Self(PartKind::Bytes(bytes))
    }
}

impl From<Vec<u8>> for Part {
    fn from(bytes: Vec<u8>) -> Self {
        Self(PartKind::Bytes(bytes.into()))
    }
}

impl fmt::Debug for Part {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut tuple = f.debug_tuple("Part");
        tuple.field(&self.width());
        match self.place() {
            PartBytes::Here(bytes) => tuple.field(&bytes),
            PartBytes::Behind(seen) => tuple.field(&seen.len),
        };
        tuple.finish()
    }
}

impl fmt::Debug for Seen {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Source({} bytes)", self.len)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// LI-4, SD-4: to give a large region back takes the system long, as a destructor of the program's may.
    #[test]
    #[cfg(target_os = "linux")]
    fn what_takes_long_to_give_back_is_nothing_for_whoever_delivers() {
        let region = |size| {
            let shared = SharedBytes::copy_of(&vec![1; size]).expect("Linux");
            Part::from_shared(shared, Width::One)
        };
        assert!(!region(1000).is_programs());
        assert!(region(4 << 20).is_programs());
    }

    /// Shows what is there, and an empty slice where nothing is.
    struct Shows(Vec<u8>);

    impl Source for Shows {
        fn len(&self) -> usize {
            self.0.len()
        }

        fn width(&self) -> Width {
            Width::Four
        }

        fn look(&self, range: Range<usize>, look: &mut dyn FnMut(&[u8])) {
            look(self.0.get(range).unwrap_or_default());
        }
    }

    #[test]
    fn every_kind_of_part_shows_the_same_bytes() {
        let bytes: Vec<u8> = (0..12).collect();
        let words: Vec<u32> = bytemuck::pod_collect_to_vec(&bytes);
        for part in [
            Part::from(bytes.clone()),
            Part::from_vec(bytes.clone()),
            Part::from_vec(words),
            Part::from_source(Arc::new(Shows(bytes.clone()))),
        ] {
            for range in [0..12, 0..0, 12..12, 3..7] {
                let seen = part.look(range.clone(), <[u8]>::to_vec).unwrap();
                assert_eq!(seen, bytes[range], "{part:?}");
            }
            #[expect(clippy::reversed_empty_ranges, reason = "it is not to be shown")]
            let wrong = [0..13, 13..13, 7..3, usize::MAX..0, 0..usize::MAX];
            for range in wrong {
                let seen = part.look(range.clone(), <[u8]>::len);
                assert!(seen.is_err(), "{range:?} of {part:?}");
            }
        }
    }

    #[test]
    fn the_elements_of_a_vector_come_back_without_a_copy() {
        let values = vec![1.0_f64, 2.0, 3.0];
        let at = values.as_ptr();
        let part = Part::from_vec(values);
        assert_eq!((part.len(), part.width()), (24, Width::Eight));
        let back = part.clone().into_vec::<f64>().unwrap();
        assert_ne!(back.as_ptr(), at, "somebody else has it too");
        let back = part.into_vec::<f64>().unwrap();
        assert_eq!((back.as_ptr(), &*back), (at, &[1.0, 2.0, 3.0][..]));
    }
}
