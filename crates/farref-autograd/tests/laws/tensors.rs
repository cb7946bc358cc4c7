//! Tensors on the wire: every type, any layout, no surprises.

use crate::common;
use crate::common::Group;
use anyhow::{Result, ensure};
use farref::{Buffer, Width};
use farref_autograd::candle::{self, DType, Device};
use farref_autograd::{Context, Error, Tensor};
use serde::{Deserialize, Serialize};

#[farref::remote]
async fn echo(tensor: Tensor) -> Tensor {
    tensor
}

fn same(one: &candle::Tensor, other: &candle::Tensor) -> Result<()> {
    assert_eq!(one.dims(), other.dims());
    assert_eq!(one.dtype(), other.dtype());
    // By way of f32, in which every value of the test is exact: candle's conversion from 8 bits to f64
    // never ends.
    let bits = |tensor: &candle::Tensor| -> Result<Vec<u32>> {
        let numbers = tensor
            .to_dtype(DType::F32)?
            .flatten_all()?
            .to_vec1::<f32>()?;
        Ok(numbers.into_iter().map(f32::to_bits).collect())
    };
    assert_eq!(bits(one)?, bits(other)?);
    Ok(())
}

#[tokio::test]
async fn every_type_of_element_arrives_as_it_was() -> Result<()> {
    let group = Group::start(2).await?;
    let peer = group.peer(1)?;
    let numbers = candle::Tensor::arange(0.0_f64, 6000.0, &Device::Cpu)?.reshape((60, 100))?;
    for dtype in [
        DType::U8,
        DType::U32,
        DType::I16,
        DType::I32,
        DType::I64,
        DType::BF16,
        DType::F16,
        DType::F32,
        DType::F64,
        DType::F8E4M3,
    ] {
        let tensor = numbers.to_dtype(dtype)?;
        let back = echo::on(&peer, tensor.clone().into()).await?;
        same(&back, &tensor)?;
        let small = tensor.narrow(0, 3, 1)?;
        same(&*echo::on(&peer, small.clone().into()).await?, &small)?;
    }
    group.finish(2).await
}

#[tokio::test]
async fn any_layout_arrives_as_what_it_shows() -> Result<()> {
    let group = Group::start(2).await?;
    let peer = group.peer(1)?;
    let matrix = candle::Tensor::arange(0.0_f32, 12000.0, &Device::Cpu)?.reshape((100, 120))?;
    for tensor in [
        matrix.t()?,
        matrix.narrow(0, 10, 20)?,
        matrix.narrow(1, 10, 20)?,
        matrix.get(7)?,
        matrix.narrow(0, 0, 1)?.broadcast_as((50, 120))?,
        matrix.narrow(0, 0, 0)?,
        candle::Tensor::new(7.0_f32, &Device::Cpu)?,
    ] {
        same(&*echo::on(&peer, tensor.clone().into()).await?, &tensor)?;
    }
    group.finish(2).await
}

/// Inside of a context the word that it needs gradients travels; outside of one it would be a promise that nobody keeps.
#[tokio::test]
async fn whether_it_needs_gradients_travels_inside_of_a_context() -> Result<()> {
    #[farref::remote]
    async fn needs(tensor: Tensor) -> bool {
        tensor.requires_grad()
    }

    let group = Group::start(2).await?;
    let peer = group.peer(1)?;
    let parameter = common::parameter(&[1.0, 2.0], 2)?;
    let computed = Tensor::from((&*parameter.tensor() * 2.0)?);
    let context = Context::new(group.worker(0))?;
    for tensor in [parameter.tensor(), computed] {
        let call = needs::on(&peer, tensor.clone());
        ensure!(context.run(call).await?, "{tensor:?}");
        ensure!(!needs::on(&peer, tensor.clone()).await?, "{tensor:?}");
    }
    let call = needs::on(&peer, parameter.value());
    ensure!(!context.run(call).await?);
    context.release().await?;
    group.finish(2).await
}

/// Whatever a peer sends, it is an error and not a crash.
#[tokio::test]
async fn a_tensor_that_does_not_fit_its_shape_is_refused() -> Result<()> {
    /// Looks like a tensor on the wire.
    #[derive(Serialize)]
    #[serde(rename = "farref_autograd::Tensor")]
    struct Forged {
        element: u32,
        shape: Vec<usize>,
        requires_grad: bool,
        link: Option<(u64, u32)>,
        place: Option<Place>,
        data: Buffer,
    }

    #[derive(Serialize)]
    enum Place {
        Cuda(u32),
    }

    #[farref::remote]
    fn read(bytes: Vec<u8>) -> Result<Vec<usize>, Error> {
        let read: Result<Tensor, _> = postcard::from_bytes(&bytes);
        let tensor = read.map_err(|error| Error::Checkpoint(error.to_string()))?;
        Ok(tensor.dims().to_vec())
    }

    let forge_at = |place, element, shape: &[usize], requires_grad, bytes: usize| {
        let forged = Forged {
            element,
            shape: shape.to_vec(),
            requires_grad,
            link: None,
            place,
            data: Buffer::from_vec(vec![0_u8; bytes]),
        };
        postcard::to_allocvec(&forged)
    };
    let forge = |element, shape: &[usize], requires_grad, bytes| {
        forge_at(None, element, shape, requires_grad, bytes)
    };
    // The real thing, to see that the forgery is good: an `u8` is element 0, an `f32` element 7.
    assert_eq!(read(forge(0, &[2, 3], false, 6)?)?, [2, 3]);
    for (element, shape, requires_grad, bytes) in [
        (0, &[2, 3][..], false, 5),
        (7, &[2, 3], false, 6),
        (7, &[usize::MAX, 2], false, 8),
        (7, &[usize::MAX, usize::MAX], false, 0),
        (0, &[2], true, 2),
        (99, &[2], false, 2),
    ] {
        let refused = read(forge(element, shape, requires_grad, bytes)?);
        ensure!(refused.is_err(), "{element} {shape:?} {bytes}: {refused:?}");
    }
    // A device that is not here, or that this build knows nothing of.
    let elsewhere = read(forge_at(Some(Place::Cuda(77)), 0, &[2, 3], false, 6)?);
    ensure!(elsewhere.is_err());
    Ok(())
}

/// For another wire: the elements as they are in a buffer, whatever the layout, and a tensor of them.
#[test]
fn any_layout_goes_through_a_buffer_as_what_it_shows() -> Result<()> {
    let matrix = candle::Tensor::arange(0.0_f32, 24.0, &Device::Cpu)?.reshape((2, 3, 4))?;
    for (tensor, what) in [
        (matrix.clone(), "as it is"),
        (matrix.t()?, "transposed"),
        (matrix.narrow(1, 1, 2)?, "narrowed"),
        (matrix.narrow(0, 1, 1)?, "the end of a storage"),
        (matrix.narrow(2, 0, 1)?.broadcast_as((2, 3, 5))?, "repeated"),
        (matrix.permute((2, 0, 1))?, "permuted"),
        (matrix.narrow(2, 4, 0)?, "empty"),
        (matrix.flatten_all()?.get(7)?, "a number"),
    ] {
        let buffer = Tensor::from(tensor.clone()).to_buffer()?;
        assert_eq!(buffer.len(), 4 * tensor.elem_count(), "{what}");
        assert_eq!(buffer.width(), Width::Four);
        let shape = tensor.dims().to_vec();
        let back = Tensor::from_buffer(DType::F32, shape, buffer, false)?;
        same(&back, &tensor)?;
    }
    Ok(())
}

#[test]
fn every_type_of_element_goes_through_a_buffer() -> Result<()> {
    let numbers = candle::Tensor::arange(0.0_f64, 100.0, &Device::Cpu)?;
    for dtype in [
        DType::U8,
        DType::U32,
        DType::I16,
        DType::I32,
        DType::I64,
        DType::BF16,
        DType::F16,
        DType::F32,
        DType::F64,
        DType::F8E4M3,
    ] {
        let tensor = numbers.to_dtype(dtype)?;
        let buffer = Tensor::from(tensor.clone()).to_buffer()?;
        assert_eq!(buffer.width().bytes(), dtype.size_in_bytes());
        same(
            &*Tensor::from_buffer(dtype, vec![100], buffer, false)?,
            &tensor,
        )?;
    }
    Ok(())
}

/// What a peer says of a buffer may be wrong.
#[test]
fn a_buffer_of_another_size_is_refused() {
    let read = |dtype, shape: &[usize], data: Buffer| {
        Tensor::from_buffer(dtype, shape.to_vec(), data, false)
    };
    let bytes = |len| Buffer::from_vec(vec![0_u8; len]);
    for (dtype, shape, len) in [
        (DType::F32, &[2_usize][..], 7),
        (DType::F32, &[2], 9),
        (DType::F32, &[2], 0),
        (DType::F64, &[], 4),
        (DType::U8, &[0], 1),
        (DType::F32, &[usize::MAX, 2], 8),
        (DType::F32, &[usize::MAX / 2], 8),
        (DType::I64, &[1 << 40, 1 << 40], 16),
    ] {
        let error = read(dtype, shape, bytes(len)).unwrap_err().to_string();
        assert!(error.contains("does not have"), "{error}");
    }
    assert!(read(DType::F32, &[2], bytes(8)).is_ok());
    assert!(read(DType::F32, &[0, usize::MAX], bytes(0)).is_ok());
}

#[test]
fn a_leaf_is_made_of_a_buffer_only_where_there_are_gradients() -> Result<()> {
    let floats = Buffer::from_vec(vec![1.0_f32, 2.0]);
    let leaf = Tensor::from_buffer(DType::F32, vec![2], floats.clone(), true)?;
    assert!(leaf.requires_grad());
    let plain = Tensor::from_buffer(DType::F32, vec![2], floats, false)?;
    assert!(!plain.requires_grad());
    let whole = Buffer::from_vec(vec![1_i64, 2]);
    let error = Tensor::from_buffer(DType::I64, vec![2], whole, true).unwrap_err();
    assert!(error.to_string().contains("has no gradients"), "{error}");
    Ok(())
}

#[derive(Serialize, Deserialize)]
struct Inputs {
    #[serde(flatten)]
    first: First,
    second: Tensor,
}

#[derive(Serialize, Deserialize)]
struct First {
    x: Tensor,
}

/// A1: serde reads what is flattened last, though it is written first.
#[tokio::test]
async fn tensors_have_gradients_in_whatever_order_they_are_read() -> Result<()> {
    #[farref::remote]
    async fn weigh(inputs: Inputs) -> Result<Tensor, Error> {
        Ok(((&*inputs.first.x * 3.0)? + (&*inputs.second * 5.0)?)?.into())
    }

    let group = Group::start(2).await?;
    let peer = group.peer(1)?;
    let [x, second] = [
        common::parameter(&[1.0, 2.0], 2)?,
        common::parameter(&[3.0, 4.0], 2)?,
    ];
    let context = Context::new(group.worker(0))?;
    let inputs = Inputs {
        first: First { x: x.tensor() },
        second: second.tensor(),
    };
    let sum = context.run(weigh::on(&peer, inputs)).await?;
    let loss: Tensor = sum.sum_all()?.into();
    context.backward(&[&loss]).await?;
    for (parameter, expected) in [(&x, 3.0), (&second, 5.0)] {
        let gradient = context.gradient(parameter).expect("a gradient");
        assert_eq!(gradient.to_vec1::<f64>()?, [expected; 2]);
    }
    context.release().await?;
    drop(loss);
    group.finish(2).await
}

/// A tensor before it does not hide from the tracer what looks at what came, and does not take it for such.
#[tokio::test]
async fn what_looks_at_what_came_may_stand_behind_a_tensor() -> Result<()> {
    #[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
    #[serde(untagged)]
    enum Metric {
        Count(u64),
        Name(String),
    }

    #[farref::remote]
    async fn report(x: Tensor, metric: Metric) -> (Tensor, Metric) {
        (x, metric)
    }

    let group = Group::start(2).await?;
    let peer = group.peer(1)?;
    let x: Tensor = candle::Tensor::new(&[1.0_f32, 2.0], &Device::Cpu)?.into();
    for metric in [Metric::Count(7), Metric::Name("loss".to_owned())] {
        let (back, seen) = report::on(&peer, x.clone(), metric.clone()).await?;
        same(&back, &x)?;
        assert_eq!(seen, metric);
    }
    group.finish(2).await
}
