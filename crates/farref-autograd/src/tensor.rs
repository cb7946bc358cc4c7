//! `Tensor`: candle's, as it travels.
//!
//! Its bytes go from candle's storage to the socket and from the socket into candle's storage, without
//! a copy in between. (One that is not contiguous is made so first.) Inside of a context it leaves a
//! record on both sides if it needs gradients. Outside of one it arrives as data: what says that it needs
//! gradients has a way for them.

use std::fmt;
use std::ops::{Deref, Range};
use std::sync::Arc;

use candle_core::{CpuStorage, DType, Device, Storage};
use farref::{Buffer, Source, Width};
use serde::de::Error as _;
use serde::ser::Error as _;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::engine::{self, Link};
use crate::stack;

/// The engine's tensor library: candle.
#[derive(Debug)]
pub struct Candle;

/// A tensor that can be sent: an argument, a result, or part of one.
///
/// It is candle's tensor, to which it dereferences, with a way over the wire. Sent outside of a
/// [`Context`](crate::Context) it is data: what arrives does not [need gradients](Self::requires_grad). Sent
/// inside of one, gradients find their way back to what it was computed from. It arrives on the CPU.
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

    /// A tensor of elements as they travel. A leaf, if it needs gradients.
    ///
    /// ```
    /// use farref::Buffer;
    /// use farref_autograd::{Tensor, candle::DType};
    ///
    /// let bytes = Buffer::from_vec(vec![1.0f32, 2.0]);
    /// let tensor = Tensor::from_buffer(DType::F32, vec![2], bytes, false)?;
    /// assert_eq!(tensor.to_vec1::<f32>()?, [1.0, 2.0]);
    /// # Ok::<(), farref_autograd::Error>(())
    /// ```
    pub fn from_buffer(
        dtype: DType,
        shape: Vec<usize>,
        data: Buffer,
        requires_grad: bool,
    ) -> crate::Result<Self> {
        let unknown = || format!("tensors of {dtype:?} cannot be sent");
        let wire = Wire {
            element: Element::of(dtype)
                .ok_or_else(unknown)
                .map_err(candle_core::Error::Msg)?,
            shape,
            requires_grad,
            link: None,
            data,
        };
        Ok(wire.read().map_err(candle_core::Error::Msg)?)
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
        if let Some(tensor) = self.inner.take()
            && tensor.track_op()
            && !tensor.is_variable()
        {
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

/// A tensor on the wire.
#[derive(Serialize, Deserialize)]
#[serde(rename = "farref_autograd::Tensor")]
struct Wire {
    element: Element,
    shape: Vec<usize>,
    requires_grad: bool,
    /// Inside of a context: the number of the message, and which of its tensors this is.
    link: Option<Link>,
    data: Buffer,
}

/// The type of the elements, by names that are this crate's and stay.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
enum Element {
    U8,
    U32,
    I16,
    I32,
    I64,
    BF16,
    F16,
    F32,
    F64,
    F8E4M3,
    F6E2M3,
    F6E3M2,
    F4,
    F8E8M0,
}

macro_rules! elements {
    ($($name:ident),*) => {
        impl Element {
            fn of(dtype: DType) -> Option<Self> {
                match dtype {
                    $(DType::$name => Some(Self::$name),)*
                    // A type that candle has learnt since.
                    _ => None,
                }
            }

            fn dtype(self) -> DType {
                match self {
                    $(Self::$name => DType::$name,)*
                }
            }
        }
    };
}

elements!(
    U8, U32, I16, I32, I64, BF16, F16, F32, F64, F8E4M3, F6E2M3, F6E3M2, F4, F8E8M0
);

impl Serialize for Tensor {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let element = Element::of(self.dtype()).ok_or_else(|| {
            S::Error::custom(format_args!("tensors of {:?} cannot be sent", self.dtype()))
        })?;
        let data = Stored::new(self).map_err(S::Error::custom)?;
        let requires_grad = self.requires_grad();
        let link = requires_grad
            .then(|| engine::record_send::<Candle>(self))
            .flatten();
        let wire = Wire {
            element,
            shape: self.dims().to_vec(),
            requires_grad,
            link,
            data: Buffer::from_source(Arc::new(data)),
        };
        wire.serialize(serializer)
    }
}

impl<'de> Deserialize<'de> for Tensor {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let wire = Wire::deserialize(deserializer)?;
        let link = wire.link;
        let tensor = wire.read().map_err(D::Error::custom)?;
        if !tensor.requires_grad() {
            return Ok(tensor);
        }
        let recorded = match link {
            Some(link) => {
                engine::record_recv::<Candle>(link, tensor.id()).map_err(D::Error::custom)?
            }
            None => false,
        };
        Ok(match recorded {
            true => tensor,
            false => tensor.detach().into(),
        })
    }
}

impl Wire {
    /// The tensor; a leaf, if it needs gradients.
    fn read(self) -> Result<Tensor, String> {
        let dtype = self.element.dtype();
        // candle multiplies dimensions to know how far apart elements are, whether or not there are any.
        let mut lengths = self.shape.iter();
        let spread = lengths.try_fold(1_usize, |spread, &length| spread.checked_mul(length.max(1)));
        let count = match self.shape.contains(&0) {
            true => spread.map(|_| 0),
            false => spread,
        };
        if !count.is_some_and(|count| fits(dtype, count, self.data.len())) {
            return Err(format!(
                "a tensor of shape {:?} and type {dtype:?} does not have {} bytes",
                self.shape,
                self.data.len()
            ));
        }
        if self.requires_grad && !dtype.is_float() {
            return Err(format!("a tensor of {dtype:?} has no gradients"));
        }
        let text = |error: farref::CodecError| error.to_string();
        let data = self.data;
        let storage = match self.element {
            Element::U8 => CpuStorage::U8(data.into_vec().map_err(text)?),
            Element::U32 => CpuStorage::U32(data.into_vec().map_err(text)?),
            Element::I16 => CpuStorage::I16(data.into_vec().map_err(text)?),
            Element::I32 => CpuStorage::I32(data.into_vec().map_err(text)?),
            Element::I64 => CpuStorage::I64(data.into_vec().map_err(text)?),
            Element::BF16 => CpuStorage::BF16(data.into_vec().map_err(text)?),
            Element::F16 => CpuStorage::F16(data.into_vec().map_err(text)?),
            Element::F32 => CpuStorage::F32(data.into_vec().map_err(text)?),
            Element::F64 => CpuStorage::F64(data.into_vec().map_err(text)?),
            Element::F8E4M3 => CpuStorage::F8E4M3(data.into_vec().map_err(text)?),
            Element::F6E2M3 => CpuStorage::F6E2M3(data.into_vec().map_err(text)?),
            Element::F6E3M2 => CpuStorage::F6E3M2(data.into_vec().map_err(text)?),
            Element::F4 => CpuStorage::F4(data.into_vec().map_err(text)?),
            Element::F8E8M0 => CpuStorage::F8E8M0(data.into_vec().map_err(text)?),
        };
        let tensor = candle_core::Tensor::from_storage(
            Storage::Cpu(storage),
            self.shape,
            candle_core::op::BackpropOp::none(),
            self.requires_grad,
        );
        Ok(tensor.into())
    }
}

/// Whether that many elements have that many bytes. The smallest types, which candle only stores, may be
/// packed.
fn fits(dtype: DType, count: usize, bytes: usize) -> bool {
    let bits = match dtype {
        DType::F6E2M3 | DType::F6E3M2 => 6,
        DType::F4 => 4,
        other => return count.checked_mul(other.size_in_bytes()) == Some(bytes),
    };
    let packed = count.checked_mul(bits).map(|bits| bits.div_ceil(8));
    packed == Some(bytes) || count == bytes
}

/// The storage of a contiguous tensor, as the wire sees it: locked for the length of one write.
struct Stored {
    tensor: candle_core::Tensor,
    width: Width,
    /// Where its bytes are in the storage.
    start: usize,
    len: usize,
    /// And in memory.
    address: Option<usize>,
}

impl Stored {
    fn new(tensor: &candle_core::Tensor) -> candle_core::Result<Self> {
        // Without its graph, which would otherwise live until the bytes have been sent.
        let tensor = tensor.to_device(&Device::Cpu)?.contiguous()?.detach();
        let size = tensor.dtype().size_in_bytes();
        let (start, len, address) = {
            let (storage, layout) = tensor.storage_and_layout();
            let (start, len) = match size {
                // Raw bytes of a type that candle only stores.
                0 => (0, with_bytes(&storage, <[u8]>::len)),
                size => (layout.start_offset() * size, tensor.elem_count() * size),
            };
            let address = with_bytes(&storage, |bytes| {
                bytes.get(start..).map(|bytes| bytes.as_ptr().addr())
            });
            (start, len, address)
        };
        let width = match size {
            8 => Width::Eight,
            4 => Width::Four,
            2 => Width::Two,
            _ => Width::One,
        };
        Ok(Self {
            tensor,
            width,
            start,
            len,
            address,
        })
    }
}

impl Source for Stored {
    fn len(&self) -> usize {
        self.len
    }

    fn width(&self) -> Width {
        self.width
    }

    fn look(&self, range: Range<usize>, look: &mut dyn FnMut(&[u8])) {
        let (storage, _) = self.tensor.storage_and_layout();
        let range = self.start + range.start..self.start + range.end;
        with_bytes(&storage, |bytes| look(bytes.get(range).unwrap_or_default()));
    }

    /// candle's own operations in place write where the elements are; the storage that they are in is kept here. Only an
    /// [`InplaceOp`](candle_core::InplaceOp1) of the program's could put another vector there.
    fn address(&self) -> Option<usize> {
        self.address
    }
}

/// Shows the bytes of a storage on the CPU; those of another are not there.
fn with_bytes<T>(storage: &Storage, look: impl FnOnce(&[u8]) -> T) -> T {
    use bytemuck::cast_slice;

    let Storage::Cpu(storage) = storage else {
        return look(&[]);
    };
    match storage {
        CpuStorage::U8(data)
        | CpuStorage::F6E2M3(data)
        | CpuStorage::F6E3M2(data)
        | CpuStorage::F4(data)
        | CpuStorage::F8E8M0(data) => look(data),
        CpuStorage::U32(data) => look(cast_slice(data)),
        CpuStorage::I16(data) => look(cast_slice(data)),
        CpuStorage::I32(data) => look(cast_slice(data)),
        CpuStorage::I64(data) => look(cast_slice(data)),
        CpuStorage::BF16(data) => look(cast_slice(data)),
        CpuStorage::F16(data) => look(cast_slice(data)),
        CpuStorage::F32(data) => look(cast_slice(data)),
        CpuStorage::F64(data) => look(cast_slice(data)),
        CpuStorage::F8E4M3(data) => look(cast_slice(data)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tensor_says_where_its_elements_are() {
        let whole = candle_core::Tensor::arange(0f32, 60.0, &Device::Cpu).expect("a tensor");
        let part = whole.narrow(0, 7, 20).expect("a part");
        let scattered = whole
            .reshape((6, 10))
            .and_then(|it| it.t())
            .expect("a view");
        for tensor in [whole, part, scattered] {
            let stored = Stored::new(&tensor).expect("it can be sent");
            let mut at = None;
            stored.look(0..stored.len(), &mut |bytes| {
                at = Some(bytes.as_ptr().addr())
            });
            assert!(at.is_some());
            assert_eq!(stored.address(), at);
            // And they stay there, whoever else has the tensor or has not.
            drop(tensor);
            let mut later = None;
            stored.look(0..stored.len(), &mut |bytes| {
                later = Some(bytes.as_ptr().addr())
            });
            assert_eq!(later, at);
        }
    }
}
