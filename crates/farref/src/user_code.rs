//! Keeping code of the program off the threads and tasks that must not wait for it.
//!
//! Serde, destructors, callbacks and functions are the program's. They may take long, block, panic, or
//! come back into this crate. What reads connections, keeps time or gives signs of life runs inside of
//! [`without`]; whatever may run code of the program asks for the place, and goes there.
//!
//! # Invariants
//!
//! - **UC-1** Inside of [`without`], and on a thread that is [reserved](reserve_thread), no code of the
//!   program runs.
//! - **UC-2** What was put off is done in the order in which it came up, also if the worker is gone by then,
//!   and a panic in it ends nothing but itself.

use std::any::Any;
use std::cell::Cell;
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};

use tokio::runtime::Handle;

use crate::blocking::BlockingPool;

thread_local! {
    static BARRED: Cell<bool> = const { Cell::new(false) };
}

/// Does something during which this thread runs no code of the program (UC-1).
pub(crate) fn without<T>(f: impl FnOnce() -> T) -> T {
    struct Restore(bool);

    impl Drop for Restore {
        fn drop(&mut self) {
            BARRED.set(self.0);
        }
    }

    let _restore = Restore(BARRED.replace(true));
    f()
}

/// From now on this thread runs no code of the program.
pub(crate) fn reserve_thread() {
    BARRED.set(true);
}

/// Whether code of the program has to go elsewhere.
pub(crate) fn is_barred() -> bool {
    BARRED.get()
}

/// Where code of the program runs that came up in the wrong place: one thread, started when it is first
/// needed.
pub(crate) struct UserCode {
    thread: BlockingPool,
    runtime: Handle,
}

impl UserCode {
    pub(crate) fn new(runtime: Handle) -> Self {
        Self {
            thread: BlockingPool::finishing(1),
            runtime,
        }
    }

    /// Runs code of the program: here, or on the thread for it if this is not the place.
    pub(crate) fn run(&self, f: impl FnOnce() + Send + 'static) {
        if is_barred() {
            self.put_off(f);
        } else {
            guarded(f);
        }
    }

    /// Runs code of the program, but not now.
    pub(crate) fn put_off(&self, f: impl FnOnce() + Send + 'static) {
        let runtime = self.runtime.clone();
        self.thread.submit(move || {
            // Destructors may well spawn something.
            let _runtime = runtime.enter();
            guarded(f);
        });
    }
}

/// What a panic says, if it says anything.
pub(crate) fn panic_message(panic: &(dyn Any + Send)) -> Option<&str> {
    let text = panic.downcast_ref::<&str>().copied();
    text.or_else(|| panic.downcast_ref::<String>().map(String::as_str))
}

/// UC-2
fn guarded(f: impl FnOnce()) {
    if catch_unwind(AssertUnwindSafe(f)).is_err() {
        tracing::error!("a destructor or a callback of the program panicked");
    }
}

impl fmt::Debug for UserCode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("UserCode")
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;
    use std::time::Duration;

    use super::*;

    const PATIENCE: Duration = Duration::from_secs(60);

    #[tokio::test]
    async fn nothing_of_the_program_runs_where_it_is_barred() {
        // UC-1
        let user_code = UserCode::new(Handle::current());
        let here = std::thread::current().id();
        let (said, heard) = mpsc::channel();
        let say = |said: mpsc::Sender<_>| move || said.send(std::thread::current().id()).unwrap();
        user_code.run(say(said.clone()));
        assert_eq!(heard.recv_timeout(PATIENCE), Ok(here));
        without(|| {
            without(|| ());
            user_code.run(say(said.clone()));
        });
        assert_ne!(heard.recv_timeout(PATIENCE), Ok(here));
        user_code.run(say(said));
        assert_eq!(heard.recv_timeout(PATIENCE), Ok(here), "it is over");
    }

    #[tokio::test]
    async fn what_was_put_off_keeps_its_order_and_outlives_panics() {
        // UC-2
        let user_code = UserCode::new(Handle::current());
        let (said, heard) = mpsc::channel();
        for number in 0..100 {
            let said = said.clone();
            user_code.put_off(move || {
                said.send(number).unwrap();
                assert!(number % 3 > 0, "one of three panics");
            });
        }
        for number in 0..100 {
            assert_eq!(heard.recv_timeout(PATIENCE), Ok(number));
        }
    }
}
