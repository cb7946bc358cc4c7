//! What a connection begins with: a new pipe, or a further connection of one that is being set up.

use crate::nop::{NopError, Reader, Writer};

/// The first object on a connection.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Greeting {
    /// A new pipe, of a worker of this name.
    Spontaneous { from: String },
    /// The connection that was asked for under this number.
    Requested { number: u64 },
}

impl Greeting {
    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut writer = Writer::new();
        match self {
            Self::Spontaneous { from } => writer.variant(0).members(1).text(from),
            Self::Requested { number } => writer.variant(1).members(1).unsigned(*number),
        };
        writer.finish()
    }

    pub(crate) fn decode(bytes: &[u8]) -> Result<Self, NopError> {
        let mut reader = Reader::new(bytes);
        let which = reader.variant()?;
        let greeting = match which {
            0 => {
                reader.members(1)?;
                let from = reader.text()?.to_owned();
                Self::Spontaneous { from }
            }
            1 => {
                reader.members(1)?;
                let number = reader.unsigned()?;
                Self::Requested { number }
            }
            count => {
                return Err(NopError::Count {
                    what: "a greeting",
                    count,
                    expected: "variant 0 or 1",
                });
            }
        };
        reader.finish()?;
        Ok(greeting)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn greetings_are_what_tensorpipe_writes() {
        let new = Greeting::Spontaneous {
            from: "worker1".to_owned(),
        };
        assert_eq!(new.encode(), b"\xb8\x00\xb9\x01\xbd\x07worker1");
        let further = Greeting::Requested { number: 0 };
        assert_eq!(further.encode(), b"\xb8\x01\xb9\x01\x00");
        for greeting in [new, further] {
            assert_eq!(Greeting::decode(&greeting.encode()), Ok(greeting));
        }
    }

    #[test]
    fn no_part_of_a_greeting_passes_for_one() {
        let bytes = b"\xb8\x00\xb9\x01\xbd\x07worker1";
        for size in 0..bytes.len() {
            assert!(Greeting::decode(&bytes[..size]).is_err());
        }
        let longer = [&bytes[..], b"x"].concat();
        assert_eq!(Greeting::decode(&longer), Err(NopError::Trailing(1)));
    }
}
