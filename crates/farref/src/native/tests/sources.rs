//! BA-1 and what follows from it: buffers that belong to somebody else are sent from where they are,
//! with their lock held only while bytes are taken.

use std::ops::Range;
use std::sync::RwLock;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use bytes::Bytes;
use farref_testkit::thorough;

use super::fixture::{Setup, with_parts};
use super::*;
use crate::codec::{Elements, Part, Source, Width};
use crate::support::lock::lock;

/// How many sources are being looked at now, and at most.
#[derive(Default)]
struct Watch {
    now: AtomicUsize,
    most: AtomicUsize,
}

/// A storage with a lock around it.
struct Storage {
    values: RwLock<Elements>,
    len: usize,
    width: Width,
    watch: Arc<Watch>,
    /// Bytes that were looked at, counted as often as that.
    shown: AtomicUsize,
    /// How often it breaks its word before it keeps it.
    lies: AtomicUsize,
}

impl Storage {
    fn new(width: Width, count: usize, watch: &Arc<Watch>) -> Arc<Self> {
        let len = count * width.bytes();
        let mut values = Elements::empty(width);
        values.resize(len);
        let bytes = values.bytes_mut().iter_mut().zip(0_usize..);
        bytes.for_each(|(byte, i)| *byte = (i * 31 + i / 256) as u8);
        Arc::new(Self {
            values: RwLock::new(values),
            len,
            width,
            watch: Arc::clone(watch),
            shown: AtomicUsize::new(0),
            lies: AtomicUsize::new(0),
        })
    }

    fn part(self: &Arc<Self>) -> Part {
        let source: Arc<Self> = Arc::clone(self);
        Part::from_source(source)
    }

    /// Whether this part of a message that came is the same.
    fn is_in(&self, message: Message, index: usize) -> bool {
        let Message::Call(call) = message else {
            panic!("not a call")
        };
        let part = call.arguments.parts[index].clone();
        assert_eq!((part.len(), part.width()), (self.len, self.width));
        let values = self.values.read().expect("nobody panicked");
        part.into_bytes().expect("bytes") == values.bytes()
    }
}

impl Source for Storage {
    fn len(&self) -> usize {
        self.len
    }

    fn width(&self) -> Width {
        self.width
    }

    fn look(&self, range: Range<usize>, look: &mut dyn FnMut(&[u8])) {
        if let Ok(lies) = self
            .lies
            .fetch_update(Ordering::SeqCst, Ordering::SeqCst, |lies| {
                lies.checked_sub(1)
            })
        {
            assert!(lies % 2 == 1, "a panic is as good as a lie");
            return look(&[1]);
        }
        let values = self.values.read().expect("nobody panicked");
        let now = self.watch.now.fetch_add(1, Ordering::SeqCst) + 1;
        self.watch.most.fetch_max(now, Ordering::SeqCst);
        self.shown.fetch_add(range.len(), Ordering::SeqCst);
        look(&values.bytes()[range]);
        self.watch.now.fetch_sub(1, Ordering::SeqCst);
    }
}

async fn pairs() -> [(&'static str, [Side; 2]); 4] {
    let memory = Side::memory_pair(&MemoryNetwork::new()).await;
    [
        ("memory", memory),
        ("tcp", Side::socket_pair(false).await),
        ("tls", Side::tls_pair().await),
        ("unix", Side::socket_pair(cfg!(unix)).await),
    ]
}

const WIDTHS: [Width; 4] = [Width::One, Width::Two, Width::Four, Width::Eight];

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sources_of_all_widths_and_sizes_arrive_as_they_are_and_one_is_looked_at_at_a_time() {
    // BA-1
    for (transport, [left, right]) in pairs().await {
        let watch = Arc::default();
        let counts = [0, 1, 3, 4097, 20_001, 0, 700_001];
        for (number, width) in WIDTHS.into_iter().enumerate() {
            let storages = counts.map(|count| Storage::new(width, count, &watch));
            let parts = storages.iter().map(Storage::part).collect();
            left.send(
                &right,
                with_parts(number as u64, Bytes::from("body"), parts),
            );
            eventually("it arrives", || right.received_count() == number + 1).await;
            let message = right.received().pop().expect("it arrived");
            for (index, storage) in storages.iter().enumerate() {
                let same = storage.is_in(message.clone(), index);
                assert!(same, "{transport} {width:?} {}", storage.len);
            }
        }
        assert_eq!(watch.most.load(Ordering::SeqCst), 1, "never two at once");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_large_source_arrives_over_every_transport() {
    let length = if thorough() { 16 << 20 } else { 2 << 20 };
    for (transport, [left, right]) in pairs().await {
        let storage = Storage::new(Width::Four, length, &Arc::default());
        left.send(&right, with_parts(1, Bytes::new(), vec![storage.part()]));
        eventually("it arrives", || right.received_count() == 1).await;
        let message = right.received().pop().expect("it arrived");
        assert!(storage.is_in(message, 0), "{transport}");
        // Partial writes go on where the last one ended, at a piece of a limited size.
        let shown = storage.shown.load(Ordering::SeqCst);
        assert!(shown >= storage.len, "{transport}");
        eventually("the sender lets go", || Arc::strong_count(&storage) == 1).await;
    }
}

/// Lets a receiver go on, also when a test ends early: its threads are waited for.
struct HeldUp(Arc<AtomicBool>);

impl HeldUp {
    fn new(receiver: &Side) -> Self {
        let reading = Arc::new(AtomicBool::new(false));
        let hook = Arc::clone(&reading);
        *lock(&receiver.inbound.hook) = Some(Arc::new(Box::new(move |_| {
            while !hook.load(Ordering::SeqCst) {
                std::thread::sleep(Duration::from_millis(1));
            }
            Ok(())
        })));
        Self(reading)
    }
}

impl Drop for HeldUp {
    fn drop(&mut self) {
        self.0.store(true, Ordering::SeqCst);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_lock_of_a_source_is_free_while_the_stream_takes_nothing() {
    // BA-1. The receiver has threads of its own: one that is held up keeps what is queued on it.
    let receivers = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(1)
        .enable_all()
        .build()
        .expect("threads");
    let network = MemoryNetwork::new();
    let sockets = |unix| {
        [(); 2].map(|()| BindOptions {
            unix,
            ..BindOptions::default()
        })
    };
    let memory = ["left", "right"].map(|name| BindOptions::memory(&network, name.to_owned()));
    for (transport, [one, other]) in [
        ("memory", memory),
        ("tcp", sockets(false)),
        ("unix", sockets(cfg!(unix))),
    ] {
        let book = Arc::default();
        let left = Setup::new(1, one, &book).start().await;
        let mut right = Setup::new(2, other, &book);
        right.io = IoThread::alone();
        let right = receivers.spawn(right.start()).await.expect("a receiver");
        // What a receiver has to do for a stream to be there is done before it is held up.
        left.send(&right, call(0, 1 << 20));
        eventually("the streams are there", || right.received_count() == 1).await;
        let held_up = HeldUp::new(&right);
        let watch = Arc::default();
        // More than sockets hold.
        let storage = Storage::new(Width::Eight, 2 << 20, &watch);
        // The receiver is held up with the first one, so the second fills the stream.
        left.send(&right, call(1, 1 << 20));
        left.send(&right, with_parts(2, Bytes::new(), vec![storage.part()]));
        eventually("some of it is on its way", || {
            storage.shown.load(Ordering::SeqCst) > 0
        })
        .await;
        let writer = {
            let storage = Arc::clone(&storage);
            std::thread::spawn(move || {
                for _ in 0..200 {
                    drop(storage.values.write().expect("nobody panicked"));
                    std::thread::sleep(Duration::from_millis(1));
                }
            })
        };
        eventually("the writer gets its turns", || writer.is_finished()).await;
        assert_eq!(right.received_count(), 1, "{transport}: it is not over yet");
        assert_eq!(watch.now.load(Ordering::SeqCst), 0, "{transport}");
        drop(held_up);
        eventually("both arrive", || right.received_count() == 3).await;
        let message = right.received().pop().expect("it arrived");
        assert!(storage.is_in(message, 0), "{transport}");
    }
    receivers.shutdown_background();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_source_is_sent_again_from_where_it_is_when_a_connection_breaks() {
    // SE-1
    let network = MemoryNetwork::new();
    let [left, right] = Side::memory_pair(&network).await;
    left.send(&right, call(0, 1 << 20));
    eventually("there is a stream for bulk data", || {
        right.received_count() == 1
    })
    .await;
    network.cut_after("w1#1", "w2#1", 5 << 20);
    let storage = Storage::new(Width::Two, 4 << 20, &Arc::default());
    left.send(&right, with_parts(1, Bytes::new(), vec![storage.part()]));
    eventually("it arrives", || right.received_count() == 2).await;
    assert!(storage.is_in(right.received().pop().expect("it arrived"), 0));
    assert!(storage.shown.load(Ordering::SeqCst) > storage.len + (4 << 20));

    // The same over sockets.
    let [(left, _proxy), (right, proxy)] = Side::proxied_pair().await;
    proxy.cut_after(5 << 20);
    let storage = Storage::new(Width::Two, 4 << 20, &Arc::default());
    left.send(&right, with_parts(1, Bytes::new(), vec![storage.part()]));
    eventually("it arrives", || right.received_count() == 1).await;
    assert!(storage.is_in(right.received().pop().expect("it arrived"), 0));
    assert!(storage.shown.load(Ordering::SeqCst) > storage.len + (4 << 20));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nothing_else_is_delivered_for_a_source_that_breaks_its_word() {
    for (transport, [left, right]) in pairs().await {
        left.meet(&right).await;
        let before = right.received_count();
        let storage = Storage::new(Width::Four, 1 << 20, &Arc::default());
        // It panics, shows too little, and then behaves.
        storage.lies.store(2, Ordering::SeqCst);
        left.send(&right, with_parts(1, Bytes::new(), vec![storage.part()]));
        eventually("it arrives", || right.received_count() == before + 1).await;
        let message = right.received().pop().expect("it arrived");
        assert!(storage.is_in(message, 0), "{transport}");
        assert_eq!(storage.lies.load(Ordering::SeqCst), 0);
        let misbehaved = lock(&right.inbound.misbehaved).clone();
        assert!(misbehaved.is_empty(), "{transport}: {misbehaved:?}");
    }
}
