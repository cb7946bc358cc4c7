//! `Tensor`: candle's, as it travels.
//!
//! How it travels is in `sent_tensor`.

use std::fmt;
use std::ops::Deref;
use std::sync::Arc;

use candle_core::Device;
use farref::Buffer;

use crate::stack;
use crate::stored::Stored;

/// The engine's tensor library: candle.
#[derive(Debug)]
pub struct Candle;

/// A tensor that can be sent: an argument, a result, or part of one.
///
/// It is candle's tensor, to which it dereferences, with a way over the wire. Sent outside of a
/// [`Context`](crate::Context) it is data: what arrives does not [need gradients](Self::requires_grad). Sent
/// inside of one, gradients find their way back to what it was computed from. One on the CPU arrives on the CPU; one on a
/// CUDA device (feature `cuda`) arrives on a CUDA device, see `cuda`.
///
/// candle's methods are there by themselves and return candle's tensors, which `Tensor::from` or `.into()`
/// makes tensors of this kind. What asks for a `&candle_core::Tensor` takes a reference to a variable of this type as
/// it is; to an expression, rustc may need to be told with `&*`:
///
/// ```
/// use farref_autograd::candle::{self, DType};
/// use farref_autograd::nn::{Generator, Linear, mse_loss};
/// use farref_autograd::{Error, Module, Tensor};
///
/// fn largest(x: &candle::Tensor) -> candle::Result<f32> {
///     x.max_all()?.to_scalar()
/// }
///
/// let x = Tensor::from_vec(vec![1.0f32, 2.0, 3.0, 4.0], (2, 2))?;
/// let doubled = Tensor::from((&*x * 2.0)?); // `*` is candle's
/// assert_eq!(doubled.to_vec2::<f32>()?, [[2.0, 4.0], [6.0, 8.0]]);
/// assert_eq!(largest(&doubled)?, 8.0);
///
/// let layer = Linear::new(2, 2, DType::F32, &mut Generator::new(0))?;
/// largest(&*layer.forward(&x)?)?; // without the `*`, rustc looks for candle's tensor before the `?`
/// mse_loss(&layer.forward(&x)?, &x)?; // functions of this crate take either
/// # Ok::<(), Error>(())
/// ```
#[derive(Clone)]
pub struct Tensor {
    /// There until it is dropped.
    inner: Option<candle_core::Tensor>,
}

impl Tensor {
    /// A tensor of these elements, on the CPU.
    pub fn from_vec<D: candle_core::WithDType>(
        elements: Vec<D>,
        shape: impl Into<candle_core::Shape>,
    ) -> crate::Result<Self> {
        let shape = shape.into();
        Ok(candle_core::Tensor::from_vec(elements, shape, &Device::Cpu)?.into())
    }

    /// Whether gradients flow through it. Not through one that came by a call outside of any
    /// [`Context`](crate::Context).
    pub fn requires_grad(&self) -> bool {
        self.dtype().is_float() && self.track_op()
    }

    /// Its elements as they travel: one after the other, where they are unless they are scattered. For
    /// those who bring another wire.
    ///
    /// ```
    /// use farref_autograd::Tensor;
    ///
    /// let tensor = Tensor::from_vec(vec![1.0f32, 2.0], 2)?;
    /// let bytes = tensor.to_buffer()?;
    /// assert_eq!(bytes.into_vec::<f32>().expect("whole numbers of bytes"), [1.0, 2.0]);
    /// # Ok::<(), farref_autograd::Error>(())
    /// ```
    pub fn to_buffer(&self) -> crate::Result<Buffer> {
        Ok(Buffer::from_source(Arc::new(Stored::new(self)?)))
    }

    /// candle's tensor.
    pub fn into_candle(mut self) -> candle_core::Tensor {
        match self.inner.take() {
            Some(tensor) => tensor,
            None => unreachable!("it is taken once only, here or when it is dropped"),
        }
    }
}

impl Deref for Tensor {
    type Target = candle_core::Tensor;

    fn deref(&self) -> &candle_core::Tensor {
        match &self.inner {
            Some(tensor) => tensor,
            None => unreachable!("it is there until it is dropped"),
        }
    }
}

impl AsRef<candle_core::Tensor> for Tensor {
    fn as_ref(&self) -> &candle_core::Tensor {
        self
    }
}

impl From<candle_core::Tensor> for Tensor {
    fn from(tensor: candle_core::Tensor) -> Self {
        crate::threads::keep();
        Self {
            inner: Some(tensor),
        }
    }
}

impl From<Tensor> for candle_core::Tensor {
    fn from(tensor: Tensor) -> Self {
        tensor.into_candle()
    }
}

/// With the last tensor of a graph the graph goes, by recursion.
impl Drop for Tensor {
    fn drop(&mut self) {
        let Some(tensor) = self.inner.take() else {
            return;
        };
        #[cfg(feature = "cuda")]
        let _after = crate::dropping::dropping(&tensor);
        if tensor.track_op() && !tensor.is_variable() {
            stack::with_room(|| drop(tensor));
        }
    }
}

impl fmt::Debug for Tensor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Tensor({:?} {:?}", self.dims(), self.dtype())?;
        if self.requires_grad() {
            f.write_str(", needs gradients")?;
        }
        f.write_str(")")
    }
}
