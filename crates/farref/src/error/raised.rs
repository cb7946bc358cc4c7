//! The error that a remote function returned, as what it is: its own type.
//!
//! It travels beside the text of the error, as serde's bytes of it, and is read only by who asks for it
//! ([`Call::result`](crate::Call::result), [`Error::downcast`](crate::Error::downcast)).
//!
//! # Invariants
//!
//! - **RE-1** It is read as the type that it was written as, and as no other: type and bytes travel together.
//! - **RE-2** It is bounded, whoever wrote it: what is larger than [`MAX_BYTES`] does not travel. The text of
//!   the error arrives all the same, and why the value did not.

use std::any::{Any, type_name};
use std::fmt;
use std::sync::OnceLock;

use farref_proto::Fingerprint;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::codec::{Codec, CodecError, Payload, scope};
use crate::fingerprint;
use crate::support::text::{MAX_TEXT, said};

/// What a function's own error may take.
const MAX_BYTES: usize = 64 << 10;

/// A function's own error, written; or why it was not.
///
/// A wire may leave it out: the error's text travels beside it.
///
/// ```
/// use farref::agent::Failure;
///
/// // A wire that cannot carry it.
/// fn without_value(failure: Failure) -> Failure {
///     match failure {
///         Failure::Returned(messages, _) => Failure::Returned(messages, None),
///         other => other,
///     }
/// }
/// # let failure = Failure::Returned(vec!["no".to_owned()], None);
/// # assert_eq!(without_value(failure.clone()), failure);
/// ```
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ErrorValue {
    /// The fingerprint of its type.
    of: Fingerprint,
    /// It, or why it cannot be sent.
    written: Result<Vec<u8>, String>,
    #[serde(skip)]
    lent: Lent,
}

/// The error as it was read for somebody who only wanted to look at it.
#[derive(Default)]
struct Lent(OnceLock<Option<Box<dyn Any + Send + Sync>>>);

/// What was read of an error makes it no other one.
impl Clone for Lent {
    fn clone(&self) -> Self {
        Self::default()
    }
}

impl PartialEq for Lent {
    fn eq(&self, _: &Self) -> bool {
        true
    }
}

impl Eq for Lent {}

impl ErrorValue {
    /// Writes an error. References cannot go with it; buffers in it are copied.
    pub(crate) fn write<E: Serialize + Deserialize<'static> + 'static>(error: &E) -> Self {
        let written = match Codec::encode_at_most(error, MAX_BYTES) {
            Ok(Some(bytes)) => Ok(bytes),
            Ok(None) => Err(too_large()),
            Err(reason) => Err(said(reason)),
        };
        let value = Self {
            of: fingerprint::of_error::<E>(),
            written,
            lent: Lent::default(),
        };
        value.bounded()
    }

    /// RE-2
    pub(crate) fn bounded(mut self) -> Self {
        match &mut self.written {
            Ok(bytes) if bytes.len() > MAX_BYTES => {
                self.written = Err(too_large());
            }
            Err(reason) if reason.len() > MAX_TEXT => *reason = said(&*reason),
            _ => {}
        }
        self
    }

    /// RE-1: whether it is an `E`.
    pub(crate) fn is<E: DeserializeOwned + 'static>(&self) -> bool {
        self.of == fingerprint::of_error::<E>()
    }

    /// Reads it as what [it is](Self::is).
    pub(crate) fn read<E: DeserializeOwned + 'static>(&self) -> Result<E, Unreadable> {
        let bytes = match &self.written {
            Ok(bytes) if self.is::<E>() => bytes,
            Ok(_) => {
                let reason = format_args!("it is no `{}`", type_name::<E>());
                return Err(Unreadable::Read(CodecError::new(reason)));
            }
            Err(reason) => return Err(Unreadable::Written(CodecError::new(reason))),
        };
        // Nothing came along with it: it must not find buffers of whatever is being read around it.
        let payload = Payload {
            body: bytes.clone().into(),
            parts: Vec::new(),
        };
        scope::read(payload, &[], |body| Codec::Postcard.decode(body)).map_err(Unreadable::Read)
    }

    /// Lends it as what [it is](Self::is). It is read once.
    pub(crate) fn lend<E: DeserializeOwned + Send + Sync + 'static>(&self) -> Option<&E> {
        if !self.is::<E>() {
            return None;
        }
        let read = || self.read::<E>().ok().map(|error| Box::new(error) as Box<_>);
        self.lent.0.get_or_init(read).as_ref()?.downcast_ref()
    }
}

impl fmt::Debug for ErrorValue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.written {
            Ok(bytes) => write!(f, "ErrorValue({} bytes)", bytes.len()),
            Err(reason) => write!(f, "ErrorValue(not sent: {reason})"),
        }
    }
}

/// RE-2
fn too_large() -> String {
    format!(
        "it takes more bytes than an error has, {MAX_BYTES} at most: return what is large as a value"
    )
}

/// Why there is no error of the type that was asked for.
pub(crate) enum Unreadable {
    /// It could not be written where it was raised.
    Written(CodecError),
    /// It cannot be read here.
    Read(CodecError),
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use serde::ser::SerializeSeq;

    use super::*;

    #[derive(PartialEq, Debug, Serialize, Deserialize)]
    enum Broke {
        Owes(u64),
        Says(String),
    }

    fn reads(value: &ErrorValue) -> Option<Broke> {
        value.read().ok()
    }

    #[test]
    fn re_1_an_error_is_read_as_what_it_was_written_as_and_as_nothing_else() {
        let value = ErrorValue::write(&Broke::Owes(7));
        assert!(value.is::<Broke>() && !value.is::<u64>());
        assert_eq!(reads(&value), Some(Broke::Owes(7)));
        assert!(matches!(value.read::<u64>(), Err(Unreadable::Read(_))));
        // A peer may write anything.
        let other = ErrorValue {
            written: Ok(vec![9; 9]),
            ..value
        };
        assert!(matches!(other.read::<Broke>(), Err(Unreadable::Read(_))));
    }

    #[test]
    fn re_2_an_error_that_is_too_large_is_not_sent_and_says_so() {
        let fits = Broke::Says("x".repeat(MAX_BYTES - 100));
        assert_eq!(reads(&ErrorValue::write(&fits)), Some(fits));
        let large = Broke::Says("x".repeat(MAX_BYTES));
        let value = ErrorValue::write(&large);
        let Err(reason) = &value.written else {
            panic!("it is too large");
        };
        assert!(reason.contains("65536 at most"), "{reason}");
        assert!(matches!(value.read::<Broke>(), Err(Unreadable::Written(_))));
        // Also if it comes from somebody who does not know that.
        let bytes = Codec::Postcard.encode(&large).unwrap();
        let value = ErrorValue {
            written: Ok(bytes),
            ..value
        };
        assert_eq!(reads(&value.bounded()), None);
        let talks = ErrorValue {
            of: fingerprint::of_error::<Broke>(),
            written: Err("x".repeat(2 * MAX_TEXT)),
            lent: Lent::default(),
        };
        let bounded = talks.bounded().written.unwrap_err();
        assert_eq!(bounded.len(), MAX_TEXT);
    }

    /// How many of its elements have been written.
    static WRITTEN: AtomicUsize = AtomicUsize::new(0);

    /// Has endless elements, for all that an error can be. `true`: and says so.
    #[derive(Deserialize)]
    struct Endless(bool);

    impl Serialize for Endless {
        fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
            const ALL: usize = 1 << 24;
            let mut all = serializer.serialize_seq((!self.0).then_some(ALL))?;
            for _ in 0..ALL {
                WRITTEN.fetch_add(1, Ordering::Relaxed);
                all.serialize_element("0123456789")?;
            }
            all.end()
        }
    }

    /// So many bytes, each by itself.
    #[derive(Deserialize)]
    struct Bytes(usize);

    impl Serialize for Bytes {
        fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
            let mut all = serializer.serialize_seq(Some(self.0))?;
            for number in 0..self.0 {
                // Whoever goes on past the end does so for ever.
                assert!(number <= MAX_BYTES, "all of it is written");
                all.serialize_element(&7_u8)?;
            }
            all.end()
        }
    }

    #[test]
    fn re_2_single_bytes_count_as_well() {
        let value = ErrorValue::write(&Bytes(1 << 24));
        assert!(
            value
                .written
                .is_err_and(|reason| reason.contains("65536 at most"))
        );
    }

    /// What travels beside the value that is being read is no part of an error inside of it.
    #[test]
    fn re_1_an_error_has_no_buffers_of_what_is_read_around_it() {
        let blob = crate::Blob::from(vec![7_u8; 1 << 20]);
        let written = scope::write(|| Codec::Postcard.encode(&blob));
        let (payload, _) = written.expect("a blob can be sent");
        assert_eq!(payload.parts.len(), 1);
        let value = ErrorValue {
            of: fingerprint::of_error::<crate::Blob>(),
            written: Ok(payload.body.to_vec()),
            lent: Lent::default(),
        };
        let read = scope::read(payload, &[], |_| Ok(value.read::<crate::Blob>().is_ok()));
        assert_eq!(read, Ok(false));
    }

    /// What an error has in it may be as large as a value, and there may be many such errors at once.
    #[test]
    fn re_2_no_more_of_an_error_is_written_than_can_be_sent() {
        for has_no_length in [false, true] {
            WRITTEN.store(0, Ordering::Relaxed);
            let value = ErrorValue::write(&Endless(has_no_length));
            let Err(reason) = &value.written else {
                panic!("it is too large");
            };
            assert!(reason.contains("65536 at most"), "{reason}");
            let written = WRITTEN.load(Ordering::Relaxed);
            assert!(written <= MAX_BYTES / 10, "{written} elements");
        }
    }
}
