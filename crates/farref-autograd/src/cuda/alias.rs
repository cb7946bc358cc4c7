//! Tensors over memory of other processes.
//!
//! candle frees the memory when the last tensor over it is dropped, and tells nobody. So each has a stream object of its own,
//! over candle's stream, which goes with it: when that is gone, so is the memory, and the reference that keeps it can be
//! dropped. A thread looks after that; who drops a tensor of this crate wakes it, and for those that are candle's it looks by itself, the less
//! often the longer nothing happens.

use std::collections::HashMap;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak};
use std::time::Duration;

use candle_core::cuda::cudarc::driver::CudaStream;
use candle_core::{DType, Shape, Tensor};
use farref::RRef;
use farref::context::NodeId;
use farref_cuda::{Cuda, CudaError, ExportMessage, Held, ImportedPool};

use super::at_hand::{AtHand, Origin};
use super::device::{self, OpenDevice};
use super::memory::{self, Memory};
use crate::dropping::{self, DROPPED, SHARED};
use crate::place::KeptTensor;
use crate::view::View;

/// How often it is looked whether memory is still used: between these.
const SOONEST: Duration = Duration::from_millis(1);
const LATEST: Duration = Duration::from_millis(100);

/// Memory of another process that is used here.
pub(super) struct Alias {
    /// Gone when no tensor is over it any more.
    stream: Weak<CudaStream>,
    /// Tells the memory from other memory that may be in its place later. None if the driver does not.
    id: Option<u64>,
    device: Arc<OpenDevice>,
    /// Not to go before what is imported from it.
    pool: Arc<ImportedPool>,
    held: Option<Held>,
    pub(super) owner: NodeId,
    pub(super) number: u64,
    pub(super) tensor: u64,
    pub(super) message: ExportMessage,
    pub(super) elements: usize,
    /// How its owner looks at it.
    pub(super) owners_view: View,
    pub(super) hold: RRef<KeptTensor>,
}

/// All of this process, by the place of their memory.
#[derive(Default)]
struct Aliases {
    by_place: HashMap<(u32, u64), Vec<Alias>>,
    at_hand: AtHand,
    /// Whether somebody looks after them.
    is_watched: bool,
}

fn lock() -> MutexGuard<'static, Aliases> {
    static ALIASES: OnceLock<Mutex<Aliases>> = OnceLock::new();
    let aliases = ALIASES.get_or_init(Mutex::default);
    aliases.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Makes a tensor over memory of another process: all of it, as a row, or as a leaf of that shape.
///
/// If it is at hand, it is that. If another tensor of this process is over it and it is not at hand, it is a copy: the
/// driver has it once, and who drops the other one would free it.
pub(super) fn import(
    pool: &Arc<ImportedPool>,
    message: ExportMessage,
    (origin, elements, view, hold): (Origin, usize, View, RRef<KeptTensor>),
    dtype: DType,
    shape: Shape,
    is_leaf: bool,
) -> Result<Tensor, String> {
    let device = device::open(pool.ordinal())?;
    let text = |error: CudaError| error.to_string();
    // CT-4, and before anything is imported: what is refused later would have to be given back in the order of the stream. How much there is of it
    // is checked by the pool, against the driver.
    let needed = (elements as u64).checked_mul(dtype.size_in_bytes() as u64);
    let fits = needed.is_some_and(|needed| needed <= message.bytes());
    if shape.elem_count() != elements || !fits || !memory::has_whole_bytes(dtype) {
        return Err(format!(
            "{} bytes as {elements} elements of {dtype:?} with the shape {shape:?}",
            message.bytes()
        ));
    }
    if !is_leaf {
        let row = lock().at_hand.find(origin.owner, &message, dtype, elements);
        if let Some(row) = row {
            // What it holds by itself keeps it; the one that came now is released.
            pool.wait(device.stream()).map_err(text)?;
            return Ok(row);
        }
    }
    let memory = match pool.import(&message, device.stream()) {
        Ok(memory) => Memory::Imported(memory),
        // Another tensor is over it, and will free it.
        Err(CudaError::AlreadyImported) => {
            Memory::Copied(pool.copy(&message, device.stream()).map_err(text)?)
        }
        Err(error) => return Err(text(error)),
    };
    let is_copy = matches!(memory, Memory::Copied(_));
    let (tensor, stream, held) = memory::over(memory, dtype, shape, &device.candle, is_leaf)?;
    if is_copy {
        release(&device, hold);
        return Ok(tensor);
    }
    let place = memory::with_allocation(&tensor, |allocation, _| allocation.pointer);
    let place = (device.ordinal, place.unwrap_or_default());
    let alias = Alias {
        stream,
        id: id_of(place),
        owner: origin.owner,
        number: origin.number,
        tensor: origin.tensor,
        message,
        elements,
        owners_view: view,
        hold,
        device: Arc::clone(&device),
        pool: Arc::clone(pool),
        held,
    };
    let mut aliases = lock();
    aliases.by_place.entry(place).or_default().push(alias);
    if !is_leaf {
        aliases.at_hand.came(origin, message, &tensor);
    }
    SHARED.fetch_add(1, Ordering::Relaxed);
    watch(&mut aliases);
    Ok(tensor)
}

/// What is known of memory at this place, if it is another process's.
pub(super) fn find<T>(ordinal: u32, pointer: u64, look: impl FnOnce(&Alias) -> T) -> Option<T> {
    if SHARED.load(Ordering::Relaxed) == 0 {
        return None;
    }
    let aliases = lock();
    let here = aliases.by_place.get(&(ordinal, pointer))?;
    // The latest: a copy of a tensor can keep the stream object of one whose memory is gone.
    let mut here = here.iter().rev();
    let alias = here.find(|alias| alias.stream.strong_count() > 0)?;
    // Then the memory that is there now may be another one.
    (alias.id == id_of((ordinal, pointer))).then(|| look(alias))
}

fn id_of((ordinal, pointer): (u32, u64)) -> Option<u64> {
    Cuda::open().ok()?.allocation_id(ordinal, pointer).ok()
}

/// CT-7: an error if this memory is another process's that died before its work was seen to be done.
pub(super) fn check(ordinal: u32, pointer: u64) -> Result<(), String> {
    let pool = find(ordinal, pointer, |alias| Arc::clone(&alias.pool));
    let checked = pool.map_or(Ok(()), |pool| pool.check());
    checked.map_err(|error| error.to_string())
}

/// Has somebody look after them.
fn watch(aliases: &mut Aliases) {
    if aliases.is_watched {
        return;
    }
    let thread = std::thread::Builder::new().name("farref-cuda".to_owned());
    match thread.spawn(release_dropped) {
        Ok(_) => aliases.is_watched = true,
        // The next one tries again; until then nothing is released.
        Err(error) => {
            tracing::warn!(%error, "no thread to release device memory of other processes")
        }
    }
}

/// Releases what was dropped, until there is nothing left.
fn release_dropped() {
    let mut pause = SOONEST;
    let mut aliases = lock();
    loop {
        let outdated = aliases.at_hand.outdated();
        if !outdated.is_empty() {
            drop(aliases);
            for tensor in outdated {
                dropping::bind_for(&tensor);
            }
            aliases = lock();
        }
        let mut gone = Vec::new();
        aliases.by_place.retain(|_, here| {
            gone.extend(here.extract_if(.., |alias| alias.stream.strong_count() == 0));
            !here.is_empty()
        });
        if gone.is_empty() {
            if aliases.by_place.is_empty() {
                aliases.is_watched = false;
                return;
            }
            let waited = DROPPED.wait_timeout(aliases, pause);
            let (again, timed_out) = waited.unwrap_or_else(PoisonError::into_inner);
            aliases = again;
            pause = match timed_out.timed_out() {
                true => LATEST.min(pause * 2),
                false => SOONEST,
            };
            continue;
        }
        drop(aliases);
        for alias in gone {
            let released = Released {
                _held: alias.held,
                _hold: alias.hold,
            };
            release(&alias.device, released);
        }
        pause = SOONEST;
        aliases = lock();
    }
}

/// Lets go of something when the device has done what it was given (CT-2).
fn release(device: &OpenDevice, hold: impl Send + 'static) {
    run_after(device, Box::new(move || drop(hold)));
}

fn run_after(device: &OpenDevice, job: Box<dyn FnOnce() + Send>) {
    let Some(after) = device::after_work() else {
        return;
    };
    if let Err(error) = after.run(device.ordinal, device.stream(), job) {
        // The job is gone, and the reference with it: the memory is released at once.
        tracing::warn!(%error, "the end of work on a CUDA device cannot be waited for");
    }
}

/// A reference to memory that is not used any more, but may still be worked on.
struct Released {
    /// First: whoever hears of the other looks for this.
    _held: Option<Held>,
    _hold: RRef<KeptTensor>,
}

impl Drop for Released {
    fn drop(&mut self) {
        SHARED.fetch_sub(1, Ordering::Relaxed);
    }
}
