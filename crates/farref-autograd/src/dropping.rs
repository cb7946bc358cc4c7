//! Tensors on CUDA devices that are dropped: on the right device, and those who look after memory of other processes are told.

use std::sync::Condvar;
use std::sync::atomic::{AtomicUsize, Ordering};

use candle_core::{Device, Tensor};

/// How many tensors there are whose memory is another process's, and was not released yet.
pub(crate) static SHARED: AtomicUsize = AtomicUsize::new(0);
/// One of them may have been dropped.
pub(crate) static DROPPED: Condvar = Condvar::new();

/// Makes the device of a tensor that is about to be dropped the current one of this thread, if it has one: memory is given back to
/// the thread's device, and candle does not see to that.
pub(crate) fn bind_for(tensor: &Tensor) -> bool {
    let Device::Cuda(device) = tensor.device() else {
        return false;
    };
    let context = device.cuda_stream();
    let context = context.context();
    // The first time it may be an error of something earlier that comes out, and nothing else is done.
    let bound = context.bind_to_thread().or_else(|earlier| {
        tracing::warn!(error = %earlier, "an earlier operation on a CUDA device has failed");
        context.bind_to_thread()
    });
    if let Err(error) = bound {
        tracing::warn!(%error, "a CUDA device cannot be used by this thread");
    }
    true
}

/// A tensor is about to be dropped on this thread. What this returns is to be dropped after it.
pub(crate) fn dropping(tensor: &Tensor) -> Option<Dropped> {
    bind_for(tensor).then_some(Dropped)
}

/// A tensor was dropped: its memory may be another process's.
pub(crate) struct Dropped;

impl Drop for Dropped {
    fn drop(&mut self) {
        if SHARED.load(Ordering::Relaxed) > 0 {
            DROPPED.notify_one();
        }
    }
}
