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
        let oldest = match self.rows.len() < MOST {
            true => None,
            false => {
                let mut rows = self.rows.iter().enumerate();
                rows.next().map(|first| {
                    rows.fold(first, |one, other| match other.1.until < one.1.until {
                        true => other,
                        false => one,
                    })
                    .0
                })
            }
        };
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
