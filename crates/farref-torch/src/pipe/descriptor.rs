//! What one message consists of: the lengths of its payloads and tensors.

use std::mem::take;

use super::brochure::{cpu, read_device, write_device};
use crate::nop::{NopError, Reader, Writer};

/// How many payloads PyTorch's messages have.
pub(crate) const PAYLOADS: usize = 4;

/// The lengths of a message's parts.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Descriptor {
    /// Type, id, the message itself, its list of tensors.
    pub(crate) payloads: [u64; PAYLOADS],
    pub(crate) tensors: Vec<TensorSlot>,
}

/// Room for the bytes of one storage.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct TensorSlot {
    pub(crate) bytes: u64,
    /// Whether it comes from the processor's memory, and goes there. Others are not for this worker.
    pub(crate) on_cpu: bool,
}

impl Descriptor {
    #[cfg(any(test, feature = "fuzzing"))]
    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut bytes = Vec::new();
        self.append(&mut bytes);
        bytes
    }

    /// Writes it behind what is there.
    pub(crate) fn append(&self, to: &mut Vec<u8>) {
        let mut writer = Writer::onto(take(to));
        writer.members(3).text("").elements(PAYLOADS);
        for payload in self.payloads {
            writer.members(2).unsigned(payload).text("");
        }
        writer.elements(self.tensors.len());
        for tensor in &self.tensors {
            writer.members(4).unsigned(tensor.bytes);
            write_device(&mut writer, &cpu());
            write_device(&mut writer, &cpu());
            writer.text("");
        }
        *to = writer.finish();
    }

    pub(crate) fn decode(bytes: &[u8]) -> Result<Self, NopError> {
        let mut reader = Reader::new(bytes);
        reader.members(3)?;
        reader.text()?;
        let count = reader.elements()?;
        if count != PAYLOADS {
            return Err(NopError::Count {
                what: "payloads",
                count: count as u64,
                expected: "4",
            });
        }
        let mut payloads = [0; PAYLOADS];
        for payload in &mut payloads {
            reader.members(2)?;
            *payload = reader.unsigned()?;
            reader.text()?;
        }
        let mut tensors = Vec::new();
        for _ in 0..reader.elements()? {
            reader.members(4)?;
            let bytes = reader.unsigned()?;
            let source = read_device(&mut reader)?;
            let target = match reader.is_there() {
                true => read_device(&mut reader)?,
                false => source.clone(),
            };
            reader.text()?;
            let on_cpu = source.0 == "cpu" && target.0 == "cpu";
            tensors.push(TensorSlot { bytes, on_cpu });
        }
        reader.finish()?;
        Ok(Self { payloads, tensors })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_descriptor_is_what_tensorpipe_writes() {
        let expected = b"\xb9\x03\xbd\x00\xba\x04\xb9\x02\x04\xbd\x00\xb9\x02\x08\xbd\x00\
            \xb9\x02\x80\xac\xbd\x00\xb9\x02\x2f\xbd\x00\xba\x00";
        let descriptor = Descriptor {
            payloads: [4, 8, 0xac, 0x2f],
            tensors: Vec::new(),
        };
        assert_eq!(descriptor.encode(), expected);
        assert_eq!(Descriptor::decode(expected), Ok(descriptor));
    }

    #[test]
    fn tensors_are_described_as_tensorpipe_does() {
        let descriptor = Descriptor {
            payloads: [4, 8, 1, 1],
            tensors: vec![TensorSlot {
                bytes: 8,
                on_cpu: true,
            }],
        };
        let bytes = descriptor.encode();
        let expected = b"\xb9\x04\x08\xb9\x02\xbd\x03cpu\x00\xb9\x02\xbd\x03cpu\x00\xbd\x00";
        assert!(bytes.ends_with(expected));
        assert_eq!(Descriptor::decode(&bytes), Ok(descriptor));
    }
}
