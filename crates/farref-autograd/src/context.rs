//! `Context`: one step of training, and its gradients.

use std::fmt;
use std::pin::Pin;
use std::task::{self, Poll};
use std::time::Duration;

use farref::context::{ContextId, ContextScope, InContext};
use farref::{RRef, Worker};

use crate::engine;
use crate::error::{Error, Result};
use crate::parameter::Parameter;
use crate::tensor::{Candle, Tensor};

/// How long a pass may go without any progress unless told otherwise.
const PATIENCE: Duration = Duration::from_secs(60);

/// A context of distributed autograd: what happens inside of it can be run backward.
///
/// Calls made inside, by [`run`](Self::run) or [`enter`](Self::enter), belong to it, as do the calls that
/// they make on other workers. (A call is made when it is first awaited, `start()`ed, `wait()`ed for or left there with
/// `remote()`; where it was built counts only if it is made outside of any context.) What comes by a call outside of
/// the context is data, without gradients. It is over when it was released, by [`release`](Self::release) or by being
/// dropped, and its last call is done; then nothing of it is left on any worker.
///
/// Any number of contexts may be open at once, on the same parameters as well.
///
/// ```
/// # use farref_autograd::{Context, Error, Parameter, Tensor};
/// #[farref::remote]
/// fn square(x: Tensor) -> Result<Tensor, Error> {
///     Ok(x.sqr()?.into())
/// }
///
/// # #[tokio::main]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let cluster = farref::testing::Cluster::start(2).await?;
/// # let (me, other) = (cluster.worker(0), cluster.worker(0).peer("worker1")?);
/// let weight = Parameter::new(&*Tensor::from_vec(vec![1.0, 3.0], 2)?)?;
/// let context = Context::new(me)?;
/// let loss = context
///     .run(async {
///         let squared = square::on(&other, weight.tensor()).await?;
///         Ok::<_, Error>(Tensor::from(squared.sum_all()?))
///     })
///     .await?;
///
/// // Twice: gradients add up, in this context only.
/// context.backward(&[&loss]).retain_graph().await?;
/// context.backward(&[&loss]).await?;
/// let gradient = context.gradient(&weight).ok_or("no gradient")?;
/// assert_eq!(gradient.to_vec1::<f64>()?, [4.0, 12.0]);
///
/// // Nothing of it is left, on any worker.
/// context.release().await?;
/// # drop(loss);
/// # cluster.shutdown().await?;
/// # Ok(())
/// # }
/// ```
pub struct Context {
    scope: ContextScope,
    /// Whether dropping this releases the context.
    owns: bool,
}

impl Context {
    /// Opens a context.
    pub fn new(worker: &Worker) -> Result<Self> {
        let scope = ContextScope::open(worker)?;
        Ok(Self { scope, owns: true })
    }

    /// The context that this code runs in, for instance that of the call that a remote function works
    /// for. It is not released with this handle.
    pub fn current() -> Option<Self> {
        let scope = ContextScope::current()?;
        Some(Self { scope, owns: false })
    }

    /// Another handle, which does not release the context when it is dropped; for tasks.
    pub fn handle(&self) -> Self {
        Self {
            scope: self.scope.clone(),
            owns: false,
        }
    }

    /// Which context it is.
    pub fn id(&self) -> ContextId {
        self.scope.id()
    }

    /// Runs a future inside of the context: `context.run(async { .. })`, or a call as it is,
    /// `context.run(module.forward(&x))`. Tasks that it spawns are not inside: give them a
    /// [`handle`](Self::handle), and let them `run` what they do.
    pub fn run<F: Future>(&self, future: F) -> InContext<F> {
        self.scope.run(future)
    }

    /// Runs code inside of the context.
    pub fn enter<T>(&self, f: impl FnOnce() -> T) -> T {
        self.scope.enter(f)
    }

    /// Runs the context backward from losses that are on this worker, as if from their sum. Awaited, it
    /// returns when every worker that took part is done.
    ///
    /// A loss that depends on nothing that needs gradients, for instance because what it was computed from came by
    /// calls outside of the context, is [`Error::NotALoss`]; so is none at all.
    ///
    /// Each pass adds to the gradients that others leave in the context, before it or side by side with it.
    /// Results that the losses do not depend on cost nothing and hold nothing up.
    ///
    /// A pass frees the messages that it used, unless told to [retain](Backward::retain_graph) them. One that
    /// needs what another has freed fails with [`GraphFreed`](crate::engine::Cause::GraphFreed).
    pub fn backward(&self, losses: &[&Tensor]) -> Backward {
        Backward(Stage::Asked(Pass {
            scope: self.scope.clone(),
            losses: losses.iter().map(|&loss| loss.clone()).collect(),
            retain_graph: false,
            timeout: Some(PATIENCE),
        }))
    }

    /// Whether it is still there, with all that took part in it.
    pub(crate) fn check(&self) -> Result<()> {
        Ok(self.scope.check()?)
    }

    /// The gradient of a parameter of this worker's. None if no loss depended on it.
    pub fn gradient(&self, parameter: &Parameter) -> Option<Tensor> {
        parameter.gradient_in(&self.scope)
    }

    /// The gradients of some parameters of this worker's, in their order.
    pub fn gradients<'a>(
        &self,
        parameters: impl IntoIterator<Item = &'a Parameter>,
    ) -> Vec<Option<Tensor>> {
        let parameters = parameters.into_iter();
        parameters
            .map(|parameter| self.gradient(parameter))
            .collect()
    }

    /// Releases the context, and waits until its calls are done and all workers have forgotten it.
    pub async fn release(mut self) -> Result<()> {
        self.owns = false;
        Ok(self.scope.release().await?)
    }
}

impl Drop for Context {
    fn drop(&mut self) {
        if self.owns {
            drop(self.scope.release());
        }
    }
}

impl fmt::Debug for Context {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Context({})", self.id())
    }
}

/// A backward pass that is to be made: await it, alone or beside others (`join!`, `select!`). It gets on while it is
/// polled. Dropping it while it runs cancels it.
///
/// ```
/// # use farref_autograd::{Context, Parameter, Tensor};
/// # use std::time::Duration;
/// # #[tokio::main]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let cluster = farref::testing::Cluster::start(1).await?;
/// # let weight = Parameter::new(&*Tensor::from_vec(vec![1.0, 3.0], 2)?)?;
/// let context = Context::new(cluster.worker(0))?;
/// let loss = context.enter(|| weight.tensor().sum_all())?;
/// context
///     .backward(&[&loss.into()])
///     .timeout(Duration::from_secs(5)) // without any progress
///     .await?;
/// context.release().await?;
/// # cluster.shutdown().await?;
/// # Ok(())
/// # }
/// ```
#[must_use = "a pass is only made when it is awaited"]
#[derive(Debug)]
pub struct Backward(Stage);

enum Stage {
    Asked(Pass),
    Running(Pin<Box<dyn Future<Output = Result<()>> + Send>>),
    /// In between.
    Taken,
}

/// What has been said about a pass.
#[derive(Debug)]
struct Pass {
    scope: ContextScope,
    losses: Vec<Tensor>,
    retain_graph: bool,
    timeout: Option<Duration>,
}

impl fmt::Debug for Stage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Asked(pass) => pass.fmt(f),
            Self::Running(_) => f.write_str("Running"),
            Self::Taken => f.write_str("Taken"),
        }
    }
}

impl Backward {
    /// Keeps the graph, so that it can be run backward again, or by another pass that shares parts of it.
    pub fn retain_graph(mut self) -> Self {
        if let Stage::Asked(pass) = &mut self.0 {
            pass.retain_graph = true;
        }
        self
    }

    /// How long the pass may go without any progress, on any worker. (A pass that gets on may take as
    /// long as it takes.) `None` is unlimited.
    pub fn timeout(mut self, patience: impl Into<Option<Duration>>) -> Self {
        if let Stage::Asked(pass) = &mut self.0 {
            pass.timeout = patience.into();
        }
        self
    }
}

impl Pass {
    async fn make(self) -> Result<()> {
        if self.losses.is_empty() {
            return Err(Error::NotALoss(
                "there is no loss to begin from: give `backward` at least one".to_owned(),
            ));
        }
        let mut roots = Vec::new();
        for loss in self.losses {
            check(&loss)?;
            let one = Tensor::from(loss.ones_like()?.detach());
            roots.push((loss, one));
        }
        engine::backward::<Candle>(&self.scope, roots, self.retain_graph, self.timeout).await
    }
}

impl Future for Backward {
    type Output = Result<()>;

    /// Begins the pass, the first time.
    fn poll(mut self: Pin<&mut Self>, context: &mut task::Context<'_>) -> Poll<Result<()>> {
        if let Stage::Asked(_) = self.0 {
            self.0 = match std::mem::replace(&mut self.0, Stage::Taken) {
                Stage::Asked(pass) => Stage::Running(Box::pin(pass.make())),
                other => other,
            };
        }
        match &mut self.0 {
            Stage::Running(pass) => pass.as_mut().poll(context),
            Stage::Asked(_) | Stage::Taken => Poll::Pending,
        }
    }
}

fn check(loss: &Tensor) -> Result<()> {
    if loss.elem_count() != 1 {
        return Err(Error::NotALoss(format!(
            "a loss has one element, this tensor has the shape {:?}: reduce it, with `sum_all` for instance",
            loss.dims()
        )));
    }
    if !loss.requires_grad() {
        return Err(Error::NotALoss(
            "the loss does not depend on anything that needs gradients: use `Parameter::tensor`, make the calls \
             inside of the context (what comes by a call outside of it, or in a task that it spawned, is data), and \
             look for an operation that cuts the graph (`detach`, a conversion to integers, or candle-nn's \
             LayerNorm, RmsNorm, softmax_last_dim and rope; farref_autograd::nn has versions that do not)"
                .to_owned(),
        ));
    }
    Ok(())
}

/// Running a context backward from a loss that is on another worker.
///
/// ```
/// use farref::RRef;
/// use farref_autograd::{Context, Error, Parameter, RemoteLoss as _, Tensor};
///
/// #[farref::remote]
/// fn loss_of(x: Tensor) -> Result<Tensor, Error> {
///     Ok(x.sqr()?.sum_all()?.into())
/// }
///
/// # #[tokio::main]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let cluster = farref::testing::Cluster::start(2).await?;
/// # let (me, other) = (cluster.worker(0), cluster.worker(0).peer("worker1")?);
/// # let weight = Parameter::new(&*Tensor::from_vec(vec![1.0, 3.0], 2)?)?;
/// let context = Context::new(me)?;
/// let loss: RRef<Tensor> = context.enter(|| loss_of::on(&other, weight.tensor()).remote());
/// loss.backward(&context).await?;
/// assert!(context.gradient(&weight).is_some());
/// drop(loss);
/// context.release().await?;
/// # cluster.shutdown().await?;
/// # Ok(())
/// # }
/// ```
pub trait RemoteLoss {
    /// Runs `context` backward from this loss, where it is.
    fn backward(&self, context: &Context) -> impl Future<Output = Result<()>> + Send;
}

impl RemoteLoss for RRef<Tensor> {
    fn backward(&self, context: &Context) -> impl Future<Output = Result<()>> + Send {
        // How long a pass takes is for its patience to say.
        let call = context.enter(|| self.run_backward(false).timeout(None).start());
        async move {
            match call.await? {
                None => Ok(()),
                Some(failure) => Err(failure.into()),
            }
        }
    }
}

/// What a wire has to know a call as that begins a backward pass at a far loss, if it has messages of its own
/// for that.
pub const REMOTE_BACKWARD: &str = "farref_autograd::Tensor::run_backward";

#[farref::remote(name = "farref_autograd::Tensor", trait = Loss)]
impl Tensor {
    /// Runs the context of the call backward from here.
    #[remote]
    async fn run_backward(&self, retain_graph: bool) -> Result<Option<engine::PassFailure>> {
        let context = Context::current().ok_or(Error::NoContext)?;
        let mut pass = context.backward(&[self]);
        if retain_graph {
            pass = pass.retain_graph();
        }
        match pass.await {
            Ok(()) => Ok(None),
            Err(Error::Backward(failure)) => Ok(Some(failure)),
            Err(error) => Err(error),
        }
    }
}
