//! Modules: parts of a model, here or on other workers.

use std::fmt;
use std::path::Path;

use farref::{Call, Peer, RRef, Worker};
use serde::{Deserialize, Serialize};

use crate::error::{Error, Result};
use crate::parameter::Parameter;
use crate::state::{self, Layout, StateDict};
use crate::tensor::Tensor;

/// A part of a model.
pub trait Module: Send + Sync + 'static {
    /// What comes out when `input` goes in. Inside of a [`Context`](crate::Context), gradients flow back
    /// through it; use [`Parameter::tensor`] for that.
    fn forward(&self, input: &Tensor) -> Result<Tensor>;

    /// What is trained, by names that are unique in this module.
    fn parameters(&self) -> Vec<(String, Parameter)>;

    /// Whether it is being trained, for modules that make a difference.
    fn set_training(&mut self, training: bool) {
        let _ = training;
    }
}

impl<M: Module + ?Sized> Module for Box<M> {
    fn forward(&self, input: &Tensor) -> Result<Tensor> {
        (**self).forward(input)
    }

    fn parameters(&self) -> Vec<(String, Parameter)> {
        (**self).parameters()
    }

    fn set_training(&mut self, training: bool) {
        (**self).set_training(training);
    }
}

/// A module that can be used from afar, by a [`RemoteModule`].
pub struct Hosted {
    module: Box<dyn Module>,
}

impl Hosted {
    /// Hosts a module on the worker that this runs on.
    pub fn new(module: impl Module) -> Self {
        Self {
            module: Box::new(module),
        }
    }
}

impl fmt::Debug for Hosted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Hosted")
    }
}

/// What goes into a module: a tensor that is sent to it, or one that is on some worker and goes from there
/// to the module without a detour.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[non_exhaustive]
pub enum Input {
    /// A tensor that is here.
    Here(Tensor),
    /// A tensor that is where the reference leads. It need not have been computed yet.
    There(RRef<Tensor>),
}

impl From<Tensor> for Input {
    fn from(tensor: Tensor) -> Self {
        Self::Here(tensor)
    }
}

impl From<&Tensor> for Input {
    fn from(tensor: &Tensor) -> Self {
        Self::Here(tensor.clone())
    }
}

impl From<candle_core::Tensor> for Input {
    fn from(tensor: candle_core::Tensor) -> Self {
        Self::Here(tensor.into())
    }
}

impl From<&candle_core::Tensor> for Input {
    fn from(tensor: &candle_core::Tensor) -> Self {
        Self::Here(tensor.clone().into())
    }
}

impl From<RRef<Tensor>> for Input {
    fn from(reference: RRef<Tensor>) -> Self {
        Self::There(reference)
    }
}

impl From<&RRef<Tensor>> for Input {
    fn from(reference: &RRef<Tensor>) -> Self {
        Self::There(reference.clone())
    }
}

/// What `RemoteModule` asks of a hosted module.
#[farref::remote(trait = FarModule, name = "farref_autograd::Hosted")]
impl Hosted {
    pub(crate) fn run(&self, input: Input) -> Result<Tensor> {
        let input = match input {
            Input::Here(tensor) => tensor,
            // The limit is that of the call that this works for. What waits here is not counted as one of
            // the threads that run functions, so that modules that wait for each other's results do not
            // use them up.
            Input::There(reference) => reference.to_here().timeout(None).wait()?,
        };
        self.module.forward(&input)
    }

    pub(crate) fn refer(&self) -> Result<Vec<(String, RRef<Parameter>)>> {
        let worker = Worker::current().ok_or_else(|| {
            Error::Invalid("references to parameters are made by remote calls only".to_owned())
        })?;
        let parameters = self.module.parameters().into_iter();
        parameters
            .map(|(name, parameter)| Ok((name, worker.rref_to_object(parameter)?)))
            .collect()
    }

    pub(crate) fn train(&mut self, training: bool) {
        self.module.set_training(training);
    }

    pub(crate) fn get_layout(&self) -> Layout {
        state::layout_of(&state::values(&self.module.parameters()))
    }

    pub(crate) fn get_state(&self) -> StateDict {
        state::values(&self.module.parameters())
    }

    // `&mut`, so that nobody computes with some of the old and some of the new.
    #[expect(
        clippy::needless_pass_by_ref_mut,
        reason = "it has the module to itself"
    )]
    pub(crate) fn put_state(&mut self, state: StateDict) -> Result<()> {
        state::set_values(&self.module.parameters(), &state)
    }
}

/// A module on another worker (or on this one).
///
/// Its methods build calls, which can be awaited, started, given a time limit, or left there. Like the
/// reference that it is made of, it can be an argument of a call.
///
/// ```
/// use farref_autograd::candle::DType;
/// use farref_autograd::nn::{Generator, Linear};
/// use farref_autograd::{Context, Error, Hosted, RemoteModule, Result, Tensor};
///
/// #[farref::remote]
/// fn stage(inputs: usize, outputs: usize) -> Result<Hosted> {
///     let layer = Linear::new(inputs, outputs, DType::F32, &mut Generator::new(0))?;
///     Ok(Hosted::new(layer))
/// }
///
/// # #[tokio::main]
/// # async fn main() -> Result<()> {
/// # let cluster = farref::testing::Cluster::start(2).await?;
/// # let me = cluster.worker(0);
/// let module = RemoteModule::new(stage::on(&me.peer("worker1")?, 3, 1).remote());
/// let context = Context::new(me)?;
/// let loss = context
///     .run(async {
///         let output = module.forward(Tensor::from_vec(vec![1.0f32; 6], (2, 3))?).await?;
///         Ok::<_, Error>(Tensor::from(output.sum_all()?))
///     })
///     .await?;
/// context.backward(&[&loss]).await?; // the gradients are on worker1
/// assert_eq!(module.parameters().await?.len(), 2);
/// context.release().await?;
/// # drop((module, loss));
/// # cluster.shutdown().await?;
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct RemoteModule {
    hosted: RRef<Hosted>,
}

impl RemoteModule {
    /// The module behind a reference.
    pub fn new(hosted: RRef<Hosted>) -> Self {
        Self { hosted }
    }

    /// The reference.
    pub fn reference(&self) -> &RRef<Hosted> {
        &self.hosted
    }

    /// The worker that has the module.
    pub fn owner(&self) -> Result<Peer> {
        Ok(self.hosted.owner()?)
    }

    /// What comes out when `input` goes in; the input may be a reference to a tensor anywhere.
    #[track_caller]
    pub fn forward(&self, input: impl Into<Input>) -> Call<Tensor> {
        self.hosted.run(input.into())
    }

    /// The same; what comes out stays there.
    #[track_caller]
    pub fn forward_remote(&self, input: impl Into<Input>) -> RRef<Tensor> {
        self.forward(input).remote()
    }

    /// References to the parameters of the module, which are on its worker, for a
    /// [`DistributedOptimizer`](crate::optim::DistributedOptimizer).
    #[track_caller]
    pub fn parameters(&self) -> Call<Vec<(String, RRef<Parameter>)>> {
        self.hosted.refer()
    }

    /// Says whether the module is being trained. Waits for what it is at.
    #[track_caller]
    pub fn train(&self, training: bool) -> Call<()> {
        FarModule::train(&self.hosted, training)
    }

    /// Copies the values of all parameters over.
    #[track_caller]
    pub fn state_dict(&self) -> Call<StateDict> {
        self.hosted.get_state()
    }

    /// Gives all parameters other values. If the state does not fit, [`Error::State`] tells how, and
    /// nothing is changed.
    pub async fn load_state_dict(&self, state: &StateDict) -> Result<()> {
        state::compare(&self.layout().await?, &state::layout_of(state))?;
        Ok(self.put(state.clone()).await?)
    }

    /// Writes the values of all parameters to a file on this worker, in the format safetensors.
    pub async fn save(&self, path: impl AsRef<Path>) -> Result<()> {
        state::save_file(path, &self.state_dict().await?).await
    }

    /// Takes over the values in a file; see [`load_state_dict`](Self::load_state_dict).
    pub async fn load(&self, path: impl AsRef<Path>) -> Result<()> {
        let state = state::load_file(path).await?;
        self.load_state_dict(&state).await
    }

    /// What its state looks like.
    pub(crate) fn layout(&self) -> Call<Layout> {
        self.hosted.get_layout()
    }

    pub(crate) fn put(&self, state: StateDict) -> Call<()> {
        self.hosted.put_state(state)
    }
}

impl From<RRef<Hosted>> for RemoteModule {
    fn from(hosted: RRef<Hosted>) -> Self {
        Self::new(hosted)
    }
}
