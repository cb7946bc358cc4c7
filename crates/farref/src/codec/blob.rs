//! A buffer that travels beside a value instead of inside it.

use std::fmt;
use std::hash::{Hash, Hasher};
use std::ops::Deref;

use bytes::Bytes;
use serde::de::{Error as _, Visitor};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use super::elements::Width;
use super::error::CodecError;
use super::part::Part;
use super::scope;
use super::shared::SharedBytes;

/// Buffers of this size and above travel out of band; below it, copying is cheaper.
pub(super) const OUT_OF_BAND: usize = 4096;

/// The name under which codecs see a blob.
const NAME: &str = "farref::Blob";

/// A buffer of bytes that is sent without being copied.
///
/// Anywhere inside an argument or a result, a `Blob` of some size is handed to the socket as it is, and
/// read by the receiver straight into the buffer that it ends up in. Cloning it is cheap.
///
/// A large `Vec<u8>` that is itself an argument or a result is not copied either. A `Blob` can be anywhere in a value, is
/// shared by its clones, and where it arrives goes into memory that was used before, which is quicker than fresh one.
///
/// ```
/// use farref::Blob;
///
/// let blob = Blob::from(vec![7u8; 1 << 20]);
/// assert_eq!(blob.len(), 1 << 20);
/// assert_eq!(blob.clone().into_bytes()[0], 7);
/// ```
#[derive(Clone, Default)]
pub struct Blob {
    bytes: Bytes,
    /// The memory that they are in, if others can read it.
    shared: Option<SharedBytes>,
}

impl Blob {
    /// A copy of these bytes that other processes of the same host read where it is.
    ///
    /// For what is kept, and asked for again and again: weights, a table, an index. It is copied here, once, which for
    /// gigabytes takes long: not what an async function should do.
    /// A worker in another process that gets it over a Unix socket (Linux) gets a view of the same memory: nothing is
    /// sent but a descriptor, nothing is copied, and both have the memory once. It can hand it on in the same way. Nobody
    /// can change it any more, neither side and no third one; it is given back when the last process has dropped it,
    /// or has died. `snapshot().peers[i].bytes_in_place` counts what came that way.
    ///
    /// Everywhere else it is as any other blob: on other systems, over TCP, within a process, for a worker that wants
    /// [no shared memory](crate::WorkerBuilder::shared_memory), in a message of less than 64 KiB, or if there is no such
    /// memory left: a process makes at most 256 of them at a time, and takes at most 256 of others, because each takes a
    /// file descriptor. [`is_shared`](Self::is_shared) says what has become of it.
    ///
    /// To send something once, this is not worth it: fresh memory of this kind costs more than the copy that it saves.
    ///
    /// ```
    /// use farref::{Blob, RRef};
    ///
    /// #[farref::remote]
    /// fn load_table() -> Blob {
    ///     Blob::shared(&vec![7; 1 << 20])
    /// }
    ///
    /// # #[tokio::main]
    /// # async fn main() -> farref::Result<()> {
    /// # let cluster = farref::testing::Cluster::start_named(&["a", "b"]).await?;
    /// # let owner = cluster.worker(0).peer("b")?;
    /// let table: RRef<Blob> = load_table::on(&owner).remote();
    /// // Whoever asks for it in a process on the owner's host has the owner's memory.
    /// let blob = table.to_here().await?;
    /// assert_eq!((blob.len(), blob[12345]), (1 << 20, 7));
    /// # drop(table);
    /// # cluster.shutdown().await
    /// # }
    /// ```
    pub fn shared(bytes: &[u8]) -> Self {
        match SharedBytes::copy_of(bytes) {
            Some(shared) => shared.into(),
            None => Bytes::copy_from_slice(bytes).into(),
        }
    }

    /// Whether its bytes are in memory that other processes of the host can read where it is: because it was made
    /// [so](Self::shared), or because it came from a process that had it so.
    ///
    /// ```
    /// use farref::Blob;
    ///
    /// let blob = Blob::shared(b"bytes");
    /// assert_eq!(blob.is_shared(), cfg!(target_os = "linux"));
    /// // What is made of the bytes alone is not.
    /// assert!(!Blob::from(blob.into_bytes()).is_shared());
    /// ```
    pub fn is_shared(&self) -> bool {
        self.shared.is_some()
    }

    /// The bytes.
    ///
    /// ```
    /// use farref::Blob;
    ///
    /// #[farref::remote]
    /// async fn reversed(blob: Blob) -> Blob {
    ///     let mut bytes = Vec::from(blob.into_bytes());
    ///     bytes.reverse();
    ///     bytes.into()
    /// }
    ///
    /// # #[tokio::main]
    /// # async fn main() -> farref::Result<()> {
    /// let cluster = farref::testing::Cluster::start(2).await?;
    /// let me = cluster.worker(0);
    /// let peer = me.peer("worker1")?;
    /// let blob = Blob::from(b"far".to_vec());
    /// assert_eq!(&reversed::on(&peer, blob).await?[..], b"raf");
    /// # cluster.shutdown().await
    /// # }
    /// ```
    pub fn into_bytes(self) -> Bytes {
        self.bytes
    }

    fn part(&self) -> Part {
        match &self.shared {
            Some(shared) => Part::from_shared(shared.clone(), Width::One),
            None => self.bytes.clone().into(),
        }
    }

    fn from_part(part: Part) -> Result<Self, CodecError> {
        Ok(match part.shared() {
            Some(shared) => shared.clone().into(),
            None => part.into_bytes()?.into(),
        })
    }
}

impl PartialEq for Blob {
    fn eq(&self, other: &Self) -> bool {
        self.bytes == other.bytes
    }
}

impl Eq for Blob {}

impl Hash for Blob {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.bytes.hash(state);
    }
}

impl From<SharedBytes> for Blob {
    fn from(shared: SharedBytes) -> Self {
        Self {
            bytes: Bytes::from_owner(shared.clone()),
            shared: Some(shared),
        }
    }
}

impl Deref for Blob {
    type Target = Bytes;

    fn deref(&self) -> &Bytes {
        &self.bytes
    }
}

impl From<Bytes> for Blob {
    fn from(bytes: Bytes) -> Self {
        let shared = None;
        Self { bytes, shared }
    }
}

impl From<Vec<u8>> for Blob {
    fn from(bytes: Vec<u8>) -> Self {
        Bytes::from(bytes).into()
    }
}

impl fmt::Debug for Blob {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Blob({} bytes)", self.len())
    }
}

/// How a blob or a buffer looks inside an encoded value.
#[derive(Serialize, Deserialize)]
pub(super) enum Inside<B> {
    Here(B),
    Part(u32),
}

/// Bytes as bytes: serde takes a slice for a list of numbers.
pub(super) struct Raw<'a>(pub(super) &'a [u8]);

impl Serialize for Raw<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_bytes(self.0)
    }
}

/// Bytes, however a codec gives them.
pub(super) struct OwnedBytes(pub(super) Vec<u8>);

impl<'de> Deserialize<'de> for OwnedBytes {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct AnyBytes;

        impl<'de> Visitor<'de> for AnyBytes {
            type Value = OwnedBytes;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("bytes")
            }

            fn visit_bytes<E>(self, bytes: &[u8]) -> Result<OwnedBytes, E> {
                Ok(OwnedBytes(bytes.to_vec()))
            }

            fn visit_byte_buf<E>(self, bytes: Vec<u8>) -> Result<OwnedBytes, E> {
                Ok(OwnedBytes(bytes))
            }

            fn visit_seq<A: serde::de::SeqAccess<'de>>(
                self,
                mut list: A,
            ) -> Result<OwnedBytes, A::Error> {
                let mut bytes = Vec::new();
                while let Some(byte) = list.next_element()? {
                    bytes.push(byte);
                }
                Ok(OwnedBytes(bytes))
            }
        }

        deserializer.deserialize_byte_buf(AnyBytes)
    }
}

impl Serialize for Blob {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let part = if self.len() < OUT_OF_BAND {
            None
        } else {
            scope::attach(|| self.part())
        };
        let inside = part.map_or(Inside::Here(Raw(&self.bytes)), Inside::Part);
        serializer.serialize_newtype_struct(NAME, &inside)
    }
}

impl<'de> Deserialize<'de> for Blob {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct BlobVisitor;

        impl<'de> Visitor<'de> for BlobVisitor {
            type Value = Blob;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a blob")
            }

            fn visit_newtype_struct<D: Deserializer<'de>>(
                self,
                deserializer: D,
            ) -> Result<Blob, D::Error> {
                match Inside::<OwnedBytes>::deserialize(deserializer)? {
                    Inside::Here(OwnedBytes(bytes)) => Ok(bytes.into()),
                    Inside::Part(index) => {
                        let part = scope::take_attached(index).map_err(D::Error::custom)?;
                        let blob = Blob::from_part(part).map_err(D::Error::custom)?;
                        // A blob that is asked for twice is there twice.
                        scope::put_back(index, blob.part());
                        Ok(blob)
                    }
                }
            }

            /// For whoever traces the shape of a type; no codec writes a blob as nothing.
            fn visit_unit<E>(self) -> Result<Blob, E> {
                Ok(Blob::default())
            }
        }

        deserializer.deserialize_newtype_struct(NAME, BlobVisitor)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn outside_a_call_a_blob_is_plain_data() {
        for len in [0, 1, OUT_OF_BAND, 3 * OUT_OF_BAND] {
            let blob = Blob::from(vec![3; len]);
            let bytes = postcard::to_allocvec(&blob).unwrap();
            assert_eq!(postcard::from_bytes::<Blob>(&bytes).unwrap(), blob);
            let json = serde_json::to_string(&blob).unwrap();
            assert_eq!(serde_json::from_str::<Blob>(&json).unwrap(), blob);
        }
    }

    #[test]
    fn a_part_that_did_not_come_is_an_error() {
        let bytes = postcard::to_allocvec(&Inside::<()>::Part(3)).unwrap();
        assert!(postcard::from_bytes::<Blob>(&bytes).is_err());
    }

    #[test]
    fn a_blob_is_still_there_for_the_variant_that_fits_at_last() {
        use crate::codec::Codec;

        #[derive(PartialEq, Debug, Serialize, Deserialize)]
        #[serde(untagged)]
        enum Message {
            Signed { content: Blob, signature: u64 },
            Plain { content: Blob },
        }
        crate::fingerprint::trace::<Message>();
        let content = Blob::from(vec![3; OUT_OF_BAND]);
        let sent = Message::Plain { content };
        let (payload, _) = scope::write(|| Codec::Postcard.encode(&sent)).unwrap();
        assert_eq!(payload.parts.len(), 1);
        let read = scope::read(payload, &[], |body| Codec::Postcard.decode(body));
        assert_eq!(read, Ok(sent));
    }
}
