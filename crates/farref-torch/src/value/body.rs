//! What the runtime sees of a value on PyTorch's wire: its pickle, and what an agent has to know to send or
//! read it.
//!
//! Going out, a pickle has *placeholders*: where a reference belongs, whose fork is made only when the message is
//! sent, and where bytes belong that travel beside the value inside of this process. The agent fills them.
//! Coming in, a pickle is as the peer wrote it; the agent says which of its nodes are the references that came
//! with the message. A call of this worker to itself is read as it was written.

use bytes::Bytes;
use serde::{Deserialize, Serialize};

use crate::rpc::tensors::Dtype;
use farref_pickle::value::ValueError;

/// A value.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
pub(crate) struct Body {
    /// Where in the pickle the value is.
    pub(crate) form: Form,
    #[serde(with = "raw")]
    pub(crate) pickle: Vec<u8>,
    /// In the order of their places.
    pub(crate) placeholders: Vec<Placeholder>,
    /// The tensors that the pickle refers to, by their place in the list of the message.
    pub(crate) tensors: Vec<TensorEntry>,
    /// The nodes of the pickle that are references, in the order in which the message carries them.
    pub(crate) references: Vec<u32>,
    /// Set if the message was received with tensors that need gradients.
    pub(crate) received: Option<Received>,
}

/// The first fields of a [`Body`].
#[derive(Debug, Default, Deserialize)]
pub(crate) struct Measured<'a> {
    #[expect(dead_code, reason = "it is before the others")]
    form: Form,
    pub(crate) pickle: &'a [u8],
    pub(crate) placeholders: Vec<Placeholder>,
    pub(crate) tensors: Vec<TensorEntry>,
}

/// Where in a pickle a value is.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub(crate) enum Form {
    /// All of it.
    #[default]
    Whole,
    /// The arguments of the call of a Python function that it is.
    Udf,
    /// The same, where the function calls a method: the arguments for that, and where they are.
    Method,
    /// The same, where one Rust worker calls a method of another's value.
    RustMethod,
    /// The first so many of the tuple that it is.
    Head(u32),
    /// The only one of the tuple that it is.
    Only,
    /// The arguments of a function that has none.
    Nothing,
    /// The arguments of a call whose function is a method of an object behind a reference: `rref.rpc_sync().method`.
    Proxied,
}

/// A place in a pickle that is filled when it is sent.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(crate) struct Placeholder {
    pub(crate) at: u32,
    /// How many bytes stand there meanwhile.
    pub(crate) len: u32,
    pub(crate) replacement: Replacement,
}

/// What takes the place of a placeholder.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(crate) enum Replacement {
    /// The reference that the message carries under this number.
    Reference(u32),
    /// The bytes of this part.
    Part(u32),
}

/// A tensor.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub(crate) struct TensorEntry {
    pub(crate) dtype: Dtype,
    pub(crate) shape: Vec<usize>,
    pub(crate) requires_grad: bool,
    /// The message that it is recorded under, and which of its tensors it is. Only going out.
    pub(crate) link: Option<(u64, u32)>,
    pub(crate) data: TensorData,
}

/// Where the bytes of a tensor are.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub(crate) enum TensorData {
    /// In the parts of the message: the same bytes once for every time that the value refers to them.
    Parts(Vec<u32>),
    /// Here, with the size of an element.
    Here(u8, #[serde(with = "raw")] Vec<u8>),
}

/// The message that tensors came in which need gradients.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
pub(crate) struct Received {
    /// PyTorch's number of the context.
    pub(crate) context: i64,
    pub(crate) from: u16,
    /// The number that the sender records it under.
    pub(crate) message: u64,
}

impl Body {
    /// The value `None`.
    pub(crate) fn nothing() -> Self {
        let mut writer = crate::pickle::Writer::new(4);
        writer.none();
        Self {
            pickle: writer.finish(),
            ..Self::default()
        }
    }

    /// What the runtime is given.
    pub(crate) fn encode(&self) -> Result<Vec<u8>, ValueError> {
        postcard::to_allocvec(self).map_err(ValueError::new)
    }

    /// What the runtime gives back. An empty one is that of a call without arguments.
    pub(crate) fn decode(bytes: &[u8]) -> Result<Self, ValueError> {
        match bytes {
            [] => Ok(Self {
                form: Form::Nothing,
                ..Self::default()
            }),
            bytes => postcard::from_bytes(bytes).map_err(ValueError::new),
        }
    }

    /// The same without copying the pickle, for whoever wants to know how large it is.
    pub(crate) fn measure(bytes: &[u8]) -> Result<Measured<'_>, ValueError> {
        if bytes.is_empty() {
            return Ok(Measured::default());
        }
        let (measured, _) = postcard::take_from_bytes(bytes).map_err(ValueError::new)?;
        Ok(measured)
    }

    /// The number that tensors going out are recorded under, if some are.
    pub(crate) fn recorded(&self) -> Option<u64> {
        let mut links = self.tensors.iter().filter_map(|tensor| tensor.link);
        links.next().map(|(number, _)| number)
    }

    /// What the runtime is given, as bytes.
    pub(crate) fn into_bytes(self) -> Result<Bytes, ValueError> {
        Ok(self.encode()?.into())
    }
}

/// Bytes as bytes, and not one by one.
mod raw {
    use serde::{Deserializer, Serializer};

    pub(super) fn serialize<S: Serializer>(bytes: &[u8], serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_bytes(bytes)
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(
        deserializer: D,
    ) -> Result<Vec<u8>, D::Error> {
        struct Bytes;

        impl serde::de::Visitor<'_> for Bytes {
            type Value = Vec<u8>;

            fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str("bytes")
            }

            fn visit_bytes<E>(self, bytes: &[u8]) -> Result<Vec<u8>, E> {
                Ok(bytes.to_vec())
            }
        }

        deserializer.deserialize_bytes(Bytes)
    }
}
