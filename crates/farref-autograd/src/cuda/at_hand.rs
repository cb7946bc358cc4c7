//! Memory of other processes that is kept at hand, because it comes again and again.
//!
//! To import memory takes a microsecond per MiB: the driver maps it. A tensor that is sent often, the weights of a model
//! say, is mapped once: when it comes for the second time, it is kept for a while after it came last. What comes once, as most results
//! do, is not.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use candle_core::{DType, Tensor};
use farref::context::NodeId;
use farref_cuda::ExportMessage;

/// So long after it came last.
const KEPT_FOR: Duration = Duration::from_secs(1);
/// How many at a time.
const MOST: usize = 32;
/// How many are known by their names.
const REMEMBERED: usize = 256;

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
    rows: Vec<Row>,
    /// Tensors that came lately, the latest last.
    came: VecDeque<(NodeId, u64)>,
}

struct Row {
    owner: NodeId,
    message: ExportMessage,
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
        let mut rows = self.rows.iter_mut();
        let row = rows.find(|row| row.owner == owner && row.message == *message)?;
        if row.tensor.dtype() != dtype || row.tensor.elem_count() != elements {
            return None;
        }
        row.until = Instant::now() + KEPT_FOR;
        Some(row.tensor.clone())
    }

    /// A tensor has come, and is over this memory. Returns what has to make room, to be dropped where nothing is locked.
    pub(super) fn came(
        &mut self,
        origin: Origin,
        message: ExportMessage,
        row: &Tensor,
    ) -> Option<Tensor> {
        let name = (origin.owner, origin.tensor);
        let is_known = self.came.contains(&name);
        if !is_known {
            if self.came.len() == REMEMBERED {
                self.came.pop_front();
            }
            self.came.push_back(name);
            return None;
        }
        let is_full = self.rows.len() >= MOST;
        let rows = self.rows.iter().enumerate().filter(|_| is_full);
        let oldest = rows.min_by_key(|(_, row)| row.until);
        let oldest = oldest.map(|(index, _)| index);
        let oldest = oldest.map(|index| self.rows.swap_remove(index).tensor);
        self.rows.push(Row {
            owner: origin.owner,
            message,
            tensor: row.clone(),
            until: Instant::now() + KEPT_FOR,
        });
        oldest
    }

    /// Takes out what did not come for a while.
    pub(super) fn outdated(&mut self) -> Vec<Tensor> {
        let now = Instant::now();
        let outdated = self.rows.extract_if(.., |row| row.until <= now);
        outdated.map(|row| row.tensor).collect()
    }
}

#[cfg(test)]
mod tests {
    use candle_core::Device;

    use super::*;

    const OWNER: NodeId = NodeId::new(1, 1);

    /// What a peer says of the memory with this number.
    fn message(number: u8) -> ExportMessage {
        let mut bytes = [0; 68];
        bytes[1] = 4;
        bytes[2] = number;
        postcard::from_bytes(&bytes).unwrap()
    }

    fn comes(at_hand: &mut AtHand, number: u8) -> Option<Tensor> {
        let tensor = Tensor::full(number, 4, &Device::Cpu).unwrap();
        let origin = Origin {
            owner: OWNER,
            number: 0,
            tensor: u64::from(number),
        };
        at_hand.came(origin, message(number), &tensor)
    }

    fn is_there(at_hand: &mut AtHand, number: u8) -> bool {
        let found = at_hand.find(OWNER, &message(number), DType::U8, 4);
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
    fn what_came_longest_ago_makes_room() {
        let mut at_hand = AtHand::default();
        for number in 0..MOST as u8 {
            comes(&mut at_hand, number);
            assert!(comes(&mut at_hand, number).is_none());
        }
        // The first one comes again: now the second one came longest ago.
        assert!(is_there(&mut at_hand, 0));
        comes(&mut at_hand, MOST as u8);
        let gone = comes(&mut at_hand, MOST as u8).expect("one has to go");
        assert_eq!(gone.to_vec1::<u8>().unwrap(), [1; 4]);
        assert!(!is_there(&mut at_hand, 1));
        for number in (0..=MOST as u8).filter(|&number| number != 1) {
            assert!(is_there(&mut at_hand, number), "{number}");
        }
    }
}
