//! What can be measured, part by part. Each part adds its measurements to the report, with their limits.

mod autograd;
mod calls;
mod costs;
#[cfg(any(test, feature = "cuda"))]
mod cuda;
mod groups;
mod live;
mod pipelined;
mod references;
mod streams;
mod torch;
mod values;

use anyhow::Context as _;

use super::part::Part;
use super::plan::Plan;
use super::report::Recorder;
use super::transport::Transport;

/// Measures one of them over one transport.
pub(super) async fn measure(
    part: Part,
    transport: Transport,
    plan: &Plan,
    recorder: &mut Recorder<'_>,
) -> anyhow::Result<()> {
    let measured = match part {
        Part::Calls => calls::measure(transport, plan, recorder).await,
        Part::Pipelined => pipelined::measure(transport, plan, recorder).await,
        Part::Costs => costs::measure(transport, plan, recorder).await,
        Part::Values => values::measure(transport, plan, recorder).await,
        Part::Streams => streams::measure(transport, plan, recorder).await,
        Part::References => references::measure(transport, plan, recorder).await,
        Part::Live => live::measure(transport, plan, recorder).await,
        Part::Autograd => autograd::measure(transport, plan, recorder).await,
        Part::Groups => groups::measure(transport, plan, recorder).await,
        #[cfg(feature = "cuda")]
        Part::Cuda => cuda::measure(transport, plan, recorder).await,
        #[cfg(not(feature = "cuda"))]
        Part::Cuda => super::gpu::check(),
    };
    let (name, over) = (part.name(), transport.name());
    measured.with_context(|| format!("cannot measure {name} over {over}"))
}
