//! A tensor on the wire.
//!
//! Its bytes go from candle's storage to the socket and from the socket into candle's storage, without
//! a copy in between. (One that is not contiguous is made so first.) Those of a device may stay where they are. Inside of a
//! context it leaves a record on both sides if it needs gradients. Outside of one it arrives as data: what says that it needs
//! gradients has a way for them.

use std::sync::Arc;

use candle_core::{CpuStorage, DType, Storage};
use farref::Buffer;
use serde::de::Error as _;
use serde::ser::Error as _;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::engine::{self, Link};
use crate::place::Place;
use crate::stored::Stored;
use crate::tensor::{Candle, Tensor};

/// A tensor on the wire.
#[derive(Serialize, Deserialize)]
#[serde(rename = "farref_autograd::Tensor")]
struct Wire {
    element: Element,
    shape: Vec<usize>,
    requires_grad: bool,
    /// Inside of a context: the number of the message, and which of its tensors this is.
    link: Option<Link>,
    /// Where it is to be; on the CPU if nothing is said.
    place: Option<Place>,
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

impl Tensor {
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
            place: None,
            data,
        };
        Ok(wire.read().map_err(candle_core::Error::Msg)?)
    }
}

/// Where a tensor is to be, and the elements that go along.
fn leaving(tensor: &candle_core::Tensor) -> Result<(Option<Place>, Buffer), String> {
    #[cfg(feature = "cuda")]
    if tensor.device().is_cuda() {
        return crate::cuda::leaving(tensor);
    }
    let data = Stored::new(tensor).map_err(|error| error.to_string())?;
    Ok((None, Buffer::from_source(Arc::new(data))))
}

/// A tensor that is not to be on the CPU.
#[cfg(feature = "cuda")]
fn arrived(place: Place, wire: Wire) -> Result<Tensor, String> {
    let dtype = wire.element.dtype();
    match place {
        Place::Cuda(device) => {
            wire.check()?;
            let Wire {
                shape,
                data,
                requires_grad,
                ..
            } = wire;
            crate::cuda::copied(device, dtype, shape, &data, requires_grad)
        }
        Place::Shared(device, memory) => {
            if memory.view.shape() != wire.shape {
                return Err("a tensor whose view has another shape".to_owned());
            }
            crate::cuda::shared(device, dtype, memory, wire.requires_grad)
        }
    }
}

#[cfg(not(feature = "cuda"))]
fn arrived(place: Place, _: Wire) -> Result<Tensor, String> {
    let (Place::Cuda(device) | Place::Shared(device, _)) = place;
    let from = farref::Transfer::incoming().map(|transfer| transfer.peer().name().to_owned());
    let from = from.unwrap_or_else(|| "another worker".to_owned());
    Err(format!(
        "a tensor of {from} is to be on cuda:{device}, and this worker was built without CUDA: \
         build it with the feature `cuda`, or have {from} map its devices to the CPU for this worker"
    ))
}

impl Serialize for Tensor {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let element = Element::of(self.dtype()).ok_or_else(|| {
            S::Error::custom(format_args!("tensors of {:?} cannot be sent", self.dtype()))
        })?;
        let (place, data) = leaving(self).map_err(S::Error::custom)?;
        let requires_grad = self.requires_grad();
        let link = requires_grad
            .then(|| engine::record_send::<Candle>(self))
            .flatten();
        let wire = Wire {
            element,
            shape: self.dims().to_vec(),
            requires_grad,
            link,
            place,
            data,
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
    fn read(mut self) -> Result<Tensor, String> {
        let dtype = self.element.dtype();
        if self.requires_grad && !dtype.is_float() {
            return Err(format!("a tensor of {dtype:?} has no gradients"));
        }
        if let Some(place) = self.place.take() {
            return arrived(place, self);
        }
        self.check()?;
        self.on_cpu()
    }

    /// Whether there are as many bytes as such a tensor has.
    fn check(&self) -> Result<(), String> {
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
        Ok(())
    }

    fn on_cpu(self) -> Result<Tensor, String> {
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
