//! Streams to be sent.

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll, ready};

use farref::{Stream, Streaming};
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};

/// What an iterator brings.
pub(crate) struct Each<I>(pub(crate) I);

impl<I: Iterator + Unpin> Stream for Each<I> {
    type Item = I::Item;

    fn poll_next(mut self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Option<I::Item>> {
        Poll::Ready(self.0.next())
    }
}

/// What is put into a channel.
pub(crate) struct Channel<T>(UnboundedReceiver<T>);

impl<T> Channel<T> {
    pub(crate) fn new() -> (UnboundedSender<T>, Self) {
        let (sender, receiver) = unbounded_channel();
        (sender, Self(receiver))
    }
}

impl<T> Stream for Channel<T> {
    type Item = T;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<T>> {
        self.0.poll_recv(context)
    }
}

/// Counts the items of another stream.
pub(crate) struct Counted<S>(S, Arc<AtomicUsize>);

impl<S> Counted<S> {
    pub(crate) fn new(stream: S) -> (Self, Arc<AtomicUsize>) {
        let count = Arc::default();
        (Self(stream, Arc::clone(&count)), count)
    }
}

impl<S: Stream + Unpin> Stream for Counted<S> {
    type Item = S::Item;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<S::Item>> {
        let next = Pin::new(&mut self.0).poll_next(context);
        if let Poll::Ready(Some(_)) = next {
            self.1.fetch_add(1, Ordering::SeqCst);
        }
        next
    }
}

/// Says when it is dropped.
pub(crate) struct Watched<S>(pub(crate) S, pub(crate) &'static AtomicUsize);

impl<S: Stream + Unpin> Stream for Watched<S> {
    type Item = S::Item;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<S::Item>> {
        Pin::new(&mut self.0).poll_next(context)
    }
}

impl<S> Drop for Watched<S> {
    fn drop(&mut self) {
        self.1.fetch_add(1, Ordering::SeqCst);
    }
}

/// The sums of the numbers of another stream, which is well.
pub(crate) struct Sums {
    numbers: Streaming<u64>,
    sum: u64,
}

impl Sums {
    pub(crate) fn of(numbers: Streaming<u64>) -> Self {
        Self { numbers, sum: 0 }
    }
}

impl Stream for Sums {
    type Item = u64;

    fn poll_next(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<u64>> {
        let this = self.get_mut();
        let next = ready!(Pin::new(&mut this.numbers).poll_next(context));
        Poll::Ready(next.map(|next| {
            this.sum += next.expect("the stream is well");
            this.sum
        }))
    }
}
