//! What can be measured, part by part. Each part adds its measurements to the report, with their limits.

mod autograd;
mod calls;
mod costs;
mod groups;
mod live;
mod pipelined;
mod references;
mod torch;
mod values;

use anyhow::Context as _;
use clap::ValueEnum;
use serde::Serialize;

use super::plan::Plan;
use super::report::Recorder;
use super::transport::Transport;

pub(super) use values::{Direction, Form, quantity};

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
    /// Creating, fetching, sharing, dropping references
    References,
    /// Many references at once: their memory, what they cost others
    Live,
    /// A training step through a layer on another worker
    Autograd,
    /// How long a group takes to come together and to end
    Groups,
}

impl Part {
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Calls => "calls",
            Self::Pipelined => "pipelined",
            Self::Costs => "costs",
            Self::Values => "values",
            Self::References => "references",
            Self::Live => "live",
            Self::Autograd => "autograd",
            Self::Groups => "groups",
        }
    }

    pub(super) fn title(self) -> &'static str {
        match self {
            Self::Calls => "One call at a time",
            Self::Pipelined => "Many calls at once",
            Self::Costs => "What a call uses",
            Self::Values => "Values",
            Self::References => "References",
            Self::Live => "Live references",
            Self::Autograd => "A training step",
            Self::Groups => "Groups",
        }
    }

    pub(super) async fn measure(
        self,
        transport: Transport,
        plan: &Plan,
        recorder: &mut Recorder<'_>,
    ) -> anyhow::Result<()> {
        let measured = match self {
            Self::Calls => calls::measure(transport, plan, recorder).await,
            Self::Pipelined => pipelined::measure(transport, plan, recorder).await,
            Self::Costs => costs::measure(transport, plan, recorder).await,
            Self::Values => values::measure(transport, plan, recorder).await,
            Self::References => references::measure(transport, plan, recorder).await,
            Self::Live => live::measure(transport, plan, recorder).await,
            Self::Autograd => autograd::measure(transport, plan, recorder).await,
            Self::Groups => groups::measure(transport, plan, recorder).await,
        };
        let (part, over) = (self.name(), transport.name());
        measured.with_context(|| format!("cannot measure {part} over {over}"))
    }
}
