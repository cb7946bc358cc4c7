//! How an answer gets to whoever waits for it.
//!
//! Like a channel for one value, whose memory is used again: each thread keeps some of what its calls waited in.
//!
//! # Invariants
//!
//! - **RP-1** Whoever waits gets the reply, or learns that there will be none because the sender is gone.
//! - **RP-2** A reply that nobody waits for any more is given back to who sends it.
//! - **RP-3** Wakers are cloned, woken and dropped, and replies dropped, without any lock: they are the program's.

use std::cell::RefCell;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use super::core::Reply;
use crate::support::clock::Instant;
use crate::support::lock::lock;
use crate::support::mutation::mutated;
use crate::support::sync::Mutex;

/// So many places are kept by a thread.
const SPARE_PLACES: usize = 256;

thread_local! {
    static SPARE: RefCell<Vec<Arc<Place>>> = const { RefCell::new(Vec::new()) };
}

/// What both ends share.
#[derive(Default)]
struct Place(Mutex<Progress>);

enum Progress {
    /// Nothing has come. Who is to be woken, if somebody is.
    Open(Option<Waker>),
    /// Came then.
    Replied(Reply, Instant),
    /// One of the ends is gone.
    Closed,
}

impl Default for Progress {
    fn default() -> Self {
        Self::Open(None)
    }
}

impl Place {
    /// Goes on to another state. What it was is to be dropped without the lock (RP-3).
    fn become_closed(&self) -> Progress {
        std::mem::replace(&mut lock(&self.0), Progress::Closed)
    }
}

/// The two ends for one reply.
pub(crate) fn reply_channel() -> (ReplySender, ReplyReceiver) {
    let spare = SPARE.try_with(|spare| spare.borrow_mut().pop());
    let place = spare.ok().flatten().unwrap_or_default();
    (
        ReplySender(Some(Arc::clone(&place))),
        ReplyReceiver {
            place: Some(place),
            polled: false,
        },
    )
}

/// The end that the reply comes in at.
pub(crate) struct ReplySender(Option<Arc<Place>>);

impl ReplySender {
    /// Says the reply, which came then. It is given back if nobody waits (RP-2).
    pub(crate) fn send(mut self, reply: Reply, at: Instant) -> Result<(), Reply> {
        let Some(place) = self.0.take() else {
            return Err(reply);
        };
        let waker = {
            let mut progress = lock(&place.0);
            match &mut *progress {
                Progress::Open(waker) => {
                    let waker = waker.take();
                    *progress = Progress::Replied(reply, at);
                    waker
                }
                Progress::Replied(..) | Progress::Closed => return Err(reply),
            }
        };
        // First, so that the place can be used again.
        drop(place);
        if let Some(waker) = waker {
            waker.wake();
        }
        Ok(())
    }
}

/// RP-1
impl Drop for ReplySender {
    fn drop(&mut self) {
        if let Some(place) = self.0.take()
            && let Progress::Open(Some(waker)) = place.become_closed()
            && !mutated!(EndInSilence)
        {
            waker.wake();
        }
    }
}

/// The end that waits. Ready with nothing if there will be no reply.
pub(crate) struct ReplyReceiver {
    /// None: it has been told.
    place: Option<Arc<Place>>,
    /// Whether the place has had its waker.
    polled: bool,
}

impl Future for ReplyReceiver {
    type Output = Option<(Reply, Instant)>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let first = !std::mem::replace(&mut self.polled, true);
        let Some(place) = &self.place else {
            return Poll::Ready(None);
        };
        // RP-3: not under the lock. Nearly always one is needed the first time, and none after that.
        let mut fresh = first.then(|| context.waker().clone());
        let replied = loop {
            let mut progress = lock(&place.0);
            match &mut *progress {
                Progress::Open(Some(waker)) if waker.will_wake(context.waker()) => {
                    return Poll::Pending;
                }
                Progress::Open(waker) => {
                    if let Some(fresh) = fresh.take() {
                        let outdated = waker.replace(fresh);
                        drop(progress);
                        drop(outdated);
                        return Poll::Pending;
                    }
                }
                Progress::Replied(..) => break std::mem::take(&mut *progress),
                Progress::Closed => return Poll::Ready(None),
            }
            drop(progress);
            fresh = Some(context.waker().clone());
        };
        self.recycle();
        Poll::Ready(match replied {
            Progress::Replied(reply, at) => Some((reply, at)),
            Progress::Open(_) | Progress::Closed => None,
        })
    }
}

impl ReplyReceiver {
    /// The reply is here: the place, which is open again, may be used by another call.
    fn recycle(&mut self) {
        if let Some(mut place) = self.place.take()
            && Arc::get_mut(&mut place).is_some()
        {
            // An error: this thread is about to end.
            let _ = SPARE.try_with(|spare| {
                let mut spare = spare.borrow_mut();
                if spare.len() < SPARE_PLACES {
                    spare.push(place);
                }
            });
        }
    }
}

/// RP-2, RP-3
impl Drop for ReplyReceiver {
    fn drop(&mut self) {
        if let Some(place) = self.place.take() {
            drop(place.become_closed());
        }
    }
}

impl std::fmt::Debug for ReplySender {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("ReplySender")
    }
}

impl std::fmt::Debug for ReplyReceiver {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("ReplyReceiver")
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::sync::mpsc;
    use std::task::Wake;

    use bytes::Bytes;
    use farref_testkit::TEST_TIMEOUT;

    use super::*;
    use crate::codec::Payload;

    fn poll(receiver: &mut ReplyReceiver, waker: &Waker) -> Poll<Option<(Reply, Instant)>> {
        Pin::new(receiver).poll(&mut Context::from_waker(waker))
    }

    fn reply(byte: u8) -> Reply {
        let payload = Payload {
            body: vec![byte].into(),
            parts: Vec::new(),
        };
        Ok((payload, Vec::new()))
    }

    #[derive(Default)]
    struct Count(AtomicUsize);

    impl Wake for Count {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::SeqCst);
        }
    }

    /// RP-1: each gets its own, also in a place that was used before.
    #[test]
    fn who_waits_gets_the_reply_to_its_own_call() {
        for round in 0..10 {
            let count = Arc::new(Count::default());
            let waker = Waker::from(Arc::clone(&count));
            let mut ends: Vec<_> = (0..3).map(|_| reply_channel()).collect();
            for (_, receiver) in &mut ends {
                assert!(poll(receiver, &waker).is_pending());
                assert!(poll(receiver, &waker).is_pending());
            }
            for (number, (sender, mut receiver)) in ends.into_iter().enumerate() {
                let at = Instant::now();
                let byte = (10 * round + number) as u8;
                assert!(sender.send(reply(byte), at).is_ok());
                assert_eq!(count.0.load(Ordering::SeqCst), number + 1);
                let Poll::Ready(Some((Ok((payload, _)), came))) = poll(&mut receiver, &waker)
                else {
                    panic!("no reply");
                };
                assert_eq!((&payload.body[..], came), (&[byte][..], at));
                assert!(matches!(poll(&mut receiver, &waker), Poll::Ready(None)));
            }
        }
    }

    /// RP-1
    #[test]
    fn who_waits_learns_that_there_will_be_no_reply() {
        let count = Arc::new(Count::default());
        let waker = Waker::from(Arc::clone(&count));
        let (sender, mut receiver) = reply_channel();
        assert!(poll(&mut receiver, &waker).is_pending());
        drop(sender);
        assert_eq!(count.0.load(Ordering::SeqCst), 1);
        assert!(matches!(poll(&mut receiver, &waker), Poll::Ready(None)));
    }

    /// RP-2
    #[test]
    fn a_reply_that_nobody_waits_for_is_given_back() {
        let (sender, receiver) = reply_channel();
        drop(receiver);
        let unwanted = sender.send(reply(1), Instant::now());
        assert!(matches!(unwanted, Err(Ok((payload, _))) if payload.body[..] == [1]));
    }

    /// RP-1: a place is not used again while somebody may still answer into it.
    #[test]
    fn a_reply_that_was_given_up_reaches_nobody_else() {
        let (late, receiver) = reply_channel();
        drop(receiver);
        let (_sender, mut other) = reply_channel();
        assert!(late.send(reply(1), Instant::now()).is_err());
        assert!(poll(&mut other, Waker::noop()).is_pending());
    }

    struct Unpark(std::thread::Thread);

    impl Wake for Unpark {
        fn wake(self: Arc<Self>) {
            self.0.unpark();
        }
    }

    /// RP-1: also if the reply comes from another thread while this one looks, into places that were used before.
    #[test]
    fn replies_of_another_thread_reach_who_waits_for_them() {
        const ROUNDS: usize = 10_000;
        let (give, given) = mpsc::channel::<(ReplySender, usize)>();
        let answering = std::thread::spawn(move || {
            for (sender, round) in given {
                if round % 3 == 0 {
                    drop(sender);
                } else {
                    assert!(sender.send(reply(round as u8), Instant::now()).is_ok());
                }
            }
        });
        let waker = Waker::from(Arc::new(Unpark(std::thread::current())));
        for round in 0..ROUNDS {
            let (sender, mut receiver) = reply_channel();
            give.send((sender, round)).unwrap();
            let began = Instant::now();
            let told = loop {
                match poll(&mut receiver, &waker) {
                    Poll::Ready(told) => break told,
                    Poll::Pending => std::thread::park_timeout(TEST_TIMEOUT),
                }
                assert!(began.elapsed() < TEST_TIMEOUT, "it is not woken");
            };
            let body = told.map(|(reply, _)| reply.map(|(payload, _)| payload.body[0]).ok());
            let expected = (round % 3 != 0).then_some(Some(round as u8));
            assert_eq!(body, expected, "{round}");
        }
        drop(give);
        answering.join().unwrap();
    }

    /// RP-1: a future may be handed on to another task between two polls.
    #[test]
    fn rp_1_who_polled_last_is_woken() {
        for replies in [true, false] {
            let [first, last] = [(); 2].map(|()| Arc::new(Count::default()));
            let (sender, mut receiver) = reply_channel();
            for count in [&first, &last, &first, &last] {
                let waker = Waker::from(Arc::clone(count));
                assert!(poll(&mut receiver, &waker).is_pending());
            }
            match replies {
                true => assert!(sender.send(reply(1), Instant::now()).is_ok()),
                false => drop(sender),
            }
            let woken = [first, last].map(|count| count.0.load(Ordering::SeqCst));
            assert_eq!(woken, [0, 1]);
        }
    }

    /// Something of the program's: says, when it is woken and when it is dropped, whether the place was locked then.
    struct Program {
        place: Arc<Place>,
        was_locked: mpsc::Sender<bool>,
    }

    impl Program {
        fn look(&self) {
            self.was_locked
                .send(self.place.0.try_lock().is_err())
                .unwrap();
        }
    }

    impl Wake for Program {
        fn wake(self: Arc<Self>) {
            self.look();
        }
    }

    impl Drop for Program {
        fn drop(&mut self) {
            self.look();
        }
    }

    impl AsRef<[u8]> for Program {
        fn as_ref(&self) -> &[u8] {
            &[1]
        }
    }

    #[test]
    fn rp_3_what_is_the_programs_is_woken_and_dropped_without_the_lock() {
        let (told, was_locked) = mpsc::channel();
        let program = |receiver: &ReplyReceiver| Program {
            place: receiver.place.clone().expect("it waits"),
            was_locked: told.clone(),
        };
        // The place is left with the only waker.
        let wait = || {
            let (sender, mut receiver) = reply_channel();
            let waker = Waker::from(Arc::new(program(&receiver)));
            assert!(poll(&mut receiver, &waker).is_pending());
            (sender, receiver)
        };
        let looks = || was_locked.try_iter().collect::<Vec<_>>();

        let (sender, _receiver) = wait();
        assert!(sender.send(reply(1), Instant::now()).is_ok());
        assert_eq!(looks(), [false; 2], "woken by the reply");

        let (sender, _receiver) = wait();
        drop(sender);
        assert_eq!(looks(), [false; 2], "woken because there will be none");

        let (_sender, mut receiver) = wait();
        assert!(poll(&mut receiver, Waker::noop()).is_pending());
        assert_eq!(looks(), [false], "another one is woken instead");

        let (_sender, receiver) = wait();
        drop(receiver);
        assert_eq!(looks(), [false], "nobody waits any more");

        let (sender, receiver) = reply_channel();
        let payload = Payload {
            body: Bytes::from_owner(program(&receiver)),
            parts: Vec::new(),
        };
        let sent = sender.send(Ok((payload, Vec::new())), Instant::now());
        assert!(sent.is_ok());
        drop(receiver);
        assert_eq!(looks(), [false], "a reply that nobody took");
    }
}
