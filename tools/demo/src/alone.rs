//! The same training in one process: the same model, data, batches and optimizer, and no calls.

use farref::testing::Cluster;
use farref_autograd::nn::cross_entropy;
use farref_autograd::optim::{Adam, LocalOptimizer};
use farref_autograd::{Context, Error, Module, Result, Tensor};

use super::model::Part;
use super::plan::{BATCH, Plan};
use super::spiral::Spiral;
use super::training::LEARNING_RATE;
use farref_progress::Progress;

/// What came of it.
pub(super) struct Alone {
    /// Of every step.
    pub(super) losses: Vec<f64>,
}

pub(super) async fn train(plan: &Plan) -> anyhow::Result<Alone> {
    // A context needs a worker; this one has nobody to talk to.
    let cluster = Cluster::start(1).await?;
    let data = Spiral::new(plan.seed);
    let model = Part::new(plan, 0..plan.layers())?;
    let mut optimizer = LocalOptimizer::named(Adam::new(LEARNING_RATE), model.parameters())?;
    let progress = Progress::new(u64::from(plan.steps), "alone");
    let mut losses = Vec::new();
    for step in 0..plan.steps {
        let context = Context::new(cluster.worker(0))?;
        let parts = plan.parts(step, data.len());
        let shares = context.enter(|| {
            let shares = parts.iter().map(|part| share(&model, &data, part));
            shares.collect::<Result<Vec<Tensor>>>()
        })?;
        context.backward(&shares.iter().collect::<Vec<_>>()).await?;
        optimizer.step(&context)?;
        let mut loss = 0.0;
        for share in &shares {
            loss += share.to_scalar::<f64>().map_err(Error::from)?;
        }
        losses.push(loss);
        drop(shares);
        context.release().await?;
        progress.step(&format!("loss {loss:.4}"));
    }
    progress.finish();
    cluster.shutdown().await?;
    Ok(Alone { losses })
}

/// What a trainer would compute.
fn share(model: &Part, data: &Spiral, part: &[u32]) -> Result<Tensor> {
    let (points, arms) = data.select(part)?;
    let scores = model.forward(&points)?;
    let share = part.len() as f64 / BATCH as f64;
    Ok(Tensor::from((&*cross_entropy(&scores, &arms)? * share)?))
}
