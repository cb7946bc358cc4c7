//! How far the device of a process is with the work that others wait for, in memory that all of them have.
//!
//! A process gives its streams numbers, one after the other, and its device writes each of them when it gets there. Whoever waits for its work has a
//! stream of its own wait for a number. (An event of the driver's would do the same, but for one thing: when its process is killed, it never comes, and
//! whoever waits for it waits for ever. Anybody can write a number.)
//!
//! # Invariants
//!
//! - **PG-1** The device reaches numbers in the order in which they were given. So whoever waits for one waits for all before it.
//! - **PG-2** What was reached never becomes less, but while a process dies: until it has ended its device may write what it was given.
//! - **PG-3** The page is there as long as any stream of this process may write to it, or wait for it. What is written in it does not matter for
//!   that: whoever has the page can write to it.

use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use crate::driver::Device;
use crate::error::Result;
use crate::sys::{MappedPage, SharedPage, StreamHandle};

/// The places of the numbers in the page. The first is what devices write.
const REACHED: usize = 0;
const GIVEN: usize = 1;

/// What streams are given.
#[derive(Debug)]
pub(crate) struct Progress {
    device: Device,
    page: SharedPage,
}

/// The numbers, for whoever only looks, or lets others go on. It calls no driver, neither when it is dropped.
#[derive(Clone, Debug)]
pub(crate) struct Numbers(Arc<MappedPage>);

/// Whether one number comes before another. They go round: of two that are less than 2³¹ apart it is known.
pub(crate) fn is_before(one: u32, other: u32) -> bool {
    (one.wrapping_sub(other) as i32) < 0
}

impl Progress {
    /// That of the process whose file this is: this one, or another.
    pub(crate) fn open(device: &Device, file: BorrowedFd<'_>) -> Result<Self> {
        Ok(Self {
            page: SharedPage::map(device, file)?,
            device: device.clone(),
        })
    }

    pub(crate) fn numbers(&self) -> Numbers {
        Numbers(Arc::clone(self.page.page()))
    }

    /// Gives a number to a stream, which writes it after all that it was given before.
    pub(crate) fn give(&self, stream: StreamHandle, number: u32) -> Result<()> {
        let Device { driver, ordinal } = &self.device;
        driver.write_number(*ordinal, stream, self.page.first(), number)?;
        self.page
            .page()
            .number(GIVEN)
            .store(number, Ordering::Release);
        Ok(())
    }

    /// What a stream is given from now on waits for a number.
    pub(crate) fn wait(&self, stream: StreamHandle, number: u32) -> Result<()> {
        let Device { driver, ordinal } = &self.device;
        Ok(driver.wait_number(*ordinal, stream, self.page.first(), number)?)
    }
}

impl Numbers {
    /// The last number that was given to a stream.
    pub(crate) fn given(&self) -> u32 {
        self.0.number(GIVEN).load(Ordering::Acquire)
    }

    /// The last number that was reached.
    pub(crate) fn reached(&self) -> u32 {
        self.0.number(REACHED).load(Ordering::Acquire)
    }

    /// Whether a number was reached, or one after it.
    pub(crate) fn has_reached(&self, number: u32) -> bool {
        !is_before(self.reached(), number)
    }

    /// A number counts as reached from now on, though nobody has got there: those who wait for it go on.
    pub(crate) fn raise(&self, number: u32) {
        let reached = self.0.number(REACHED);
        // It fails if more was reached already.
        let _ = reached.fetch_update(Ordering::AcqRel, Ordering::Acquire, |reached| {
            is_before(reached, number).then_some(number)
        });
    }

    /// As if so many numbers had been given and reached.
    #[cfg(test)]
    pub(crate) fn start_from(&self, number: u32) {
        for which in [REACHED, GIVEN] {
            self.0.number(which).store(number, Ordering::Release);
        }
    }
}
