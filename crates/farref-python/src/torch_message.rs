//! Messages of PyTorch's layer: what it has pickled goes as it is, with a few words of farref's before it.
//!
//! PyTorch pickles calls and answers itself, and keeps tensors and references out of the pickle. Those go beside it, as a pickle
//! of farref's: so most messages, which have neither, are pickled once.
//!
//! The words: a byte that says which of them are there, who sends it (4 bytes), what autograd says (twice 8 bytes), and the
//! pickle of what is beside, after its length (4 bytes). Little end first.

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyTuple};

use crate::objects::{Object, Pickled};

const HAS_GRAD: u8 = 1;
const HAS_BESIDE: u8 = 2;

/// The context of a message, and which message of it this is.
pub(crate) type Grad = (u64, u64);

/// A message that is going to be sent.
pub(crate) struct Leaving<'a, 'py> {
    pub(crate) sender: u32,
    pub(crate) pickle: &'a [u8],
    /// Tensors and references.
    pub(crate) beside: Option<Bound<'py, PyAny>>,
    pub(crate) grad: Option<Grad>,
}

impl Leaving<'_, '_> {
    pub(crate) fn into_pickled(self) -> PyResult<Pickled> {
        let beside = self.beside.as_ref().map(Pickled::of).transpose()?;
        let size = beside.as_ref().map_or(0, |beside| beside.bytes().len());
        let mut bytes = Vec::with_capacity(25 + size + self.pickle.len());
        bytes.push(match (&self.grad, &beside) {
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
        if let Some(beside) = &beside {
            let size = u32::try_from(size).map_err(|_| {
                PyValueError::new_err("too much beside a message: send less at once")
            })?;
            bytes.extend(size.to_le_bytes());
            bytes.extend_from_slice(beside.bytes());
        }
        bytes.extend_from_slice(self.pickle);
        Ok(Pickled::with_beside_of(bytes, beside))
    }
}

/// What `farref.torch._calls` has made of an answer: the pickle, what is beside it, what autograd says.
pub(crate) fn answer(message: &Bound<'_, PyAny>) -> PyResult<Object> {
    let (pickle, beside, grad): (Bound<'_, PyBytes>, Option<Bound<'_, PyAny>>, Option<Grad>) =
        message.extract()?;
    let leaving = Leaving {
        sender: 0,
        pickle: pickle.as_bytes(),
        beside,
        grad,
    };
    leaving.into_pickled().map(Object::Pickled)
}

/// A message that has come: the pickle, what is beside it, what autograd says, and who sends it.
pub(crate) fn arrived(py: Python<'_>, message: Pickled) -> PyResult<Bound<'_, PyTuple>> {
    let bytes = message.bytes();
    let read = Words::read(bytes).ok_or_else(|| {
        PyValueError::new_err("a message of another worker is no message of PyTorch's layer")
    })?;
    let pickle = PyBytes::new(py, read.pickle);
    let (grad, sender) = (read.grad, read.sender);
    let beside = match read.beside.map(<[u8]>::to_vec) {
        Some(beside) => Some(message.with_pickle(beside).unpickle(py)?),
        None => None,
    };
    (pickle, beside, grad, sender).into_pyobject(py)
}

#[derive(PartialEq, Eq, Debug)]
struct Words<'a> {
    sender: u32,
    grad: Option<Grad>,
    beside: Option<&'a [u8]>,
    pickle: &'a [u8],
}

impl<'a> Words<'a> {
    /// None if it is cut off, or says what nobody knows.
    fn read(bytes: &'a [u8]) -> Option<Self> {
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
}

fn take<const N: usize>(rest: &mut &[u8]) -> Option<[u8; N]> {
    let (taken, after) = rest.split_first_chunk()?;
    *rest = after;
    Some(*taken)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_that_are_cut_off_or_unknown_are_none() {
        let mut whole = vec![HAS_GRAD | HAS_BESIDE];
        whole.extend(7_u32.to_le_bytes());
        whole.extend(1_u64.to_le_bytes());
        whole.extend(2_u64.to_le_bytes());
        whole.extend(3_u32.to_le_bytes());
        whole.extend(b"abc");
        let words = Words {
            sender: 7,
            grad: Some((1, 2)),
            beside: Some(b"abc".as_slice()),
            pickle: &[],
        };
        assert_eq!(Words::read(&whole), Some(words));
        for length in 0..whole.len() {
            assert_eq!(Words::read(&whole[..length]), None, "{length} bytes");
        }
        whole[0] |= 4;
        assert_eq!(Words::read(&whole), None);
    }
}
