//! Forgets peers that are gone: one task for each worker, on the worker's own runtime.
//!
//! Meetings come and go, on whatever thread; what watches over those who have met has to stay as long as the worker does. The
//! task waits for the end of every life that it was told of, and ends with the worker.

use std::future::poll_fn;
use std::pin::Pin;
use std::task::{Context, Poll};

use farref::context::NodeId;
use tokio::runtime::Handle;
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};

/// Becomes ready when a life is over: whether the worker that waits still runs then.
type Gone = Pin<Box<dyn Future<Output = bool> + Send>>;

/// The task of one worker. It ends when this is dropped, or with the worker.
pub(super) struct Watcher {
    lives: UnboundedSender<(NodeId, Gone)>,
}

impl Watcher {
    /// Begins. Whoever is gone is told to `forget`.
    pub(super) fn start(runtime: &Handle, forget: impl Fn(NodeId) + Send + 'static) -> Self {
        let (lives, told) = unbounded_channel();
        runtime.spawn(watch(told, forget));
        Self { lives }
    }

    /// Waits for the end of one more life. `gone` says, when it is over, whether the worker that waits still runs.
    pub(super) fn add(&self, life: NodeId, gone: impl Future<Output = bool> + Send + 'static) {
        // Without the task the worker has ended: nobody has to be forgotten any more.
        let _ = self.lives.send((life, Box::pin(gone)));
    }
}

async fn watch(mut told: UnboundedReceiver<(NodeId, Gone)>, forget: impl Fn(NodeId)) {
    let mut lives = Vec::new();
    loop {
        let event = poll_fn(|context| poll_next(&mut lives, &mut told, context)).await;
        match event {
            Event::Met(life, gone) => lives.push((life, gone)),
            Event::Gone(life) => forget(life),
            Event::Ended => return,
        }
    }
}

enum Event {
    Met(NodeId, Gone),
    Gone(NodeId),
    /// The worker has, or nobody has the watcher any more.
    Ended,
}

fn poll_next(
    lives: &mut Vec<(NodeId, Gone)>,
    told: &mut UnboundedReceiver<(NodeId, Gone)>,
    context: &mut Context<'_>,
) -> Poll<Event> {
    for index in 0..lives.len() {
        if let Poll::Ready(runs) = lives[index].1.as_mut().poll(context) {
            let (life, _) = lives.swap_remove(index);
            return Poll::Ready(match runs {
                true => Event::Gone(life),
                false => Event::Ended,
            });
        }
    }
    let met = told.poll_recv(context);
    met.map(|met| met.map_or(Event::Ended, |(life, gone)| Event::Met(life, gone)))
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex};
    use std::time::Duration;

    use tokio::sync::oneshot;

    use super::*;

    async fn until(mut is_so: impl FnMut() -> bool) {
        for _ in 0..3000 {
            if is_so() {
                return;
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        panic!("not after 30 s");
    }

    /// CT-5
    #[tokio::test]
    async fn each_is_forgotten_when_it_is_gone_and_no_other() {
        let forgotten = Arc::new(Mutex::new(Vec::new()));
        let list = Arc::clone(&forgotten);
        let watcher = Watcher::start(&Handle::current(), move |life| {
            list.lock().unwrap().push(life);
        });
        let lives = [1, 2, 3].map(|number| NodeId::new(number, 1));
        let mut ends = Vec::new();
        for life in lives {
            let (end, ended) = oneshot::channel();
            watcher.add(life, async move { ended.await.unwrap_or(false) });
            ends.push(end);
        }
        for index in [1, 0] {
            let count = forgotten.lock().unwrap().len();
            ends.remove(index).send(true).unwrap();
            until(|| forgotten.lock().unwrap().len() > count).await;
        }
        assert_eq!(*forgotten.lock().unwrap(), [lives[1], lives[0]]);
        // The worker ends: nobody is forgotten, and the task is over.
        ends.remove(0).send(false).unwrap();
        until(|| watcher.lives.is_closed()).await;
        assert_eq!(forgotten.lock().unwrap().len(), 2);
    }

    #[tokio::test]
    async fn it_ends_when_nobody_has_it_any_more() {
        let kept = Arc::new(());
        let held = Arc::clone(&kept);
        let watcher = Watcher::start(&Handle::current(), move |_| drop(Arc::clone(&held)));
        watcher.add(NodeId::new(1, 1), async { true });
        drop(watcher);
        until(|| Arc::strong_count(&kept) == 1).await;
    }
}
