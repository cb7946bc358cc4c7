//! Modules in a row, each on a worker of its choice.

use std::collections::{BTreeMap, HashSet};
use std::path::Path;

use farref::{Call, RRef};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::error::{Error, Result};
use crate::module::{Input, RemoteModule};
use crate::parameter::Parameter;
use crate::several::await_all;
use crate::state::{self, StateDict};
use crate::tensor::Tensor;

/// Modules in a row. What comes out of one goes to the next from worker to worker, not by way of the one
/// that drives the pipeline.
///
/// Like the references that it is made of, it can be an argument of a call.
///
/// Start several calls before awaiting the first, with parts of a batch, and the stages work at the same
/// time.
///
/// ```
/// use farref_autograd::candle::DType;
/// use farref_autograd::nn::{Generator, Linear};
/// use farref_autograd::{Hosted, Pipeline, RemoteModule, Result, Tensor};
///
/// #[farref::remote]
/// fn stage(inputs: usize, outputs: usize) -> Result<Hosted> {
///     let layer = Linear::new(inputs, outputs, DType::F32, &mut Generator::new(0))?;
///     Ok(Hosted::new(layer))
/// }
///
/// # #[tokio::main]
/// # async fn main() -> Result<()> {
/// # let cluster = farref::testing::Cluster::start(3).await?;
/// # let me = cluster.worker(0);
/// let pipeline = Pipeline::new(vec![
///     stage::on(&me.peer("worker1")?, 4, 8).remote().into(),
///     stage::on(&me.peer("worker2")?, 8, 1).remote().into(),
/// ])?;
/// let batch = Tensor::from_vec(vec![1.0f32; 24], (6, 4))?;
/// let parts = batch.chunk(2, 0)?.into_iter().map(Tensor::from);
/// let outputs: Vec<_> = parts.map(|part| pipeline.forward(part).start()).collect();
/// for output in outputs {
///     assert_eq!(output.await?.dims(), [3, 1]);
/// }
/// # drop(pipeline);
/// # cluster.shutdown().await?;
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Pipeline {
    /// All but the last.
    stages: Vec<(String, RemoteModule)>,
    last: (String, RemoteModule),
}

impl Pipeline {
    /// Modules in a row, which are called `0`, `1`, ... in the names of parameters.
    pub fn new(stages: Vec<RemoteModule>) -> Result<Self> {
        let stages = stages.into_iter().enumerate();
        let stages = stages.map(|(index, stage)| (index.to_string(), stage));
        Self::named(stages.collect())
    }

    /// Modules in a row, with the names that those of their parameters begin with.
    pub fn named(mut stages: Vec<(String, RemoteModule)>) -> Result<Self> {
        let mut names = HashSet::new();
        if let Some((name, _)) = stages.iter().find(|(name, _)| !names.insert(name.clone())) {
            return Err(Error::Invalid(format!(
                "two stages are called `{name}`: their parameters could not be told apart"
            )));
        }
        let last = stages
            .pop()
            .ok_or_else(|| Error::Invalid("a pipeline needs at least one stage".to_owned()))?;
        Ok(Self { stages, last })
    }

    /// The stages, with their names.
    pub fn stages(&self) -> impl Iterator<Item = (&str, &RemoteModule)> {
        let stages = self.stages.iter().chain([&self.last]);
        stages.map(|(name, stage)| (name.as_str(), stage))
    }

    /// What comes out of the last stage when `input` goes into the first. The calls of all stages are made when
    /// this one is, and belong to the same context.
    pub fn forward(&self, input: impl Into<Input>) -> Call<Tensor> {
        let (this, mut input) = (self.clone(), input.into());
        farref::functions::deferred("farref_autograd::Pipeline::forward", move || {
            for (_, stage) in &this.stages {
                input = stage.forward_remote(input).into();
            }
            let (_, last) = &this.last;
            last.forward(input)
        })
    }

    /// The same; what comes out stays there.
    #[track_caller]
    pub fn forward_remote(&self, input: impl Into<Input>) -> RRef<Tensor> {
        self.forward(input).remote()
    }

    /// References to the parameters of all stages: `0.weight`, ...
    pub async fn parameters(&self) -> Result<Vec<(String, RRef<Parameter>)>> {
        let parts = self.on_all(|_, stage| stage.parameters()).await?;
        let parts = parts.into_iter();
        Ok(parts
            .flat_map(|(stage, part)| {
                let part = part.into_iter();
                part.map(move |(name, parameter)| (format!("{stage}.{name}"), parameter))
            })
            .collect())
    }

    /// Says whether the stages are being trained.
    pub async fn train(&self, training: bool) -> Result<()> {
        self.on_all(|_, stage| stage.train(training)).await?;
        Ok(())
    }

    /// Copies the values of all parameters over.
    pub async fn state_dict(&self) -> Result<StateDict> {
        merge(self.on_all(|_, stage| stage.state_dict()).await?)
    }

    /// Gives all parameters other values. If the state does not fit, [`Error::State`] tells how, and
    /// nothing is changed on any worker.
    pub async fn load_state_dict(&self, state: &StateDict) -> Result<()> {
        let layouts = self.on_all(|_, stage| stage.layout()).await?;
        let names: BTreeMap<String, Vec<String>> = layouts
            .iter()
            .map(|(stage, layout)| ((*stage).to_owned(), layout.keys().cloned().collect()))
            .collect();
        state::compare(&merge(layouts)?, &state::layout_of(state))?;
        self.on_all(|stage, module| {
            let names = names.get(stage).into_iter().flatten();
            let part = names.filter_map(|name| {
                let value = state.get(&format!("{stage}.{name}"))?;
                Some((name.clone(), value.clone()))
            });
            module.put(part.collect())
        })
        .await?;
        Ok(())
    }

    /// Writes the values of all parameters to one file on this worker, in the format safetensors.
    pub async fn save(&self, path: impl AsRef<Path>) -> Result<()> {
        state::save_file(path, &self.state_dict().await?).await
    }

    /// Takes over the values in a file; see [`load_state_dict`](Self::load_state_dict).
    pub async fn load(&self, path: impl AsRef<Path>) -> Result<()> {
        let state = state::load_file(path).await?;
        self.load_state_dict(&state).await
    }

    /// Calls all stages at once. All calls are done when one has failed.
    async fn on_all<T: DeserializeOwned + 'static>(
        &self,
        call: impl Fn(&str, &RemoteModule) -> Call<T>,
    ) -> Result<Vec<(&str, T)>> {
        let calls = self.stages().map(|(name, stage)| call(name, stage));
        let results = await_all(calls).await?;
        let names = self.stages().map(|(name, _)| name);
        Ok(names.zip(results).collect())
    }
}

/// What several stages say, as one.
fn merge<T>(parts: Vec<(&str, BTreeMap<String, T>)>) -> Result<BTreeMap<String, T>> {
    let mut all = BTreeMap::new();
    for (stage, part) in parts {
        for (name, value) in part {
            let name = format!("{stage}.{name}");
            if all.insert(name.clone(), value).is_some() {
                return Err(Error::Invalid(format!(
                    "two stages have a parameter called `{name}`: give the stages other names"
                )));
            }
        }
    }
    Ok(all)
}
