//! The laws of tensors and arrays in the foreign form. What Python sees of them is told by `python/tests/test_mixed.py`.

use farref::testing::Cluster;
use farref::{Blob, Error};
use farref_autograd::candle::{self, DType, Device};
use farref_autograd::{Context, Parameter, Tensor};

use super::tests::read;
use super::*;
use crate::pickle::Writer;

#[farref::remote(python = "tensor_laws.same")]
async fn same(tensor: Tensor) -> Tensor {
    tensor
}

#[farref::remote(python = "tensor_laws.all")]
async fn all(tensors: Vec<Tensor>) -> Vec<Tensor> {
    tensors
}

fn arange(count: usize, dtype: DType) -> candle::Result<candle::Tensor> {
    let numbers = (0..count).map(|number| (number % 100) as f32).collect();
    candle::Tensor::from_vec::<_, f32>(numbers, count, &Device::Cpu)?.to_dtype(dtype)
}

fn bits(tensor: &candle::Tensor) -> anyhow::Result<Vec<u8>> {
    Ok(Tensor::from(tensor.clone()).to_buffer()?.into_vec()?)
}

#[tokio::test]
async fn tensors_of_all_types_and_shapes_go_there_and_back() -> anyhow::Result<()> {
    let cluster = Cluster::start(2).await?;
    let peer = cluster.worker(0).peer("worker1")?;
    let types = [
        DType::U8,
        DType::U32,
        DType::I16,
        DType::I32,
        DType::I64,
        DType::BF16,
        DType::F16,
        DType::F32,
        DType::F64,
    ];
    for dtype in types {
        for shape in [&[][..], &[0], &[3], &[2, 0, 5], &[3, 40, 50]] {
            let sent = arange(shape.iter().product(), dtype)?.reshape(shape)?;
            let sent = Tensor::from(sent);
            let back: Tensor = py_call(&peer, "tensor_laws.same", (sent.clone(),)).await?;
            assert_eq!((back.dtype(), back.dims()), (dtype, shape));
            assert_eq!(bits(&back)?, bits(&sent)?);
        }
    }
    let scattered = arange(6000, DType::F32)?.reshape((60, 100))?.t()?;
    let sent = vec![Tensor::from(scattered.clone()); 3];
    let back: Vec<Tensor> = py_call(&peer, "tensor_laws.all", (sent,)).await?;
    assert_eq!(back.len(), 3);
    for tensor in back {
        assert_eq!(tensor.to_vec2::<f32>()?, scattered.to_vec2::<f32>()?);
    }
    cluster.shutdown().await?;
    Ok(())
}

/// AR-2
#[tokio::test]
async fn ar_2_no_tensor_that_needs_gradients_leaves_a_context_for_python() -> anyhow::Result<()> {
    let cluster = Cluster::start(2).await?;
    let peer = cluster.worker(0).peer("worker1")?;
    let weights = Parameter::new(&arange(3, DType::F32)?)?.tensor();
    let call = || py_call::<Tensor>(&peer, "tensor_laws.same", (weights.clone(),));
    assert!(!call().await?.requires_grad());
    let context = Context::new(cluster.worker(0))?;
    let refused = context.run(call()).await.unwrap_err();
    assert!(matches!(refused, Error::Codec { .. }), "{refused:?}");
    let text = refused.to_string();
    assert!(text.contains("contexts do not cross languages"), "{text}");
    // Data may.
    let data = Tensor::from(weights.detach());
    let detached = py_call::<Tensor>(&peer, "tensor_laws.same", (data,));
    assert!(!context.run(detached).await?.requires_grad());
    context.release().await?;
    drop(weights);
    cluster.shutdown().await?;
    Ok(())
}

/// A pickle of a value that has no memory beside it, as it is on the wire.
fn body(write: impl FnOnce(&mut Writer)) -> Vec<u8> {
    let mut writer = Writer::new(5);
    write(&mut writer);
    let pickle = Blob::from(writer.finish());
    let none = (Vec::<u8>::new(), Vec::<u32>::new(), Vec::<u8>::new());
    postcard::to_allocvec(&(false, pickle, none)).unwrap_or_default()
}

fn tensor(writer: &mut Writer, memory: &[u8], dtype: &str, shape: &[i64]) {
    writer.global("farref._tensors", "tensor").mark();
    writer.byte_string(memory).text(dtype.as_bytes()).mark();
    for size in shape {
        writer.int(*size);
    }
    writer.tuple().tuple().reduce();
}

/// AR-1
#[test]
fn ar_1_shapes_that_do_not_fit_the_bytes_are_refused() {
    let far = 1 << 40;
    let wrong: [(&str, &[i64]); 8] = [
        ("float32", &[3]),
        ("float64", &[2]),
        ("float32", &[-2]),
        ("float32", &[far, far]),
        ("float32", &[0, far, far]),
        ("float32", &[far, far, 0]),
        ("float32", &[]),
        ("complex64", &[1]),
    ];
    for (dtype, shape) in wrong {
        let body = body(|writer| tensor(writer, &[0; 8], dtype, shape));
        assert!(read::<Tensor>(&body).is_err(), "{dtype} {shape:?}");
        assert!(read::<Vec<Vec<f64>>>(&body).is_err(), "{dtype} {shape:?}");
        assert!(read::<f64>(&body).is_err(), "{dtype} {shape:?}");
    }
    // Nothing is there, and elements would be too far apart.
    let nothing = body(|writer| tensor(writer, b"", "float32", &[0, far, far]));
    assert!(read::<Tensor>(&nothing).is_err());
    let right = body(|writer| tensor(writer, &[0, 0, 128, 63, 0, 0, 0, 64], "float32", &[1, 2]));
    assert_eq!(read::<Vec<Vec<f64>>>(&right), Ok(vec![vec![1.0, 2.0]]));
    let numbers = read::<Tensor>(&right).map(|tensor| tensor.to_vec2::<f32>().ok());
    assert_eq!(numbers, Ok(Some(vec![vec![1.0, 2.0]])));
}

/// AR-1
#[test]
fn ar_1_rows_of_nothing_are_paid_for() {
    let few = body(|writer| tensor(writer, b"", "float32", &[3, 0]));
    assert_eq!(read::<Vec<Vec<f64>>>(&few), Ok(vec![vec![]; 3]));
    let many = body(|writer| tensor(writer, b"", "float32", &[1 << 40, 0]));
    let refused = read::<Vec<Vec<f64>>>(&many).unwrap_err().to_string();
    assert!(refused.contains("too large"), "{refused}");
    // Some, again and again.
    let often = body(|writer| {
        writer.empty_list().mark();
        tensor(writer, b"", "float32", &[1 << 16, 0]);
        let number = writer.memoize();
        for _ in 0..1000 {
            writer.recall(number);
        }
        writer.appends();
    });
    assert!(read::<Vec<Vec<Vec<f64>>>>(&often).is_err());
}

/// Numbers of two bytes have no type of their own in Rust: they are read as larger ones.
#[test]
fn small_floats_are_read_as_numbers() {
    for (dtype, one) in [("float16", [0, 0x3c]), ("bfloat16", [0x80, 0x3f])] {
        let body = body(|writer| tensor(writer, &[one, [0, 0]].concat(), dtype, &[2]));
        assert_eq!(read::<Vec<f32>>(&body), Ok(vec![1.0, 0.0]), "{dtype}");
        assert_eq!(read::<(f64, f64)>(&body), Ok((1.0, 0.0)), "{dtype}");
    }
}
