//! Locking mutexes whether or not somebody panicked while having them: what they guard in this crate is
//! consistent between any two statements.

use std::sync::{PoisonError, TryLockError};

use crate::support::sync::{Mutex, MutexGuard};

/// Locks a mutex, poisoned or not.
pub(crate) fn lock<T: ?Sized>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The same for who does not wait: none if somebody else has it.
pub(crate) fn try_lock<T: ?Sized>(mutex: &Mutex<T>) -> Option<MutexGuard<'_, T>> {
    match mutex.try_lock() {
        Ok(guard) => Some(guard),
        Err(TryLockError::Poisoned(poisoned)) => Some(poisoned.into_inner()),
        Err(TryLockError::WouldBlock) => None,
    }
}
