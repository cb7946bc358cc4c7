//! An encoded value: its body, and the buffers beside it.

use bytes::Bytes;

use super::part::Part;

/// Bodies of up to this size are copied when they have to be kept. Larger ones have a buffer of their
/// own.
const SMALL_BODY: usize = 32 << 10;

/// An encoded value: its body, and the buffers that travel beside it.
///
/// ```
/// use farref::{Part, Payload};
///
/// // As an agent makes it of what it has read from its wire.
/// let payload = Payload {
///     body: vec![1, 2, 3].into(),
///     parts: vec![Part::from(bytes::Bytes::from_static(b"large"))],
/// };
/// assert_eq!((payload.len(), payload.is_empty()), (8, false));
/// assert!(Payload::default().is_empty());
/// ```
#[derive(Clone, Debug, Default)]
pub struct Payload {
    /// What the codec wrote.
    pub body: Bytes,
    /// Buffers sent out of band, in the order in which the body refers to them.
    pub parts: Vec<Part>,
}

impl Payload {
    /// Whether it has buffers whose destructors may be the program's.
    pub(crate) fn has_programs_buffers(&self) -> bool {
        self.parts.iter().any(Part::is_programs)
    }

    /// How many bytes it has in all.
    ///
    /// ```
    /// use farref::{Part, Payload};
    ///
    /// /// What an agent with frames of limited size might ask.
    /// fn fits(payload: &Payload, most: usize) -> bool {
    ///     payload.len() <= most
    /// }
    ///
    /// let parts = vec![Part::from(bytes::Bytes::from(vec![0; 1000]))];
    /// let payload = Payload { body: vec![0; 30].into(), parts };
    /// assert!(fits(&payload, 1030));
    /// assert!(!fits(&payload, 1029));
    /// ```
    pub fn len(&self) -> usize {
        let parts = self.parts.iter().map(Part::len);
        parts.fold(self.body.len(), usize::saturating_add)
    }

    /// The same in memory of its own, if it is small: a small body may be a slice of a far larger buffer
    /// that many messages came in, and would keep all of that.
    pub(crate) fn detached(mut self) -> Self {
        if self.body.len() <= SMALL_BODY {
            self.body = Bytes::copy_from_slice(&self.body);
        }
        self
    }

    /// Whether there is nothing in it.
    ///
    /// ```
    /// use farref::Payload;
    ///
    /// // Arguments of a function that has none.
    /// assert!(Payload::default().is_empty());
    /// ```
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}
