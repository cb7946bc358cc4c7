//! Memory of other processes that is kept at hand, because it comes again and again.
//!
//! To import memory takes a microsecond per MiB: the driver maps it. A tensor that is sent often, the weights of a model
//! say, is mapped once: when it comes for the second time, it is kept for a while after it came last. What comes once, as most results
//! do, is not. Nor is what comes when as many are kept as may be: those that come again and again in turn would each have to go just before
//! they come.

use std::collections::hash_map::Entry;
use std::collections::{HashMap, HashSet, VecDeque};
use std::time::{Duration, Instant};

use candle_core::{DType, Tensor};
use farref::context::NodeId;
use farref_cuda::ExportMessage;

/// So long after it came last. A group that ends waits for what is held, a second unless something else is said: it is not to find this.
const KEPT_FOR: Duration = Duration::from_millis(400);
/// How many at a time.
const MOST: usize = 1024;
/// How many are known by their names.
const REMEMBERED: usize = 4096;

/// Where memory of another process comes from.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) struct Origin {
    /// Whose it is ..
    pub(super) owner: NodeId,
    /// .. its number there ..
    pub(super) number: u64,
    /// .. and of which tensor.
    pub(super) tensor: u64,
}

/// Memory at hand, as rows of its elements.
#[derive(Default)]
pub(super) struct AtHand {
    /// By whose they are, and what that one says of them.
    rows: HashMap<(NodeId, ExportMessage), Row>,
    /// Tensors that came lately ..
    came: HashSet<(NodeId, u64)>,
    /// .. the latest last.
    order: VecDeque<(NodeId, u64)>,
}

struct Row {
    tensor: Tensor,
    until: Instant,
}

impl AtHand {
    /// The memory that a message of this worker says, if it is at hand. It is kept at hand for longer.
    pub(super) fn find(
        &mut self,
        owner: NodeId,
        message: &ExportMessage,
        dtype: DType,
        elements: usize,
    ) -> Option<Tensor> {
        let row = self.rows.get_mut(&(owner, *message))?;
        if row.tensor.dtype() != dtype || row.tensor.elem_count() != elements {
            return None;
        }
        row.until = Instant::now() + KEPT_FOR;
        Some(row.tensor.clone())
    }

    /// A tensor has come, and is over this memory.
    pub(super) fn came(&mut self, origin: Origin, message: ExportMessage, row: &Tensor) {
        let name = (origin.owner, origin.tensor);
        if self.came.insert(name) {
            self.order.push_back(name);
            if self.order.len() > REMEMBERED
                && let Some(earliest) = self.order.pop_front()
            {
                self.came.remove(&earliest);
            }
            return;
        }
        let is_full = self.rows.len() >= MOST;
        // What is there under this name stays: it is not dropped here, where the thread may have no device.
        if let Entry::Vacant(place) = self.rows.entry((origin.owner, message))
            && !is_full
        {
            place.insert(Row {
                tensor: row.clone(),
                until: Instant::now() + KEPT_FOR,
            });
        }
    }

    /// Takes out what did not come for a while.
    pub(super) fn outdated(&mut self) -> Vec<Tensor> {
        let now = Instant::now();
        let outdated = self.rows.extract_if(|_, row| row.until <= now);
        outdated.map(|(_, row)| row.tensor).collect()
    }
}

#[cfg(test)]
mod tests {
    use candle_core::Device;

    use super::*;

    const OWNER: NodeId = NodeId::new(1, 1);

    /// What a peer says of the memory with this number.
    fn message(number: u16) -> ExportMessage {
        let mut bytes = [0; 68];
        bytes[1] = 4;
        bytes[2..4].copy_from_slice(&number.to_le_bytes());
        postcard::from_bytes(&bytes).unwrap()
    }

    fn comes(at_hand: &mut AtHand, number: u16) {
        let tensor = Tensor::full(u32::from(number), 4, &Device::Cpu).unwrap();
        let origin = Origin {
            owner: OWNER,
            number: 0,
            tensor: u64::from(number),
        };
        at_hand.came(origin, message(number), &tensor);
    }

    fn is_there(at_hand: &mut AtHand, number: u16) -> bool {
        let found = at_hand.find(OWNER, &message(number), DType::U32, 4);
        found.is_some()
    }

    #[test]
    fn what_comes_for_the_second_time_is_kept_at_hand() {
        let mut at_hand = AtHand::default();
        comes(&mut at_hand, 1);
        assert!(!is_there(&mut at_hand, 1));
        comes(&mut at_hand, 1);
        assert!(is_there(&mut at_hand, 1) && !is_there(&mut at_hand, 2));
    }

    #[test]
    fn of_more_than_there_is_room_for_as_many_are_kept_as_there_is() {
        let mut at_hand = AtHand::default();
        let all = 0..MOST as u16 + 100;
        for _ in 0..3 {
            for number in all.clone() {
                if !is_there(&mut at_hand, number) {
                    comes(&mut at_hand, number);
                }
            }
        }
        let kept = all.filter(|&number| is_there(&mut at_hand, number));
        assert_eq!(kept.count(), MOST);
    }

    #[test]
    fn no_more_names_are_remembered_than_a_limit() {
        let mut at_hand = AtHand::default();
        for number in 0..=REMEMBERED as u16 {
            comes(&mut at_hand, number);
        }
        assert_eq!(
            (at_hand.came.len(), at_hand.order.len()),
            (REMEMBERED, REMEMBERED)
        );
        // The first one was forgotten: it comes for the first time again.
        comes(&mut at_hand, 0);
        assert!(!is_there(&mut at_hand, 0));
    }

    #[test]
    fn what_did_not_come_for_a_while_is_taken_out() {
        let mut at_hand = AtHand::default();
        for number in [1, 1, 2, 2] {
            comes(&mut at_hand, number);
        }
        let row = at_hand.rows.get_mut(&(OWNER, message(1))).unwrap();
        row.until -= KEPT_FOR;
        assert_eq!(at_hand.outdated().len(), 1);
        assert!(!is_there(&mut at_hand, 1) && is_there(&mut at_hand, 2));
    }
}
