//! Entering a group: who gets which id and life, who founds it, and what goes wrong in which words.

use std::collections::HashMap;
use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use farref_proto::NodeId;
use tokio::time::{Instant, sleep, timeout};

use super::bootstrap::{Entry, Plan, enter};
use super::card::{Address, Card, TokenTag};
use super::directory::Directory;
use super::ledger::Ledger;
use super::presence::{Presence, Sign};
use super::store::Store;
use super::store_tests::Scratch;
use super::{FileStore, MemoryStore, RendezvousError, StoreLimits, StoreServer, TcpStoreClient};

const SOON: Duration = Duration::from_secs(20);
const SHORT: Duration = Duration::from_millis(300);

fn plan(name: &str, rank: Option<u32>, world_size: Option<u32>) -> Plan {
    Plan {
        name: name.into(),
        rank,
        world_size,
        addresses: vec![Address::Memory(format!("address of {name}"))],
        host: "host".into(),
        timeout: SOON,
        grace: Duration::ZERO,
        prefix: "group".into(),
        wire: 4,
        token: None,
        presence: Arc::new(Finds(Sign::Absent)),
    }
}

/// Finds every earlier life so.
#[derive(Debug)]
struct Finds(Sign);

impl Presence for Finds {
    fn ask<'a>(
        &'a self,
        _: &'a Card,
        _: Duration,
    ) -> Pin<Box<dyn Future<Output = Result<Sign, RendezvousError>> + Send + 'a>> {
        Box::pin(async { Ok(self.0) })
    }
}

/// A worker whose earlier life is found so.
fn after(mut plan: Plan, earlier: Sign) -> Plan {
    plan.presence = Arc::new(Finds(earlier));
    plan
}

fn ranked(rank: u32, world_size: u32) -> Plan {
    plan(&format!("worker{rank}"), Some(rank), Some(world_size))
}

fn hurried(mut plan: Plan) -> Plan {
    plan.timeout = SHORT;
    plan
}

type Entered = Result<Entry, RendezvousError>;

async fn enter_all(store: &Arc<dyn Store>, plans: Vec<Plan>) -> Vec<Entered> {
    let tasks: Vec<_> = plans
        .into_iter()
        .map(|plan| tokio::spawn(enter(store.clone(), plan)))
        .collect();
    let mut entered = Vec::new();
    for task in tasks {
        entered.push(task.await.unwrap());
    }
    entered
}

async fn static_group(store: &Arc<dyn Store>, size: u32) -> Vec<Entry> {
    let plans = (0..size).map(|rank| ranked(rank, size)).collect();
    let entered = enter_all(store, plans).await;
    entered.into_iter().map(Result::unwrap).collect()
}

fn memory() -> Arc<dyn Store> {
    Arc::new(MemoryStore::new())
}

fn nodes(cards: &[Card]) -> Vec<NodeId> {
    cards.iter().map(|card| card.node).collect()
}

fn assert_one_founding(entries: &[Entry]) {
    let first = &entries[0];
    let founders = first.founders.as_ref().expect("a founder");
    assert_eq!(founders.len(), entries.len());
    for (rank, entry) in entries.iter().enumerate() {
        assert_eq!(entry.group, first.group);
        assert_eq!(entry.founders.as_ref(), Some(founders));
        assert_eq!(entry.me.node.worker.0, rank as u32);
        assert_eq!(founders[rank], entry.me);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sixty_four_clients_found_one_group() {
    let server = StoreServer::bind("127.0.0.1:0").await.unwrap();
    let port = server.local_addr().port();
    let mut tasks = Vec::new();
    for rank in 0..64 {
        tasks.push(tokio::spawn(async move {
            let client = TcpStoreClient::connect("127.0.0.1", port, SOON)
                .await
                .unwrap();
            enter(Arc::new(client), ranked(rank, 64)).await.unwrap()
        }));
    }
    let mut entries = Vec::new();
    for task in tasks {
        entries.push(task.await.unwrap());
    }
    assert_one_founding(&entries);
    let seen = entries[5].directory.by_name("worker63").unwrap();
    assert_eq!(seen, entries[63].me);
}

#[tokio::test]
async fn workers_that_share_a_file_found_one_group() {
    let scratch = Scratch::new();
    let mut tasks = Vec::new();
    for rank in 0..6 {
        let store = FileStore::new(scratch.file());
        tasks.push(tokio::spawn(enter(Arc::new(store), ranked(rank, 6))));
    }
    let mut entries = Vec::new();
    for task in tasks {
        entries.push(task.await.unwrap().unwrap());
    }
    assert_one_founding(&entries);
}

#[tokio::test]
async fn a_worker_that_never_comes_is_named() {
    let store = memory();
    let plans = vec![hurried(ranked(0, 4)), hurried(ranked(2, 4))];
    for entered in enter_all(&store, plans).await {
        let error = entered.unwrap_err();
        let text = error.to_string();
        assert!(text.contains("rank 1, 3 did not come"), "{text}");
        assert!(text.contains("0 (worker0), 2 (worker2)"), "{text}");
        match error {
            RendezvousError::Missing {
                missing,
                world_size,
                ..
            } => assert_eq!((missing, world_size), (vec![1, 3], 4)),
            other => panic!("{other:?}"),
        }
    }
}

#[tokio::test]
async fn a_restarted_rank_has_a_greater_life_and_is_no_founder() {
    let store = memory();
    let entries = static_group(&store, 3).await;
    let mut last = entries[1].me.node;
    for _ in 0..3 {
        let again = enter(store.clone(), ranked(1, 3)).await.unwrap();
        assert!(again.founders.is_none());
        assert_eq!(again.group, entries[0].group);
        assert_eq!(again.me.node.worker, last.worker);
        assert!(again.me.node.incarnation > last.incarnation);
        last = again.me.node;
        let sponsors = again.directory.sponsors().await.unwrap();
        assert_eq!(nodes(&sponsors), [entries[0].me.node, entries[2].me.node]);
    }
    let found = entries[0].directory.lookup(last).await.unwrap();
    assert_eq!(found.node, last);
    assert_eq!(entries[0].directory.by_name("worker1").unwrap().node, last);
    entries[0].directory.forget(last);
    assert_eq!(
        entries[0].directory.by_name("worker1").unwrap(),
        entries[1].me
    );
}

#[tokio::test]
async fn a_rank_restarted_before_the_founding_founds_in_its_later_life() {
    let store = memory();
    let first = tokio::spawn(enter(store.clone(), ranked(0, 2)));
    sleep(Duration::from_millis(30)).await;
    first.abort();
    let entries = static_group(&store, 2).await;
    assert_one_founding(&entries);
}

#[tokio::test]
async fn a_life_is_later_even_if_the_store_forgot_the_earlier_ones() {
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    let now = now.unwrap().as_secs() as u32;
    let entry = enter(memory(), plan("a", None, None)).await.unwrap();
    assert!((now..now + 60).contains(&entry.me.node.incarnation.0));
}

#[tokio::test]
async fn of_two_foundings_at_once_one_wins() {
    for _ in 0..20 {
        let store = memory();
        let plans = vec![
            plan("a", None, None),
            plan("b", None, None),
            plan("c", Some(0), None),
        ];
        let entries: Vec<_> = enter_all(&store, plans).await;
        let entries: Vec<_> = entries.into_iter().map(Result::unwrap).collect();
        let founders: Vec<_> = entries
            .iter()
            .filter_map(|entry| entry.founders.as_ref())
            .collect();
        assert_eq!(founders.len(), 1);
        assert_eq!(founders[0].len(), 1);
        assert!(entries.iter().all(|entry| entry.group == entries[0].group));
        let mut ids: Vec<_> = entries.iter().map(|entry| entry.me.node.worker.0).collect();
        ids.sort();
        ids.dedup();
        assert_eq!(ids.len(), 3);
        for entry in &entries {
            assert_eq!(entry.directory.sponsors().await.unwrap().len(), 2);
        }
    }
}

#[tokio::test]
async fn a_known_name_without_a_rank_is_the_same_worker_again() {
    let store = memory();
    let founder = enter(store.clone(), plan("a", None, None)).await.unwrap();
    let first = enter(store.clone(), plan("b", None, None)).await.unwrap();
    let second = enter(store.clone(), plan("b", None, None)).await.unwrap();
    assert!(founder.founders.is_some() && first.founders.is_none() && second.founders.is_none());
    assert_eq!(first.me.node.worker, second.me.node.worker);
    assert!(first.me.node.incarnation < second.me.node.incarnation);
    let sponsors = founder.directory.sponsors().await.unwrap();
    assert_eq!(nodes(&sponsors), [second.me.node], "only the latest life");
}

#[tokio::test]
async fn a_worker_without_a_world_size_may_join_a_static_group() {
    let store = memory();
    let entries = static_group(&store, 2).await;
    let guest = enter(store.clone(), plan("guest", None, None))
        .await
        .unwrap();
    assert!(guest.founders.is_none());
    assert!(guest.me.node.worker.0 >= 2);
    assert_eq!(guest.directory.sponsors().await.unwrap().len(), 2);
    assert_eq!(
        nodes(&entries[0].directory.sponsors().await.unwrap())[1],
        guest.me.node
    );
    let back = enter(store, plan("worker1", Some(1), None)).await.unwrap();
    assert_eq!(back.me.node.worker, entries[1].me.node.worker);
}

#[tokio::test]
async fn a_worker_for_another_kind_of_group_hears_of_both() {
    let store = memory();
    static_group(&store, 2).await;
    let error = enter(store.clone(), ranked(2, 3))
        .await
        .unwrap_err()
        .to_string();
    assert!(
        error.contains("world size of 3") && error.contains("world size of 2"),
        "{error}"
    );
    let error = enter(store, plan("x", Some(7), None))
        .await
        .unwrap_err()
        .to_string();
    assert!(
        error.contains("rank 7") && error.contains("world size of 2"),
        "{error}"
    );
    let store = memory();
    enter(store.clone(), plan("a", None, None)).await.unwrap();
    let error = enter(store, ranked(0, 2)).await.unwrap_err().to_string();
    assert!(
        error.contains("world size of 2") && error.contains("no fixed"),
        "{error}"
    );
}

#[tokio::test]
async fn a_name_or_rank_taken_twice_is_an_error_that_names_both() {
    let store = memory();
    let mut waiting = waiting(&store, plan("a", Some(0), Some(3))).await;
    let refused = enter(store.clone(), plan("a", Some(2), Some(3))).await;
    for told in [refused, waiting.await.unwrap()] {
        match told {
            Err(RendezvousError::DuplicateName {
                name,
                first,
                second,
            }) => assert_eq!((name.as_str(), first, second), ("a", 0, 2)),
            other => panic!("{other:?}"),
        }
    }
    waiting = self::waiting(&store, plan("a", Some(0), Some(3))).await;
    let refused = enter(store.clone(), plan("b", Some(0), Some(3))).await;
    for told in [refused, waiting.await.unwrap()] {
        match told {
            Err(RendezvousError::DuplicateRank {
                rank,
                first,
                second,
            }) => assert_eq!((rank, first.as_str(), second.as_str()), (0, "a", "b")),
            other => panic!("{other:?}"),
        }
    }
    // Whoever was refused has taken nothing: the name goes with the right rank. And what those were
    // told is history.
    let plans = vec![
        plan("a", Some(0), Some(3)),
        plan("b", Some(1), Some(3)),
        plan("c", Some(2), Some(3)),
    ];
    for entered in enter_all(&store, plans).await {
        entered.unwrap();
    }
    // A group that runs is not disturbed by those who come too late.
    let late = enter(store.clone(), plan("a", Some(2), Some(3))).await;
    assert!(matches!(late, Err(RendezvousError::DuplicateName { .. })));
}

/// A worker that has published its card and waits for the others.
async fn waiting(store: &Arc<dyn Store>, plan: Plan) -> tokio::task::JoinHandle<Entered> {
    let card = format!("group/latest/{}", plan.rank.unwrap());
    let before = store.try_get(&card).await.unwrap();
    let task = tokio::spawn(enter(store.clone(), plan));
    while !task.is_finished() && store.try_get(&card).await.unwrap() == before {
        sleep(Duration::from_millis(1)).await;
    }
    task
}

/// F4: a worker that is started twice is told, in both its processes, and so are those who wait for it.
#[tokio::test]
async fn a_worker_started_twice_is_told_and_so_are_those_who_wait() {
    for sign in [Sign::Silent, Sign::Present] {
        let store = memory();
        let waiting = [
            waiting(&store, ranked(0, 3)).await,
            waiting(&store, ranked(1, 3)).await,
        ];
        let twice = enter(store.clone(), after(ranked(1, 3), sign)).await;
        let mut told = vec![twice];
        for waiting in waiting {
            told.push(waiting.await.unwrap());
        }
        for told in told {
            match told {
                Err(RendezvousError::NameTaken { name, address }) => {
                    assert_eq!(name, "worker1");
                    assert_eq!(address, "memory:address of worker1");
                }
                other => panic!("{other:?}"),
            }
        }
        // Next time they come together.
        assert_one_founding(&static_group(&store, 3).await);
    }
}

/// F4, invariant 7: also if the second life did not find the first, whose card came too late.
#[tokio::test]
async fn lives_that_did_not_notice_each_other_are_told_while_they_wait() {
    let store = memory();
    let mut all = vec![waiting(&store, ranked(0, 3)).await];
    for _ in 0..2 {
        all.push(waiting(&store, ranked(1, 3)).await);
    }
    for told in all {
        match told.await.unwrap() {
            Err(RendezvousError::NameTaken { name, .. }) => assert_eq!(name, "worker1"),
            other => panic!("{other:?}"),
        }
    }
    assert_one_founding(&static_group(&store, 3).await);
}

/// F3: of a worker that crashed before the founding, whose port another one has now that waits and says
/// nothing, the card is a leftover.
#[tokio::test]
async fn a_port_that_another_worker_has_now_is_no_sign_of_the_one_before() {
    let store = memory();
    let crashed = waiting(&store, ranked(1, 3)).await;
    crashed.abort();
    let mut heir = ranked(2, 3);
    heir.addresses = ranked(1, 3).addresses;
    let heir = waiting(&store, heir).await;
    let again = waiting(&store, after(ranked(1, 3), Sign::Silent)).await;
    let founder = enter(store.clone(), ranked(0, 3));
    let mut entered = vec![founder.await.unwrap()];
    for other in [again, heir] {
        entered.push(other.await.unwrap().unwrap());
    }
    assert_one_founding(&entered);
}

/// F4, invariant 2: also if both take the first incarnation at the same moment.
#[tokio::test]
async fn a_worker_started_twice_at_once_has_two_lives_and_is_told() {
    let store: Arc<dyn Store> = Arc::new(Counting {
        meeting: Some(tokio::sync::Barrier::new(2)),
        ..Counting::default()
    });
    let twins = ["one", "other"].map(|address| {
        let mut twin = after(ranked(1, 3), Sign::Silent);
        twin.addresses = vec![Address::Memory(address.into())];
        twin
    });
    for told in enter_all(&store, twins.into()).await {
        match told {
            Err(RendezvousError::NameTaken { name, .. }) => assert_eq!(name, "worker1"),
            other => panic!("{other:?}"),
        }
    }
}

/// F4, F3: in a group that runs only a worker that is certainly there keeps its name.
#[tokio::test]
async fn a_name_is_taken_only_from_a_worker_that_does_not_answer() {
    let store = memory();
    let a = enter(store.clone(), plan("a", None, None)).await.unwrap();
    let taken = enter(store.clone(), after(plan("a", None, None), Sign::Present)).await;
    assert!(matches!(taken, Err(RendezvousError::NameTaken { .. })));
    // It has left the store as it was: the others still find the first.
    let b = enter(store.clone(), plan("b", None, None)).await.unwrap();
    assert_eq!(nodes(&b.directory.sponsors().await.unwrap()), [a.me.node]);
    for sign in [Sign::Silent, Sign::Absent] {
        let again = enter(store.clone(), after(plan("a", None, None), sign)).await;
        assert!(again.unwrap().me.node > a.me.node);
    }
}

/// F4: founders that could not talk to each other are all told before there is a group.
#[tokio::test]
async fn founders_of_different_tokens_or_wires_are_all_told() {
    let with_token = |rank, token: Option<&str>| Plan {
        token: token.map(TokenTag::of),
        ..after(ranked(rank, 3), Sign::Silent)
    };
    let store = memory();
    let plans = vec![
        with_token(0, Some("right")),
        with_token(1, None),
        with_token(2, Some("wrong")),
    ];
    for told in enter_all(&store, plans).await {
        match told {
            Err(RendezvousError::DifferentTokens { like, unlike }) => {
                assert_eq!(
                    (like.as_str(), &unlike[..]),
                    ("worker0", &["worker1".to_owned(), "worker2".to_owned()][..])
                );
            }
            other => panic!("{other:?}"),
        }
    }
    let with_wire = |rank, wire| Plan {
        wire,
        ..after(ranked(rank, 3), Sign::Silent)
    };
    let plans = vec![with_wire(0, 4), with_wire(1, 5), with_wire(2, 4)];
    let expected = [("worker1", 5, 4), ("worker0", 4, 5), ("worker1", 5, 4)];
    for (told, expected) in enter_all(&store, plans).await.into_iter().zip(expected) {
        match told {
            Err(RendezvousError::WireVersion {
                worker,
                theirs,
                ours,
            }) => assert_eq!((worker.as_str(), theirs, ours), expected),
            other => panic!("{other:?}"),
        }
    }
    // A leftover of a worker that has crashed is no reason to give up.
    let leftover = Card {
        node: NodeId::new(2, 1),
        name: "worker2".into(),
        addresses: Vec::new(),
        host: String::new(),
        wire: 9,
        token: None,
    };
    let ledger = Ledger::new(store.clone(), "group".into());
    ledger.set_latest(&leftover).await.unwrap();
    // With one of each they found their group, in the same store.
    let plans = (0..3)
        .map(|rank| after(with_token(rank, Some("right")), Sign::Absent))
        .collect();
    let entered = enter_all(&store, plans).await.into_iter();
    assert_one_founding(&entered.map(Result::unwrap).collect::<Vec<_>>());
}

/// Invariant 5, D5: the largest group that is documented meets, and of all its ranks only rank 0 waits
/// for the others' cards.
#[tokio::test]
async fn the_largest_group_meets_and_waits_for_one_key_each() {
    const SIZE: u32 = 16_384;
    let store = Arc::new(Counting::default());
    let ledger = Ledger::new(store.clone(), "group".into());
    let two = tokio::spawn(enter(store.clone(), ranked(2, SIZE)));
    while store
        .store
        .try_get("group/latest/2")
        .await
        .unwrap()
        .is_none()
    {
        tokio::task::yield_now().await;
    }
    // The others, as far as the store sees them.
    for rank in 3..SIZE {
        let card = Card {
            node: NodeId::new(rank, 1),
            name: format!("worker{rank}"),
            addresses: vec![
                Address::Unix("@farref-0123456789abcdef".into()),
                Address::Tcp("10.200.100.50:50000".parse().unwrap()),
            ],
            host: "0123456789abcdef0123456789abcdef".into(),
            wire: 4,
            token: None,
        };
        ledger.set_latest(&card).await.unwrap();
    }
    let one = tokio::spawn(enter(store.clone(), ranked(1, SIZE)));
    let zero = enter(store.clone(), ranked(0, SIZE)).await.unwrap();
    assert_eq!(
        zero.founders.map(|founders| founders.len()),
        Some(SIZE as usize)
    );
    for other in [one, two] {
        let entry = other.await.unwrap().unwrap();
        assert_eq!(entry.group, zero.group);
    }
    let waited: HashMap<usize, usize> =
        store
            .waits
            .lock()
            .unwrap()
            .iter()
            .fold(HashMap::new(), |mut all, keys| {
                *all.entry(*keys).or_default() += 1;
                all
            });
    assert_eq!(waited, HashMap::from([(1, 2), (SIZE as usize, 1)]));
}

/// D5: many ranks meet in a store that has far less memory than it would take if each waited for all
/// cards, or if all were sent the founders' record at once.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_ranks_meet_in_a_store_with_little_memory() {
    const SIZE: u32 = 384;
    let limits = StoreLimits {
        memory: 5 << 20,
        ..StoreLimits::default()
    };
    let server = StoreServer::bind_with("127.0.0.1:0", limits).await.unwrap();
    let port = server.local_addr().port();
    let tasks: Vec<_> = (0..SIZE)
        .map(|rank| {
            tokio::spawn(async move {
                let client = TcpStoreClient::connect("127.0.0.1", port, SOON * 6).await;
                let plan = Plan {
                    timeout: SOON * 6,
                    ..ranked(rank, SIZE)
                };
                let entry = enter(Arc::new(client.unwrap()), plan).await.unwrap();
                (entry.group, entry.founders.map(|founders| founders.len()))
            })
        })
        .collect();
    let mut met = Vec::new();
    for task in tasks {
        met.push(task.await.unwrap());
    }
    assert!(met.iter().all(|one| *one == met[0]), "{met:?}");
    assert_eq!(met[0].1, Some(SIZE as usize));
}

/// A store that notes how many keys each wait is for.
#[derive(Debug, Default)]
struct Counting {
    store: MemoryStore,
    waits: Mutex<Vec<usize>>,
    /// Where those who take a life meet, so that nobody has taken one when the other has looked.
    meeting: Option<tokio::sync::Barrier>,
    met: std::sync::atomic::AtomicUsize,
}

impl Store for Counting {
    fn set<'a>(&'a self, key: &'a str, value: &'a [u8]) -> super::StoreFuture<'a, ()> {
        self.store.set(key, value)
    }

    fn try_get<'a>(&'a self, key: &'a str) -> super::StoreFuture<'a, Option<bytes::Bytes>> {
        self.store.try_get(key)
    }

    fn add<'a>(&'a self, key: &'a str, delta: i64) -> super::StoreFuture<'a, i64> {
        self.store.add(key, delta)
    }

    fn compare_set<'a>(
        &'a self,
        key: &'a str,
        expected: &'a [u8],
        desired: &'a [u8],
    ) -> super::StoreFuture<'a, bytes::Bytes> {
        Box::pin(async move {
            if let Some(meeting) = &self.meeting
                && key.contains("/incarnation/")
                && self.met.fetch_add(1, std::sync::atomic::Ordering::Relaxed) < 2
            {
                meeting.wait().await;
            }
            self.store.compare_set(key, expected, desired).await
        })
    }

    fn delete<'a>(&'a self, key: &'a str) -> super::StoreFuture<'a, bool> {
        self.store.delete(key)
    }

    fn wait<'a>(&'a self, keys: &'a [String], deadline: Duration) -> super::StoreFuture<'a, ()> {
        self.waits.lock().unwrap().push(keys.len());
        self.store.wait(keys, deadline)
    }
}

#[tokio::test]
async fn a_plan_that_cannot_be_is_refused_at_once() {
    for (rank, world_size) in [(None, Some(2)), (Some(2), Some(2)), (Some(0), Some(0))] {
        let error = enter(memory(), plan("a", rank, world_size))
            .await
            .unwrap_err();
        assert!(matches!(error, RendezvousError::Rank { .. }), "{error}");
    }
    let error = enter(memory(), plan("a b", None, None)).await.unwrap_err();
    assert!(matches!(error, RendezvousError::Name { .. }), "{error}");
    let mut crowded = plan("a", None, None);
    crowded.addresses = vec![Address::Memory("x".into()); 9];
    let error = enter(memory(), crowded).await.unwrap_err();
    assert!(matches!(error, RendezvousError::Card { .. }), "{error}");
}

#[tokio::test]
async fn a_store_that_dies_is_an_error_in_time() {
    let server = StoreServer::bind("127.0.0.1:0").await.unwrap();
    let port = server.local_addr().port();
    let client = TcpStoreClient::connect("127.0.0.1", port, SOON)
        .await
        .unwrap();
    let entering = tokio::spawn(enter(Arc::new(client), ranked(0, 2)));
    sleep(Duration::from_millis(50)).await;
    drop(server);
    let entered = timeout(Duration::from_secs(5), entering)
        .await
        .expect("no hang");
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
    assert!(began.elapsed() >= SHORT);
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
        let client = TcpStoreClient::connect("127.0.0.1", port, SOON).await;
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
    newcomer.grace = SOON;
    let (newcomer, told) = tokio::join!(enter(store, newcomer), member.republish());
    told.unwrap();
    let newcomer = newcomer.unwrap();
    assert!(newcomer.founders.is_none(), "it found the group");
    assert!(newcomer.me.node.worker > gone.node.worker);
}

#[tokio::test]
async fn a_group_whose_place_was_taken_is_told() {
    let before = enter(memory(), plan("a", None, None)).await.unwrap();
    let store = memory();
    let after = enter(store.clone(), plan("b", None, None)).await.unwrap();
    let (ours, theirs) = (before.group, after.group);
    assert_ne!(ours, theirs);
    // As if the store of the first group had become that of the second.
    let ledger = Ledger::new(store, "group".into());
    let founding = super::ledger::Founding {
        group: ours,
        founders: vec![before.me.clone()],
    };
    let kind = super::ledger::Kind::Dynamic;
    let stale = Directory::new(ledger, kind, before.me, founding);
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
    fn set<'a>(&'a self, _: &'a str, _: &'a [u8]) -> super::StoreFuture<'a, ()> {
        Box::pin(std::future::pending())
    }

    fn get<'a>(&'a self, _: &'a str, _: Duration) -> super::StoreFuture<'a, bytes::Bytes> {
        Box::pin(std::future::pending())
    }

    fn try_get<'a>(&'a self, _: &'a str) -> super::StoreFuture<'a, Option<bytes::Bytes>> {
        Box::pin(std::future::pending())
    }

    fn add<'a>(&'a self, _: &'a str, _: i64) -> super::StoreFuture<'a, i64> {
        Box::pin(std::future::pending())
    }

    fn compare_set<'a>(
        &'a self,
        _: &'a str,
        _: &'a [u8],
        _: &'a [u8],
    ) -> super::StoreFuture<'a, bytes::Bytes> {
        Box::pin(std::future::pending())
    }

    fn delete<'a>(&'a self, _: &'a str) -> super::StoreFuture<'a, bool> {
        Box::pin(std::future::pending())
    }

    fn wait<'a>(&'a self, _: &'a [String], _: Duration) -> super::StoreFuture<'a, ()> {
        Box::pin(std::future::pending())
    }
}
