//! TensorPipe's channel `cma`: the sender says where in its memory a tensor is, and the receiver reads it there.

use crate::nop::{NopError, Reader, Writer};

/// Where a tensor is. When the receiver has read it, it answers with a frame without bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct MemoryDescriptor {
    /// The number of the process.
    pub(crate) pid: u32,
    pub(crate) address: u64,
}

/// The most bytes that one takes.
pub(crate) const LONGEST_MEMORY_DESCRIPTOR: u64 = 16;

impl MemoryDescriptor {
    pub(crate) fn encode(self) -> Vec<u8> {
        let mut writer = Writer::new();
        let Self { pid, address } = self;
        writer.members(2).unsigned(pid.into()).unsigned(address);
        writer.finish()
    }

    pub(crate) fn decode(bytes: &[u8]) -> Result<Self, NopError> {
        let mut reader = Reader::new(bytes);
        reader.members(2)?;
        let (pid, address) = (reader.unsigned()?, reader.unsigned()?);
        reader.finish()?;
        let pid = u32::try_from(pid).map_err(|_| NopError::Count {
            what: "a process",
            count: pid,
            expected: "a number of 32 bits",
        })?;
        Ok(Self { pid, address })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_place_in_memory_is_what_tensorpipe_writes() {
        let place = MemoryDescriptor {
            pid: 70_000,
            address: 0x7f12_3456_7890,
        };
        let bytes = place.encode();
        let expected = b"\xb9\x02\x82\x70\x11\x01\x00\x83\x90\x78\x56\x34\x12\x7f\x00\x00";
        assert_eq!(bytes, expected);
        assert!(bytes.len() as u64 <= LONGEST_MEMORY_DESCRIPTOR);
        assert_eq!(MemoryDescriptor::decode(&bytes), Ok(place));
        for size in 0..bytes.len() {
            assert!(MemoryDescriptor::decode(&bytes[..size]).is_err());
        }
        let no_process = b"\xb9\x02\x83\x00\x00\x00\x00\x01\x00\x00\x00\x01";
        assert!(MemoryDescriptor::decode(no_process).is_err());
    }
}
