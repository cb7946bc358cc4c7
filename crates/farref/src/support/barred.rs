//! In a simulation there is one thread for all; the tasks of farref's own keep the rules of theirs there.

use std::pin::Pin;
use std::task::{Context, Poll};

use pin_project_lite::pin_project;

use crate::support::user_code;

pin_project! {
    /// A task of a thread that runs no code of the program, on one that does (UC-1).
    pub(crate) struct Barred<F> {
        #[pin]
        pub(crate) task: F,
        pub(crate) is_barred: bool,
    }
}

impl<F: Future> Future for Barred<F> {
    type Output = F::Output;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<F::Output> {
        let this = self.project();
        match *this.is_barred {
            true => user_code::forbid_during(|| this.task.poll(context)),
            false => this.task.poll(context),
        }
    }
}
