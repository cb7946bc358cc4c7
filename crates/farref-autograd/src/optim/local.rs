//! An optimizer of parameters that are on this worker.

use std::collections::HashSet;
use std::fmt;
use std::path::Path;

use candle_core::{DType, Device};
use farref::RRef;

use super::config::{OptimizerConfig, not_negative};
use super::rules::{self, ParameterState};
use crate::context::Context;
use crate::error::{Error, Result};
use crate::parameter::Parameter;
use crate::state::{self, Layout, StateDict};

/// The entry of a state that belongs to no parameter.
pub(super) const LEARNING_RATE: &str = "learning_rate";

/// A step of an optimizer that has less to do is made by a task: some hundred microseconds at most, in elements.
const SMALL_WORK: usize = 32 << 10;
/// What a parameter costs, however small it is.
const PARAMETER_WORK: usize = 512;

/// Takes steps with parameters of this worker.
///
/// ```
/// use farref_autograd::optim::{LocalOptimizer, Sgd};
/// use farref_autograd::{Context, Parameter, Tensor};
///
/// # #[tokio::main]
/// # async fn main() -> farref_autograd::Result<()> {
/// # let cluster = farref::testing::Cluster::start(1).await?;
/// # let me = cluster.worker(0);
/// let initial = Tensor::from_vec(vec![1.0, 2.0], 2)?;
/// let weight = Parameter::new(&initial)?;
/// let mut optimizer = LocalOptimizer::new(Sgd::new(0.5), [weight.clone()])?;
///
/// let context = Context::new(me)?;
/// let loss = context.enter(|| weight.tensor().sqr()?.sum_all())?.into();
/// context.backward(&[&loss]).await?;
/// optimizer.step(&context)?;
/// context.release().await?;
///
/// assert_eq!(weight.value().to_vec1::<f64>()?, [0.0, 0.0]); // w - 0.5 * 2w
/// # drop(loss);
/// # cluster.shutdown().await?;
/// # Ok(())
/// # }
/// ```
pub struct LocalOptimizer {
    config: OptimizerConfig,
    entries: Vec<Entry>,
}

/// One parameter.
struct Entry {
    name: String,
    parameter: Parameter,
    /// None before its first step.
    state: Option<ParameterState>,
}

impl Entry {
    fn state_or_new(&self, config: &OptimizerConfig) -> Result<ParameterState> {
        match &self.state {
            Some(state) => Ok(state.clone()),
            None => Ok(ParameterState::new(config, &self.parameter.value())?),
        }
    }

    fn key(&self, slot: &str) -> String {
        format!("{}.{slot}", self.name)
    }
}

impl LocalOptimizer {
    /// An optimizer of some parameters, which are called `0`, `1`, ... in its state.
    pub fn new(
        config: impl Into<OptimizerConfig>,
        parameters: impl IntoIterator<Item = Parameter>,
    ) -> Result<Self> {
        let parameters = (0..).zip(parameters);
        let named = parameters.map(|(index, parameter): (u64, _)| (index.to_string(), parameter));
        Self::named(config, named)
    }

    /// An optimizer of some parameters, with the names that they have in its state.
    pub fn named(
        config: impl Into<OptimizerConfig>,
        parameters: impl IntoIterator<Item = (String, Parameter)>,
    ) -> Result<Self> {
        let config = config.into();
        config.check()?;
        let mut keys = HashSet::new();
        let mut names = HashSet::new();
        let mut entries = Vec::new();
        for (name, parameter) in parameters {
            if !keys.insert(parameter.key()) {
                return Err(Error::Invalid(format!(
                    "parameter `{name}` is there twice, and would be stepped twice: give each parameter \
                     once"
                )));
            }
            if !names.insert(name.clone()) {
                return Err(Error::Invalid(format!(
                    "two parameters are called `{name}`: their states could not be told apart"
                )));
            }
            entries.push(Entry {
                name,
                parameter,
                state: None,
            });
        }
        if entries.is_empty() {
            return Err(Error::Invalid(
                "an optimizer needs at least one parameter".to_owned(),
            ));
        }
        Ok(Self { config, entries })
    }

    /// Replaces every parameter that has a gradient in `context`. Either all of them are replaced or, if
    /// that does not work, none. If not one has a gradient there, which is no error (no loss may have depended on them
    /// this time), a warning is logged.
    pub fn step(&mut self, context: &Context) -> Result<()> {
        if self.step_all(context)? == 0 {
            super::warn_of_no_gradients(context, self.entries.len());
        }
        Ok(())
    }

    /// The same without the warning. Says how many parameters had a gradient.
    fn step_all(&mut self, context: &Context) -> Result<usize> {
        // In a context that is over nothing has a gradient, which would look like success.
        context.check()?;
        let mut steps = Vec::new();
        for entry in &self.entries {
            let Some(gradient) = context.gradient(&entry.parameter) else {
                steps.push(None);
                continue;
            };
            let value = entry.parameter.value();
            if value.shape() != gradient.shape() || value.dtype() != gradient.dtype() {
                return Err(Error::Mismatch {
                    expected: format!(
                        "a gradient of parameter `{}` that is {}",
                        entry.name,
                        state::describe(&value)
                    ),
                    found: state::describe(&gradient),
                });
            }
            let state = entry.state_or_new(&self.config)?;
            // A hook may have computed the gradient from something that is tracked.
            let gradient = gradient.detach();
            steps.push(Some(rules::update(
                &self.config,
                &value,
                &gradient,
                &state,
            )?));
        }
        let mut stepped = 0;
        for (entry, step) in self.entries.iter_mut().zip(steps) {
            if let Some((value, state)) = step {
                entry.parameter.set(&value)?;
                entry.state = Some(state);
                stepped += 1;
            }
        }
        Ok(stepped)
    }

    /// How far a step goes.
    pub fn learning_rate(&self) -> f64 {
        self.config.learning_rate()
    }

    /// Lets further steps go so far.
    pub fn set_learning_rate(&mut self, learning_rate: f64) -> Result<()> {
        not_negative(LEARNING_RATE, learning_rate)?;
        *self.config.learning_rate_mut() = learning_rate;
        Ok(())
    }

    /// All that it remembers, by the names of the parameters and PyTorch's names: `0.exp_avg`, and the
    /// learning rate. An optimizer of the same kind and parameters that [loads](Self::load_state) it goes
    /// on as this one would. (The parameters themselves are not in it.)
    pub fn state(&self) -> Result<StateDict> {
        let rate = candle_core::Tensor::new(self.learning_rate(), &Device::Cpu)?;
        let mut all = StateDict::from([(LEARNING_RATE.to_owned(), rate.into())]);
        let slots = rules::slots(&self.config);
        for entry in &self.entries {
            let state = entry.state_or_new(&self.config)?;
            let step = candle_core::Tensor::new(state.step as i64, &Device::Cpu)?;
            all.insert(entry.key("step"), step.into());
            for (slot, tensor) in slots.iter().zip(state.slots) {
                all.insert(entry.key(slot), tensor.into());
            }
        }
        Ok(all)
    }

    /// Takes over a [state](Self::state). If it does not fit, [`Error::State`] tells all that is
    /// missing, unexpected or different, and nothing is changed.
    pub fn load_state(&mut self, all: &StateDict) -> Result<()> {
        state::compare(&self.layout(), &state::layout_of(all))?;
        let rate = match all.get(LEARNING_RATE) {
            Some(rate) => rate.to_scalar::<f64>()?,
            None => self.learning_rate(),
        };
        not_negative(LEARNING_RATE, rate)?;
        let slots = rules::slots(&self.config);
        let mut states = Vec::new();
        for entry in &self.entries {
            let step = all
                .get(&entry.key("step"))
                .map(|step| step.to_scalar::<i64>());
            let step = u64::try_from(step.transpose()?.unwrap_or(0))
                .map_err(|_| Error::Invalid(format!("`{}` is negative", entry.key("step"))))?;
            let tensors = slots.iter().filter_map(|slot| all.get(&entry.key(slot)));
            let device = entry.parameter.value().device().clone();
            let tensors = tensors.map(|tensor| tensor.detach().to_device(&device));
            let slots = tensors.collect::<candle_core::Result<Vec<_>>>()?;
            states.push((step > 0).then_some(ParameterState { step, slots }));
        }
        for (entry, state) in self.entries.iter_mut().zip(states) {
            entry.state = state;
        }
        self.set_learning_rate(rate)
    }

    /// Writes its [state](Self::state) to a file, in the format safetensors.
    pub fn save(&self, path: impl AsRef<Path>) -> Result<()> {
        state::save_now(path.as_ref(), &self.state()?)
    }

    /// Takes over the state in a file; see [`load_state`](Self::load_state).
    pub fn load(&mut self, path: impl AsRef<Path>) -> Result<()> {
        let state = state::load_now(path.as_ref())?;
        self.load_state(&state)
    }

    /// What its state looks like.
    fn layout(&self) -> Layout {
        let scalar = |dtype| state::describe_as(&[], dtype);
        let mut layout = Layout::from([(LEARNING_RATE.to_owned(), scalar(DType::F64))]);
        let slots = rules::slots(&self.config);
        for entry in &self.entries {
            layout.insert(entry.key("step"), scalar(DType::I64));
            let like = state::describe(&entry.parameter.value());
            for slot in &slots {
                layout.insert(entry.key(slot), like.clone());
            }
        }
        layout
    }
}

impl fmt::Debug for LocalOptimizer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LocalOptimizer")
            .field("config", &self.config)
            .field("parameters", &self.entries.len())
            .finish_non_exhaustive()
    }
}

/// What `DistributedOptimizer` asks of each owner. The methods that change something have the optimizer
/// to themselves, so that steps of several contexts come one after the other.
#[farref::remote(trait = FarOptimizer, name = "farref_autograd::LocalOptimizer")]
impl LocalOptimizer {
    /// An optimizer of parameters that are on the worker that this runs on.
    pub(crate) async fn of_references(
        config: OptimizerConfig,
        parameters: Vec<(String, RRef<Parameter>)>,
    ) -> Result<Self> {
        let mut named = Vec::new();
        for (name, parameter) in parameters {
            named.push((name, parameter.local().await?.clone()));
        }
        Self::named(config, named)
    }

    /// Takes a step in the caller's context. Says how many parameters had a gradient, of how many.
    pub(crate) fn step_here(&mut self) -> Result<(usize, usize)> {
        let context = Context::current().ok_or(Error::NoContext)?;
        Ok((self.step_all(&context)?, self.entries.len()))
    }

    /// The same on a task, for one that [`is_small`](Self::is_small): that saves the way to a thread.
    pub(crate) async fn step_small(&mut self) -> Result<(usize, usize)> {
        self.step_here()
    }

    /// Whether a step takes no longer than a task may.
    pub(crate) fn is_small(&self) -> bool {
        let slots = rules::slots(&self.config).len();
        let tensors = self.entries.iter().map(|entry| entry.parameter.value());
        let work: usize = tensors
            .map(|tensor| PARAMETER_WORK + (1 + slots) * tensor.elem_count())
            .sum();
        work <= SMALL_WORK
    }

    pub(crate) fn change_learning_rate(&mut self, learning_rate: f64) -> Result<()> {
        self.set_learning_rate(learning_rate)
    }

    pub(crate) fn get_layout(&self) -> Layout {
        self.layout()
    }

    pub(crate) fn get_state(&self) -> Result<StateDict> {
        self.state()
    }

    pub(crate) fn put_state(&mut self, state: StateDict) -> Result<()> {
        self.load_state(&state)
    }
}
