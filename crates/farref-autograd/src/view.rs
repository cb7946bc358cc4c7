//! Which elements of a storage a tensor shows: said so that whoever has the storage can take the same view of it.
//!
//! candle has no way to make a tensor of any strides. But every view that its own operations make (`narrow`, `transpose`,
//! `permute`, `reshape`, `broadcast_as`) can be had again with them: the storage as a box with more dimensions, a part
//! of which is cut out along each, in another order, with dimensions of one element repeated.
//!
//! # Invariants
//!
//! - **VW-1** A view that a peer describes shows elements of the storage, or is refused.

use candle_core::{Layout, Tensor};
use serde::{Deserialize, Serialize};

/// A view of a storage.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(crate) struct View {
    /// How many elements come before the box.
    first: usize,
    /// The storage from there on as a box: the length of each dimension.
    box_shape: Vec<usize>,
    /// What is cut out of it: from where, and how many, along each dimension.
    cut: Vec<(usize, usize)>,
    /// In which place of the tensor's shape each dimension of the box is.
    places: Vec<usize>,
    /// The shape of the tensor: of dimensions that are in no place the one element is repeated.
    shape: Vec<usize>,
}

// Only tensors on devices are looked at this way.
#[cfg_attr(not(any(feature = "cuda", test)), expect(dead_code))]
impl View {
    /// How a tensor of this layout looks at a storage of so many elements. None if that cannot be said this way: then it has
    /// to be copied.
    pub(crate) fn of(layout: &Layout, stored: usize) -> Option<Self> {
        // A part of a box that begins with the storage, or a box that begins with the tensor.
        let begins_with = |first| Self::from(first, layout, stored);
        begins_with(0).or_else(|| begins_with(layout.start_offset()))
    }

    fn from(first: usize, layout: &Layout, stored: usize) -> Option<Self> {
        let shape = layout.dims().to_vec();
        let stored = stored.checked_sub(first)?;
        if shape.contains(&0) || stored == 0 {
            return None;
        }
        // Those that tell elements apart, from the widest apart to the closest.
        let mut dimensions: Vec<(usize, usize, usize)> = (0..shape.len())
            .map(|place| (layout.stride()[place], shape[place], place))
            .filter(|&(stride, length, _)| stride != 0 && length > 1)
            .collect();
        dimensions.sort_by(|one, other| other.cmp(one));
        let mut view = Self {
            first,
            box_shape: Vec::new(),
            cut: Vec::new(),
            places: Vec::new(),
            shape,
        };
        // The box is as long as whole steps of the widest dimension fit into the storage.
        let (mut room, mut offset) = (stored, layout.start_offset() - first);
        for &(stride, length, place) in &dimensions {
            let count = room / stride;
            let whole = view.box_shape.is_empty() || room.is_multiple_of(stride);
            let start = offset / stride;
            if !whole || start.checked_add(length)? > count {
                return None;
            }
            view.box_shape.push(count);
            view.cut.push((start, length));
            view.places.push(place);
            (room, offset) = (stride, offset % stride);
        }
        // What is left between two elements of the closest dimension; of a single element, all of the storage.
        if room > 1 || view.box_shape.is_empty() {
            view.box_shape.push(room);
            view.cut.push((offset, 1));
            view.places.push(usize::MAX);
        }
        Some(view)
    }

    /// Whether it shows the whole storage as it is.
    pub(crate) fn is_whole(&self, stored: usize) -> bool {
        self.first == 0
            && self
                .shape
                .iter()
                .try_fold(1, |all: usize, &length| all.checked_mul(length))
                == Some(stored)
            && self
                .cut
                .iter()
                .zip(&self.box_shape)
                .all(|(&(start, length), &of)| start == 0 && length == of)
            && self
                .places
                .iter()
                .filter(|&&place| place != usize::MAX)
                .is_sorted()
    }

    /// The shape of the tensor.
    #[cfg(feature = "cuda")]
    pub(crate) fn shape(&self) -> &[usize] {
        &self.shape
    }

    /// Takes this view of a storage, given as one row of its elements.
    pub(crate) fn take(&self, storage: &Tensor) -> Result<Tensor, String> {
        let text = |error: candle_core::Error| error.to_string();
        let refused = || "a view that does not fit what it is of".to_owned();
        let dimensions = self.box_shape.len();
        if dimensions != self.cut.len() || dimensions != self.places.len() {
            return Err(refused());
        }
        // What is repeated has more elements than the storage, but not more than can be counted.
        let shown = self.shape.iter().try_fold(1, |all: usize, &length| {
            all.checked_mul(length)
                .filter(|&all| isize::try_from(all).is_ok())
        });
        shown.ok_or_else(refused)?;
        // VW-1
        let mut elements = 1_usize;
        for &length in &self.box_shape {
            elements = elements.checked_mul(length).ok_or_else(refused)?;
        }
        let end = elements.checked_add(self.first).ok_or_else(refused)?;
        if end > storage.elem_count() {
            return Err(refused());
        }
        let row = storage.narrow(0, self.first, elements).map_err(text)?;
        let mut tensor = row.reshape(self.box_shape.as_slice()).map_err(text)?;
        for (dimension, &(start, length)) in self.cut.iter().enumerate() {
            tensor = tensor.narrow(dimension, start, length).map_err(text)?;
        }
        // In the order of the tensor's shape, what is in no place last.
        let mut order: Vec<usize> = (0..dimensions).collect();
        order.sort_by_key(|&dimension| self.places[dimension]);
        tensor = tensor.permute(order.as_slice()).map_err(text)?;
        let mut ordered = Vec::with_capacity(self.shape.len());
        for (place, &length) in self.shape.iter().enumerate() {
            let at = self.places.iter().position(|&other| other == place);
            match at {
                Some(dimension) if self.cut[dimension].1 == length => ordered.push(length),
                Some(_) => return Err(refused()),
                None => ordered.push(1),
            }
        }
        let named = self
            .places
            .iter()
            .filter(|&&place| place < self.shape.len());
        let mut named: Vec<usize> = named.copied().collect();
        named.sort_unstable();
        named.dedup();
        let single = |dimension: &usize| self.cut[*dimension].1 == 1;
        let unnamed =
            (0..dimensions).filter(|&dimension| self.places[dimension] >= self.shape.len());
        if named.len() + unnamed.clone().count() != dimensions
            || !unnamed.clone().all(|dimension| single(&dimension))
        {
            return Err(refused());
        }
        for _ in unnamed {
            let last = tensor.rank() - 1;
            tensor = tensor.squeeze(last).map_err(text)?;
        }
        for (place, _) in ordered.iter().enumerate() {
            if !self.places.contains(&place) {
                tensor = tensor.unsqueeze(place).map_err(text)?;
            }
        }
        tensor.broadcast_as(self.shape.as_slice()).map_err(text)
    }
}

#[cfg(test)]
mod tests {
    use candle_core::{Device, Tensor};

    use super::*;

    fn again(tensor: &Tensor, storage: &Tensor) -> Option<Tensor> {
        let (_, layout) = tensor.storage_and_layout();
        let view = View::of(layout, storage.elem_count())?;
        Some(view.take(storage).expect("it fits"))
    }

    fn assert_same(tensor: &Tensor, storage: &Tensor) {
        let same = again(tensor, storage).expect("it can be described");
        let flat = |tensor: &Tensor| tensor.flatten_all().unwrap().to_vec1::<u32>().unwrap();
        assert_eq!(same.dims(), tensor.dims());
        assert_eq!(flat(&same), flat(tensor), "{:?}", tensor.layout());
    }

    /// VW-1: dimensions of one element may be repeated as often as a peer says, but not more often than can be counted.
    #[test]
    fn a_view_of_more_elements_than_can_be_counted_is_refused() {
        let storage = Tensor::arange(0u32, 1, &Device::Cpu).unwrap();
        let view = |shape: Vec<usize>| View {
            first: 0,
            box_shape: vec![1],
            cut: vec![(0, 1)],
            places: vec![usize::MAX],
            shape,
        };
        assert_eq!(
            view(vec![1 << 20; 2]).take(&storage).unwrap().dims().len(),
            2
        );
        for shape in [vec![1 << 40; 2], vec![usize::MAX], vec![1 << 16; 4]] {
            assert!(view(shape.clone()).take(&storage).is_err(), "{shape:?}");
        }
    }

    #[test]
    fn every_view_that_candle_makes_can_be_taken_again() {
        let storage = Tensor::arange(0u32, 120, &Device::Cpu).unwrap();
        let boxed = storage.reshape((2, 3, 4, 5)).unwrap();
        let narrowed = boxed.narrow(2, 1, 2).unwrap();
        let views = [
            storage.clone(),
            boxed.clone(),
            storage.narrow(0, 17, 30).unwrap().reshape((5, 6)).unwrap(),
            boxed.transpose(0, 3).unwrap(),
            boxed.permute((3, 1, 0, 2)).unwrap(),
            narrowed.clone(),
            narrowed.transpose(1, 3).unwrap(),
            boxed.narrow(3, 2, 1).unwrap(),
            boxed
                .narrow(3, 4, 1)
                .unwrap()
                .narrow(0, 1, 1)
                .unwrap()
                .squeeze(0)
                .unwrap(),
            boxed.get(1).unwrap().get(2).unwrap(),
            boxed
                .get(1)
                .unwrap()
                .get(2)
                .unwrap()
                .get(3)
                .unwrap()
                .get(4)
                .unwrap(),
            narrowed
                .unsqueeze(1)
                .unwrap()
                .broadcast_as((2, 7, 3, 2, 5))
                .unwrap(),
            storage
                .narrow(0, 3, 1)
                .unwrap()
                .broadcast_as((4, 6))
                .unwrap(),
        ];
        for view in &views {
            assert_same(view, &storage);
        }
    }

    #[test]
    fn what_has_no_elements_is_not_described() {
        let storage = Tensor::arange(0u32, 6, &Device::Cpu).unwrap();
        assert!(again(&storage.narrow(0, 0, 0).unwrap(), &storage).is_none());
    }

    #[test]
    fn only_the_whole_storage_in_its_order_is_whole() {
        let storage = Tensor::arange(0u32, 24, &Device::Cpu).unwrap();
        let boxed = storage.reshape((2, 3, 4)).unwrap();
        let whole = |tensor: &Tensor| {
            let (_, layout) = tensor.storage_and_layout();
            View::of(layout, 24).is_some_and(|view| view.is_whole(24))
        };
        assert!(whole(&storage) && whole(&boxed) && whole(&boxed.unsqueeze(1).unwrap()));
        assert!(!whole(&boxed.transpose(0, 1).unwrap()));
        assert!(!whole(&boxed.narrow(1, 0, 2).unwrap()));
        assert!(!whole(&storage.narrow(0, 0, 23).unwrap()));
    }

    /// VW-1
    #[test]
    fn a_view_that_does_not_fit_is_refused() {
        let storage = Tensor::arange(0u32, 24, &Device::Cpu).unwrap();
        let view =
            |box_shape: &[usize], cut: &[(usize, usize)], places: &[usize], shape: &[usize]| View {
                first: 0,
                box_shape: box_shape.to_vec(),
                cut: cut.to_vec(),
                places: places.to_vec(),
                shape: shape.to_vec(),
            };
        let fits = view(&[4, 6], &[(0, 4), (1, 2)], &[1, 0], &[2, 4]);
        assert!(fits.take(&storage).is_ok());
        let late = |first| View {
            first,
            ..fits.clone()
        };
        assert!(late(1).take(&storage).is_err() && late(usize::MAX).take(&storage).is_err());
        for wrong in [
            view(&[5, 6], &[(0, 4), (1, 2)], &[1, 0], &[2, 4]),
            view(&[usize::MAX, 6], &[(0, 4), (1, 2)], &[1, 0], &[2, 4]),
            view(&[4, 6], &[(3, 2), (1, 2)], &[1, 0], &[2, 2]),
            view(&[4, 6], &[(usize::MAX, 2), (1, 2)], &[1, 0], &[2, 2]),
            view(&[4, 6], &[(0, 4)], &[1, 0], &[2, 4]),
            view(&[4, 6], &[(0, 4), (1, 2)], &[1], &[2, 4]),
            view(&[4, 6], &[(0, 4), (1, 2)], &[1, 1], &[2, 4]),
            view(&[4, 6], &[(0, 4), (1, 2)], &[1, 7], &[2, 4]),
            view(&[4, 6], &[(0, 4), (1, 2)], &[1, 0], &[4, 4]),
            view(
                &[4, 6],
                &[(0, 4), (1, 2)],
                &[1, 0],
                &[usize::MAX, usize::MAX, 4],
            ),
        ] {
            assert!(wrong.take(&storage).is_err(), "{wrong:?}");
        }
    }
}
