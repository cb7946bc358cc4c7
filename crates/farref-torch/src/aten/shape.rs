//! Which shape a result has, and whether there is room for it.

use super::{AtenError, Result};

/// The most elements of a tensor that an operator makes (AT-3): 4 GiB of the widest type.
pub(super) const MAX_ELEMENTS: usize = 1 << 29;

/// The size of the widest type.
const WIDEST: usize = 8;

/// How many elements a tensor of that shape has, if this worker can make one.
pub(super) fn room(dims: &[usize]) -> Result<usize> {
    let count = dims
        .iter()
        .try_fold(1_usize, |count, &size| count.checked_mul(size));
    // Of a tensor without elements all sizes count, too: candle computes with them.
    let sizes = dims.iter().filter(|&&size| size > 0);
    let sizes = sizes.copied().try_fold(1_usize, usize::checked_mul);
    let too_much = || {
        AtenError::Invalid(format!(
            "can't allocate memory: a tensor of size {dims:?} is larger than the {MAX_ELEMENTS} elements that this \
             worker makes"
        ))
    };
    let (Some(count), Some(_)) = (count, sizes) else {
        return Err(too_much());
    };
    if count > MAX_ELEMENTS {
        return Err(too_much());
    }
    // Rust programs end if there is no memory. Asking first is not a promise, but all that can be done.
    let mut probe = Vec::<u8>::new();
    if probe.try_reserve_exact(count * WIDEST).is_err() {
        return AtenError::invalid(format_args!(
            "can't allocate memory: there is none for a tensor of size {dims:?}"
        ));
    }
    Ok(count)
}

/// The shape that both are seen as.
pub(super) fn broadcast(a: &[usize], b: &[usize]) -> Result<Vec<usize>> {
    let rank = a.len().max(b.len());
    let size = |dims: &[usize], place: usize| {
        let missing = rank - dims.len();
        place.checked_sub(missing).map_or(1, |place| dims[place])
    };
    (0..rank)
        .map(|place| match (size(a, place), size(b, place)) {
            (a, b) if a == b => Ok(a),
            (1, other) | (other, 1) => Ok(other),
            (a, b) => AtenError::invalid(format_args!(
                "The size of tensor a ({a}) must match the size of tensor b ({b}) at non-singleton dimension {place}"
            )),
        })
        .collect()
}

/// A dimension that may be counted from behind. Of a tensor without dimensions, there is one to name.
pub(super) fn dimension(dim: i64, rank: usize) -> Result<usize> {
    let count = i64::try_from(rank.max(1)).unwrap_or(i64::MAX);
    if !(-count..count).contains(&dim) {
        return AtenError::invalid(format_args!(
            "Dimension out of range (expected to be in range of [{}, {}], but got {dim})",
            -count,
            count - 1
        ));
    }
    Ok(dim.rem_euclid(count) as usize)
}

/// Several dimensions, each once; in order.
pub(super) fn dimensions(dims: &[i64], rank: usize) -> Result<Vec<usize>> {
    let mut found = Vec::new();
    for &dim in dims {
        let dim = dimension(dim, rank)?;
        if found.contains(&dim) {
            return AtenError::invalid(format_args!(
                "dim {dim} appears multiple times in the list of dims"
            ));
        }
        found.push(dim);
    }
    found.sort_unstable();
    Ok(found)
}

/// The size of a new tensor.
pub(super) fn sizes(sizes: &[i64]) -> Result<Vec<usize>> {
    let dims: Vec<usize> = sizes
        .iter()
        .map(|&size| {
            usize::try_from(size).map_err(|_| {
                AtenError::Invalid(format!(
                    "Dimension size must be non-negative: trying to create tensor with negative dimension {size}: {sizes:?}"
                ))
            })
        })
        .collect::<Result<_>>()?;
    room(&dims)?;
    Ok(dims)
}

/// The shape of so many elements that was asked for, with at most one size left open by -1.
pub(super) fn reshaped(count: usize, wanted: &[i64]) -> Result<Vec<usize>> {
    let invalid = || {
        AtenError::Invalid(format!(
            "shape '{wanted:?}' is invalid for input of size {count}"
        ))
    };
    let mut open = None;
    let mut known = 1_usize;
    let mut dims = Vec::new();
    for (place, &size) in wanted.iter().enumerate() {
        if size == -1 {
            if open.replace(place).is_some() {
                return AtenError::invalid("only one dimension can be inferred");
            }
            dims.push(0);
            continue;
        }
        let size = usize::try_from(size)
            .map_err(|_| AtenError::Invalid(format!("invalid shape dimension {size}")))?;
        known = known.checked_mul(size).ok_or_else(invalid)?;
        dims.push(size);
    }
    match open {
        Some(_) if known == 0 && count == 0 => AtenError::invalid(format_args!(
            "cannot reshape tensor of 0 elements into shape {wanted:?} because the unspecified dimension size -1 can \
             be any value and is ambiguous"
        )),
        Some(place) if known != 0 && count.is_multiple_of(known) => {
            dims[place] = count / known;
            Ok(dims)
        }
        None if known == count => Ok(dims),
        _ => Err(invalid()),
    }
}
