//! Views of storages, and lists beyond those that were captured.

use proptest::prelude::*;

use super::view::contiguous_strides;
use super::{Dtype, ListedTensor, TensorView, gather, read_list, write_list};
use crate::rpc::RpcError;

fn view(dtype: Dtype, offset: usize, sizes: &[usize], strides: &[usize]) -> TensorView {
    TensorView {
        offset,
        sizes: sizes.to_vec(),
        strides: strides.to_vec(),
        ..TensorView::whole(dtype, 0, vec![])
    }
}

/// What [`gather`] should find, element by element.
fn naive(view: &TensorView, storage: &[u8]) -> Option<Vec<u8>> {
    let size = view.dtype.size();
    let mut gathered = Vec::new();
    let mut places = vec![0; view.sizes.len()];
    if view.sizes.contains(&0) {
        return Some(gathered);
    }
    loop {
        let mut at = view.offset;
        for (place, stride) in places.iter().zip(&view.strides) {
            at = at.checked_add(stride.checked_mul(*place)?)?;
        }
        let begin = at.checked_mul(size)?;
        gathered.extend_from_slice(storage.get(begin..begin.checked_add(size)?)?);
        let mut dimension = view.sizes.len();
        loop {
            if dimension == 0 {
                return Some(gathered);
            }
            dimension -= 1;
            places[dimension] += 1;
            if places[dimension] < view.sizes[dimension] {
                break;
            }
            places[dimension] = 0;
        }
    }
}

#[test]
fn views_are_gathered_in_order() {
    let storage: Vec<u8> = (0..12).collect();
    for (view, expected) in [
        // All of it, a column, two rows, transposed, every other, expanded, a scalar, nothing.
        (view(Dtype::Byte, 0, &[3, 4], &[4, 1]), &storage[..]),
        (view(Dtype::Byte, 1, &[3], &[4]), &[1, 5, 9]),
        (
            view(Dtype::Byte, 4, &[2, 4], &[4, 1]),
            &[4, 5, 6, 7, 8, 9, 10, 11],
        ),
        (view(Dtype::Byte, 0, &[2, 3], &[1, 4]), &[0, 4, 8, 1, 5, 9]),
        (view(Dtype::Byte, 0, &[3, 2], &[4, 2]), &[0, 2, 4, 6, 8, 10]),
        (view(Dtype::Byte, 0, &[2, 2], &[0, 1]), &[0, 1, 0, 1]),
        (view(Dtype::Byte, 7, &[], &[]), &[7]),
        (view(Dtype::Byte, 99, &[5, 0], &[1, 1]), &[]),
        (view(Dtype::Short, 1, &[2], &[3]), &[2, 3, 8, 9]),
        (
            view(Dtype::Byte, 0, &[2, 1, 2], &[4, usize::MAX, 1]),
            &[0, 1, 4, 5],
        ),
    ] {
        let gathered = gather(&view, &storage, 1000);
        assert_eq!(gathered.as_deref(), Ok(expected), "{view:?}");
        assert_eq!(
            naive(&view, &storage).as_deref(),
            Some(expected),
            "{view:?}"
        );
    }
}

#[test]
fn nothing_is_taken_from_outside_of_a_storage() {
    let storage = [0; 16];
    for view in [
        view(Dtype::Byte, 0, &[17], &[1]),
        view(Dtype::Byte, 16, &[1], &[1]),
        view(Dtype::Byte, 16, &[], &[]),
        view(Dtype::Byte, usize::MAX, &[1], &[1]),
        view(Dtype::Byte, usize::MAX, &[2], &[2]),
        view(Dtype::Byte, 0, &[2], &[16]),
        view(Dtype::Byte, 0, &[2], &[usize::MAX]),
        view(Dtype::Byte, 2, &[2, 2], &[1, usize::MAX]),
        view(Dtype::Double, 1, &[2], &[1]),
        view(Dtype::Double, usize::MAX / 8 + 1, &[1], &[1]),
        view(Dtype::Short, 0, &[3, 3], &[3, 1]),
    ] {
        let error = Err(RpcError::OutOfBounds { bytes: 16 });
        assert_eq!(gather(&view, &storage, 1000), error, "{view:?}");
    }
}

#[test]
fn a_view_is_spelled_out_only_up_to_the_limit() {
    let storage = [7; 4];
    let large = view(Dtype::Float, 0, &[1 << 20, 1 << 40], &[0, 0]);
    let error = Err(RpcError::TooLarge { limit: 1 << 20 });
    assert_eq!(gather(&large, &storage, 1 << 20), error);
    let larger = view(Dtype::Float, 0, &[1 << 40, 1 << 40], &[0, 0]);
    assert_eq!(larger.count(), None);
    assert_eq!(gather(&larger, &storage, 1 << 20), error);
    let just = view(Dtype::Float, 0, &[1 << 18], &[0]);
    assert_eq!(gather(&just, &storage, 1 << 20), Ok(vec![7; 1 << 20]));
    let nothing = view(Dtype::Float, 0, &[1 << 40, 0, 1 << 40], &[0, 0, 0]);
    assert_eq!(gather(&nothing, &storage, 0), Ok(vec![]));
}

#[test]
fn very_many_dimensions_of_one_cost_nothing_per_element() {
    let mut sizes = vec![1; 10_000];
    let mut strides = vec![usize::MAX; 10_000];
    sizes.insert(0, 100_000);
    strides.insert(0, 2);
    let storage: Vec<u8> = (0..200_000_u32).map(|at| at as u8).collect();
    let gathered = gather(&view(Dtype::Byte, 0, &sizes, &strides), &storage, 1 << 20);
    let expected: Vec<u8> = storage.iter().copied().step_by(2).collect();
    assert_eq!(gathered, Ok(expected));
}

#[test]
fn a_whole_tensor_is_its_storage() {
    let whole = TensorView::whole(Dtype::Int, 0, vec![2, 3]);
    assert!(whole.is_whole(24));
    assert!(!whole.is_whole(28));
    assert_eq!(whole.contiguous_range(), Some(0..24));
    let conjugate = TensorView {
        conjugate: true,
        ..whole.clone()
    };
    assert!(!conjugate.is_whole(24));
    let later = TensorView { offset: 1, ..whole };
    assert!(!later.is_whole(24));
    assert_eq!(later.contiguous_range(), Some(4..28));
    let turned = view(Dtype::Int, 0, &[3, 2], &[1, 3]);
    assert_eq!(turned.contiguous_range(), None);
    let empty = TensorView::whole(Dtype::Int, 0, vec![2, 0]);
    assert!(empty.is_whole(0));
    // Dimensions of one have any stride.
    let row = view(Dtype::Int, 0, &[1, 2, 1], &[77, 1, 99]);
    assert!(row.is_whole(8));
}

#[test]
fn strides_are_those_of_pytorch() {
    assert_eq!(contiguous_strides(&[]), Vec::<usize>::new());
    assert_eq!(contiguous_strides(&[2, 3, 4]), [12, 4, 1]);
    // `torch.empty(2, 0, 3).stride()` and `torch.empty(0, 3).stride()`.
    assert_eq!(contiguous_strides(&[2, 0, 3]), [3, 3, 1]);
    assert_eq!(contiguous_strides(&[0, 3]), [3, 1]);
}

#[test]
fn what_cannot_be_used_is_an_item_like_any_other() {
    // TL-3: on another device, of an unknown type, of an unknown form.
    let list = write_list(&[ListedTensor::Dense(TensorView::whole(
        Dtype::Long,
        0,
        vec![1],
    ))]);
    let list = list.expect("a list");
    let with = |from: &str, to: &str| {
        let text: String = list.iter().copied().map(char::from).collect();
        let changed: Vec<u8> = text
            .replacen(from, to, 1)
            .chars()
            .map(|c| c as u8)
            .collect();
        assert_ne!(changed, list);
        read_list(&changed)
    };
    for (from, to, what) in [
        ("cpu", "gpu", "a tensor on gpu"),
        (
            "LongStorage",
            "LoadStorage",
            "a tensor with `torch.LoadStorage`",
        ),
        (
            "_rebuild_tensor_v2",
            "_rebuild_tensor_v9",
            "a tensor made by `torch._utils._rebuild_tensor_v9`",
        ),
    ] {
        let expected = vec![ListedTensor::Unsupported(what.to_owned())];
        assert_eq!(with(from, to), Ok(expected.clone()));
        let error = Err(RpcError::Unsupported(what.to_owned()));
        assert_eq!(write_list(&expected), error);
    }
}

#[test]
fn no_beginning_of_a_list_passes_for_one() {
    let part = |storage| TensorView::whole(Dtype::Long, storage, vec![2, 2]);
    let flagged = TensorView {
        conjugate: true,
        negative: true,
        requires_grad: true,
        ..TensorView::whole(Dtype::ComplexFloat, 7, vec![300])
    };
    let list = vec![
        ListedTensor::Dense(part(0)),
        ListedTensor::Dense(flagged),
        ListedTensor::SparseCoo {
            sizes: vec![5, 5],
            requires_grad: true,
            indices: part(0),
            values: part(1),
        },
        ListedTensor::SparseCsr {
            sizes: vec![5, 5],
            requires_grad: false,
            rows: part(2),
            columns: part(3),
            values: part(4),
        },
        ListedTensor::Quantized {
            view: TensorView::whole(Dtype::QInt8, 5, vec![3]),
            scale: 0.5,
            zero_point: -3,
        },
    ];
    let bytes = write_list(&list).expect("a list");
    assert_eq!(read_list(&bytes), Ok(list));
    for size in 0..bytes.len() {
        assert!(read_list(&bytes[..size]).is_err());
    }
}

proptest! {
    /// TL-1: what is gathered is what is there, element by element, and nothing else is ever taken.
    #[test]
    fn gathering_agrees_with_looking_at_each_element(
        dimensions in proptest::collection::vec((0..5_usize, 0..8_usize), 0..5),
        offset in 0..20_usize,
        bytes in 0..200_usize,
        dtype in prop_oneof![Just(Dtype::Byte), Just(Dtype::Short), Just(Dtype::ComplexFloat)],
    ) {
        let (sizes, strides): (Vec<_>, Vec<_>) = dimensions.into_iter().unzip();
        let view = view(dtype, offset, &sizes, &strides);
        let storage: Vec<u8> = (0..bytes).map(|at| at as u8).collect();
        let expected = naive(&view, &storage).ok_or(RpcError::OutOfBounds { bytes });
        prop_assert_eq!(gather(&view, &storage, 1 << 20), expected);
    }
}
