//! Tensors of this worker whose memory others use.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use candle_core::Tensor;
use farref_cuda::Exported;

use super::memory;
use crate::dropping;
use crate::view::View;

/// A tensor whose memory others use, or are about to.
pub(super) struct Kept {
    number: u64,
    table: Weak<Table>,
    exported: Option<Exported>,
    tensor: Tensor,
}

/// The tensors that are kept, by their numbers.
#[derive(Default)]
pub(super) struct Table(Mutex<Numbers>);

#[derive(Default)]
struct Numbers {
    next: u64,
    kept: HashMap<u64, Entry>,
}

struct Entry {
    tensor: Weak<Kept>,
    /// The id of the reference that keeps it.
    hold: Arc<str>,
}

impl Table {
    fn lock(&self) -> MutexGuard<'_, Numbers> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Keeps a tensor for as long as there is what this returns.
    pub(super) fn keep(
        self: &Arc<Self>,
        tensor: Tensor,
        exported: Option<Exported>,
    ) -> (u64, Arc<Kept>) {
        let mut numbers = self.lock();
        numbers.next += 1;
        let number = numbers.next;
        let exported = exported.map(|exported| exported.keep(KeptMemory(tensor.clone())));
        let kept = Arc::new(Kept {
            number,
            table: Arc::downgrade(self),
            exported,
            tensor,
        });
        let entry = Entry {
            tensor: Arc::downgrade(&kept),
            hold: Arc::from(""),
        };
        numbers.kept.insert(number, entry);
        (number, kept)
    }

    /// The reference with this id keeps the tensor with this number.
    pub(super) fn is_held_by(&self, number: u64, hold: &str) {
        if let Some(entry) = self.lock().kept.get_mut(&number) {
            entry.hold = Arc::from(hold);
        }
    }

    /// The tensor with this number, which the reference with this id keeps, looked at in this way. None if that cannot be had of what is
    /// kept, without a copy.
    pub(super) fn find(
        &self,
        (number, hold): (u64, &str),
        elements: usize,
        view: &View,
    ) -> Option<Result<Tensor, String>> {
        let kept = self.get(number, hold)?;
        let tensor = &kept.tensor;
        let (allocation, own) = memory::look_at(tensor)?;
        let own = own.filter(|_| allocation.elements == elements)?;
        if own == *view {
            return Some(Ok(tensor.clone()));
        }
        if !own.is_whole(elements) {
            return None;
        }
        let row = tensor.flatten_all().map_err(|error| error.to_string());
        Some(row.and_then(|row| view.take(&row)))
    }

    /// CT-4: somebody who has another reference than the one that keeps the tensor would lose it too early.
    fn get(&self, number: u64, hold: &str) -> Option<Arc<Kept>> {
        let numbers = self.lock();
        let entry = numbers.kept.get(&number)?;
        (*entry.hold == *hold).then(|| entry.tensor.upgrade())?
    }

    #[cfg(test)]
    fn len(&self) -> usize {
        self.lock().kept.len()
    }
}

/// The memory of a tensor that another process may use, whoever has let go of it.
struct KeptMemory(Tensor);

/// On whatever thread finds that it is not used any more.
impl Drop for KeptMemory {
    fn drop(&mut self) {
        dropping::bind_for(&self.0);
    }
}

/// CT-1: the memory goes, if this was the last tensor that had it.
impl Drop for Kept {
    fn drop(&mut self) {
        if let Some(table) = self.table.upgrade() {
            table.lock().kept.remove(&self.number);
        }
        // Before the tensor: memory that was given back does not count as exported any more, and another one may be there.
        drop(self.exported.take());
        dropping::bind_for(&self.tensor);
    }
}

#[cfg(test)]
mod tests {
    use candle_core::Device;

    use super::*;

    /// CT-4
    #[test]
    fn a_tensor_is_found_only_by_the_reference_that_keeps_it() {
        let table = Arc::new(Table::default());
        let tensor = Tensor::arange(0f32, 6.0, &Device::Cpu).unwrap();
        let (number, kept) = table.keep(tensor, None);
        table.is_held_by(number, "this");
        assert!(table.get(number, "this").is_some());
        assert!(table.get(number, "that").is_none());
        assert!(table.get(number + 1, "this").is_none());
        drop(kept);
        assert!(table.get(number, "this").is_none());
    }

    #[test]
    fn what_nobody_keeps_is_not_found() {
        let table = Arc::new(Table::default());
        let tensor = Tensor::arange(0f32, 6.0, &Device::Cpu).unwrap();
        let (_, kept) = table.keep(tensor, None);
        assert_eq!(table.len(), 1);
        drop(kept);
        assert_eq!(table.len(), 0);
    }
}
