//! What the engine needs of a tensor library.

use std::collections::HashSet;
use std::fmt::Debug;
use std::hash::Hash;
use std::sync::Arc;

use farref::{Call, Peer};
use serde::Serialize;
use serde::de::DeserializeOwned;

use super::parcel::{Parcel, PassId, Receipt};

/// A tensor library with a graph that can be run backward from given gradients.
pub trait Backend: Send + Sync + Sized + 'static {
    /// A tensor. Clones share their data and their place in the graph.
    type Tensor: Clone + Debug + Serialize + DeserializeOwned + Send + Sync + 'static;
    /// Names a leaf of the graph: a parameter or a received tensor.
    type Leaf: Copy + Eq + Hash + Debug + Send + Sync + 'static;

    /// Looks at the graph that a tensor was computed by.
    fn reach(root: &Self::Tensor) -> Reach<Self::Leaf>;

    /// Runs the graph backward from several roots at once, each with its gradient, and says what came
    /// out at the leaves in `wanted`. The graph can be run again.
    fn vjp(
        roots: &[(Self::Tensor, Self::Tensor)],
        wanted: &HashSet<Self::Leaf>,
    ) -> Result<AtLeaves<Self>, String>;

    /// The sum of two gradients.
    fn add(one: &Self::Tensor, other: &Self::Tensor) -> Result<Self::Tensor, String>;

    /// Whom a leaf belongs to, also if nobody has [observed](super::observe) it in the context.
    fn observer(leaf: Self::Leaf) -> Option<Arc<dyn Observer<Self::Tensor>>> {
        let _ = leaf;
        None
    }

    /// Builds the call that brings a parcel to another worker's engine.
    fn deliver(peer: &Peer, parcel: Parcel<Self::Tensor>) -> Call<Receipt>;

    /// Builds the call that tells another worker's engine that a pass is getting on.
    fn progressed(peer: &Peer, pass: PassId) -> Call<()>;

    /// Runs something that walks or drops graphs, which may be deep.
    fn with_room<T>(work: impl FnOnce() -> T) -> T {
        work()
    }

    /// Lets go of something that holds graphs, wherever there is room for that.
    fn let_go<T: Send + 'static>(graphs: T) {
        drop(graphs);
    }
}

/// What there is between a tensor and the leaves that it was computed from.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Reach<L> {
    /// The leaves.
    pub leaves: Vec<L>,
    /// How many steps the computation has.
    pub nodes: usize,
    /// How many numbers are in all of these together. By both, graphs are known that took little when they were last
    /// run: these are run by the task that waits for them, others on a thread that may take long.
    pub elements: usize,
}

/// What came out at leaves.
pub type AtLeaves<B> = Vec<(<B as Backend>::Leaf, <B as Backend>::Tensor)>;

/// Somebody whom a leaf belongs to, a parameter for instance.
pub trait Observer<T>: Send + Sync + 'static {
    /// Under which key the gradient is kept: leaves with one key share one gradient.
    fn key(&self) -> u64;

    /// A pass has the final gradient, that of all leaves with the key together: what is to be added to the
    /// context's?
    fn on_gradient(&self, gradient: T) -> Result<T, String>;

    /// Whether that takes no time, because it runs none of the program's code.
    fn is_quick(&self) -> bool {
        false
    }
}

/// An observer that several share.
pub(crate) type SharedObserver<T> = Arc<dyn Observer<T>>;
