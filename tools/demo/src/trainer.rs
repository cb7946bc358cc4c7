//! What trainers and parameter owners can be called for.

use farref::{RRef, Worker};
use farref_autograd::nn::cross_entropy;
use farref_autograd::{Error, Pipeline, Result, Tensor};

use super::plan::{BATCH, Plan};
use super::spiral::Spiral;

/// Lives on a trainer: its data, and references to the parts of the model, which are elsewhere.
pub(super) struct Trainer {
    data: Spiral,
    model: Pipeline,
    /// On the first owner, and held by nobody else: when this trainer dies, it has to go too.
    journal: RRef<Journal>,
}

#[farref::remote(name = "demo::Trainer")]
impl Trainer {
    pub(super) fn new(plan: Plan, model: Pipeline) -> Result<Self> {
        let first = model.stages().next().map(|(_, part)| part.owner());
        let first = first.transpose()?;
        let first = first.ok_or_else(|| Error::Invalid("a model without parts".to_owned()))?;
        let name = Worker::current().map_or_else(String::new, |me| me.name().to_owned());
        Ok(Self {
            data: Spiral::new(plan.seed),
            model,
            journal: Journal::new_on(&first, name).remote(),
        })
    }

    /// This part's share of the batch's loss. Runs in the caller's context, so gradients find back.
    pub(super) async fn loss(&self, part: Vec<u32>) -> Result<Tensor> {
        let (points, arms) = self.data.select(&part)?;
        let scores = self.model.forward(points).await?;
        let share = part.len() as f64 / BATCH as f64;
        let loss = Tensor::from((&*cross_entropy(&scores, &arms)? * share)?);
        self.journal.note(loss.to_scalar::<f64>()?).await?;
        Ok(loss)
    }
}

/// What a trainer wants to be remembered, on another worker.
pub(super) struct Journal {
    #[expect(dead_code, reason = "a journal says whose it is")]
    of: String,
    losses: Vec<f64>,
}

#[farref::remote(name = "demo::Journal")]
impl Journal {
    pub(super) fn new(of: String) -> Self {
        let losses = Vec::new();
        Self { of, losses }
    }

    pub(super) async fn note(&mut self, loss: f64) {
        self.losses.push(loss);
    }
}
