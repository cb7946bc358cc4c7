//! Values: what arrives is what was sent.

use anyhow::{Result, ensure};
use farref_autograd::candle::{self, DType, Device};
use farref_autograd::cuda::{self, DeviceMap, map_devices};
use farref_autograd::{Error, Tensor};

use crate::group::{Setup, counting, echo, filled, finish, start, start_with, sum};

const TYPES: [DType; 9] = [
    DType::U8,
    DType::U32,
    DType::I64,
    DType::BF16,
    DType::F16,
    DType::F32,
    DType::F64,
    DType::I16,
    DType::I32,
];

fn same(one: &candle::Tensor, other: &candle::Tensor) -> Result<()> {
    ensure!(one.dtype() == other.dtype() && one.dims() == other.dims());
    let bytes = |tensor: &candle::Tensor| -> Result<Vec<u8>> {
        let here = tensor.to_device(&Device::Cpu)?.contiguous()?;
        Ok(Tensor::from(here).to_buffer()?.into_vec::<u8>()?)
    };
    ensure!(bytes(one)? == bytes(other)?, "other elements");
    Ok(())
}

pub(crate) async fn every_type_arrives_as_it_is_shared_and_copied() -> Result<()> {
    // The other process shares what it sends back, or it copies it.
    for shared_from in [0, usize::MAX] {
        let there = Setup {
            shared_from,
            ..Setup::USUAL
        };
        let group = start_with(2, Setup::USUAL, there).await?;
        let peer = group.peer(1)?;
        for elements in [100, 300_000] {
            let numbers: Vec<u32> = (0..elements).map(|number| number % 200).collect();
            let here = candle::Tensor::from_vec(numbers, elements as usize, &Device::Cpu)?;
            for dtype in TYPES {
                // candle has no kernels for all conversions.
                let here = here.to_dtype(dtype)?;
                let tensor = here.to_device(&cuda::device(0)?)?;
                let back = echo::on(&peer, Tensor::from(tensor)).await?;
                ensure!(back.device().is_cuda(), "{dtype:?}");
                same(&back, &here)?;
            }
        }
        finish(group).await?;
    }
    Ok(())
}

pub(crate) async fn a_tensor_without_elements_arrives() -> Result<()> {
    let group = start(2).await?;
    let peer = group.peer(1)?;
    let some = filled(1.0, 12)?.reshape((3, 4))?;
    for none in [some.narrow(0, 1, 0)?, some.narrow(1, 0, 0)?] {
        let dims = none.dims().to_vec();
        let back = echo::on(&peer, Tensor::from(none)).await?;
        ensure!(back.device().is_cuda() && back.dims() == dims, "{back:?}");
    }
    finish(group).await
}

/// One that candle made by itself is copied, whatever streams its work is on.
pub(crate) async fn a_tensor_of_another_device_of_candles_arrives() -> Result<()> {
    let group = start(2).await?;
    let other = Device::new_cuda(0)?;
    let large = candle::Tensor::ones((4096, 4096), DType::F32, &other)?;
    for round in 0..10 {
        let product = (large.matmul(&large)? * (f64::from(round) / 4096.0))?;
        let (is_cuda, all) = sum::on(&group.peer(1)?, Tensor::from(product)).await?;
        ensure!(
            is_cuda && all == 4096.0 * 4096.0 * f64::from(round),
            "round {round}: {all}"
        );
        ensure!(cuda::usage().exported == 0, "it was copied");
    }
    finish(group).await
}

pub(crate) async fn every_view_arrives_as_what_it_shows() -> Result<()> {
    let group = start(2).await?;
    let peer = group.peer(1)?;
    let cube = counting(0.0, 64 * 96 * 128)?.reshape((64, 96, 128))?;
    let views = [
        cube.clone(),
        cube.t()?,
        cube.permute((2, 0, 1))?,
        cube.narrow(1, 5, 40)?,
        cube.narrow(2, 100, 28)?.t()?,
        cube.get(63)?,
        cube.narrow(0, 7, 1)?.broadcast_as((9, 96, 128))?,
        cube.flatten_all()?.narrow(0, 12_345, 300_000)?,
    ];
    for view in views {
        let back = echo::on(&peer, Tensor::from(view.clone())).await?;
        same(&back, &view)?;
    }
    finish(group).await
}

pub(crate) async fn many_tensors_travel_in_one_message() -> Result<()> {
    #[farref::remote]
    fn sums(tensors: Vec<(String, Option<Tensor>)>) -> Result<Vec<(String, f64)>, Error> {
        let tensors = tensors.into_iter();
        let sums = tensors.map(|(name, tensor)| {
            let tensor = tensor.ok_or(Error::NoContext)?;
            let all = tensor.to_dtype(DType::F64)?.sum_all()?;
            Ok((name, all.to_scalar()?))
        });
        sums.collect()
    }

    let group = start(2).await?;
    let mut tensors = Vec::new();
    for number in 0..100_usize {
        let elements = [10, 50_000][number % 2];
        tensors.push((number.to_string(), Some(counting(number as f32, elements)?)));
    }
    let sums = sums::on(&group.peer(1)?, tensors).await?;
    for (number, (name, sum)) in sums.into_iter().enumerate() {
        let elements = [10, 50_000][number % 2] as f64;
        let expected = elements * number as f64 + elements * (elements - 1.0) / 2.0;
        ensure!(
            name == number.to_string() && sum == expected,
            "{number}: {sum}, not {expected}"
        );
    }
    finish(group).await
}

/// The sender does not wait for its own work: the receiver's stream does.
pub(crate) async fn what_a_peer_computes_on_shared_memory_is_right_whatever_is_still_running()
-> Result<()> {
    let group = start(2).await?;
    let peer = group.peer(1)?;
    let gpu = cuda::device(0)?;
    let large = candle::Tensor::ones((4096, 4096), DType::F32, &gpu)?;
    for round in 0..20 {
        // Milliseconds of work, and its result is sent before it is there.
        let mut product = large.clone();
        for _ in 0..4 {
            product = (product.matmul(&large)? * (1.0 / 4096.0))?;
        }
        let result = (product * f64::from(round))?;
        let (is_cuda, all) = sum::on(&peer, Tensor::from(result)).await?;
        ensure!(
            is_cuda && all == 4096.0 * 4096.0 * f64::from(round),
            "round {round}: {all}"
        );
    }
    finish(group).await
}

/// CT-6: whoever waits for work waits for that of all threads.
pub(crate) async fn ct6_what_one_thread_computes_other_threads_and_peers_read() -> Result<()> {
    let group = start(2).await?;
    let peer = group.peer(1)?;
    let large = candle::Tensor::ones((4096, 4096), DType::F32, &cuda::device(0)?)?;
    for round in 0..40 {
        let large = large.clone();
        let (result, computed) = std::sync::mpsc::channel();
        let (end, ended) = std::sync::mpsc::channel::<()>();
        // Milliseconds of work, of which nobody but this thread has heard.
        let thread = std::thread::spawn(move || {
            let compute = || {
                let mut product = large.clone();
                for _ in 0..4 {
                    product = (product.matmul(&large)? * (1.0 / 4096.0))?;
                }
                product * f64::from(round)
            };
            drop(result.send(compute()));
            let _ = ended.recv();
        });
        let product = computed.recv()??;
        let all: f64 = match round % 2 {
            0 => product.to_dtype(DType::F64)?.sum_all()?.to_scalar()?,
            _ => sum::on(&peer, Tensor::from(product)).await?.1,
        };
        ensure!(
            all == 4096.0 * 4096.0 * f64::from(round),
            "round {round}: {all}"
        );
        drop(end);
        ensure!(thread.join().is_ok());
    }
    finish(group).await
}

pub(crate) async fn a_map_says_where_tensors_arrive() -> Result<()> {
    let group = start(2).await?;
    let peer = group.peer(1)?;
    for elements in [10, 1 << 20] {
        let tensor = counting(0.0, elements)?;
        map_devices(&group.me, "worker1", DeviceMap::all_to_cpu());
        let (is_cuda, on_cpu) = sum::on(&peer, tensor.clone()).await?;
        ensure!(!is_cuda);
        map_devices(&group.me, "worker1", DeviceMap::new());
        let (is_cuda, on_gpu) = sum::on(&peer, tensor).await?;
        ensure!(is_cuda && on_cpu == on_gpu);
    }
    finish(group).await
}

pub(crate) async fn a_device_that_is_not_there_is_an_error_that_names_both_sides() -> Result<()> {
    let group = start(2).await?;
    let peer = group.peer(1)?;
    map_devices(&group.me, "worker1", DeviceMap::new().to_cuda(0, 9));
    let refused = sum::on(&peer, counting(0.0, 10)?).await;
    let said = refused
        .err()
        .map(|error| error.to_string())
        .unwrap_or_default();
    ensure!(
        said.contains("cuda:9") && said.contains("worker0") && said.contains("worker1"),
        "{said}"
    );
    map_devices(&group.me, "worker1", DeviceMap::new());
    ensure!(sum::on(&peer, counting(0.0, 10)?).await?.1 == 45.0);
    finish(group).await
}

pub(crate) async fn a_tensor_that_comes_home_is_the_one_that_left() -> Result<()> {
    let group = start(2).await?;
    let peer = group.peer(1)?;
    let tensor = counting(0.0, 1 << 20)?;
    let before = cuda::usage();
    let back = echo::on(&peer, tensor.clone()).await?;
    same(&back, &tensor)?;
    // It is this process's own memory again: nothing is imported.
    ensure!(
        cuda::usage().imported == before.imported,
        "{:?}",
        cuda::usage()
    );
    // And so is a call of oneself.
    let back = echo::on(&group.me.me(), tensor.clone()).await?;
    same(&back, &tensor)?;
    ensure!(cuda::usage().imported == before.imported);
    drop((tensor, back));
    finish(group).await
}

/// What is sent for the second time is kept at hand: it is the same memory, however often it comes, and goes in the end.
pub(crate) async fn a_tensor_that_is_sent_again_and_again_is_shared_each_time() -> Result<()> {
    let group = start(2).await?;
    let peer = group.peer(1)?;
    let tensor = filled(3.0, 64 << 20)?;
    for round in 0..50 {
        // It changes in between, and who gets it sees that.
        let other = (&*filled(round as f32, 1 << 20)? + 1.0)?;
        tensor.slice_set(&other, 0, 0)?;
        let (is_cuda, all) = sum::on(&peer, tensor.clone()).await?;
        let expected =
            3.0 * f64::from((64 << 20) - (1 << 20)) + f64::from(round + 1) * f64::from(1 << 20);
        ensure!(
            is_cuda && all == expected,
            "round {round}: {all}, not {expected}"
        );
    }
    drop(tensor);
    finish(group).await
}
