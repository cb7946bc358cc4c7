//! The training over several processes, with trainers that may die.
//!
//! A step is one context: every part of the batch is given to a trainer, the losses come back as tensors,
//! and the gradients go the same way in reverse, to the owners of the parameters. If a trainer dies, its
//! context fails as a whole; the step is made again with those that are left. No optimizer has stepped by
//! then, so the result is the same as if nothing had happened.

use std::time::{Duration, Instant};

use anyhow::{Context as _, bail};
use farref::{Peer, RRef};
use farref_autograd::optim::{Adam, DistributedOptimizer};
use farref_autograd::{Context, Pipeline, Result, Tensor};

use super::ledger::{Ledger, NOTICE, Reclaimed};
use super::model::part_of;
use super::picture::{Regions, grid};
use super::plan::Plan;
use super::processes::Group;
use super::spiral::{Spiral, decide, tensor_of};
use super::trainer::{Trainer, TrainerRRef as _};
use farref_progress::Progress;

/// How fast it learns, in both trainings.
pub(super) const LEARNING_RATE: f64 = 0.01;

/// What came of it.
pub(super) struct Outcome {
    /// Of every step.
    pub(super) losses: Vec<f64>,
    pub(super) accuracy: f64,
    pub(super) regions: Regions,
    pub(super) ledger: Ledger,
    /// Who was killed, and before which step had come to its end.
    pub(super) killed: Option<(String, u32)>,
}

pub(super) async fn train(plan: &Plan, group: &Group) -> anyhow::Result<Outcome> {
    let began = Instant::now();
    let mut run = Run::begin(plan, group).await?;
    let mut losses = Vec::new();
    let mut accuracy = 0.0;
    let mut killed = None;
    let mut reclaimed = None;
    let progress = Progress::new(u64::from(plan.steps), "training");
    for step in 0..plan.steps {
        let victim = (plan.kill_one && step == plan.steps / 2).then(|| run.trainers.len() - 1);
        let loss = match run.step(step, victim).await {
            Ok(loss) => loss,
            Err(error) => {
                let lost = run.part_with_the_dead(error).await?;
                progress.note(&format!(
                    "{lost} was killed in step {step}; the step is made again without it"
                ));
                reclaimed = run.reclaimed().await?;
                killed = Some((lost, step));
                run.step(step, None).await?
            }
        };
        losses.push(loss);
        if step % 20 == 0 || step + 1 == plan.steps {
            accuracy = run.accuracy().await?;
        }
        progress.step(&format!(
            "loss {loss:.4}, accuracy {:.1} %",
            accuracy * 100.0
        ));
    }
    progress.finish();
    let points = grid();
    let scores = run.model.forward(tensor_of(&points)?).await?;
    let regions = Regions(decide(&scores)?);
    drop(scores);
    let calls_took = began.elapsed();
    drop(run);
    let ledger = Ledger::balance(&group.me, reclaimed, calls_took).await?;
    Ok(Outcome {
        losses,
        accuracy,
        regions,
        ledger,
        killed,
    })
}

/// A training under way.
struct Run<'a> {
    plan: &'a Plan,
    group: &'a Group,
    data: Spiral,
    owners: Vec<Peer>,
    model: Pipeline,
    optimizer: DistributedOptimizer,
    trainers: Vec<(Peer, RRef<Trainer>)>,
    /// What the one who is going to be killed held just before.
    held: Option<Reclaimed>,
    died: Instant,
}

impl<'a> Run<'a> {
    /// Puts the parts of the model onto their owners, and hands references to them to the trainers.
    async fn begin(plan: &'a Plan, group: &'a Group) -> anyhow::Result<Self> {
        let me = &group.me;
        let peer = |name: String| me.peer(&name);
        let owners: Vec<Peer> = (0..plan.owners)
            .map(|owner| peer(format!("owner{owner}")))
            .collect::<farref::Result<_>>()?;
        let parts = (0..plan.owners).zip(&owners);
        let parts = parts.map(|(owner, peer)| part_of::on(peer, *plan, owner).remote().into());
        let model = Pipeline::new(parts.collect())?;
        let mut trainers = Vec::new();
        for trainer in 0..plan.trainers {
            let peer = peer(format!("trainer{trainer}"))?;
            let trainer = Trainer::new_on(&peer, *plan, model.clone()).remote();
            trainers.push((peer, trainer));
        }
        let parameters = model.parameters().await?;
        let optimizer = DistributedOptimizer::named(Adam::new(LEARNING_RATE), parameters).await?;
        Ok(Self {
            plan,
            group,
            data: Spiral::new(plan.seed),
            owners,
            model,
            optimizer,
            trainers,
            held: None,
            died: Instant::now(),
        })
    }

    /// One step. The victim, if there is one, is killed while it computes.
    async fn step(&mut self, step: u32, victim: Option<usize>) -> anyhow::Result<f64> {
        let context = Context::new(&self.group.me)?;
        if let Some((peer, _)) = victim.and_then(|index| self.trainers.get(index)) {
            self.held = Some(Reclaimed::before(peer, &self.owners).await?);
        }
        let parts = self.plan.parts(step, self.data.len());
        let pending: Vec<_> = context.enter(|| {
            let trainers = self.trainers.iter().cycle();
            let parts = parts.into_iter().zip(trainers);
            parts
                .map(|(part, (_, trainer))| trainer.loss(part).start())
                .collect()
        });
        if let Some((peer, _)) = victim.and_then(|index| self.trainers.get(index)) {
            self.group.kill(peer.name())?;
            self.died = Instant::now();
        }
        let mut losses: Vec<Tensor> = Vec::new();
        for loss in pending {
            losses.push(loss.await?);
        }
        context.backward(&losses.iter().collect::<Vec<_>>()).await?;
        self.optimizer.step(&context).await?;
        let values: Result<Vec<f64>> = losses
            .iter()
            .map(|loss| Ok(loss.to_scalar::<f64>()?))
            .collect();
        drop(losses);
        context.release().await?;
        Ok(values?.iter().sum())
    }

    /// A step failed. If that was because a trainer died, goes on without it.
    async fn part_with_the_dead(&mut self, error: anyhow::Error) -> anyhow::Result<String> {
        let began = Instant::now();
        let dead = loop {
            let dead = self.trainers.iter().position(|(peer, _)| !peer.is_alive());
            match dead {
                Some(dead) => break dead,
                None if began.elapsed() > NOTICE => return Err(error),
                None => tokio::time::sleep(Duration::from_millis(10)).await,
            }
        };
        let (peer, _) = self.trainers.remove(dead);
        if self.trainers.is_empty() {
            bail!("the last trainer, {}, died", peer.name());
        }
        Ok(peer.name().to_owned())
    }

    /// What the owners have got back from the dead.
    async fn reclaimed(&mut self) -> anyhow::Result<Option<Reclaimed>> {
        match self.held.take() {
            Some(held) => Ok(Some(held.after(self.died, &self.owners).await?)),
            None => Ok(None),
        }
    }

    /// How many of all points lie on the arm that the model says.
    async fn accuracy(&self) -> anyhow::Result<f64> {
        let scores = self
            .model
            .forward(tensor_of(&self.data.points)?)
            .await
            .context("the model does not answer")?;
        let decided = decide(&scores)?;
        let right = decided.iter().zip(&self.data.arms);
        let right = right.filter(|(decided, arm)| decided == arm).count();
        Ok(right as f64 / self.data.len() as f64)
    }
}
