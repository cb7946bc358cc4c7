//! Messages of PyTorch's layer on farref's own wire (`farref.torch`): PyTorch's pickle as it is, with a few words before it.
//!
//! The words: a byte that says which of the others are there, who sends it (4 bytes), what autograd says (twice 8 bytes), and
//! the pickle of what travels beside, or [small tensors](crate::small_tensors), after its length (4 bytes). Little end first.

const HAS_GRAD: u8 = 1;
const HAS_BESIDE: u8 = 2;

/// The context of a message, and which message of it this is.
pub type Grad = (u64, u64);

/// A message.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct TorchMessage<'a> {
    /// PyTorch's number of the worker that sends it.
    pub sender: u32,
    /// What autograd says.
    pub grad: Option<Grad>,
    /// Tensors and references, which PyTorch keeps out of its pickle.
    pub beside: Option<&'a [u8]>,
    /// PyTorch's.
    pub pickle: &'a [u8],
}

impl<'a> TorchMessage<'a> {
    /// None if it is cut off, or says what nobody knows.
    pub fn read(bytes: &'a [u8]) -> Option<Self> {
        let (&flags, mut rest) = bytes.split_first()?;
        if flags & !(HAS_GRAD | HAS_BESIDE) != 0 {
            return None;
        }
        let sender = u32::from_le_bytes(take(&mut rest)?);
        let grad = match flags & HAS_GRAD {
            0 => None,
            _ => Some((
                u64::from_le_bytes(take(&mut rest)?),
                u64::from_le_bytes(take(&mut rest)?),
            )),
        };
        let beside = match flags & HAS_BESIDE {
            0 => None,
            _ => {
                let size = u32::from_le_bytes(take(&mut rest)?);
                let (beside, after) = rest.split_at_checked(usize::try_from(size).ok()?)?;
                rest = after;
                Some(beside)
            }
        };
        Some(Self {
            sender,
            grad,
            beside,
            pickle: rest,
        })
    }

    /// Its bytes. None if there is too much beside it: 4 GiB.
    pub fn write(&self) -> Option<Vec<u8>> {
        let beside = self.beside.unwrap_or_default();
        let mut bytes = Vec::with_capacity(25 + beside.len() + self.pickle.len());
        bytes.push(match (&self.grad, &self.beside) {
            (None, None) => 0,
            (Some(_), None) => HAS_GRAD,
            (None, Some(_)) => HAS_BESIDE,
            (Some(_), Some(_)) => HAS_GRAD | HAS_BESIDE,
        });
        bytes.extend(self.sender.to_le_bytes());
        if let Some((context, message)) = self.grad {
            bytes.extend(context.to_le_bytes());
            bytes.extend(message.to_le_bytes());
        }
        if self.beside.is_some() {
            bytes.extend(u32::try_from(beside.len()).ok()?.to_le_bytes());
            bytes.extend_from_slice(beside);
        }
        bytes.extend_from_slice(self.pickle);
        Some(bytes)
    }
}

pub(crate) fn take<const N: usize>(rest: &mut &[u8]) -> Option<[u8; N]> {
    let (taken, after) = rest.split_first_chunk()?;
    *rest = after;
    Some(*taken)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn message(grad: Option<Grad>, beside: Option<&'static [u8]>) -> TorchMessage<'static> {
        TorchMessage {
            sender: 7,
            grad,
            beside,
            pickle: b"pickle",
        }
    }

    #[test]
    fn what_is_written_is_read_as_it_was() {
        for grad in [None, Some((1, u64::MAX))] {
            for beside in [None, Some(b"".as_slice()), Some(b"beside".as_slice())] {
                let message = message(grad, beside);
                let bytes = message.write().unwrap();
                assert_eq!(TorchMessage::read(&bytes), Some(message));
            }
        }
    }

    #[test]
    fn words_that_are_cut_off_or_unknown_are_none() {
        let whole = TorchMessage {
            pickle: b"",
            ..message(Some((1, 2)), Some(b"abc"))
        };
        let mut bytes = whole.write().unwrap();
        assert_eq!(TorchMessage::read(&bytes), Some(whole));
        for length in 0..bytes.len() {
            assert_eq!(
                TorchMessage::read(&bytes[..length]),
                None,
                "{length} bytes of it"
            );
        }
        bytes[0] |= 4;
        assert_eq!(TorchMessage::read(&bytes), None);
    }
}
