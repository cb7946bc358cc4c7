//! ST-1, ST-2: what a worker does while its program keeps its runtime from running.

use std::ops::Range;
use std::sync::atomic::Ordering;
use std::sync::mpsc;
use std::time::Duration;

use bytes::Bytes;
use farref_testkit::TEST_TIMEOUT;

use super::fixture::{Book, Setup, impatient, with_parts};
use super::tls::certificates::{Authority, worker_tls};
use super::*;
use crate::codec::{Part, Source, Width};
use crate::support::lock::lock;
use crate::support::user_code;

/// Starts an agent on a runtime of its own, which nobody drives from then on until the test is over.
fn undriven(setup: Setup) -> (Side, mpsc::Sender<()>) {
    let (give, take) = mpsc::channel();
    let (over, wait) = mpsc::channel::<()>();
    std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .expect("a runtime");
        let side = runtime.block_on(setup.start());
        drop(give.send(side));
        let _ = wait.recv();
    });
    let side = take.recv_timeout(TEST_TIMEOUT);
    (side.expect("it starts"), over)
}

const PEER_TIMEOUT: Duration = Duration::from_secs(4);

/// The settings of a worker that is soon missed, and soon found starved.
fn setup(worker: u32, bind: BindOptions, book: &Arc<Book>) -> Setup {
    let mut setup = Setup::new(worker, bind, book);
    setup.config = impatient();
    // Long enough for a machine that is busy with other tests not to be taken for silence.
    setup.config.peer_timeout = PEER_TIMEOUT;
    setup.config.heartbeat_interval = Duration::from_millis(250);
    setup
}

/// Each has a book of its own, because a slow machine may keep either from running.
fn introduce(left: &Side, lefts: &Book, right: &Side, rights: &Book) {
    lock(&lefts.cards).insert(right.node, right.card.clone());
    lock(&rights.cards).insert(left.node, left.card.clone());
}

fn pairs() -> Vec<(&'static str, [BindOptions; 2])> {
    let network = MemoryNetwork::new();
    let sockets = |unix| {
        [1, 2].map(|_| BindOptions {
            unix,
            ..BindOptions::default()
        })
    };
    let memory = [1, 2].map(|worker| BindOptions::memory(&network, format!("w{worker}#1")));
    vec![
        ("memory", memory),
        ("tcp", sockets(false)),
        ("tls", sockets(false)),
        ("unix", sockets(true)),
    ]
}

#[cfg(unix)]
async fn is_not_silent(transport: &str) {
    let authority = Authority::new();
    let pair = pairs().into_iter().find(|(of, _)| *of == transport);
    let (_, [here, there]) = pair.expect("a transport");
    let [book, others]: [Arc<Book>; 2] = Default::default();
    let [mut left, mut right] = [setup(1, here, &others), setup(2, there, &book)];
    if transport == "tls" {
        left.tls = Some(worker_tls(&authority, "w1#1"));
        right.tls = Some(worker_tls(&authority, "w2#1"));
    }
    let left = left.start().await;
    let (right, over) = undriven(right);
    introduce(&left, &others, &right, &book);

    // ST-1: both ways, small messages and large ones.
    left.meet(&right).await;
    for number in 1..20 {
        left.send(&right, control(number));
        right.send(&left, control(number));
    }
    const LARGE: usize = 8 << 20;
    left.send(&right, call(1, LARGE));
    right.send(&left, call(2, LARGE));
    eventually("all arrives", || {
        left.received_count() == 21 && right.received_count() == 21
    })
    .await;
    // ST-2: once, and not before it has lasted for a while.
    eventually("somebody is told", || lock(&book.starving).len() >= 2).await;
    assert_eq!(lock(&book.starving)[0], Duration::ZERO);
    tokio::time::sleep(PEER_TIMEOUT - Duration::from_secs(1)).await;
    assert_eq!(lock(&book.starving).len(), 2, "{transport}: once is enough");

    for (side, peer) in [(&left, &right), (&right, &left)] {
        assert_eq!(*lock(&side.inbound.suspected), [], "{transport}");
        let link = side.link_to(peer).expect("a link");
        assert_eq!(link.connections, 1, "{transport}");
    }
    left.send(&right, control(20));
    eventually("it still hears", || right.received_count() == 22).await;
    drop(over);
}

#[cfg(unix)]
#[tokio::test]
async fn a_program_that_keeps_its_runtime_from_running_is_not_silent_in_memory() {
    is_not_silent("memory").await;
}

#[cfg(unix)]
#[tokio::test]
async fn a_program_that_keeps_its_runtime_from_running_is_not_silent_over_tcp() {
    is_not_silent("tcp").await;
}

#[cfg(unix)]
#[tokio::test]
async fn a_program_that_keeps_its_runtime_from_running_is_not_silent_with_tls() {
    is_not_silent("tls").await;
}

#[cfg(unix)]
#[tokio::test]
async fn a_program_that_keeps_its_runtime_from_running_is_not_silent_over_a_unix_socket() {
    is_not_silent("unix").await;
}

/// ST-1, PM-1: a thread reads it, and nobody else would notice that it has.
#[cfg(target_os = "linux")]
#[tokio::test]
async fn what_was_read_out_of_a_peers_memory_is_taken_in_while_the_runtime_does_not_run() {
    const LARGE: u64 = 8 << 20;
    let setup = |worker, book: &Arc<Book>| {
        let mut setup = Setup::new(worker, BindOptions::default(), book);
        // A slow machine is not to be taken for a stuck connection.
        setup.config.peer_timeout = Duration::from_secs(20);
        setup
    };
    let [book, others]: [Arc<Book>; 2] = Default::default();
    let left = setup(1, &others).start().await;
    let (right, over) = undriven(setup(2, &book));
    introduce(&left, &others, &right, &book);
    left.meet(&right).await;
    let read = || {
        right
            .link_to(&left)
            .map_or(0, |link| link.bytes_from_memory)
    };
    let deadline = Instant::now() + TEST_TIMEOUT;
    for number in 2.. {
        let part = Part::from(vec![number as u8; LARGE as usize]);
        left.send(&right, with_parts(number, Bytes::new(), vec![part]));
        eventually("it arrives", || right.received_count() as u64 == number).await;
        if read() >= 3 * LARGE {
            break;
        }
        assert!(Instant::now() < deadline, "memory is never read");
    }
    assert_eq!(left.link_to(&right).expect("a link").connections, 1);
    drop(over);
}

#[cfg(unix)]
#[tokio::test]
async fn helping_ends_when_the_runtime_runs_again_also_for_a_stream_on_which_nothing_more_comes() {
    let bind = || BindOptions {
        unix: false,
        ..BindOptions::default()
    };
    let [book, others]: [Arc<Book>; 2] = Default::default();
    let left = setup(1, bind(), &others).start().await;
    let (give, take) = mpsc::channel();
    let (drive, driven) = mpsc::channel::<Duration>();
    let starting = setup(2, bind(), &book);
    std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .expect("a runtime");
        drop(give.send(runtime.block_on(starting.start())));
        while let Ok(time) = driven.recv() {
            runtime.block_on(async { tokio::time::sleep(time).await });
        }
    });
    let right = take.recv_timeout(TEST_TIMEOUT).expect("it starts");
    introduce(&left, &others, &right, &book);
    left.meet(&right).await;
    let is_starved = || {
        right
            .agent
            .links
            .endpoint
            .is_starved
            .load(Ordering::Relaxed)
    };
    // Both streams are read here until nothing is left to read.
    left.send(&right, call(1, 8 << 20));
    eventually("all arrives", || right.received_count() == 2).await;
    assert!(is_starved(), "nobody else reads");
    // From now on only signs of life come, on the other stream.
    for _ in 0..100 {
        drive.send(Duration::from_secs(1)).expect("it waits");
        for _ in 0..200 {
            if !is_starved() {
                return;
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }
    panic!("helping has never ended");
}

/// A buffer of the program's that is looked at when it leaves.
struct Small;

impl Source for Small {
    fn len(&self) -> usize {
        100
    }

    fn width(&self) -> Width {
        Width::One
    }

    fn look(&self, range: Range<usize>, look: &mut dyn FnMut(&[u8])) {
        assert!(!user_code::is_barred(), "UC-1");
        look(&[7; 100][range]);
    }
}

#[cfg(unix)]
#[tokio::test]
async fn what_is_behind_a_source_leaves_while_the_program_keeps_its_runtime_from_running() {
    // ST-1, BA-2
    const CALLS: usize = 50;
    for (transport, [here, there]) in pairs() {
        let [book, others]: [Arc<Book>; 2] = Default::default();
        let left = setup(1, here, &others).start().await;
        let (right, over) = undriven(setup(2, there, &book));
        introduce(&left, &others, &right, &book);
        left.meet(&right).await;
        // More than callers write themselves: the rest waits for a task that does not run.
        for number in 1..=CALLS {
            let parts = vec![Part::from_source(Arc::new(Small))];
            right.send(&left, with_parts(number as u64, Bytes::new(), parts));
        }
        eventually(transport, || left.received_count() == 1 + CALLS).await;
        drop(over);
    }
}

#[tokio::test]
async fn a_worker_whose_runtime_is_gone_gives_no_sign_of_life() {
    let book: Arc<Book> = Arc::default();
    let left = Setup::new(1, BindOptions::default(), &book).start().await;
    let (right, over) = undriven(Setup::new(2, BindOptions::default(), &book));
    left.meet(&right).await;
    // The runtime goes; whoever has the agent still has it.
    drop(over);
    eventually("it is suspected", || {
        *lock(&left.inbound.suspected) == [right.node]
    })
    .await;
}
