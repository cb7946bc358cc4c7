//! Imported pools on their way out: the driver does not let go of one while memory of it is being freed.

use std::sync::{Arc, Mutex, PoisonError};

use crate::driver::{Device, Driver, PoolHandle};

/// Those that could not go yet.
#[derive(Debug)]
pub(crate) struct LeavingPools {
    driver: Arc<dyn Driver>,
    pools: Mutex<Vec<(u32, PoolHandle)>>,
}

impl LeavingPools {
    pub(crate) fn new(driver: &Arc<dyn Driver>) -> Arc<Self> {
        Arc::new(Self {
            driver: Arc::clone(driver),
            pools: Mutex::default(),
        })
    }

    /// Those go that can by now.
    pub(crate) fn try_again(&self) {
        self.give_up(None);
    }

    fn give_up(&self, pool: Option<(u32, PoolHandle)>) {
        let mut pools = self.pools.lock().unwrap_or_else(PoisonError::into_inner);
        pools.extend(pool);
        pools.retain(|&(ordinal, pool)| self.driver.destroy_pool(ordinal, pool).is_err());
    }
}

/// An imported pool. It is given up when this is dropped, at the latest when the next one comes or goes.
#[derive(Debug)]
pub(crate) struct OwnedImport {
    ordinal: u32,
    pub(crate) handle: PoolHandle,
    leaving: Arc<LeavingPools>,
}

impl OwnedImport {
    pub(crate) fn new(device: &Device, handle: PoolHandle, leaving: &Arc<LeavingPools>) -> Self {
        Self {
            ordinal: device.ordinal,
            handle,
            leaving: Arc::clone(leaving),
        }
    }
}

impl Drop for OwnedImport {
    fn drop(&mut self) {
        self.leaving.give_up(Some((self.ordinal, self.handle)));
    }
}
