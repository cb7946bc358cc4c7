//! Where the elements of a tensor are in its storage.

use std::ops::Range;

use super::Dtype;
use crate::rpc::RpcError;

/// A tensor as a view of a storage. Offset and strides count elements.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct TensorView {
    pub(crate) dtype: Dtype,
    /// Which of the storages that travel with the message.
    pub(crate) storage: usize,
    /// How many elements the storage has, as its sender says.
    pub(crate) elements: usize,
    pub(crate) offset: usize,
    pub(crate) sizes: Vec<usize>,
    /// As many as there are sizes.
    pub(crate) strides: Vec<usize>,
    pub(crate) requires_grad: bool,
    /// Whether the complex conjugates of the elements are meant.
    pub(crate) conjugate: bool,
    /// Whether the negatives of the elements are meant.
    pub(crate) negative: bool,
}

impl TensorView {
    /// All of a storage, in order.
    pub(crate) fn whole(dtype: Dtype, storage: usize, sizes: Vec<usize>) -> Self {
        Self {
            dtype,
            storage,
            elements: sizes.iter().product(),
            offset: 0,
            strides: contiguous_strides(&sizes),
            sizes,
            requires_grad: false,
            conjugate: false,
            negative: false,
        }
    }

    /// How many elements the view has, if that is a number that there is.
    pub(crate) fn count(&self) -> Option<usize> {
        // A size of zero makes all others meaningless, however large.
        if self.sizes.contains(&0) {
            return Some(0);
        }
        let sizes = self.sizes.iter();
        sizes.copied().try_fold(1_usize, usize::checked_mul)
    }

    /// Whether the elements lie one after the other, in order.
    fn is_contiguous(&self) -> bool {
        let mut expected = 1_usize;
        let dimensions = self.sizes.iter().zip(&self.strides).rev();
        for (size, stride) in dimensions {
            // The stride of a dimension of one is never taken.
            if *size != 1 && *stride != expected {
                return false;
            }
            expected = expected.saturating_mul(*size);
        }
        true
    }

    /// The bytes of the storage that are exactly this tensor, if they lie one after the other, in order.
    pub(crate) fn contiguous_range(&self) -> Option<Range<usize>> {
        let count = self.count()?;
        if count != 0 && !self.is_contiguous() {
            return None;
        }
        let begin = match count {
            // Where nothing begins is of no interest, and may be anywhere.
            0 => 0,
            _ => self.offset.checked_mul(self.dtype.size())?,
        };
        let end = begin.checked_add(count.checked_mul(self.dtype.size())?)?;
        Some(begin..end)
    }

    /// Whether the tensor is a storage of so many bytes as it is: no copy is needed.
    pub(crate) fn is_whole(&self, storage_bytes: usize) -> bool {
        self.contiguous_range() == Some(0..storage_bytes) && !self.conjugate && !self.negative
    }

    /// The place after the last element that is taken from the storage.
    fn end(&self) -> Option<usize> {
        let mut last = self.offset;
        for (size, stride) in self.sizes.iter().zip(&self.strides) {
            let steps = size.checked_sub(1)?;
            last = last.checked_add(steps.checked_mul(*stride)?)?;
        }
        last.checked_add(1)
    }
}

/// The strides of a tensor whose elements lie one after the other.
pub(crate) fn contiguous_strides(sizes: &[usize]) -> Vec<usize> {
    let mut strides = vec![1; sizes.len()];
    for place in (1..sizes.len()).rev() {
        // PyTorch takes a size of zero for one here.
        strides[place - 1] = strides[place] * sizes[place].max(1);
    }
    strides
}

/// The elements of a tensor, one after the other, in order. Flags for conjugates and negatives are left to
/// whoever knows the elements.
///
/// No element outside of the storage is taken (TL-1), and no more than `limit` bytes are made (TL-2).
pub(crate) fn gather(view: &TensorView, storage: &[u8], limit: usize) -> Result<Vec<u8>, RpcError> {
    if view.sizes.len() != view.strides.len() {
        return Err(RpcError::wrong(
            "there is a stride for each size",
            view.strides.len(),
        ));
    }
    let size = view.dtype.size();
    let bytes = view.count().and_then(|count| count.checked_mul(size));
    let bytes = bytes.filter(|bytes| *bytes <= limit);
    let bytes = bytes.ok_or(RpcError::TooLarge { limit })?;
    if bytes == 0 {
        return Ok(Vec::new());
    }
    let out_of_bounds = || RpcError::OutOfBounds {
        bytes: storage.len(),
    };
    if let Some(range) = view.contiguous_range() {
        let taken = storage.get(range).ok_or_else(out_of_bounds)?;
        return Ok(taken.to_vec());
    }
    let end = view.end().and_then(|end| end.checked_mul(size));
    if end.is_none_or(|end| end > storage.len()) {
        return Err(out_of_bounds());
    }
    // The innermost dimension is a run; the outer ones count like an odometer.
    let (outer, run) = match (view.sizes.split_last(), view.strides.split_last()) {
        (Some((run_size, outer_sizes)), Some((run_stride, outer_strides))) => {
            let outer = outer_sizes
                .iter()
                .copied()
                .zip(outer_strides.iter().copied());
            // Dimensions of one do not count: there may be very many of them.
            let outer = outer.filter(|(size, _)| *size != 1);
            (outer.collect::<Vec<_>>(), (*run_size, *run_stride))
        }
        _ => (Vec::new(), (1, 1)),
    };
    let mut places = vec![0_usize; outer.len()];
    let mut begin = view.offset;
    let mut gathered = Vec::with_capacity(bytes);
    loop {
        match run {
            (count, 1) => {
                let taken = storage.get(begin * size..(begin + count) * size);
                gathered.extend_from_slice(taken.ok_or_else(out_of_bounds)?);
            }
            (count, stride) => {
                for element in 0..count {
                    let at = (begin + element * stride) * size;
                    let taken = storage.get(at..at + size);
                    gathered.extend_from_slice(taken.ok_or_else(out_of_bounds)?);
                }
            }
        }
        // On to the next run: the last of the outer dimensions counts fastest.
        let mut dimensions = outer.iter().zip(&mut places).rev();
        loop {
            let Some(((size, stride), place)) = dimensions.next() else {
                return Ok(gathered);
            };
            if *place + 1 < *size {
                *place += 1;
                begin += stride;
                break;
            }
            begin -= stride * *place;
            *place = 0;
        }
    }
}
