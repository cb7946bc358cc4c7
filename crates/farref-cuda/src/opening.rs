//! How a pool of another process is opened: whether it can be, and that it is open once.

use std::sync::Arc;

use crate::cuda::Cuda;
use crate::error::{CudaError, Result};
use crate::exchange;
use crate::imported_pool::ImportedPool;
use crate::ticket::{Host, MAX_ANCHORS, Ticket};

impl ImportedPool {
    /// Opens the pool that a ticket is for. If it is open in this process, it is that one.
    ///
    /// Blocks: it asks the other process over a Unix socket, and the driver. So it is not for an async thread.
    pub fn open(cuda: &Cuda, ticket: &Ticket) -> Result<Arc<Self>> {
        if ticket.host != Host::here()? {
            return Err(CudaError::OtherHost);
        }
        if ticket.anchors.len() > MAX_ANCHORS {
            return Err(CudaError::BadTicket("it has too many anchors"));
        }
        let device = cuda.find(ticket.uuid)?;
        let slot = cuda.open_pools().slot(ticket);
        let pool = slot.get(|| {
            let given = exchange::ask(ticket)?;
            Self::new(device, given, ticket, &slot, (cuda.waits(), cuda.leaving()))
        })?;
        if !pool.is_of(ticket) {
            return Err(CudaError::BadTicket("the pool has another one"));
        }
        Ok(pool)
    }
}
