//! Tensors on CUDA devices, on their way out and in.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::ops::Range;
use std::sync::Arc;

use candle_core::{DType, Device, Shape, Tensor as CandleTensor};
use farref::context::NodeId;
use farref::{Buffer, Source, Transfer, Width, Worker};
use farref_cuda::{Cuda, CudaError, Download, ExportMessage};

use super::at_hand::Origin;
use super::device::{self, OpenDevice};
use super::device_map::Target;
use super::memory::{self, Allocation};
use super::peers::Peers;
use super::{alias, meeting};
use crate::dropping;
use crate::place::{KeptTensor, Place, SharedMemory};
use crate::tensor::Tensor;
use crate::view::View;

/// Up to that many bytes are copied without page-locked memory.
const COPIED_PLAINLY: usize = 64 << 10;

/// Where a tensor on a CUDA device is to be, and the elements that go along.
pub(crate) fn leaving(tensor: &CandleTensor) -> Result<(Option<Place>, Buffer), String> {
    let here = memory::ordinal(tensor).ok_or("a tensor of an unknown device")?;
    // One of a device that is not open is of another device of candle's.
    let device = device::find_open(here);
    let device = device.filter(|device| memory::is_of(tensor, &device.candle));
    let device = device.as_deref();
    if let Some(pointer) = memory::with_allocation(tensor, |allocation, _| allocation.pointer) {
        alias::check(here, pointer)?;
    }
    // Outside of a call nobody knows who will read it.
    let Some(transfer) = Transfer::outgoing() else {
        return Ok((None, download(tensor, device, false)?));
    };
    let worker = transfer.worker();
    let peers = worker.extension::<Peers>();
    let target = peers.target(&transfer, here);
    if let Target::Cuda(there) = target
        && let Some(memory) = share(tensor, (here, device), &transfer, &worker, &peers)?
    {
        let nothing = Buffer::from_vec(Vec::<u8>::new());
        return Ok((Some(Place::Shared(there, memory)), nothing));
    }
    let place = match target {
        Target::Cpu => None,
        Target::Cuda(there) => Some(Place::Cuda(there)),
    };
    let is_near = peers.is_near(transfer.life());
    Ok((place, download(tensor, device, is_near)?))
}

/// The tensor's memory, for whom it goes to. None if it has to be copied (CT-3).
fn share(
    tensor: &CandleTensor,
    (here, device): (u32, Option<&OpenDevice>),
    transfer: &Transfer,
    worker: &Worker,
    peers: &Arc<Peers>,
) -> Result<Option<SharedMemory>, String> {
    if !memory::has_whole_bytes(tensor.dtype()) || tensor.elem_count() == 0 {
        return Ok(None);
    }
    let Some((allocation, view)) = memory::look_at(tensor) else {
        return Ok(None);
    };
    let is_own = transfer.life() == worker.node();
    // What order the work of another device of candle's is in, nobody here knows.
    let device = device.filter(|device| allocation.bytes >= device.shared_from);
    if !is_own && device.is_none() {
        return Ok(None);
    }
    if let Some(view) = &view
        && let Some(memory) = hand_on((here, device), allocation, view, transfer, worker, peers)
    {
        return memory;
    }
    let identity = identity_of(tensor);
    // Without its graph, which would otherwise live for as long as the peer has it.
    let (tensor, allocation, view) = match view {
        Some(view) => (tensor.detach(), allocation, view),
        None => {
            let copy = tensor.copy().and_then(|copy| copy.contiguous());
            let copy = copy.map_err(|error| error.to_string())?.detach();
            let Some((allocation, Some(view))) = memory::look_at(&copy) else {
                return Ok(None);
            };
            (copy, allocation, view)
        }
    };
    let elements = allocation.elements;
    let (export, exported) = match device.filter(|_| !is_own) {
        None => (Vec::new(), None),
        Some(device) => {
            let Ok(pool) = &device.pool else {
                return Ok(None);
            };
            if !peers.has_opened(transfer.life(), (worker.node(), pool.number())) {
                meeting::meet_later(peers, worker, transfer.peer(), transfer.life());
                return Ok(None);
            }
            match pool.export(allocation.pointer, allocation.bytes as u64, device.stream()) {
                Ok(exported) => (write(&exported.message())?, Some(exported)),
                // CT-3: too much is out, it is too long, or it was not made here. If it is the device that does not work any more, the copy will say so.
                Err(error) => {
                    tracing::debug!(%error, "a tensor cannot be shared, and is copied");
                    return Ok(None);
                }
            }
        }
    };
    let (number, kept) = peers.kept.keep(tensor, exported);
    let hold = worker.rref_to_object(KeptTensor(Box::new(kept)));
    let hold = hold.map_err(|error| error.to_string())?;
    let id = hold.id().map_err(|error| error.to_string())?;
    peers.kept.is_held_by(number, &id);
    Ok(Some(SharedMemory {
        owner: worker.node(),
        number,
        tensor: identity,
        export,
        elements,
        view,
        behind: None,
        hold,
    }))
}

/// Tells a tensor of this process from others.
fn identity_of(tensor: &CandleTensor) -> u64 {
    let mut hasher = DefaultHasher::new();
    tensor.id().hash(&mut hasher);
    hasher.finish()
}

/// Memory of another process, for a third one or for its owner. Nothing if it is not another's; none in that if it has to be
/// copied.
fn hand_on(
    (here, device): (u32, Option<&OpenDevice>),
    allocation: Allocation,
    view: &View,
    transfer: &Transfer,
    worker: &Worker,
    peers: &Arc<Peers>,
) -> Option<Result<Option<SharedMemory>, String>> {
    let found = alias::find(here, allocation.pointer, |alias| {
        let is_same = alias.elements == allocation.elements;
        let whole = alias.owners_view.is_whole(alias.elements) || alias.owners_view == *view;
        let memory = SharedMemory {
            owner: alias.owner,
            number: alias.number,
            tensor: alias.tensor,
            export: Vec::new(),
            elements: alias.elements,
            view: view.clone(),
            behind: None,
            hold: alias.hold.clone(),
        };
        (memory, alias.message, is_same, whole)
    });
    let (mut memory, message, is_same, is_whole) = found?;
    let owner = memory.hold.owner().ok()?;
    let goes_home = memory.owner == transfer.life();
    let is_ours = transfer.life() == worker.node();
    if is_ours {
        // It is kept as this process's own is.
        return None;
    }
    let Some(device) = device.filter(|_| is_same) else {
        return Some(Ok(None));
    };
    let sent = |mut memory: SharedMemory| {
        let behind = behind(device, transfer.life(), worker, peers);
        memory.behind = behind.map_err(|error| error.to_string())?;
        Ok(Some(memory))
    };
    if goes_home {
        return Some(match is_whole {
            true => sent(memory),
            false => Ok(None),
        });
    }
    if peers.pool((memory.owner, message.pool())).is_none() {
        // Its owner is gone, and keeps it for nobody else.
        return Some(Ok(None));
    }
    let (to, life) = (transfer.peer(), transfer.life());
    if !peers.has_opened(life, (memory.owner, message.pool())) {
        let pool = (memory.owner, message.pool());
        meeting::acquaint_later(peers, worker, to, life, owner, pool);
        return Some(Ok(None));
    }
    memory.export = write(&message).ok()?;
    Some(sent(memory))
}

/// Which pool of this process says when its work on memory of another one is done, for somebody who gets that memory. None if it is done:
/// also because this has waited for it, where the other one has not opened the pool.
fn behind(
    device: &OpenDevice,
    to: NodeId,
    worker: &Worker,
    peers: &Peers,
) -> Result<Option<u64>, CudaError> {
    if let Ok(pool) = &device.pool
        && peers.has_opened(to, (worker.node(), pool.number()))
    {
        let is_behind = pool.record(device.stream())?;
        return Ok(is_behind.then(|| pool.number()));
    }
    Cuda::open()?.synchronize(device.ordinal, device.stream())?;
    Ok(None)
}

fn write(message: &ExportMessage) -> Result<Vec<u8>, String> {
    postcard::to_allocvec(message).map_err(|error| error.to_string())
}

/// The elements of a tensor, as they are sent.
///
/// Waits for the work that makes them, which is told if it fails: whoever sends them later can tell nobody, and has others waiting. Sent while they are
/// being copied; but one who is near reads them where they are (if it talks to this worker as those of one host do), for which they have to be there.
fn download(
    tensor: &CandleTensor,
    device: Option<&OpenDevice>,
    is_near: bool,
) -> Result<Buffer, String> {
    let text = |error: candle_core::Error| error.to_string();
    let bytes = tensor.elem_count() * tensor.dtype().size_in_bytes();
    let Some(device) = device else {
        // Whose work is on streams that are not known here.
        memory::wait_for_all(tensor)?;
        return plainly(tensor);
    };
    if bytes > COPIED_PLAINLY && memory::has_whole_bytes(tensor.dtype()) {
        let tensor = tensor.contiguous().map_err(text)?.detach();
        if let Some(mut staged) = Staged::begin(tensor, device)? {
            match is_near {
                true => staged.complete()?,
                false => staged.begun()?,
            }
            return Ok(Buffer::from_source(Arc::new(staged)));
        }
    }
    plainly(tensor)
}

/// The same, without page-locked memory.
fn plainly(tensor: &CandleTensor) -> Result<Buffer, String> {
    let tensor = tensor.to_device(&Device::Cpu);
    let tensor = Tensor::from(tensor.map_err(|error| error.to_string())?);
    tensor.to_buffer().map_err(|error| error.to_string())
}

/// Elements that are being copied to the host.
struct Staged {
    download: Download,
    is_complete: bool,
    width: Width,
    /// Not to go before the copy is done.
    tensor: CandleTensor,
}

impl Staged {
    /// None if so much memory cannot be locked now.
    fn begin(tensor: CandleTensor, device: &OpenDevice) -> Result<Option<Self>, String> {
        let size = tensor.dtype().size_in_bytes();
        let begun = memory::download(&tensor, &device.pinned);
        let download = match begun {
            Some(Ok(download)) => download,
            Some(Err(CudaError::LimitReached { .. })) | None => return Ok(None),
            Some(Err(error)) => return Err(error.to_string()),
        };
        let width = match size {
            8 => Width::Eight,
            4 => Width::Four,
            2 => Width::Two,
            _ => Width::One,
        };
        Ok(Some(Self {
            download,
            is_complete: false,
            width,
            tensor,
        }))
    }

    /// Waits until they are being copied.
    fn begun(&self) -> Result<(), String> {
        let begun = self.download.wait_begun();
        begun.map_err(|error| error.to_string())
    }

    /// Waits until they have been copied.
    fn complete(&mut self) -> Result<(), String> {
        let copied = self.download.wait_all();
        self.is_complete = copied.is_ok();
        copied.map_err(|error| error.to_string())
    }
}

/// On whatever thread has sent it.
impl Drop for Staged {
    fn drop(&mut self) {
        dropping::bind_for(&self.tensor);
    }
}

impl Source for Staged {
    fn len(&self) -> usize {
        self.download.bytes()
    }

    fn width(&self) -> Width {
        self.width
    }

    fn address(&self) -> Option<usize> {
        self.is_complete.then(|| self.download.address())
    }

    fn look(&self, range: Range<usize>, look: &mut dyn FnMut(&[u8])) {
        if let Err(error) = self.download.look(range, look) {
            tracing::warn!(%error, "a tensor cannot be copied from its device");
        }
    }
}

/// A tensor whose elements came along.
pub(crate) fn copied(
    ordinal: u32,
    dtype: DType,
    shape: Vec<usize>,
    data: &Buffer,
    requires_grad: bool,
) -> Result<Tensor, String> {
    let device = open_for_peer(ordinal)?;
    if !memory::has_whole_bytes(dtype) {
        return Err(format!(
            "tensors of {dtype:?} cannot be sent to CUDA devices"
        ));
    }
    if data.is_empty() {
        return without_elements(&device, dtype, shape, requires_grad);
    }
    let copy;
    let bytes = match data.as_slice::<u8>() {
        Some(bytes) => bytes,
        // It did not leave the process.
        None => {
            copy = data
                .clone()
                .into_vec::<u8>()
                .map_err(|error| error.to_string())?;
            &copy
        }
    };
    let place = (&device.candle, &device.pinned);
    let tensor = memory::upload(bytes, dtype, Shape::from(shape), place, requires_grad)?;
    Ok(tensor.into())
}

/// A tensor that has none: a part of one that has, since the driver has no memory of no bytes.
fn without_elements(
    device: &OpenDevice,
    dtype: DType,
    shape: Vec<usize>,
    requires_grad: bool,
) -> Result<Tensor, String> {
    let device = Device::Cuda(device.candle.clone());
    let empty = CandleTensor::zeros(1, dtype, &device)
        .and_then(|one| one.narrow(0, 0, 0))
        .and_then(|none| none.reshape(shape));
    let empty = empty.and_then(|empty| match requires_grad {
        true => Ok(candle_core::Var::from_tensor(&empty)?.into_inner()),
        false => Ok(empty),
    });
    Ok(empty.map_err(|error| error.to_string())?.into())
}

/// A tensor whose memory is another process's, or was this one's all the time.
pub(crate) fn shared(
    ordinal: u32,
    dtype: DType,
    memory: SharedMemory,
    requires_grad: bool,
) -> Result<Tensor, String> {
    let transfer = Transfer::incoming().ok_or("a tensor in shared memory comes in a call only")?;
    let worker = transfer.worker();
    let peers = worker.extension::<Peers>();
    let SharedMemory {
        owner,
        number,
        tensor: identity,
        export,
        elements,
        view,
        behind,
        hold,
    } = memory;
    if let Some(number) = behind {
        let pool = peers.pool((transfer.life(), number));
        let pool = pool.ok_or("a tensor that another worker has changed which is gone")?;
        let device = device::open(pool.ordinal())?;
        let waits = pool.wait(device.stream());
        waits.map_err(|error| error.to_string())?;
    }
    let id = hold.id().map_err(|error| error.to_string())?;
    let (tensor, is_leaf) = if hold.is_owner() {
        let tensor = peers.kept.find((number, &id), elements, &view);
        let tensor = tensor.ok_or("a tensor of this worker that it does not have")??;
        if tensor.dtype() != dtype {
            return Err(format!(
                "a tensor of {:?} comes back as one of {dtype:?}",
                tensor.dtype()
            ));
        }
        (tensor, false)
    } else {
        // CT-4: what keeps it is at whose memory it is.
        let keeper = hold.owner().map_err(|error| error.to_string())?;
        if keeper.rank() != owner.worker.0 {
            return Err("a tensor in memory that another worker keeps".to_owned());
        }
        let message: ExportMessage =
            postcard::from_bytes(&export).map_err(|error| error.to_string())?;
        let pool = peers.pool((owner, message.pool()));
        let pool = pool.ok_or("a tensor in memory that this worker has not opened")?;
        // A leaf has to be made as one: what is taken out of another is not.
        let whole = requires_grad && view.is_whole(elements);
        let shape = match whole {
            true => Shape::from(view.shape().to_vec()),
            false => Shape::from(elements),
        };
        let row = alias::import(
            &pool,
            message,
            (
                Origin {
                    owner,
                    number,
                    tensor: identity,
                },
                elements,
                view.clone(),
                hold,
            ),
            dtype,
            shape,
            whole,
        )?;
        match whole {
            true => (row, true),
            false => (view.take(&row)?, false),
        }
    };
    let text = |error: candle_core::Error| error.to_string();
    let tensor = match memory::ordinal(&tensor) {
        Some(at) if at == ordinal => tensor,
        _ => {
            let device = open_for_peer(ordinal)?;
            let moved = tensor.to_device(&Device::Cuda(device.candle.clone()));
            let moved = moved.map_err(text)?;
            memory::wait_for_other(&tensor, &device.candle)?;
            moved
        }
    };
    Ok(match requires_grad && !is_leaf {
        // A copy, on the device.
        true => candle_core::Var::from_tensor(&tensor)
            .map_err(text)?
            .into_inner()
            .into(),
        false => tensor.into(),
    })
}

/// The device that a peer says a tensor is for.
fn open_for_peer(ordinal: u32) -> Result<Arc<OpenDevice>, String> {
    let count = device::count();
    if ordinal < count {
        return device::open(ordinal);
    }
    let transfer = Transfer::incoming();
    let [from, here] = match &transfer {
        Some(transfer) => [
            transfer.peer().name().to_owned(),
            transfer.worker().name().to_owned(),
        ],
        None => ["another worker".to_owned(), "this worker".to_owned()],
    };
    Err(format!(
        "a tensor of {from} is to be on cuda:{ordinal}, and {here} has {count} CUDA devices: \
         have {from} say where its tensors are to be here, with `cuda::map_devices(&worker, \"{here}\", ..)`"
    ))
}
