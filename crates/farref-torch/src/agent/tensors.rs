//! The tensors of a message: between PyTorch's list with its storages, and what the runtime takes along.

use bytes::Bytes;
use farref::Part;

use crate::rpc::RpcError;
use crate::rpc::tensors::{Dtype, ListedTensor, TensorView, gather, read_list, write_list};
use crate::transport::{Storage, StorageBytes};
use crate::value::{TensorData, TensorEntry};

/// The most bytes of a tensor whose elements have to be collected. A view may claim more elements than it
/// has bytes.
const MAX_GATHERED: usize = 1 << 30;

/// What a message has instead of tensors, if it has none.
pub(super) const NO_TENSORS: &[u8] = b"\x80\x02ctorch.jit._pickle\nbuild_tensorlist\nq\x00(](etR.";

impl StorageBytes for Part {
    fn len(&self) -> usize {
        Self::len(self)
    }

    fn look(&self, range: std::ops::Range<usize>, look: &mut dyn FnMut(&[u8])) {
        // Where the bytes cannot be had, the pipe is given up.
        if let Err(error) = Self::look(self, range, |bytes| look(bytes)) {
            tracing::error!(%error, "a tensor cannot be sent");
        }
    }
}

/// The size of the elements of each storage, so that they are read into memory of that alignment.
pub(super) fn widths(list: &[u8], storages: usize) -> Vec<usize> {
    let mut widths = vec![1; storages];
    if list == NO_TENSORS {
        return widths;
    }
    let Ok(tensors) = read_list(list) else {
        return widths; // which is found out again when the message is read
    };
    let mut see = |view: &TensorView| {
        if let Some(width) = widths.get_mut(view.storage) {
            *width = view.dtype.size();
        }
    };
    for tensor in &tensors {
        match tensor {
            ListedTensor::Dense(view) | ListedTensor::Quantized { view, .. } => see(view),
            _ => {}
        }
    }
    widths
}

/// The tensors that came in a message. `uses` says how often the value refers to each of them.
pub(super) fn receive(
    list: &[u8],
    storages: Vec<Storage>,
    uses: impl Fn(usize) -> usize,
) -> Result<(Vec<TensorEntry>, Vec<Part>), RpcError> {
    if list == NO_TENSORS {
        return Ok((Vec::new(), Vec::new()));
    }
    let listed = read_list(list)?;
    let mut storages: Vec<Option<Storage>> = storages.into_iter().map(Some).collect();
    let mut shared = vec![0_usize; storages.len()];
    for tensor in &listed {
        if let ListedTensor::Dense(view) = tensor
            && let Some(count) = shared.get_mut(view.storage)
        {
            *count += 1;
        }
    }
    let mut parts = Vec::new();
    let mut entries = Vec::new();
    for (place, tensor) in listed.into_iter().enumerate() {
        let view = match tensor {
            ListedTensor::Dense(view) => view,
            ListedTensor::SparseCoo { .. } | ListedTensor::SparseCsr { .. } => {
                let what = "a sparse tensor (send its indices and values, or `.to_dense()`)";
                return Err(RpcError::Unsupported(what.to_owned()));
            }
            ListedTensor::Quantized { .. } => {
                let what = "a quantized tensor (send `.dequantize()`, or its `.int_repr()`)";
                return Err(RpcError::Unsupported(what.to_owned()));
            }
            ListedTensor::Unsupported(what) => return Err(RpcError::Unsupported(what)),
        };
        if view.conjugate || view.negative {
            let what = "a conjugate view (send `.resolve_conj()`)";
            return Err(RpcError::Unsupported(what.to_owned()));
        }
        let alone = shared.get(view.storage) == Some(&1);
        let part = elements(&view, &mut storages, alone)?;
        // The same bytes are taken out once for each use.
        let first = parts.len();
        let count = uses(place).max(1);
        parts.extend(std::iter::repeat_n(part, count));
        entries.push(TensorEntry {
            dtype: view.dtype,
            shape: view.sizes,
            requires_grad: view.requires_grad,
            link: None,
            data: TensorData::Parts((first..first + count).map(|part| part as u32).collect()),
        });
    }
    Ok((entries, parts))
}

/// The elements of a view one after the other: the storage itself, if that is what they are.
fn elements(
    view: &TensorView,
    storages: &mut [Option<Storage>],
    alone: bool,
) -> Result<Part, RpcError> {
    let missing = RpcError::OutOfBounds { bytes: 0 };
    if view.count() == Some(0) {
        return Ok(Part::from(Bytes::new()));
    }
    let storage = storages.get_mut(view.storage).ok_or_else(|| missing.clone())?;
    let bytes = storage.as_ref().ok_or_else(|| missing.clone())?.bytes();
    if alone && view.is_whole(bytes.len()) {
        return Ok(match storage.take().ok_or(missing)? {
            Storage::One(elements) => elements.into(),
            Storage::Two(elements) => Part::from_vec(elements),
            Storage::Four(elements) => Part::from_vec(elements),
            Storage::Eight(elements) => Part::from_vec(elements),
        });
    }
    Ok(gather(view, bytes, MAX_GATHERED)?.into())
}

/// Tensors on their way out: their list and their storages.
pub(super) fn send(
    entries: &[TensorEntry],
    parts: &[Part],
) -> Result<(Bytes, Vec<Part>), RpcError> {
    if entries.is_empty() {
        return Ok((Bytes::from_static(NO_TENSORS), Vec::new()));
    }
    let mut storages = Vec::with_capacity(entries.len());
    let mut listed = Vec::with_capacity(entries.len());
    for entry in entries {
        let part = match &entry.data {
            TensorData::Parts(places) => {
                let place = places.first().map(|&place| place as usize);
                let part = place.and_then(|place| parts.get(place)).cloned();
                part.ok_or(RpcError::OutOfBounds { bytes: 0 })?
            }
            TensorData::Here(_, bytes) => bytes.clone().into(),
        };
        listed.push(listed_tensor(
            entry.dtype,
            &entry.shape,
            storages.len(),
            entry.requires_grad,
        ));
        storages.push(part);
    }
    Ok((write_list(&listed)?.into(), storages))
}

fn listed_tensor(
    dtype: Dtype,
    shape: &[usize],
    storage: usize,
    requires_grad: bool,
) -> ListedTensor {
    ListedTensor::Dense(TensorView {
        requires_grad,
        ..TensorView::whole(dtype, storage, shape.to_vec())
    })
}

/// Gradients on their way out.
pub(super) fn send_gradients(
    gradients: Vec<(Dtype, Vec<usize>, Part)>,
) -> Result<(Bytes, Vec<Part>), RpcError> {
    let listed = gradients.iter().enumerate();
    let listed: Vec<_> = listed
        .map(|(place, (dtype, shape, _))| listed_tensor(*dtype, shape, place, false))
        .collect();
    let storages = gradients.into_iter().map(|(_, _, part)| part).collect();
    Ok((write_list(&listed)?.into(), storages))
}
