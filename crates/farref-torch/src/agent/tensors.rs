//! The tensors of a message: between PyTorch's list with its storages, and what the runtime takes along.

use bytes::Bytes;
use farref::Part;

use crate::rpc::RpcError;
use crate::rpc::tensors::{Dtype, ListedTensor, TensorView, gather, read_list, write_list};
use crate::transport::{Lent, Storage, StorageBytes};
use crate::value::{TensorData, TensorEntry};

/// The most bytes that the tensors of a message may take which the message does not have: those whose elements have
/// to be collected (a view may claim more elements than there are bytes), and those that a value has in
/// several places.
const MAX_GATHERED: usize = 1 << 30;

/// What a message has instead of tensors, if it has none.
pub(super) const NO_TENSORS: &[u8] = b"\x80\x02ctorch.jit._pickle\nbuild_tensorlist\nq\x00(](etR.";

impl StorageBytes for Part {
    fn len(&self) -> usize {
        Self::len(self)
    }

    fn lend(&self) -> Option<Lent> {
        if let Some(address) = self.address() {
            return Some(Lent::at(address, Self::len(self), self.clone()));
        }
        let failed = |error| tracing::error!(%error, "a tensor cannot be sent");
        let copy = self.clone().into_bytes().map_err(failed).ok()?;
        Some(Lent::new(copy))
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
    receive_within(MAX_GATHERED, list, storages, uses)
}

/// The same with another limit than [`MAX_GATHERED`].
fn receive_within(
    limit: usize,
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
    let mut budget = Budget { limit, left: limit };
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
        let part = elements(&view, &mut storages, alone, &mut budget)?;
        // The same bytes are taken out once for each use, and may be copied for all but one.
        let first = parts.len();
        let count = uses(place).max(1);
        budget.pay(part.len().saturating_mul(count - 1))?;
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

/// A limit, and how much of it is unused.
struct Budget {
    limit: usize,
    left: usize,
}

impl Budget {
    fn pay(&mut self, bytes: usize) -> Result<(), RpcError> {
        let limit = self.limit;
        let left = self.left.checked_sub(bytes);
        self.left = left.ok_or(RpcError::TooLarge { limit })?;
        Ok(())
    }
}

/// The elements of a view one after the other: the storage itself, if that is what they are.
fn elements(
    view: &TensorView,
    storages: &mut [Option<Storage>],
    alone: bool,
    budget: &mut Budget,
) -> Result<Part, RpcError> {
    let missing = RpcError::OutOfBounds { bytes: 0 };
    if view.count() == Some(0) {
        return Ok(Part::from(Bytes::new()));
    }
    let storage = storages
        .get_mut(view.storage)
        .ok_or_else(|| missing.clone())?;
    let bytes = storage.as_ref().ok_or_else(|| missing.clone())?.bytes();
    if alone && view.is_whole(bytes.len()) {
        return Ok(match storage.take().ok_or(missing)? {
            Storage::One(elements) => elements.into(),
            Storage::Two(elements) => Part::from_vec(elements),
            Storage::Four(elements) => Part::from_vec(elements),
            Storage::Eight(elements) => Part::from_vec(elements),
        });
    }
    let gathered = gather(view, bytes, budget.left)?;
    budget.pay(gathered.len())?;
    Ok(gathered.into())
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

#[cfg(test)]
mod tests {
    use farref_testkit::thorough;

    use super::*;

    fn view(storage: usize, offset: usize, sizes: &[usize], strides: &[usize]) -> ListedTensor {
        ListedTensor::Dense(TensorView {
            offset,
            sizes: sizes.to_vec(),
            strides: strides.to_vec(),
            elements: 6,
            ..TensorView::whole(Dtype::Float, storage, vec![])
        })
    }

    fn storage(values: &[f32]) -> Storage {
        Storage::Four(values.iter().map(|value| value.to_bits()).collect())
    }

    /// The shape of a tensor, and its elements once for each use.
    type Seen = (Vec<usize>, Vec<Vec<f32>>);

    /// What comes in.
    fn received(
        list: &[ListedTensor],
        storages: Vec<Storage>,
        uses: usize,
    ) -> Result<Vec<Seen>, RpcError> {
        let (entries, parts) = receive(&write_list(list)?, storages, |_| uses)?;
        let elements = |part: u32| {
            let part = farref::Buffer::from(parts[part as usize].clone());
            part.into_vec::<f32>().expect("whole elements")
        };
        let entries = entries.into_iter().map(|entry| {
            let TensorData::Parts(places) = entry.data else {
                panic!("{entry:?}")
            };
            (entry.shape, places.into_iter().map(elements).collect())
        });
        Ok(entries.collect())
    }

    const SIX: [f32; 6] = [0.0, 1.0, 2.0, 3.0, 4.0, 5.0];

    #[test]
    fn a_whole_storage_is_handed_on_as_it_is() {
        let list = [view(0, 0, &[2, 3], &[3, 1])];
        let storage = storage(&SIX);
        let at = storage.bytes().as_ptr();
        let (_, parts) = receive(&write_list(&list).unwrap(), vec![storage], |_| 1).unwrap();
        let same = parts[0].look(0..24, |bytes| bytes.as_ptr() == at);
        assert!(same.unwrap(), "it was copied");
    }

    #[test]
    fn views_of_one_storage_have_each_what_they_show() {
        let list = [
            view(0, 0, &[2, 3], &[3, 1]),
            view(0, 0, &[3, 2], &[1, 3]),
            view(0, 4, &[2], &[1]),
            view(0, 5, &[], &[]),
            view(0, 0, &[0, 7], &[1, 1]),
        ];
        let all = received(&list, vec![storage(&SIX)], 1).unwrap();
        let expected: [(&[usize], &[f32]); 5] = [
            (&[2, 3], &SIX),
            (&[3, 2], &[0.0, 3.0, 1.0, 4.0, 2.0, 5.0]),
            (&[2], &[4.0, 5.0]),
            (&[], &[5.0]),
            (&[0, 7], &[]),
        ];
        for ((shape, uses), (its_shape, elements)) in all.into_iter().zip(expected) {
            assert_eq!(
                (&shape[..], &uses[..]),
                (its_shape, &[elements.to_vec()][..])
            );
        }
    }

    #[test]
    fn a_tensor_that_is_used_often_is_there_as_often() {
        let list = [view(0, 0, &[6], &[1])];
        let all = received(&list, vec![storage(&SIX)], 3).unwrap();
        assert_eq!(all[0].1, vec![SIX.to_vec(); 3]);
        let unused = received(&list, vec![storage(&SIX)], 0).unwrap();
        assert_eq!(unused[0].1.len(), 1, "it is in the list all the same");
    }

    /// Gradients of sums come so: one number, as often as the tensor is large.
    #[test]
    fn an_expanded_view_is_spelled_out() {
        let list = [view(0, 1, &[2, 2], &[0, 0])];
        let all = received(&list, vec![storage(&SIX)], 1).unwrap();
        assert_eq!(all[0].1, [vec![1.0; 4]]);
    }

    #[test]
    fn views_beyond_their_storage_are_refused() {
        for tensor in [
            view(0, 0, &[7], &[1]),
            view(0, 6, &[1], &[1]),
            view(0, 0, &[2, 2], &[5, 1]),
            view(0, usize::MAX >> 1, &[1], &[1]),
            view(0, 0, &[2], &[usize::MAX >> 1]),
            view(1, 0, &[1], &[1]),
            view(usize::MAX >> 1, 0, &[1], &[1]),
        ] {
            let refused = received(std::slice::from_ref(&tensor), vec![storage(&SIX)], 1);
            assert!(refused.is_err(), "{tensor:?}");
        }
        let none = received(&[view(0, 0, &[1], &[1])], vec![], 1);
        assert!(none.is_err(), "no storage came");
    }

    /// One number can claim to be a tensor of any size, and many can do so together.
    #[test]
    fn what_a_message_may_claim_is_limited_for_all_its_tensors_together() {
        let huge = |storage| view(storage, 0, &[1 << 20, 1 << 20], &[0, 0]);
        let refused = received(&[huge(0)], vec![storage(&SIX)], 1);
        assert!(
            matches!(refused, Err(RpcError::TooLarge { .. })),
            "{refused:?}"
        );
        // A third of what is allowed, four times. Three of them are made: a GiB takes seconds.
        let limit = if thorough() { MAX_GATHERED } else { 32 << 20 };
        let third = limit / 4 / 3;
        let list = vec![view(0, 0, &[third], &[0]); 4];
        let written = write_list(&list).unwrap();
        let refused = receive_within(limit, &written, vec![storage(&SIX)], |_| 1);
        assert!(matches!(refused, Err(RpcError::TooLarge { .. })));
        // The same by using one often, which may be a copy each time.
        let values = vec![0.0; 1 << 20];
        let list = [view(0, 0, &[values.len()], &[1])];
        let list = write_list(&list).unwrap();
        let often = MAX_GATHERED / (4 << 20);
        assert!(receive(&list, vec![storage(&values)], |_| often).is_ok());
        let refused = receive(&list, vec![storage(&values)], |_| often + 2);
        assert!(matches!(refused, Err(RpcError::TooLarge { .. })));
    }

    #[test]
    fn what_cannot_be_used_says_what_to_do() {
        let conjugate = TensorView {
            conjugate: true,
            ..TensorView::whole(Dtype::ComplexFloat, 0, vec![1])
        };
        let quantized = ListedTensor::Quantized {
            view: TensorView::whole(Dtype::QUInt8, 0, vec![1]),
            scale: 1.0,
            zero_point: 0,
        };
        for (tensor, advice) in [
            (ListedTensor::Dense(conjugate), "resolve_conj"),
            (quantized, "dequantize"),
        ] {
            let list = write_list(&[tensor]).unwrap();
            let error = receive(&list, vec![Storage::One(vec![0; 8])], |_| 1).unwrap_err();
            assert!(error.to_string().contains(advice), "{error}");
        }
    }

    #[test]
    fn what_goes_out_comes_in_as_what_it_was() {
        let entry = |shape: Vec<usize>, data| TensorEntry {
            dtype: Dtype::Float,
            shape,
            requires_grad: true,
            link: None,
            data,
        };
        let bytes: Vec<u8> = SIX.iter().flat_map(|value| value.to_le_bytes()).collect();
        let entries = [
            entry(vec![2, 3], TensorData::Parts(vec![0])),
            entry(vec![6], TensorData::Here(4, bytes)),
        ];
        let parts = [Part::from_vec(SIX.to_vec())];
        let (list, storages) = send(&entries, &parts).unwrap();
        let storages = storages.into_iter().map(|part| {
            let bytes = part.into_bytes().unwrap();
            Storage::One(bytes.to_vec())
        });
        let (again, parts) = receive(&list, storages.collect(), |_| 1).unwrap();
        let shapes: Vec<_> = again.iter().map(|entry| &entry.shape[..]).collect();
        assert_eq!(shapes, [&[2, 3][..], &[6]]);
        assert!(again.iter().all(|entry| entry.requires_grad));
        for part in parts {
            assert_eq!(farref::Buffer::from(part).into_vec::<f32>().unwrap(), SIX);
        }
        let missing = [entry(vec![1], TensorData::Parts(vec![3]))];
        assert!(send(&missing, &[]).is_err());
        assert_eq!(send(&[], &[]).unwrap().0, NO_TENSORS);
    }
}
