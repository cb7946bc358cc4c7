//! A buffer of numbers that travels beside a value and becomes a vector of its own type.

use std::fmt;
use std::sync::Arc;

use bytemuck::Pod;
use serde::de::{Error as _, Visitor};
use serde::ser::Error as _;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use super::blob::{Inside, OUT_OF_BAND, OwnedBytes, Raw};
use super::elements::{Elements, Width};
use super::error::CodecError;
use super::part::{Owned, Part, PartBytes, Source};
use super::scope;
use super::shared::SharedBytes;

/// The name under which codecs see a buffer.
const NAME: &str = "farref::Buffer";

/// A buffer of numbers that is sent without being copied, and received as a vector of them.
///
/// As a [`Blob`](crate::Blob), anywhere inside an argument or a result, a `Buffer` of some size is handed
/// to the socket from where it is. Its bytes may be in a vector or belong to something else, a
/// [`Source`], with a lock around it. The receiver reads them straight into a vector of elements of the
/// same [`Width`], which [`into_vec`](Self::into_vec) hands over as it is. Cloning it is cheap.
///
/// The bytes of the elements travel as they are: workers of another byte order read other numbers.
///
/// A large `Vec` of numbers that is itself an argument or a result travels in the same way, and needs no `Buffer`. That is for
/// vectors inside of other types, for elements that are to be looked at and not owned, and for other
/// [sources](Source).
///
/// ```
/// use farref::Buffer;
///
/// #[farref::remote]
/// async fn sum(buffer: Buffer) -> Result<f32, farref::CodecError> {
///     Ok(buffer.into_vec::<f32>()?.iter().sum())
/// }
///
/// # #[tokio::main]
/// # async fn main() -> farref::Result<()> {
/// # let cluster = farref::testing::Cluster::start_named(&["a", "b"]).await?;
/// # let peer = cluster.worker(0).peer("b")?;
/// let buffer = Buffer::from_vec(vec![0.5_f32; 10_000]);
/// assert_eq!(sum::on(&peer, buffer).await?, 5000.0);
/// # cluster.shutdown().await
/// # }
/// ```
#[derive(Clone)]
pub struct Buffer(Part);

impl Buffer {
    /// The bytes of something that keeps them. They are looked at when the buffer is sent or its
    /// elements are asked for.
    ///
    /// ```
    /// use std::ops::Range;
    /// use std::sync::{Arc, Mutex};
    ///
    /// use farref::{Buffer, Source, Width};
    ///
    /// /// Weights that others may be changing.
    /// struct Weights(Mutex<Vec<f32>>);
    ///
    /// impl Source for Weights {
    ///     fn len(&self) -> usize {
    ///         4 * self.0.lock().unwrap().len()
    ///     }
    ///
    ///     fn width(&self) -> Width {
    ///         Width::Four
    ///     }
    ///
    ///     fn look(&self, range: Range<usize>, look: &mut dyn FnMut(&[u8])) {
    ///         let weights = self.0.lock().unwrap();
    ///         look(&bytemuck::cast_slice(&weights)[range]);
    ///     }
    /// }
    ///
    /// let weights = Arc::new(Weights(Mutex::new(vec![1.0, 2.0])));
    /// let buffer = Buffer::from_source(weights.clone());
    /// weights.0.lock().unwrap()[0] = 3.0; // it has not been looked at yet
    /// assert_eq!(buffer.into_vec::<f32>()?, [3.0, 2.0]);
    /// # Ok::<(), farref::CodecError>(())
    /// ```
    pub fn from_source(source: Arc<dyn Source>) -> Self {
        Self(Part::from_source(source))
    }

    /// The elements of a vector, which are not copied.
    ///
    /// The [width](Self::width) is that of the numbers that `T` consists of: of `[f32; 3]`, four.
    /// (Elements aligned to more than eight bytes are copied.)
    ///
    /// ```
    /// use farref::{Buffer, Width};
    ///
    /// let values = vec![1.0_f32, 2.0];
    /// let at = values.as_ptr();
    /// let buffer = Buffer::from_vec(values);
    /// assert_eq!((buffer.len(), buffer.width()), (8, Width::Four));
    /// assert_eq!(buffer.into_vec::<f32>()?.as_ptr(), at);
    /// # Ok::<(), farref::CodecError>(())
    /// ```
    pub fn from_vec<T: Pod>(values: Vec<T>) -> Self {
        Self(Part::from_owned(Owned::new(
            Elements::from_vec(values),
            None,
        )))
    }

    /// A copy of these elements that other processes of the same host read where it is, as [`Blob::shared`] is of
    /// bytes.
    ///
    /// Whoever gets it reads it with [`as_slice`](Self::as_slice): [`into_vec`](Self::into_vec) makes a copy.
    ///
    /// ```
    /// use farref::Buffer;
    ///
    /// let buffer = Buffer::shared(&[0.5_f32; 10_000]);
    /// assert_eq!(buffer.is_shared(), cfg!(target_os = "linux"));
    /// assert_eq!(buffer.as_slice::<f32>(), Some(&[0.5; 10_000][..]));
    /// ```
    ///
    /// [`Blob::shared`]: crate::Blob::shared
    pub fn shared<T: Pod>(values: &[T]) -> Self {
        match SharedBytes::copy_of(bytemuck::cast_slice(values)) {
            Some(shared) => Self(Part::from_shared(shared, Width::of::<T>())),
            None => Self::from_vec(values.to_vec()),
        }
    }

    /// Whether its elements are in memory that other processes of the host can read where it is, as
    /// [`Blob::is_shared`](crate::Blob::is_shared) says.
    ///
    /// ```
    /// use farref::Buffer;
    ///
    /// assert!(!Buffer::from_vec(vec![1_u32]).is_shared());
    /// ```
    pub fn is_shared(&self) -> bool {
        self.0.shared().is_some()
    }

    /// The elements where they are, as any type of plain data.
    ///
    /// None if they are a [`Source`]'s, are not aligned to what `T` needs, or are no whole number of it.
    ///
    /// ```
    /// use farref::Buffer;
    ///
    /// let buffer = Buffer::from_vec(vec![1_u32, 2, 3]);
    /// assert_eq!(buffer.as_slice::<i32>(), Some(&[1, 2, 3][..]));
    /// assert_eq!(buffer.as_slice::<[u32; 2]>(), None);
    /// ```
    pub fn as_slice<T: Pod>(&self) -> Option<&[T]> {
        match self.0.place() {
            PartBytes::Here(bytes) => bytemuck::try_cast_slice(bytes).ok(),
            PartBytes::Behind(_) => None,
        }
    }

    /// How many bytes it has.
    ///
    /// ```
    /// use farref::Buffer;
    ///
    /// assert_eq!(Buffer::from_vec(vec![0.0_f32; 3]).len(), 12);
    /// ```
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether it has none.
    ///
    /// ```
    /// use farref::Buffer;
    ///
    /// assert!(Buffer::from_vec::<f32>(vec![]).is_empty());
    /// ```
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The size of one element.
    ///
    /// ```
    /// use farref::{Buffer, Width};
    ///
    /// assert_eq!(Buffer::from_vec(vec![[0.0_f64; 3]; 2]).width(), Width::Eight);
    /// ```
    pub fn width(&self) -> Width {
        self.0.width()
    }

    /// The elements, as any type of plain data.
    ///
    /// There is no copy if the buffer was received, or made of a vector, with the width of `T`, and
    /// nobody else has it; one copy otherwise. If the length is no multiple of `T`'s size that is an
    /// error, and so is a [`Source`] that does not keep its word.
    ///
    /// ```
    /// use farref::Buffer;
    ///
    /// let buffer = Buffer::from_vec(vec![1_u32, 2, 3]);
    /// assert_eq!(buffer.clone().into_vec::<i32>()?, [1, 2, 3]);
    /// assert!(buffer.into_vec::<u64>().is_err());
    /// # Ok::<(), farref::CodecError>(())
    /// ```
    pub fn into_vec<T: Pod>(self) -> Result<Vec<T>, CodecError> {
        self.0.into_vec()
    }
}

impl From<Part> for Buffer {
    fn from(part: Part) -> Self {
        Self(part)
    }
}

impl From<Buffer> for Part {
    fn from(buffer: Buffer) -> Self {
        buffer.0
    }
}

impl<T: Pod> From<Vec<T>> for Buffer {
    fn from(values: Vec<T>) -> Self {
        Self::from_vec(values)
    }
}

impl fmt::Debug for Buffer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let width = self.width().bytes();
        write!(f, "Buffer({} bytes, {width} each)", self.len())
    }
}

/// A small buffer, inside its value: the width comes along.
#[derive(Serialize, Deserialize)]
struct Here<B>(Width, B);

impl Serialize for Buffer {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let part = if self.len() < OUT_OF_BAND {
            None
        } else {
            scope::attach(|| self.0.clone())
        };
        let width = self.width();
        let here = |bytes| Inside::Here(Here(width, Raw(bytes)));
        match (part, self.0.place()) {
            (Some(part), _) => {
                serializer.serialize_newtype_struct(NAME, &Inside::<Here<Raw<'_>>>::Part(part))
            }
            (None, PartBytes::Here(bytes)) => {
                serializer.serialize_newtype_struct(NAME, &here(bytes))
            }
            (None, PartBytes::Behind(seen)) => {
                // Copied, so that no serializer runs while a lock is held.
                let copy = seen
                    .look(0..seen.len(), <[u8]>::to_vec)
                    .map_err(S::Error::custom)?;
                serializer.serialize_newtype_struct(NAME, &here(&copy))
            }
        }
    }
}

impl<'de> Deserialize<'de> for Buffer {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct BufferVisitor;

        impl<'de> Visitor<'de> for BufferVisitor {
            type Value = Buffer;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a buffer")
            }

            fn visit_newtype_struct<D: Deserializer<'de>>(
                self,
                deserializer: D,
            ) -> Result<Buffer, D::Error> {
                match Inside::<Here<OwnedBytes>>::deserialize(deserializer)? {
                    Inside::Here(Here(width, OwnedBytes(bytes))) => {
                        read_here(width, bytes).map_err(D::Error::custom)
                    }
                    Inside::Part(index) => {
                        scope::attached(index).map(Buffer).map_err(D::Error::custom)
                    }
                }
            }

            /// For whoever traces the shape of a type; no codec writes a buffer as nothing. One number, as lists
            /// have one element there: that makes a tensor.
            fn visit_unit<E>(self) -> Result<Buffer, E> {
                Ok(Buffer::from_vec(vec![1_f32]))
            }
        }

        deserializer.deserialize_newtype_struct(NAME, BufferVisitor)
    }
}

fn read_here(width: Width, bytes: Vec<u8>) -> Result<Buffer, CodecError> {
    if width == Width::One {
        return Ok(bytes.into());
    }
    if !bytes.len().is_multiple_of(width.bytes()) {
        return Err(CodecError::new(format_args!(
            "a buffer of {} bytes with elements of {}",
            bytes.len(),
            width.bytes()
        )));
    }
    let mut elements = Elements::empty(width);
    elements.resize(bytes.len());
    elements.bytes_mut().copy_from_slice(&bytes);
    Ok(Buffer(Part::from_owned(Owned::new(elements, None))))
}

#[cfg(test)]
mod tests {
    use std::ops::Range;

    use super::*;

    fn read<T: serde::de::DeserializeOwned + 'static>(payload: Payload) -> Result<T, CodecError> {
        scope::read(payload, &[], |body| Codec::Postcard.decode(body))
    }

    use crate::codec::forms::write_described;
    use crate::codec::{Codec, Payload};

    /// Shows what it is told to, whatever it says.
    struct Shows(Vec<u8>, usize);

    impl Source for Shows {
        fn len(&self) -> usize {
            self.1
        }

        fn width(&self) -> Width {
            Width::Two
        }

        fn look(&self, range: Range<usize>, look: &mut dyn FnMut(&[u8])) {
            look(self.0.get(range).unwrap_or_default());
        }
    }

    #[test]
    fn outside_a_call_a_buffer_is_plain_data_and_keeps_its_width() {
        for count in [0, 1, 3, OUT_OF_BAND] {
            let values = vec![1.5_f32; count];
            let buffer = Buffer::from(values.clone());
            let bytes = postcard::to_allocvec(&buffer).unwrap();
            let json = serde_json::to_string(&buffer).unwrap();
            for back in [
                postcard::from_bytes::<Buffer>(&bytes).unwrap(),
                serde_json::from_str(&json).unwrap(),
            ] {
                assert_eq!(back.width(), Width::Four);
                assert_eq!(back.into_vec::<f32>().unwrap(), values);
            }
        }
    }

    #[test]
    fn a_source_is_written_as_a_vector_of_its_width_is() {
        let source = Buffer::from_source(Arc::new(Shows(vec![1, 0, 2, 0], 4)));
        let written = postcard::to_allocvec(&source).unwrap();
        let vector = Buffer::from(vec![1_u16.to_le(), 2_u16.to_le()]);
        assert_eq!(written, postcard::to_allocvec(&vector).unwrap());
        assert_eq!(source.into_vec::<[u8; 2]>().unwrap(), [[1, 0], [2, 0]]);
    }

    #[test]
    fn a_source_that_breaks_its_word_is_an_error() {
        let short = Buffer::from_source(Arc::new(Shows(vec![1, 0, 2], 4)));
        assert!(postcard::to_allocvec(&short).is_err());
        assert!(short.into_vec::<u16>().is_err());
    }

    #[test]
    fn malformed_buffers_are_refused() {
        let bytes = |inside: &Inside<(u32, Raw<'_>)>| postcard::to_allocvec(inside).unwrap();
        for (wrong, why) in [
            (bytes(&Inside::Part(3)), "no such part"),
            (bytes(&Inside::Here((4, Raw(&[0; 16])))), "no such width"),
            (bytes(&Inside::Here((2, Raw(&[0; 6])))), "an uneven length"),
        ] {
            assert!(postcard::from_bytes::<Buffer>(&wrong).is_err(), "{why}");
        }
    }

    #[test]
    fn no_elements_in_shared_memory_are_none_of_any_kind() {
        let empty = Buffer::shared::<f64>(&[]);
        assert_eq!(empty.is_shared(), cfg!(target_os = "linux"));
        assert_eq!(empty.as_slice::<f64>(), Some(&[][..]));
        assert_eq!(empty.into_vec::<f64>(), Ok(Vec::new()));
    }

    /// As a tensor does: it has its elements at once.
    #[derive(PartialEq, Debug)]
    struct Tensor(Vec<f32>);

    impl Serialize for Tensor {
        fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
            Buffer::from(self.0.clone()).serialize(serializer)
        }
    }

    impl<'de> Deserialize<'de> for Tensor {
        fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
            let buffer = Buffer::deserialize(deserializer)?;
            buffer.into_vec().map(Self).map_err(D::Error::custom)
        }
    }

    #[test]
    fn a_buffer_is_still_there_for_the_variant_that_fits_at_last() {
        #[derive(PartialEq, Debug, Serialize, Deserialize)]
        #[serde(untagged)]
        enum Batch {
            Labeled { x: Tensor, y: Tensor },
            Weighed { x: Tensor, weight: f32 },
            Plain { x: Tensor },
        }
        crate::fingerprint::trace::<Batch>();
        let large = || Tensor(vec![1.5; OUT_OF_BAND]);
        for sent in [
            Batch::Plain { x: large() },
            Batch::Labeled {
                x: large(),
                y: large(),
            },
        ] {
            let (payload, _) = scope::write(|| Codec::Postcard.encode(&sent)).unwrap();
            assert!(!payload.parts.is_empty());
            assert!(read::<Batch>(payload) == Ok(sent), "as it was sent");
        }
    }

    /// D5: a few bytes name it again and again.
    #[test]
    fn a_buffer_that_came_once_is_not_copied_without_end() {
        let again = vec![0; 100_000].into_iter().map(Inside::<()>::Part);
        let again: Vec<_> = again.collect();
        let payload = Payload {
            body: write_described(&again, &[]).unwrap().into(),
            parts: vec![Buffer::from(vec![1.5_f32; OUT_OF_BAND]).0],
        };
        assert!(read::<Vec<Tensor>>(payload).is_err());
    }

    #[test]
    fn a_received_buffer_gives_its_vector_away_even_while_its_value_is_read() {
        let values = vec![1.5_f32; OUT_OF_BAND];
        let at = values.as_ptr();
        let part = Buffer::from(values).0;
        let inside = || Inside::<()>::Part(0);
        let payload = |body: Result<Vec<u8>, CodecError>| Payload {
            body: body.unwrap().into(),
            parts: vec![part.clone()],
        };
        let twice = payload(Codec::Postcard.encode(&(inside(), inside())));
        let twice = read::<(Buffer, Buffer)>(twice);
        assert!(twice.is_err(), "there is one");
        let once = payload(Codec::Postcard.encode(&(inside(),)));
        drop((part, twice));
        let (tensor,) = read::<(Tensor,)>(once).expect("it is there");
        assert_eq!((tensor.0.as_ptr(), tensor.0.len()), (at, OUT_OF_BAND));
    }

    #[test]
    fn a_buffer_that_others_have_is_copied_for_each() {
        let buffer = Buffer::from(vec![1_u32, 2]);
        let other = buffer.clone();
        let copy = buffer.into_vec::<u32>().unwrap();
        let itself = other.into_vec::<u32>().unwrap();
        assert_eq!(copy, itself);
        assert_ne!(copy.as_ptr(), itself.as_ptr());
    }
}
