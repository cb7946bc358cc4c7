//! Payload 3: the tensors of a message, as views of the storages that travel beside it.
//!
//! Several tensors may be views of one storage, which travels once. So the place of a tensor in the list, by
//! which payload 2 means it, is not the place of its storage among the bytes of the message.
//!
//! | part | job |
//! | --- | --- |
//! | [`dtype`] | what elements are |
//! | [`view`] | where the elements of a tensor are in its storage |
//! | [`read`] | reading the list |
//! | [`mod@write`] | writing it |
//!
//! # Invariants
//!
//! - **TL-1** No element is taken from outside of its storage, whatever offset, sizes and strides say.
//! - **TL-2** A view may stand for many more elements than its storage has; it is spelled out only up to a limit
//!   that the caller sets.
//! - **TL-3** What cannot be used here (a tensor on a GPU, a type of element of a later PyTorch) is an item of
//!   the list like any other: only who uses that tensor fails.

mod dtype;
mod read;
#[cfg(test)]
mod tests;
mod view;
mod write;

pub use dtype::Dtype;
pub(crate) use read::read_list;
pub(crate) use view::{TensorView, gather};
pub(crate) use write::write_list;

/// What the last argument of all tensors is: nothing is called before or after their gradients.
const NO_HOOKS: (&str, &str) = ("collections", "OrderedDict");
const DENSE: (&str, &str) = ("torch._utils", "_rebuild_tensor_v2");
const SPARSE: (&str, &str) = ("torch._utils", "_rebuild_sparse_tensor");
const QUANTIZED: (&str, &str) = ("torch._utils", "_rebuild_qtensor");
/// PyTorch's numbers for the layouts of sparse tensors.
const COO: i64 = 1;
const CSR: i64 = 2;
/// The only quantization that is read: one scale for all elements.
const PER_TENSOR: (&str, &str) = ("torch", "per_tensor_affine");

/// A tensor of the list.
#[derive(Clone, PartialEq, Debug)]
pub(crate) enum ListedTensor {
    /// One with all of its elements.
    Dense(TensorView),
    /// Elements by their coordinates.
    SparseCoo {
        sizes: Vec<usize>,
        requires_grad: bool,
        indices: TensorView,
        values: TensorView,
    },
    /// Elements by their rows, which lie one after the other.
    SparseCsr {
        sizes: Vec<usize>,
        requires_grad: bool,
        /// Where each row begins, and where the last ends.
        rows: TensorView,
        columns: TensorView,
        values: TensorView,
    },
    /// Small whole numbers that stand for others: `(element - zero_point) * scale`.
    Quantized {
        view: TensorView,
        scale: f64,
        zero_point: i64,
    },
    /// Something that cannot be used here, in words (TL-3).
    Unsupported(String),
}
