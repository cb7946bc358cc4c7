//! Giving a thread-local another value for a while.

use std::cell::RefCell;
use std::thread::LocalKey;

/// A thread-local that has another value. Dropped, it has the former one again, also when the code in between
/// panicked.
pub(crate) struct Replaced<T: 'static> {
    place: &'static LocalKey<RefCell<T>>,
    former: Option<T>,
}

impl<T> Replaced<T> {
    pub(crate) fn new(place: &'static LocalKey<RefCell<T>>, value: T) -> Self {
        Self {
            place,
            former: Some(place.replace(value)),
        }
    }

    /// Puts the former value back and says what the other one has become.
    pub(crate) fn take(mut self) -> Option<T> {
        let former = self.former.take()?;
        Some(self.place.replace(former))
    }
}

impl<T> Drop for Replaced<T> {
    fn drop(&mut self) {
        if let Some(former) = self.former.take() {
            // What goes may have destructors that come back here: not while the place is borrowed.
            drop(self.place.replace(former));
        }
    }
}
