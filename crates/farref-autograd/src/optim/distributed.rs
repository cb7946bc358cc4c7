//! An optimizer of parameters that are spread over workers.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use farref::{Call, Peer, RRef};
use serde::de::DeserializeOwned;

use super::config::OptimizerConfig;
use super::local::{FarOptimizer, LocalOptimizer};
use crate::context::Context;
use crate::error::{Error, Result};
use crate::parameter::Parameter;
use crate::several::await_all;
use crate::state::{self, StateDict};

/// Takes steps with parameters on any workers: each is replaced where it is, from the gradient that the
/// context has there. No gradient travels.
///
/// ```
/// use farref::RRef;
/// use farref_autograd::optim::{DistributedOptimizer, Sgd};
/// use farref_autograd::{Context, Error, Parameter, RemoteParameter, Result, Tensor};
///
/// #[farref::remote]
/// fn weight() -> Result<Parameter> {
///     let initial = Tensor::from_vec(vec![1.0, 2.0], 2)?;
///     Parameter::new(&initial)
/// }
///
/// # #[tokio::main]
/// # async fn main() -> Result<()> {
/// # let cluster = farref::testing::Cluster::start(2).await?;
/// # let me = cluster.worker(0);
/// let there: RRef<Parameter> = weight::on(&me.peer("worker1")?).remote();
/// let optimizer = DistributedOptimizer::new(Sgd::new(0.5), vec![there.clone()]).await?;
///
/// let context = Context::new(me)?;
/// let loss = context
///     .run(async { Ok::<_, Error>(Tensor::from(there.tensor().await?.sqr()?.sum_all()?)) })
///     .await?;
/// context.backward(&[&loss]).await?;
/// optimizer.step(&context).await?;
/// context.release().await?;
///
/// assert_eq!(there.value().await?.to_vec1::<f64>()?, [0.0, 0.0]);
/// # drop((there, optimizer, loss));
/// # cluster.shutdown().await?;
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct DistributedOptimizer {
    owners: Vec<Owner>,
}

/// A worker with some of the parameters.
#[derive(Debug)]
struct Owner {
    name: String,
    optimizer: RRef<LocalOptimizer>,
    /// Whether its steps take no longer than a task may.
    is_small: bool,
}

impl Owner {
    fn step(&self) -> Call<(usize, usize)> {
        match self.is_small {
            true => self.optimizer.step_small(),
            false => self.optimizer.step_here(),
        }
    }
}

impl DistributedOptimizer {
    /// An optimizer of some parameters, which are called `0`, `1`, ... in its state, in this order.
    pub async fn new(
        config: impl Into<OptimizerConfig>,
        parameters: Vec<RRef<Parameter>>,
    ) -> Result<Self> {
        let parameters = parameters.into_iter().enumerate();
        let named = parameters.map(|(index, parameter)| (index.to_string(), parameter));
        Self::named(config, named.collect()).await
    }

    /// An optimizer of some parameters, with the names that they have in its state. Returns when every
    /// owner has its part.
    pub async fn named(
        config: impl Into<OptimizerConfig>,
        parameters: Vec<(String, RRef<Parameter>)>,
    ) -> Result<Self> {
        let config = config.into();
        config.check()?;
        if parameters.is_empty() {
            return Err(Error::Invalid(
                "an optimizer needs at least one parameter".to_owned(),
            ));
        }
        let mut groups: BTreeMap<u32, (Peer, Vec<_>)> = BTreeMap::new();
        for (name, parameter) in parameters {
            let owner = parameter.owner()?;
            let (_, group) = groups
                .entry(owner.rank())
                .or_insert_with(|| (owner, Vec::new()));
            group.push((name, parameter));
        }
        let owners = groups.into_values().map(|(peer, group)| Owner {
            name: peer.name().to_owned(),
            optimizer: LocalOptimizer::of_references_on(&peer, config.clone(), group).remote(),
            is_small: false,
        });
        let mut this = Self {
            owners: owners.collect(),
        };
        // A parameter that cannot be had, or is there twice, is told of now and not at the first step.
        let layouts = this.on_all(FarOptimizer::get_layout).await?;
        merge(layouts)?;
        let small = this.on_all(FarOptimizer::is_small).await?;
        for (owner, is_small) in this.owners.iter_mut().zip(small) {
            owner.is_small = is_small;
        }
        Ok(this)
    }

    /// Takes a step with every parameter that has a gradient in `context`, on all owners at once.
    /// Concurrent steps come one after the other on each owner. If not one parameter has a gradient there, on any
    /// owner, which is no error (no loss may have depended on them this time), a warning is logged.
    ///
    /// An owner replaces all of its parameters or none. If some owners fail, [`Error::Step`] tells which
    /// ones did and which did not: what the latter have done stays done. Of one that was lost, or did not
    /// answer in time, nobody knows whether it made the step; nor of any if this is dropped while it
    /// waits.
    pub async fn step(&self, context: &Context) -> Result<()> {
        let owners = self.owners.iter();
        let steps: Vec<_> = context.enter(|| {
            let steps = owners.map(|owner| (&owner.name, owner.step().start()));
            steps.collect()
        });
        let mut failed = Vec::new();
        let mut stepped = Vec::new();
        let (mut with_gradient, mut parameters) = (0, 0);
        for (name, step) in steps {
            match step.await {
                Ok((some, all)) => {
                    with_gradient += some;
                    parameters += all;
                    stepped.push(name.clone());
                }
                Err(error) => failed.push((name.clone(), Arc::new(error.into()))),
            }
        }
        if failed.is_empty() {
            if with_gradient == 0 {
                super::warn_of_no_gradients(context, parameters);
            }
            return Ok(());
        }
        Err(Error::Step { failed, stepped })
    }

    /// Lets further steps go so far, on all owners. If this fails, some may have it and others not.
    pub async fn set_learning_rate(&self, learning_rate: f64) -> Result<()> {
        self.on_all(|owner| owner.change_learning_rate(learning_rate))
            .await?;
        Ok(())
    }

    /// All that it remembers, of all owners; see [`LocalOptimizer::state`].
    pub async fn state(&self) -> Result<StateDict> {
        merge(self.on_all(FarOptimizer::get_state).await?)
    }

    /// Takes over a [state](Self::state), also that of a [`LocalOptimizer`] of parameters with the same
    /// names, or of one whose parameters were spread in another way. If it does not fit,
    /// [`Error::State`] tells how, and nothing is changed.
    pub async fn load_state(&self, all: &StateDict) -> Result<()> {
        let layouts = self.on_all(FarOptimizer::get_layout).await?;
        state::compare(&merge(layouts.clone())?, &state::layout_of(all))?;
        let mut layouts = layouts.into_iter();
        self.on_all(|owner| {
            let names = layouts.next().unwrap_or_default().into_keys();
            let part = names.filter_map(|name| all.get(&name).cloned().map(|value| (name, value)));
            owner.put_state(part.collect())
        })
        .await?;
        Ok(())
    }

    /// Writes its [state](Self::state) to a file on this worker, in the format safetensors.
    pub async fn save(&self, path: impl AsRef<Path>) -> Result<()> {
        state::save_file(path, &self.state().await?).await
    }

    /// Takes over the state in a file; see [`load_state`](Self::load_state).
    pub async fn load(&self, path: impl AsRef<Path>) -> Result<()> {
        let state = state::load_file(path).await?;
        self.load_state(&state).await
    }

    /// Calls all owners at once. The results are in their order; all calls are done when one has failed.
    async fn on_all<T: DeserializeOwned + 'static>(
        &self,
        call: impl FnMut(&RRef<LocalOptimizer>) -> Call<T>,
    ) -> Result<Vec<T>> {
        let owners = self.owners.iter().map(|owner| &owner.optimizer);
        await_all(owners.map(call)).await
    }
}

/// What several owners say, as one. Only the learning rate is said by all of them.
fn merge<T>(parts: Vec<BTreeMap<String, T>>) -> Result<BTreeMap<String, T>> {
    let mut all = BTreeMap::new();
    for (name, value) in parts.into_iter().flatten() {
        let common = name == super::local::LEARNING_RATE;
        if all.insert(name.clone(), value).is_some() && !common {
            return Err(Error::Invalid(format!(
                "two parameters on different workers have the state `{name}`: give each its own name"
            )));
        }
    }
    Ok(all)
}
