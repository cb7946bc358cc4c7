//! Code of the program, wherever it comes up, holds up nobody else: no other call, no connection, no sign
//! of life (UC-1).

use std::sync::{Condvar, Mutex, PoisonError};
use std::time::Duration;

use anyhow::Result;
use farref::context::{ContextId, ContextScope, Extension};
use farref::{Blob, Error, StoreServer, Worker};
use farref_testkit::{TEST_TIMEOUT, eventually};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::cluster::{finish, pair};

/// More than any call takes that nothing holds up, and less than code of the program blocks.
const LIMIT: Duration = Duration::from_secs(TEST_TIMEOUT.as_secs() / 2);

/// Where code of the program blocks its thread until the test lets it go on.
struct Gate {
    state: Mutex<(u32, bool)>,
    changed: Condvar,
}

impl Gate {
    const fn new() -> Self {
        Self {
            state: Mutex::new((0, false)),
            changed: Condvar::new(),
        }
    }

    /// Blocks; a test that fails is not to hang.
    fn block(&self) {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        state.0 += 1;
        let waited = self
            .changed
            .wait_timeout_while(state, TEST_TIMEOUT, |(_, open)| !*open);
        drop(waited);
    }

    fn blocked(&self) -> u32 {
        self.state.lock().unwrap_or_else(PoisonError::into_inner).0
    }

    fn blocks(&self) -> bool {
        !self.state.lock().unwrap_or_else(PoisonError::into_inner).1
    }

    fn open(&self) {
        self.state.lock().unwrap_or_else(PoisonError::into_inner).1 = true;
        self.changed.notify_all();
    }
}

#[farref::remote]
async fn add(a: u64, b: u64) -> u64 {
    a + b
}

static READING: Gate = Gate::new();

/// Takes long to be read.
struct Slow;

/// How it is written.
const SLOW: u64 = 0x510e;

impl Serialize for Slow {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        SLOW.serialize(serializer)
    }
}

impl<'de> Deserialize<'de> for Slow {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        // Signatures are found out by reading other values.
        if u64::deserialize(deserializer)? == SLOW {
            READING.block();
        }
        Ok(Self)
    }
}

#[farref::remote]
async fn take(_slow: Slow) {}

#[farref::remote]
fn take_on_a_thread(_slow: Slow) {}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn arguments_that_take_long_to_be_read_hold_up_no_other_call() -> Result<()> {
    let (cluster, peer) = pair().await?;
    let slow = take::on(&peer, Slow).start();
    let slow_on_a_thread = take_on_a_thread::on(&peer, Slow).start();
    eventually("one is being read", || READING.blocked() >= 1).await?;
    let small = add::on(&peer, 1, 2).timeout(LIMIT).await;
    eventually("both are being read", || READING.blocked() == 2).await?;
    READING.open();
    assert_eq!(small?, 3);
    slow.await?;
    slow_on_a_thread.await?;
    finish(cluster).await
}

static DROPPING: Gate = Gate::new();

/// Takes long to be dropped.
struct Heavy;

impl Drop for Heavy {
    fn drop(&mut self) {
        DROPPING.block();
    }
}

#[farref::remote]
impl Heavy {
    pub(crate) async fn new() -> Self {
        Self
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_value_that_takes_long_to_be_dropped_holds_up_no_call() -> Result<()> {
    let (cluster, peer) = pair().await?;
    let heavy = Heavy::new_on(&peer).remote();
    heavy.confirmed().await?;
    drop(heavy);
    eventually("it is being dropped", || DROPPING.blocked() == 1).await?;
    let small = add::on(&peer, 1, 2).timeout(LIMIT).await;
    DROPPING.open();
    assert_eq!(small?, 3);
    finish(cluster).await
}

static DISPOSING: Gate = Gate::new();

/// A buffer that the program has a destructor for.
struct Pinned(Vec<u8>);

impl AsRef<[u8]> for Pinned {
    fn as_ref(&self) -> &[u8] {
        &self.0
    }
}

impl Drop for Pinned {
    fn drop(&mut self) {
        DISPOSING.block();
    }
}

#[farref::remote]
async fn length(blob: Blob) -> usize {
    blob.len()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_buffer_that_takes_long_to_be_dropped_holds_up_no_answer() -> Result<()> {
    let (cluster, peer) = pair().await?;
    let blob = Blob::from(bytes::Bytes::from_owner(Pinned(vec![7; 100_000])));
    let first = length::on(&peer, blob).timeout(LIMIT).await;
    eventually("it is being dropped", || DISPOSING.blocked() == 1).await?;
    let small = add::on(&peer, 1, 2).timeout(LIMIT).await;
    DISPOSING.open();
    assert_eq!(first?, 100_000);
    assert_eq!(small?, 3);
    finish(cluster).await
}

static CLOSING: Gate = Gate::new();

/// An extension that takes long, and panics then.
#[derive(Default)]
struct Careless;

impl Extension for Careless {
    fn context_closed(&self, _: &Worker, _: ContextId) {
        CLOSING.block();
        panic!("careless");
    }
}

#[farref::remote]
async fn take_part() {
    let worker = Worker::current().expect("inside of a remote function");
    worker.extension::<Careless>();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn an_extension_that_blocks_and_panics_holds_up_no_call_and_ends_no_connection() -> Result<()>
{
    let (cluster, peer) = pair().await?;
    let me = cluster.worker(0);
    for round in 1..=2 {
        let scope = ContextScope::open(me)?;
        scope
            .run(async { take_part::on(&peer).timeout(LIMIT).await })
            .await?;
        let released = scope.release();
        eventually("the extension is told", || CLOSING.blocked() == round).await?;
        let small = add::on(&peer, 1, 2).timeout(LIMIT).await;
        CLOSING.open();
        assert_eq!(small?, 3);
        released.await?;
        assert_eq!(add::on(&peer, 2, 2).timeout(LIMIT).await?, 4);
    }
    finish(cluster).await
}

static CLINGING: Gate = Gate::new();

/// Takes long to be dropped, on a worker that is dropped itself meanwhile.
struct Clinging;

impl Drop for Clinging {
    fn drop(&mut self) {
        CLINGING.block();
    }
}

#[farref::remote]
impl Clinging {
    pub(crate) async fn new() -> Self {
        Self
    }
}

#[farref::remote]
async fn hang() {
    std::future::pending().await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_worker_that_is_dropped_ends_whatever_its_program_is_at() -> Result<()> {
    let store = StoreServer::bind("127.0.0.1:0").await?;
    let place = format!("tcp://{}", store.local_addr());
    let worker = |name, rank| {
        let builder = Worker::builder(name).rank(rank).world_size(2);
        builder
            .rendezvous(&place)
            .store_is_hosted_elsewhere()
            .join()
    };
    let (me, other) = tokio::try_join!(worker("me", 0), worker("other", 1))?;
    let clinging = Clinging::new_on(&other.peer("me")?).remote();
    clinging.confirmed().await?;
    drop(clinging);
    eventually("it is being dropped", || CLINGING.blocked() == 1).await?;
    let call = hang::on(&me.peer("other")?).start();
    drop(me);
    let ended = tokio::time::timeout(LIMIT, call).await;
    let still_blocks = CLINGING.blocks();
    CLINGING.open();
    let ended = ended.expect("who waits is told");
    assert!(still_blocks);
    assert!(matches!(ended, Err(Error::NotMember { .. })), "{ended:?}");
    eventually("the other one is alone", || other.peers().len() == 1).await?;
    other.shutdown().await?;
    store.close().await;
    Ok(())
}

/// A worker whose last handle goes where no runtime is ends all the same: the others find out.
#[test]
fn a_worker_that_is_dropped_outside_of_a_runtime_ends() -> Result<()> {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()?;
    let (store, me, other) = runtime.block_on(async {
        let store = StoreServer::bind("127.0.0.1:0").await?;
        let place = format!("tcp://{}", store.local_addr());
        let worker = |name, rank| {
            let builder = Worker::builder(name).rank(rank).world_size(2);
            builder
                .rendezvous(&place)
                .store_is_hosted_elsewhere()
                .join()
        };
        let (me, other) = tokio::try_join!(worker("me", 0), worker("other", 1))?;
        // Who has never been spoken to is not missed.
        assert_eq!(add::on(&me.peer("other")?, 1, 2).await?, 3);
        anyhow::Ok((store, me, other))
    })?;
    let peer = me.peer("other")?;
    drop(other);
    runtime.block_on(async {
        eventually("it is gone", || !peer.is_alive()).await?;
        me.shutdown().await?;
        store.close().await;
        Ok(())
    })
}

static MAKING: Gate = Gate::new();
static HELD: Mutex<Option<farref::RRef<u64>>> = Mutex::new(None);
static LET_GO: Gate = Gate::new();

/// A buffer of the program's whose destructor comes back into this crate.
struct Holding(Vec<u8>, Option<farref::RRef<u64>>);

impl AsRef<[u8]> for Holding {
    fn as_ref(&self) -> &[u8] {
        &self.0
    }
}

impl Drop for Holding {
    fn drop(&mut self) {
        drop(self.1.take());
        LET_GO.open();
    }
}

/// Returns a buffer of the program's, when nobody waits for it any more.
#[farref::remote]
fn make_holding() -> Blob {
    MAKING.block();
    let held = HELD.lock().unwrap_or_else(PoisonError::into_inner).take();
    Blob::from(bytes::Bytes::from_owner(Holding(vec![7; 1 << 20], held)))
}

/// PR-2, UC-1: an answer that nobody wants is dropped where its destructors may do what they like.
#[tokio::test(flavor = "multi_thread")]
async fn an_answer_to_oneself_that_nobody_wants_may_drop_references() -> Result<()> {
    let (cluster, _) = pair().await?;
    let [a, b] = [0, 1].map(|rank| cluster.worker(rank).clone());
    *HELD.lock().unwrap_or_else(PoisonError::into_inner) = Some(a.rref(1_u64)?);
    let myself = a.peer(a.name())?;
    let pending = make_holding::on(&myself).start();
    eventually("the function runs", || MAKING.blocked() == 1).await?;
    drop(pending);
    MAKING.open();
    eventually("the buffer is dropped", || !LET_GO.blocks()).await?;
    // The worker still does what it is asked.
    let sum = tokio::time::timeout(LIMIT, add::on(&b.peer(a.name())?, 1, 2)).await??;
    assert_eq!(sum, 3);
    drop((a, b, myself));
    finish(cluster).await
}

/// UC-2: a thread that ends drops what it kept for itself, whatever else of its own is gone by then.
#[tokio::test(flavor = "multi_thread")]
async fn a_reference_may_be_the_last_thing_that_a_thread_drops() -> Result<()> {
    thread_local! {
        static KEPT: std::cell::RefCell<Option<farref::RRef<u64>>> =
            const { std::cell::RefCell::new(None) };
    }
    let (cluster, _) = pair().await?;
    let worker = cluster.worker(0).clone();
    let runtime = tokio::runtime::Handle::current();
    let thread = std::thread::spawn(move || -> Result<()> {
        let _inside = runtime.enter();
        // Its destructor is registered first, and so runs last.
        KEPT.with_borrow_mut(|kept| {
            *kept = Some(worker.rref(1_u64)?);
            Ok(())
        })
    });
    tokio::task::spawn_blocking(|| thread.join())
        .await?
        .expect("no panic")?;
    finish(cluster).await
}
