//! The parts that can be chosen.

use clap::ValueEnum;
use serde::Serialize;

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize, ValueEnum)]
#[serde(rename_all = "lowercase")]
pub(super) enum Part {
    /// One empty call at a time
    Calls,
    /// Many empty calls at once
    Pipelined,
    /// CPU time and heap allocations of a call
    Costs,
    /// Blobs, vectors and tensors, one way and back
    Values,
    /// Items of a stream
    Streams,
    /// Creating, fetching, sharing, dropping references
    References,
    /// Many references at once: their memory, what they cost others
    Live,
    /// A training step through a layer on another worker
    Autograd,
    /// How long a group takes to come together and to end
    Groups,
    /// Tensors on a GPU: needs one, and a `farref` that was built with the feature `cuda`
    Cuda,
}

impl Part {
    /// What every machine can measure.
    pub(super) fn everywhere() -> Vec<Self> {
        let all = Self::value_variants().iter();
        all.filter(|&&part| part != Self::Cuda).copied().collect()
    }

    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Calls => "calls",
            Self::Pipelined => "pipelined",
            Self::Costs => "costs",
            Self::Values => "values",
            Self::Streams => "streams",
            Self::References => "references",
            Self::Live => "live",
            Self::Autograd => "autograd",
            Self::Groups => "groups",
            Self::Cuda => "cuda",
        }
    }

    pub(super) fn title(self) -> &'static str {
        match self {
            Self::Calls => "One call at a time",
            Self::Pipelined => "Many calls at once",
            Self::Costs => "What a call uses",
            Self::Values => "Values",
            Self::Streams => "Streams",
            Self::References => "References",
            Self::Live => "Live references",
            Self::Autograd => "A training step",
            Self::Groups => "Groups",
            Self::Cuda => "Tensors on a GPU",
        }
    }
}
