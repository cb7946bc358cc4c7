//! What is said, beside its elements or instead of them, of a tensor that is not to be on the CPU.

use std::any::Any;

use farref::RRef;
use farref::context::NodeId;
use serde::{Deserialize, Serialize};

use crate::view::View;

/// Where a tensor is to be that is not to be on the CPU. Known to every build: one that has no CUDA says so, in words.
#[derive(Serialize, Deserialize)]
#[serde(rename = "farref_autograd::Place")]
pub(crate) enum Place {
    /// On this device of the receiver's; its elements come along.
    Cuda(u32),
    /// On this device of the receiver's, where they are already: in memory of a process of the same host.
    Shared(u32, SharedMemory),
}

/// Memory of a device that is to be used where it is.
#[derive(Serialize, Deserialize)]
#[serde(rename = "farref_autograd::SharedMemory")]
pub(crate) struct SharedMemory {
    /// The worker that has it ..
    pub(crate) owner: NodeId,
    /// .. and its number there.
    pub(crate) number: u64,
    /// Tells the tensor from others that its owner sends: what is sent again and again is kept at hand.
    pub(crate) tensor: u64,
    /// How the driver finds it; nothing if it is the receiver's own.
    pub(crate) export: Vec<u8>,
    /// How many elements there are ..
    pub(crate) elements: usize,
    /// .. and which of them are the tensor's.
    pub(crate) view: View,
    /// The sender's pool that says when that is done what the sender, which is not the owner, has begun to do with it; nothing if it is done.
    pub(crate) behind: Option<u64>,
    /// Keeps it for as long as this is held.
    pub(crate) hold: RRef<KeptTensor>,
}

/// A tensor that is kept for those who use its memory.
pub(crate) struct KeptTensor(
    #[expect(dead_code, reason = "only dropped")] pub(crate) Box<dyn Any + Send + Sync>,
);
