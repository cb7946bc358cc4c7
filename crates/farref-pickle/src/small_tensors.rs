//! Small tensors beside messages of PyTorch's layer: as they are, without a pickle.
//!
//! How many (1 byte, less than that with which pickles begin); then of each which type its elements have (1 byte, a place in the list
//! of `farref-python`'s `dlpack`), whether it wants a gradient (1 byte), how many dimensions (1 byte) and their lengths (8 bytes
//! each), and its memory after the number of its bytes (4 bytes). Little end first.

use crate::torch_message::take;

/// With it pickles begin.
const PICKLE: u8 = 0x80;

/// A tensor whose elements lie one after the other.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct SmallTensor<'a> {
    /// Which type its elements have.
    pub kind: u8,
    /// Whether it wants a gradient.
    pub wants: bool,
    /// The lengths of its dimensions.
    pub size: Vec<u64>,
    /// Its elements.
    pub memory: &'a [u8],
}

/// The bytes before so many tensors. None if there are too many.
pub fn begin(number: usize) -> Option<Vec<u8>> {
    let number = u8::try_from(number).ok()?;
    (number < PICKLE).then(|| vec![number])
}

/// Whether this is tensors, and no pickle.
pub fn are_these(bytes: &[u8]) -> bool {
    bytes.first().is_some_and(|first| *first < PICKLE)
}

/// The tensors. None if they are cut off, or there is more.
pub fn read(mut bytes: &[u8]) -> Option<Vec<SmallTensor<'_>>> {
    let [number] = take(&mut bytes)?;
    let tensors = (0..number).map(|_| SmallTensor::read(&mut bytes));
    let tensors = tensors.collect::<Option<_>>()?;
    bytes.is_empty().then_some(tensors)
}

impl<'a> SmallTensor<'a> {
    /// Adds it to those before it. None if it is not small.
    pub fn write(&self, bytes: &mut Vec<u8>) -> Option<()> {
        let dimensions = u8::try_from(self.size.len()).ok()?;
        bytes.extend([self.kind, u8::from(self.wants), dimensions]);
        bytes.extend(self.size.iter().flat_map(|length| length.to_le_bytes()));
        bytes.extend(u32::try_from(self.memory.len()).ok()?.to_le_bytes());
        bytes.extend_from_slice(self.memory);
        Some(())
    }

    /// Its lengths, and how many elements lie between neighbours in each dimension, if elements have so many bytes. None if they
    /// do not take up all of the memory and no more, or there are none.
    pub fn layout(&self, width: u8) -> Option<(Vec<i64>, Vec<i64>)> {
        let mut number: i64 = 1;
        let (mut shape, mut strides) = (vec![0; self.size.len()], vec![0; self.size.len()]);
        let places = shape.iter_mut().zip(&mut strides);
        for ((length, stride), said) in places.zip(&self.size).rev() {
            (*length, *stride) = (i64::try_from(*said).ok()?, number);
            number = number.checked_mul(*length)?;
        }
        let bytes = number.checked_mul(width.into())?;
        (bytes > 0 && usize::try_from(bytes) == Ok(self.memory.len())).then_some((shape, strides))
    }

    fn read(rest: &mut &'a [u8]) -> Option<Self> {
        let [kind, wants, dimensions] = take(rest)?;
        let size = (0..dimensions).map(|_| take(rest).map(u64::from_le_bytes));
        let size = size.collect::<Option<_>>()?;
        let length = usize::try_from(u32::from_le_bytes(take(rest)?)).ok()?;
        let (memory, after) = rest.split_at_checked(length)?;
        *rest = after;
        Some(Self {
            kind,
            wants: wants != 0,
            size,
            memory,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tensors() -> (Vec<SmallTensor<'static>>, Vec<u8>) {
        let one = SmallTensor {
            kind: 6,
            wants: true,
            size: vec![3, 1],
            memory: b"abc",
        };
        let two = SmallTensor {
            kind: 0,
            wants: false,
            size: Vec::new(),
            memory: b"defg",
        };
        let mut bytes = begin(2).unwrap();
        one.write(&mut bytes).unwrap();
        two.write(&mut bytes).unwrap();
        (vec![one, two], bytes)
    }

    #[test]
    fn what_is_written_is_read_as_it_was() {
        let (tensors, bytes) = tensors();
        assert!(are_these(&bytes));
        assert_eq!(read(&bytes), Some(tensors));
        assert!(!are_these(b"\x80\x05N."));
        assert_eq!(begin(128), None);
    }

    #[test]
    fn tensors_that_are_cut_off_or_too_long_are_none() {
        let (_, mut bytes) = tensors();
        for length in 0..bytes.len() {
            assert_eq!(read(&bytes[..length]), None, "{length} bytes of them");
        }
        bytes.push(0);
        assert_eq!(read(&bytes), None);
    }
    #[test]
    fn lengths_that_do_not_fit_the_memory_have_no_layout() {
        let layout = |size: &[u64], bytes| {
            let (kind, wants, memory) = (0, false, vec![0; bytes]);
            let (size, memory) = (size.to_vec(), &memory[..]);
            let tensor = SmallTensor {
                kind,
                wants,
                size,
                memory,
            };
            tensor.layout(4)
        };
        assert_eq!(layout(&[2, 3], 24), Some((vec![2, 3], vec![3, 1])));
        assert_eq!(layout(&[], 4), Some((Vec::new(), Vec::new())));
        for (size, bytes) in [
            (&[2, 3][..], 23),
            (&[2, 3], 25),
            (&[0], 0),
            (&[], 0),
            (&[u64::MAX], 4),
            (&[u64::MAX, 0], 0),
            (&[1 << 62, 4, 2], 8),
            (&[1 << 62], 0),
        ] {
            assert_eq!(layout(size, bytes), None, "{size:?}, {bytes} bytes");
        }
    }
}
