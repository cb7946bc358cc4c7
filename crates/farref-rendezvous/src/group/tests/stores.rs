//! Stores that die, fall silent, hold nonsense or lose their memory.

use std::sync::Arc;
use std::sync::atomic::{AtomicIsize, Ordering};
use std::task::{Context, Waker};
use std::time::Duration;

use bytes::Bytes;
use farref_proto::NodeId;
use farref_testkit::TEST_TIMEOUT;
use tokio::sync::{Mutex, Notify};
use tokio::time::{Instant, sleep, timeout};

use super::{IN_VAIN, SHORT, hurried, memory, nodes, plan, ranked, static_group};
use crate::group::directory::Directory;
use crate::group::founding::{Founding, GroupKind};
use crate::group::records::GroupRecords;
use crate::group::{Address, enter};
use crate::{RendezvousError, Store, StoreFuture, StoreServer, TcpStoreClient};

#[tokio::test]
async fn a_store_that_dies_is_an_error_in_time() {
    let server = StoreServer::bind("127.0.0.1:0").await.unwrap();
    let port = server.local_addr().port();
    let client = TcpStoreClient::connect("127.0.0.1", port, TEST_TIMEOUT)
        .await
        .unwrap();
    let entering = tokio::spawn(enter(Arc::new(client), ranked(0, 2)));
    sleep(Duration::from_millis(50)).await;
    drop(server);
    let entered = timeout(TEST_TIMEOUT, entering).await.expect("no hang");
    let error = entered.unwrap().unwrap_err();
    assert!(matches!(error, RendezvousError::Store { .. }), "{error}");
}

#[tokio::test]
async fn a_store_that_falls_silent_is_an_error_in_time() {
    // Accepts, and never says a word.
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    let error = TcpStoreClient::connect("127.0.0.1", port, SHORT)
        .await
        .unwrap_err();
    assert!(error.to_string().contains("no store answers"), "{error}");

    let store: Arc<dyn Store> = Arc::new(Silent);
    let began = Instant::now();
    let error = enter(store, hurried(ranked(0, 2))).await.unwrap_err();
    assert!(matches!(error, RendezvousError::TimedOut { .. }), "{error}");
    assert!(began.elapsed() >= IN_VAIN);
}

#[tokio::test]
async fn what_others_put_into_the_store_is_an_error_and_not_believed() {
    for (key, value) in [
        ("group/kind", &b"sometimes"[..]),
        ("group/kind", &[0xff; 10]),
        ("group/incarnation/0", b"many"),
        ("group/name/worker0", b""),
        ("group/founders", b"\x01garbage that is no founding"),
        ("group/founders", b"\x07"),
    ] {
        let store = memory();
        store.set(key, value).await.unwrap();
        let entered = enter(store, hurried(ranked(0, 1))).await;
        match entered {
            // An empty value counts as none.
            Ok(_) => assert!(value.is_empty(), "{key}"),
            Err(RendezvousError::Corrupt { key: named, .. }) => assert_eq!(named, key),
            Err(other) => panic!("{other}"),
        }
    }
    let store = memory();
    let entries = static_group(&store, 3).await;
    let other = entries[2].me.encode().unwrap();
    store.set("group/latest/1", &other).await.unwrap();
    let sponsors = entries[0].directory.sponsors().await.unwrap();
    assert_eq!(
        nodes(&sponsors),
        [entries[2].me.node],
        "an unreadable card is left out"
    );
    let error = entries[0]
        .directory
        .lookup(NodeId::new(1, 1))
        .await
        .unwrap_err();
    assert!(
        matches!(error, RendezvousError::UnknownWorker { .. }),
        "{error}"
    );
}

#[tokio::test]
async fn a_running_group_outlives_the_memory_of_its_store() {
    let server = StoreServer::bind("127.0.0.1:0").await.unwrap();
    let port = server.local_addr().port();
    let client = || async {
        let client = TcpStoreClient::connect("127.0.0.1", port, TEST_TIMEOUT).await;
        Arc::new(client.unwrap()) as Arc<dyn Store>
    };
    let plans = [ranked(0, 3), ranked(1, 3), ranked(2, 3)];
    let mut tasks = Vec::new();
    for plan in plans {
        tasks.push(tokio::spawn(enter(client().await, plan)));
    }
    let mut entries = Vec::new();
    for task in tasks {
        entries.push(task.await.unwrap().unwrap());
    }
    let guest = enter(client().await, plan("guest", None, None))
        .await
        .unwrap();

    // Rank 0, which hosts the store, is restarted.
    server.close().await;
    let _server = StoreServer::bind(("127.0.0.1", port)).await.unwrap();
    let mut elsewhere = ranked(0, 3);
    elsewhere.addresses = vec![Address::Memory("of its second life".into())];
    let restarted = tokio::spawn(enter(client().await, elsewhere));
    sleep(Duration::from_millis(100)).await;
    for entry in [&guest, &entries[1], &entries[2]] {
        entry.directory.republish().await.unwrap();
    }
    let restarted = restarted.await.unwrap().unwrap();
    assert!(
        restarted.founders.is_none(),
        "it did not found a second group"
    );
    assert_eq!(restarted.group, entries[1].group);
    let expected = [&entries[1].me, &entries[2].me, &guest.me].map(|card| card.node);
    assert_eq!(
        nodes(&restarted.directory.sponsors().await.unwrap()),
        expected
    );
    // A newcomer gets an id of its own, and a life of before cannot take its place back.
    let newcomer = enter(client().await, plan("newcomer", None, None))
        .await
        .unwrap();
    assert!(newcomer.me.node.worker > guest.me.node.worker);
    let again = enter(client().await, ranked(1, 3)).await.unwrap();
    entries[1].directory.republish().await.unwrap();
    let sponsors = restarted.directory.sponsors().await.unwrap();
    assert_eq!(sponsors[0].node, again.me.node);
}

/// S3, invariant 8: nor is it given the id of a worker that was there, and is gone.
#[tokio::test]
async fn a_newcomer_to_an_empty_store_waits_for_the_group_that_met_there() {
    let before = memory();
    let [host, member, gone] = ["host", "member", "gone"].map(|name| plan(name, None, None));
    enter(before.clone(), host).await.unwrap();
    let member = enter(before.clone(), member).await.unwrap();
    let gone = enter(before, gone).await.unwrap().me;
    member.directory.insert(gone.clone());
    member.directory.forget(gone.node);
    // What the member keeps knows the next store, which is empty.
    let store = memory();
    let member = member.directory.moved_to(store.clone());
    let mut newcomer = plan("newcomer", None, None);
    newcomer.grace = TEST_TIMEOUT;
    let (newcomer, told) = tokio::join!(enter(store, newcomer), member.republish());
    told.unwrap();
    let newcomer = newcomer.unwrap();
    assert!(newcomer.founders.is_none(), "it found the group");
    assert!(newcomer.me.node.worker > gone.node.worker);
}

/// A store that is interrupted before one of the things it is asked for.
#[derive(Debug)]
struct Interrupted {
    store: Arc<dyn Store>,
    /// How many come before that one. Shared with what is pinned.
    left: Arc<AtomicIsize>,
    by: Interruption,
}

#[derive(Clone, Debug)]
enum Interruption {
    Pause(Duration),
    Replacement(Arc<Place>),
}

/// Where a store is served, by one server after the other.
#[derive(Debug)]
struct Place {
    server: Mutex<Option<StoreServer>>,
    port: u16,
    is_replaced: Notify,
}

impl Place {
    async fn new() -> Self {
        let server = StoreServer::bind("127.0.0.1:0").await.unwrap();
        Self {
            port: server.local_addr().port(),
            server: Mutex::new(Some(server)),
            is_replaced: Notify::new(),
        }
    }

    async fn client(&self) -> Arc<dyn Store> {
        let client = TcpStoreClient::connect("127.0.0.1", self.port, TEST_TIMEOUT);
        Arc::new(client.await.unwrap())
    }

    /// Another server, which knows nothing, takes the place of this one.
    async fn replace(&self) {
        let mut server = self.server.lock().await;
        server.take().expect("a server").close().await;
        let successor = StoreServer::bind(("127.0.0.1", self.port)).await;
        *server = Some(successor.unwrap());
        self.is_replaced.notify_one();
    }
}

impl Interrupted {
    fn asked<'a, T: Send + 'a>(&'a self, then: StoreFuture<'a, T>) -> StoreFuture<'a, T> {
        let left = self.left.fetch_sub(1, Ordering::Relaxed);
        Box::pin(async move {
            match &self.by {
                _ if left != 0 => {}
                Interruption::Pause(pause) => sleep(*pause).await,
                Interruption::Replacement(place) => place.replace().await,
            }
            then.await
        })
    }
}

impl Store for Interrupted {
    fn pinned(&self) -> StoreFuture<'_, Option<Arc<dyn Store>>> {
        Box::pin(async {
            let pinned = self.store.pinned().await?;
            let interrupted = |store| -> Arc<dyn Store> {
                Arc::new(Self {
                    store,
                    left: self.left.clone(),
                    by: self.by.clone(),
                })
            };
            Ok(pinned.map(interrupted))
        })
    }

    fn set<'a>(&'a self, key: &'a str, value: &'a [u8]) -> StoreFuture<'a, ()> {
        self.asked(self.store.set(key, value))
    }

    fn try_get<'a>(&'a self, key: &'a str) -> StoreFuture<'a, Option<Bytes>> {
        self.asked(self.store.try_get(key))
    }

    fn add<'a>(&'a self, key: &'a str, delta: i64) -> StoreFuture<'a, i64> {
        self.asked(self.store.add(key, delta))
    }

    fn compare_set<'a>(
        &'a self,
        key: &'a str,
        expected: &'a [u8],
        desired: &'a [u8],
    ) -> StoreFuture<'a, Bytes> {
        self.asked(self.store.compare_set(key, expected, desired))
    }

    fn delete<'a>(&'a self, key: &'a str) -> StoreFuture<'a, bool> {
        self.asked(self.store.delete(key))
    }

    fn wait<'a>(&'a self, keys: &'a [String], deadline: Duration) -> StoreFuture<'a, ()> {
        self.asked(self.store.wait(keys, deadline))
    }
}

/// S3, invariant 8: wherever the member is held up while it writes its group into the new store.
#[tokio::test]
async fn a_newcomer_founds_no_group_while_a_member_writes_down_its_own() {
    let mut steps = 0;
    loop {
        let before = memory();
        enter(before.clone(), plan("host", None, None))
            .await
            .unwrap();
        let member = enter(before, plan("member", None, None)).await.unwrap();
        let store = memory();
        let held_up = Arc::new(Interrupted {
            store: store.clone(),
            left: Arc::new(steps.into()),
            by: Interruption::Pause(SHORT / 4),
        });
        let member = member.directory.moved_to(held_up.clone());
        let mut newcomer = plan("newcomer", None, None);
        newcomer.grace = TEST_TIMEOUT;
        let (newcomer, told) = tokio::join!(enter(store, newcomer), member.republish());
        assert!(told.is_ok(), "held up at step {steps}: {told:?}");
        assert!(newcomer.unwrap().founders.is_none(), "it found the group");
        if held_up.left.load(Ordering::Relaxed) >= 0 {
            break;
        }
        steps += 1;
    }
    assert!(steps > 5, "it takes as many to write all down");
}

/// S3, invariant 8, TC-2: wherever the store's server is replaced by another one while a member writes its group down.
#[tokio::test]
async fn a_newcomer_finds_the_whole_group_whenever_its_store_is_replaced() {
    let mut steps = 0;
    loop {
        let place = Arc::new(Place::new().await);
        let host = enter(place.client().await, plan("host", None, None)).await;
        let host = host.unwrap().me.node.worker;
        let store = place.client().await;
        let member = enter(store.clone(), plan("member", None, None))
            .await
            .unwrap();
        let me = member.me.node;
        let interrupted = Arc::new(Interrupted {
            store,
            left: Arc::new(steps.into()),
            by: Interruption::Replacement(place.clone()),
        });
        let member = member.directory.moved_to(interrupted.clone());
        // Written into the first server's store: the interruption is in this.
        let mut told = member.republish().await;
        if interrupted.left.load(Ordering::Relaxed) >= 0 {
            break;
        }
        let mut newcomer = plan("host", None, None);
        newcomer.grace = TEST_TIMEOUT;
        place.is_replaced.notified().await;
        let store = place.client().await;
        let telling = async {
            for _ in 0..3 {
                if told.is_err() {
                    told = member.republish().await;
                }
            }
            told
        };
        let (newcomer, told) = tokio::join!(enter(store, newcomer), telling);
        assert!(told.is_ok(), "replaced at step {steps}: {told:?}");
        let newcomer = newcomer.unwrap();
        assert!(newcomer.founders.is_none(), "it found the group");
        assert!(newcomer.me.node.worker > host.max(me.worker), "at {steps}");
        let sponsors = newcomer.directory.sponsors().await.unwrap();
        assert_eq!(nodes(&sponsors), [me], "replaced at step {steps}");
        steps += 1;
    }
    assert!(steps > 5, "it takes as many to write all down");
}

/// TC-1
#[tokio::test]
async fn a_server_that_was_replaced_is_noticed_even_if_somebody_has_asked_its_successor() {
    let place = Place::new().await;
    let client = place.client().await;
    place.replace().await;
    // The first to ask may be the one who finds out.
    while client.try_get("key").await.is_err() {}
    let told = timeout(TEST_TIMEOUT, client.lost()).await;
    told.expect("it was lost").unwrap();
    let mut context = Context::from_waker(Waker::noop());
    let again = client.lost().as_mut().poll(&mut context);
    assert!(again.is_pending(), "the successor is there");
}

#[tokio::test]
async fn a_group_whose_place_was_taken_is_told() {
    let before = enter(memory(), plan("a", None, None)).await.unwrap();
    let store = memory();
    let after = enter(store.clone(), plan("b", None, None)).await.unwrap();
    let (ours, theirs) = (before.group, after.group);
    assert_ne!(ours, theirs);
    // As if the store of the first group had become that of the second.
    let records = GroupRecords::new(store, "group".into());
    let founding = Founding {
        group: ours,
        founders: vec![before.me.clone()],
    };
    let kind = GroupKind::Dynamic;
    let stale = Directory::new(records, kind, before.me, founding);
    match stale.republish().await {
        Err(RendezvousError::OtherGroup {
            ours: one,
            theirs: two,
        }) => assert_eq!((one, two), (ours, theirs)),
        other => panic!("{other:?}"),
    }
}

/// A store whose answers never come.
#[derive(Debug)]
struct Silent;

impl Store for Silent {
    fn set<'a>(&'a self, _: &'a str, _: &'a [u8]) -> StoreFuture<'a, ()> {
        Box::pin(std::future::pending())
    }

    fn get<'a>(&'a self, _: &'a str, _: Duration) -> StoreFuture<'a, Bytes> {
        Box::pin(std::future::pending())
    }

    fn try_get<'a>(&'a self, _: &'a str) -> StoreFuture<'a, Option<Bytes>> {
        Box::pin(std::future::pending())
    }

    fn add<'a>(&'a self, _: &'a str, _: i64) -> StoreFuture<'a, i64> {
        Box::pin(std::future::pending())
    }

    fn compare_set<'a>(&'a self, _: &'a str, _: &'a [u8], _: &'a [u8]) -> StoreFuture<'a, Bytes> {
        Box::pin(std::future::pending())
    }

    fn delete<'a>(&'a self, _: &'a str) -> StoreFuture<'a, bool> {
        Box::pin(std::future::pending())
    }

    fn wait<'a>(&'a self, _: &'a [String], _: Duration) -> StoreFuture<'a, ()> {
        Box::pin(std::future::pending())
    }
}
