//! Parameters: tensors with a name of their own, which steps replace.
//!
//! - **PA-1** A step replaces the tensor, it does not write into it: a pass that began before finishes
//!   with the weights that it saw.
//! - **PA-2** Whatever was computed from a value of it counts, wherever that was taken, and hooks see the sum:
//!   all the values that a pass reaches have one gradient.

use std::collections::VecDeque;
use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError, RwLock};

use candle_core::{TensorId, Var};
use farref::context::ContextScope;

use crate::engine::{self, Observer};
use crate::error::{Error, Result};
use crate::owners;
use crate::tensor::{Candle, Tensor};

/// Something that is trained. Clones are the same parameter; as `RRef<Parameter>` it is one on another
/// worker, see [`RemoteParameter`].
///
/// Its tensor at a moment is [`tensor`](Self::tensor); what is computed from that inside of a
/// [`Context`](crate::Context) gets a gradient there. An optimizer step replaces the tensor; what was
/// computed before is not affected.
///
/// ```
/// use farref_autograd::{Context, Parameter, Tensor};
///
/// # #[tokio::main]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let cluster = farref::testing::Cluster::start(1).await?;
/// let weight = Parameter::new(&*Tensor::from_vec(vec![1.0, 3.0], 2)?)?;
/// weight.on_gradient(|gradient| Ok(gradient.clamp(-2.0, 2.0)?.into()));
///
/// let context = Context::new(cluster.worker(0))?;
/// let loss = context.enter(|| weight.tensor().sqr()?.sum_all())?;
/// weight.set(&*Tensor::from_vec(vec![0.0, 0.0], 2)?)?; // the loss does not notice
/// context.backward(&[&loss.into()]).await?;
/// let gradient = context.gradient(&weight).ok_or("no gradient")?;
/// assert_eq!(gradient.to_vec1::<f64>()?, [2.0, 2.0]);
/// context.release().await?;
/// # cluster.shutdown().await?;
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct Parameter(Arc<SharedParameter>);

struct SharedParameter {
    key: u64,
    versions: RwLock<Versions>,
    hooks: Mutex<Vec<Hook>>,
}

/// What it is and was.
struct Versions {
    now: Var,
    /// The leaves that it was before, the latest first, as far as they are known to be its.
    former: VecDeque<TensorId>,
}

/// How many steps may lie between a computation outside of a context and a pass over it.
const FORMER: usize = 256;

type Hook = Arc<dyn Fn(Tensor) -> Result<Tensor> + Send + Sync>;

impl Parameter {
    /// A parameter that begins as a copy of `value`.
    pub fn new(value: &candle_core::Tensor) -> Result<Self> {
        static KEYS: AtomicU64 = AtomicU64::new(1);
        if !value.dtype().is_float() {
            return Err(Error::Mismatch {
                expected: "a tensor of floats".to_owned(),
                found: format!("one of {:?}", value.dtype()),
            });
        }
        crate::threads::keep();
        let now = Var::from_tensor(&value.detach())?;
        let leaf = now.id();
        let inner = Arc::new(SharedParameter {
            key: KEYS.fetch_add(1, Ordering::Relaxed),
            versions: RwLock::new(Versions {
                now,
                former: VecDeque::new(),
            }),
            hooks: Mutex::default(),
        });
        owners::add(leaf, &inner);
        Ok(Self(inner))
    }

    /// Tells it from all others of this process.
    pub(crate) fn key(&self) -> u64 {
        self.0.key
    }

    fn var(&self) -> Var {
        let versions = self.0.versions.read();
        let versions = versions.unwrap_or_else(PoisonError::into_inner);
        versions.now.clone()
    }

    /// Gives it another value, of the same shape and type. What was computed before is not affected. It stays on
    /// its device: a value from another one, as those that were read from a file are, is copied there.
    pub fn set(&self, value: &candle_core::Tensor) -> Result<()> {
        let now = self.var();
        if now.shape() != value.shape() || now.dtype() != value.dtype() {
            return Err(Error::Mismatch {
                expected: format!("{:?} of {:?}", now.dims(), now.dtype()),
                found: format!("{:?} of {:?}", value.dims(), value.dtype()),
            });
        }
        let value = value.detach().to_device(now.device())?;
        let next = Var::from_tensor(&value)?;
        // Before anybody can compute with it.
        owners::add(next.id(), &self.0);
        let forgotten = {
            let versions = self.0.versions.write();
            let mut versions = versions.unwrap_or_else(PoisonError::into_inner);
            let former = std::mem::replace(&mut versions.now, next).id();
            versions.former.push_front(former);
            let known = versions.former.len().min(FORMER);
            versions.former.split_off(known)
        };
        if !forgotten.is_empty() {
            owners::remove(forgotten);
        }
        Ok(())
    }

    /// Calls `hook` with the final gradient of every pass, once per pass, on the worker that has the
    /// parameter. What it returns is added to the gradient of the context instead; an error fails the
    /// pass.
    pub fn on_gradient(&self, hook: impl Fn(Tensor) -> Result<Tensor> + Send + Sync + 'static) {
        let hooks = self.0.hooks.lock();
        hooks
            .unwrap_or_else(PoisonError::into_inner)
            .push(Arc::new(hook));
    }

    /// Its gradient in a context.
    pub(crate) fn gradient_in(&self, scope: &ContextScope) -> Option<Tensor> {
        engine::gradient::<Candle>(scope, Some(self.0.key), &[])
    }
}

impl Drop for SharedParameter {
    fn drop(&mut self) {
        let versions = self.versions.get_mut();
        let versions = versions.unwrap_or_else(PoisonError::into_inner);
        let now = std::iter::once(versions.now.id());
        owners::remove(now.chain(versions.former.drain(..)));
    }
}

impl Observer<Tensor> for SharedParameter {
    fn key(&self) -> u64 {
        self.key
    }

    fn on_gradient(&self, mut gradient: Tensor) -> Result<Tensor, String> {
        let hooks = self.hooks.lock();
        let hooks = hooks.unwrap_or_else(PoisonError::into_inner).clone();
        for hook in hooks {
            gradient = hook(gradient).map_err(|error| format!("a hook failed: {error}"))?;
        }
        Ok(gradient)
    }

    fn is_quick(&self) -> bool {
        let hooks = self.hooks.lock();
        hooks.unwrap_or_else(PoisonError::into_inner).is_empty()
    }
}

impl fmt::Debug for Parameter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let var = self.var();
        write!(f, "Parameter({:?} {:?})", var.dims(), var.dtype())
    }
}

/// What can be done with a parameter from afar as well as here.
#[farref::remote(trait = RemoteParameter)]
impl Parameter {
    /// Its tensor at present, to compute with. What is computed from it inside of a context has its
    /// gradient there, on the worker that has the parameter.
    pub fn tensor(&self) -> Tensor {
        let var = self.var();
        engine::observe::<Candle>(var.id(), Arc::clone(&self.0) as _);
        Tensor::from(var.as_tensor().clone())
    }

    /// Its value at present, to look at: nothing that is computed from it gets a gradient.
    pub fn value(&self) -> Tensor {
        Tensor::from(self.var().as_detached_tensor())
    }

    /// Gives it another value, of the same shape and type. What was computed before is not affected.
    pub fn assign(&self, value: Tensor) -> Result<()> {
        self.set(&value)
    }

    /// Its gradient in the context that this is called in, as far as passes have come. None if no loss
    /// depended on it.
    pub fn gradient(&self) -> Result<Option<Tensor>> {
        let scope = ContextScope::current().ok_or(Error::NoContext)?;
        Ok(self.gradient_in(&scope))
    }
}
