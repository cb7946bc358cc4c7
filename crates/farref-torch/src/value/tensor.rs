//! Tensors between Rust and PyTorch.

use farref::{Buffer, Part};
use farref_autograd::candle::DType;
use farref_autograd::{Candle, Tensor, engine};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use super::body::{TensorData, TensorEntry};
use crate::rpc::tensors::Dtype;
use farref_pickle::value::{Captured, ValueError};

/// What a tensor of candle's writes itself as.
pub(super) const TENSOR: &str = "farref_autograd::Tensor";
/// What a [`RawTensor`] writes itself as.
pub(super) const RAW_TENSOR: &str = "farref_torch::RawTensor";

/// A tensor of any type of elements that PyTorch has, as its bytes.
///
/// For what candle has no tensors of (complex numbers, `bool`, `int8`, ..), and for functions that only keep
/// tensors and give them back. One that came inside of a context of distributed autograd and needs gradients takes part
/// in it: [`tensor`](Self::tensor) is what to compute with, and gradients flow back through whoever sends it on.
///
/// ```
/// use farref_torch::{Dtype, RawTensor};
///
/// #[farref::remote(python = "masks.invert")]
/// fn invert(mask: RawTensor) -> Result<RawTensor, String> {
///     let RawTensor { dtype: Dtype::Bool, shape, data, .. } = mask else {
///         return Err(format!("a mask is of torch.bool, not of {}", mask.dtype));
///     };
///     let inverted: Vec<u8> = data
///         .into_vec::<u8>()
///         .map_err(|error| error.to_string())?
///         .into_iter()
///         .map(|value| 1 - value)
///         .collect();
///     Ok(RawTensor::new(Dtype::Bool, shape, inverted))
/// }
/// ```
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct RawTensor {
    /// What its elements are.
    pub dtype: Dtype,
    /// How many there are in each dimension. None: it is one number.
    pub shape: Vec<usize>,
    /// Whether the other side wants gradients for it.
    pub requires_grad: bool,
    /// The elements one after the other, the last dimension fastest, little endian.
    pub data: Buffer,
    /// The same, if it takes part in autograd.
    recorded: Option<Tensor>,
}

impl RawTensor {
    /// A tensor of these elements.
    pub fn new(dtype: Dtype, shape: Vec<usize>, data: impl Into<Buffer>) -> Self {
        Self {
            dtype,
            shape,
            requires_grad: false,
            data: data.into(),
            recorded: None,
        }
    }

    /// The same as a tensor of candle's. Gradients of it flow back to where it came from, if it takes part in autograd.
    ///
    /// ```
    /// use farref_torch::{PyValue, RawTensor};
    ///
    /// /// Twice of every tensor in there, with gradients.
    /// #[farref::remote(python = "tools.twice")]
    /// fn twice(value: PyValue) -> Result<PyValue, farref_autograd::Error> {
    ///     Ok(match value {
    ///         PyValue::Tensor(raw) => {
    ///             let twice = (&*raw.tensor()? * 2.0)?;
    ///             PyValue::Tensor(RawTensor::try_from(farref_autograd::Tensor::from(twice))?)
    ///         }
    ///         other => other,
    ///     })
    /// }
    /// ```
    pub fn tensor(&self) -> farref_autograd::Result<Tensor> {
        if let Some(tensor) = &self.recorded {
            return Ok(tensor.clone());
        }
        let data = self.data.clone().into();
        tensor_of(self.dtype, self.shape.clone(), data, self.requires_grad)
            .map_err(|error| farref_autograd::Error::Invalid(error.to_string()))
    }
}

/// A tensor of candle's as Python data. It goes on taking part in autograd.
impl TryFrom<Tensor> for RawTensor {
    type Error = farref_autograd::Error;

    fn try_from(tensor: Tensor) -> farref_autograd::Result<Self> {
        let dtype = tensor.dtype();
        let found = ELEMENTS.iter().find(|(_, candle, _)| *candle == dtype);
        let (_, _, torch) = found.ok_or_else(|| {
            farref_autograd::Error::Invalid(unknown(&format!("{dtype:?}")).to_string())
        })?;
        Ok(Self {
            dtype: *torch,
            shape: tensor.dims().to_vec(),
            requires_grad: tensor.requires_grad(),
            data: tensor.to_buffer()?,
            recorded: tensor.requires_grad().then_some(tensor),
        })
    }
}

/// A [`RawTensor`] on the wire.
#[derive(Serialize, Deserialize)]
#[serde(rename = "farref_torch::RawTensor")]
struct Wire {
    dtype: Dtype,
    shape: Vec<usize>,
    requires_grad: bool,
    data: Buffer,
    /// As which it is recorded, if it is.
    link: Option<engine::Link>,
}

impl Serialize for RawTensor {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        if let Some(tensor) = &self.recorded {
            return tensor.serialize(serializer);
        }
        let wire = Wire {
            dtype: self.dtype,
            shape: self.shape.clone(),
            requires_grad: self.requires_grad,
            data: self.data.clone(),
            link: None,
        };
        wire.serialize(serializer)
    }
}

impl<'de> Deserialize<'de> for RawTensor {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        use serde::de::Error;

        let wire = Wire::deserialize(deserializer)?;
        let mut raw = Self {
            dtype: wire.dtype,
            shape: wire.shape,
            requires_grad: wire.requires_grad,
            data: wire.data,
            recorded: None,
        };
        if let Some(link) = wire.link {
            let tensor = raw.tensor().map_err(D::Error::custom)?;
            let recorded = engine::record_recv::<Candle>(link, tensor.id());
            if recorded.map_err(D::Error::custom)? {
                raw.recorded = Some(tensor);
            }
        }
        Ok(raw)
    }
}

/// candle's name for a type, which its tensors write, and PyTorch's.
const ELEMENTS: [(&str, DType, Dtype); 12] = [
    ("U8", DType::U8, Dtype::Byte),
    // candle has no truth values. This way only.
    ("U8", DType::U8, Dtype::Bool),
    ("U32", DType::U32, Dtype::UInt32),
    ("I16", DType::I16, Dtype::Short),
    ("I32", DType::I32, Dtype::Int),
    ("I64", DType::I64, Dtype::Long),
    ("BF16", DType::BF16, Dtype::BFloat16),
    ("F16", DType::F16, Dtype::Half),
    ("F32", DType::F32, Dtype::Float),
    ("F64", DType::F64, Dtype::Double),
    ("F8E4M3", DType::F8E4M3, Dtype::Float8_e4m3fn),
    ("F8E8M0", DType::F8E8M0, Dtype::Float8_e8m0fnu),
];

/// What candle calls a type.
fn element_name(dtype: Dtype) -> Result<&'static str, ValueError> {
    let found = ELEMENTS.iter().find(|(_, _, torch)| *torch == dtype);
    found.map(|(name, ..)| *name).ok_or_else(|| {
        ValueError::new(format_args!(
            "a tensor of torch.{dtype} has no counterpart in candle: take a `farref_torch::RawTensor` instead"
        ))
    })
}

/// PyTorch's name for a tensor's type, and its elements.
pub(crate) fn element_of(tensor: &Tensor) -> Result<(Dtype, Part), ValueError> {
    let dtype = tensor.dtype();
    let found = ELEMENTS.iter().find(|(_, candle, _)| *candle == dtype);
    let (_, _, torch) = found.ok_or_else(|| unknown(&format!("{dtype:?}")))?;
    let buffer = tensor.to_buffer().map_err(ValueError::new)?;
    Ok((*torch, buffer.into()))
}

/// A tensor of candle's.
pub(crate) fn tensor_of(
    dtype: Dtype,
    shape: Vec<usize>,
    data: Part,
    requires_grad: bool,
) -> Result<Tensor, ValueError> {
    let name = element_name(dtype)?;
    let found = ELEMENTS.iter().find(|(other, ..)| *other == name);
    let (_, candle, _) = found.ok_or_else(|| unknown(name))?;
    Tensor::from_buffer(*candle, shape, data.into(), requires_grad).map_err(ValueError::new)
}

fn unknown(name: &str) -> ValueError {
    ValueError::new(format_args!("PyTorch has no tensors of {name}"))
}

/// What a tensor wrote of itself, for the list of the message.
pub(super) fn entry_of(
    name: &str,
    fields: &[(&'static str, Captured)],
) -> Result<TensorEntry, ValueError> {
    let field = |wanted: &str| {
        let found = fields.iter().find(|(field, _)| *field == wanted);
        found
            .map(|(_, value)| value)
            .ok_or_else(|| ValueError::new(format_args!("a tensor without {wanted}")))
    };
    let dtype = match name {
        RAW_TENSOR => {
            let name = field("dtype")?.text()?;
            Dtype::from_name(name).ok_or_else(|| unknown(name))?
        }
        _ => {
            let name = field("element")?.text()?;
            let found = ELEMENTS.iter().find(|(element, ..)| *element == name);
            found.ok_or_else(|| unknown(name))?.2
        }
    };
    let shape = field("shape")?.list()?.iter().map(|size| {
        let size = size.number()?;
        usize::try_from(size).map_err(ValueError::new)
    });
    let link = match fields.iter().find(|(field, _)| *field == "link") {
        Some((_, Captured::Some(link))) => match link.list()? {
            [number, index] => Some((
                number.number()?,
                u32::try_from(index.number()?).map_err(ValueError::new)?,
            )),
            _ => return Err(ValueError::new("a link has two numbers")),
        },
        _ => None,
    };
    let entry = TensorEntry {
        dtype,
        shape: shape.collect::<Result<_, _>>()?,
        requires_grad: field("requires_grad")?.boolean()?,
        link,
        data: data_of(field("data")?)?,
    };
    let bytes = match &entry.data {
        TensorData::Here(_, bytes) => Some(bytes.len()),
        TensorData::Parts(_) => None,
    };
    let wanted = entry
        .shape
        .iter()
        .try_fold(dtype.size(), |size, &length| size.checked_mul(length));
    if bytes.is_some_and(|bytes| Some(bytes) != wanted) {
        return Err(ValueError::new(format_args!(
            "a tensor of shape {:?} and type {dtype} has another number of bytes",
            entry.shape
        )));
    }
    Ok(entry)
}

fn data_of(data: &Captured) -> Result<TensorData, ValueError> {
    match data {
        Captured::Variant("Part", part) => {
            let part = u32::try_from(part.number()?).map_err(ValueError::new)?;
            Ok(TensorData::Parts(vec![part]))
        }
        Captured::Variant(_, here) => match here.list()? {
            [width, Captured::Bytes(bytes)] => {
                let width = match width.text()? {
                    "Two" => 2,
                    "Four" => 4,
                    "Eight" => 8,
                    _ => 1,
                };
                Ok(TensorData::Here(width, bytes.clone()))
            }
            _ => Err(ValueError::new("a buffer without bytes")),
        },
        _ => Err(ValueError::new("a tensor without bytes")),
    }
}

/// What a tensor is to read of itself. `use_number`: how often the value has referred to it before.
pub(super) fn fields_of(
    name: &str,
    entry: &TensorEntry,
    use_number: usize,
    link: Option<(u64, u32)>,
) -> Result<Vec<(&'static str, Captured)>, ValueError> {
    // First, for those who want to know it of a tensor of candle's, too, which itself does not read it.
    let dtype = ("dtype", Captured::Text(entry.dtype.variant()));
    let data = match &entry.data {
        TensorData::Parts(parts) => {
            let part = parts.get(use_number).or_else(|| parts.last());
            let part = part.ok_or_else(|| ValueError::new("a tensor without bytes"))?;
            Captured::variant("Part", Captured::Number(u64::from(*part)))
        }
        TensorData::Here(width, bytes) => {
            let width = match width {
                2 => "Two",
                4 => "Four",
                8 => "Eight",
                _ => "One",
            };
            let here = vec![Captured::Text(width), Captured::Bytes(bytes.clone())];
            Captured::variant("Here", Captured::List(here))
        }
    };
    let sizes = entry.shape.iter();
    let link = link.map(|(number, index)| {
        let index = u64::from(index);
        Captured::List(vec![Captured::Number(number), Captured::Number(index)])
    });
    // Gradients flow through floating point numbers only.
    let requires_grad = entry.requires_grad && (name == RAW_TENSOR || entry.dtype.is_float());
    let mut fields = vec![
        dtype,
        (
            "shape",
            Captured::List(sizes.map(|&size| Captured::Number(size as u64)).collect()),
        ),
        ("requires_grad", Captured::Bool(requires_grad)),
        ("data", data),
    ];
    if name == TENSOR {
        fields.push(("element", Captured::Text(element_name(entry.dtype)?)));
    }
    fields.push(("link", Captured::some(link)));
    Ok(fields)
}
