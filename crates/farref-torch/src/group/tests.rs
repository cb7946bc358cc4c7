//! The laws of a group's store: what PyTorch writes is written, in its order, and what is wrong is named.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use farref::{
    MemoryStore, Store, StoreDialect, StoreError, StoreFuture, StoreServer, TcpStoreClient,
};
use farref_testkit::TEST_TIMEOUT;
use proptest::prelude::*;
use serde_json::Value;
use tokio::task::JoinSet;

use super::listing::Listing;
use super::{Change, GroupError, GroupStore, Member, Place, Turn, arrive, fuzz};
use crate::gloo::GlooDialect;

const SHORT: Duration = Duration::from_millis(100);
const HERE: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);

/// A store that writes down what it is asked, as the vectors have it.
#[derive(Clone, Debug)]
struct Recorder {
    store: MemoryStore,
    log: Arc<Mutex<Vec<String>>>,
}

impl Recorder {
    fn new(store: &MemoryStore) -> Self {
        Self {
            store: store.clone(),
            log: Arc::default(),
        }
    }

    fn note(&self, line: String) {
        self.log.lock().unwrap().push(line);
    }

    fn taken(&self) -> Vec<String> {
        std::mem::take(&mut self.log.lock().unwrap())
    }
}

fn shown(value: &[u8]) -> String {
    // The vectors leave out what is not a text.
    match std::str::from_utf8(value) {
        Ok(text) if text.bytes().all(|byte| (32..127).contains(&byte)) => format!(" {text:?}"),
        _ => String::new(),
    }
}

impl Store for Recorder {
    fn set<'a>(&'a self, key: &'a str, value: &'a [u8]) -> StoreFuture<'a, ()> {
        self.note(format!("SET \"/{key}\"{}", shown(value)));
        self.store.set(key, value)
    }

    fn get<'a>(&'a self, key: &'a str, deadline: Duration) -> StoreFuture<'a, Bytes> {
        Box::pin(async move {
            let value = self.store.get(key, deadline).await?;
            let shown = shown(&value);
            let arrow = if shown.is_empty() { "" } else { " ->" };
            self.note(format!("GET \"/{key}\"{arrow}{shown}"));
            Ok(value)
        })
    }

    fn try_get<'a>(&'a self, key: &'a str) -> StoreFuture<'a, Option<Bytes>> {
        Box::pin(async move {
            let value = self.store.try_get(key).await?;
            if let Some(value) = &value {
                self.note(format!("GET \"/{key}\" ->{}", shown(value)));
            }
            Ok(value)
        })
    }

    fn add<'a>(&'a self, key: &'a str, delta: i64) -> StoreFuture<'a, i64> {
        Box::pin(async move {
            let sum = self.store.add(key, delta).await?;
            self.note(format!("ADD \"/{key}\" {delta} -> {sum}"));
            Ok(sum)
        })
    }

    fn compare_set<'a>(
        &'a self,
        key: &'a str,
        expected: &'a [u8],
        desired: &'a [u8],
    ) -> StoreFuture<'a, Bytes> {
        Box::pin(async move {
            let value = self.store.compare_set(key, expected, desired).await?;
            let (expected, desired, value_shown) = (shown(expected), shown(desired), shown(&value));
            self.note(format!(
                "COMPARE_SET \"/{key}\"{expected}{desired} ->{value_shown}"
            ));
            Ok(value)
        })
    }

    fn delete<'a>(&'a self, key: &'a str) -> StoreFuture<'a, bool> {
        self.note(format!("DELETE_KEY \"/{key}\""));
        self.store.delete(key)
    }

    fn wait<'a>(&'a self, keys: &'a [String], deadline: Duration) -> StoreFuture<'a, ()> {
        self.store.wait(keys, deadline)
    }
}

/// The exchanges of the vectors, by client and step.
fn vectors(dialect: GlooDialect, scenario: &str) -> BTreeMap<(String, String), Vec<String>> {
    let text = match dialect {
        GlooDialect::PairIds => include_str!("../../vectors/2.15.0/store.json"),
        GlooDialect::PortPerPeer => include_str!("../../vectors/1.13.0/store.json"),
    };
    let all: Vec<Value> = serde_json::from_str(text).unwrap();
    let all = all.into_iter();
    let chosen = all.filter(|entry| entry["scenario"] == scenario && entry["exchanges"].is_array());
    let text = |value: &Value| value.as_str().unwrap().to_owned();
    chosen
        .map(|entry| {
            let exchanges = entry["exchanges"].as_array().unwrap();
            let exchanges = exchanges.iter().map(text).collect();
            ((text(&entry["client"]), text(&entry["step"])), exchanges)
        })
        .collect()
}

/// Leaves out what says nothing about a group: how a connection begins, being counted, waiting for what is
/// read then, reading again or one's own, the names of hosts; and which of several comes first where they
/// race.
fn comparable(exchanges: &[String], rank: u16) -> Vec<String> {
    let own_blob = format!("/0/{rank}\"");
    let mut kept: Vec<String> = Vec::new();
    for line in exchanges {
        let connection = ["VALIDATE", "PING", "WAIT", "CHECK"];
        let of_no_use = connection.iter().any(|word| line.starts_with(word))
            || line.contains("\"init/\"")
            || line.starts_with("GET") && (line.contains("/0/rank_") || line.contains(&own_blob))
            || line.contains("READY_ID");
        if of_no_use {
            continue;
        }
        let line = match line.split_once(" -> ") {
            Some((asked, _)) if line.contains("PROCESS_COUNT") => asked,
            _ => line,
        };
        let line = line.replace("0/rank_0\" \"vm\"", "0/rank_0\" \"(host)\"");
        let line = line.replace("0/rank_1\" \"vm\"", "0/rank_1\" \"(host)\"");
        if !(line.starts_with("GET") && kept.contains(&line)) {
            kept.push(line);
        }
    }
    // PyTorch reads its own address first and the others' in any order.
    let is_address = |line: &String| line.starts_with("GET") && line.contains("/addrs/");
    if let Some(start) = kept.iter().position(is_address) {
        let count = kept[start..]
            .iter()
            .take_while(|line| is_address(line))
            .count();
        kept[start..start + count].sort();
    }
    kept
}

/// What a worker published, from the lines of those who read it.
fn address_in(lines: &BTreeMap<(String, String), Vec<String>>, name: &str, prefix: u32) -> String {
    let what = format!("\"/rpc_prefix_{prefix}/addrs/{name}\"");
    let line = lines.values().flatten();
    let mut line = line.filter(|line| line.contains(&what) && line.contains("uv://"));
    let line = line
        .next()
        .unwrap_or_else(|| panic!("{name} has no address"));
    let (_, address) = line.trim_end_matches('"').rsplit_once('"').unwrap();
    address.to_owned()
}

fn place(id: u16, world: Option<u16>) -> Place {
    Place {
        name: format!("worker{id}"),
        id,
        world,
        base: String::new(),
        prefix: 0,
        rounds_before: 0,
        patience: TEST_TIMEOUT,
    }
}

fn names(members: &[Member]) -> Vec<(u16, &str)> {
    let members = members.iter();
    members.map(|member| (member.id, &*member.name)).collect()
}

/// GR-1.
#[tokio::test]
async fn a_static_group_is_entered_and_left_as_pytorch_does_it() {
    for dialect in [GlooDialect::PairIds, GlooDialect::PortPerPeer] {
        let vectors = vectors(dialect, "static");
        let store = MemoryStore::new();
        let recorders = [0; 3].map(|_| Recorder::new(&store));
        let mut tasks = JoinSet::new();
        for (id, recorder) in (0u16..).zip(&recorders) {
            let store = Arc::new(recorder.clone());
            let address = address_in(&vectors, &format!("worker{id}"), 0);
            let recorder = recorder.clone();
            tasks.spawn(async move {
                let group_store = GroupStore::new(store, place(id, Some(3))).unwrap();
                let (members, mut gloo) = group_store
                    .enter_static(dialect, HERE, &address)
                    .await
                    .unwrap();
                let all = [(0, "worker0"), (1, "worker1"), (2, "worker2")];
                assert_eq!(names(&members), all);
                assert_eq!(members[usize::from(id)].address, address);
                gloo.barrier(TEST_TIMEOUT).await.unwrap();
                let joined = recorder.taken();
                for round in 1..=3 {
                    assert_eq!(group_store.round(round, 0).await.unwrap(), 0);
                }
                (id, joined, recorder.taken())
            });
        }
        let mut ready = Vec::new();
        for (id, joined, left) in tasks.join_all().await {
            ready.extend(left.iter().filter(|line| line.contains("READY")).cloned());
            if id == 2 {
                continue;
            }
            let host = format!("rank_{id}\" {:?}", super::address::hostname());
            let joined: Vec<_> = joined
                .iter()
                .map(|line| line.replace(&host, &format!("rank_{id}\" \"(host)\"")))
                .collect();
            for (step, lines) in [("init", joined), ("shutdown", left)] {
                let key = (format!("worker{id}"), step.to_owned());
                let expected = comparable(&vectors[&key], id);
                assert_eq!(comparable(&lines, id), expected, "{key:?} {dialect:?}");
            }
        }
        ready.sort();
        let expected =
            [1, 2, 3].map(|round| format!("SET \"/rpc_prefix_0/shutdown/READY_ID_{round}\" \"\""));
        assert_eq!(ready, expected, "whoever is last says it, once");
    }
}

/// GR-1.
#[tokio::test]
async fn a_dynamic_group_is_entered_and_left_as_pytorch_does_it() {
    for dialect in [GlooDialect::PairIds, GlooDialect::PortPerPeer] {
        let vectors = vectors(dialect, "dynamic");
        let store = MemoryStore::new();
        let recorders = [0; 3].map(|_| Recorder::new(&store));
        let group_stores: Vec<GroupStore> = (0u16..)
            .zip(&recorders)
            .map(|(id, recorder)| {
                GroupStore::new(Arc::new(recorder.clone()), place(id, None)).unwrap()
            })
            .collect();
        let check = |id: u16, step: &str| {
            let key = (format!("worker{id}"), step.to_owned());
            let lines = recorders[usize::from(id)].taken();
            if id < 2 {
                let expected = comparable(&vectors[&key], id);
                assert_eq!(comparable(&lines, id), expected, "{key:?} {dialect:?}");
            }
        };
        for (id, group_store) in group_stores.iter().enumerate() {
            let name = format!("worker{id}");
            group_store.lock(Change::Join).await.unwrap();
            let address = address_in(&vectors, &name, 0);
            let members = group_store.enter_dynamic(&address).await.unwrap();
            assert_eq!(members.len(), id + 1);
            assert_eq!(members[id].address, address);
            group_store.unlock(Change::Join).await.unwrap();
            check(id as u16, &format!("join_{name}"));
            for earlier in &group_stores[..id] {
                assert_eq!(earlier.address_of(&name).await.unwrap(), address);
                check(earlier.place().id, &format!("join_{name}"));
            }
        }
        for id in [1, 2, 0u16] {
            let group_store = &group_stores[usize::from(id)];
            group_store.lock(Change::Leave).await.unwrap();
            group_store.leave_dynamic().await.unwrap();
            group_store.unlock(Change::Leave).await.unwrap();
            check(id, &format!("leave_worker{id}"));
        }
    }
}

/// GR-1: what is counted goes on being counted in the next group of the same processes.
#[tokio::test]
async fn a_second_group_has_keys_of_its_own() {
    for dialect in [GlooDialect::PairIds, GlooDialect::PortPerPeer] {
        let vectors = vectors(dialect, "again");
        let store = MemoryStore::new();
        for turn in [0u32, 1] {
            let mut tasks = JoinSet::new();
            for id in [0u16, 1] {
                let recorder = Recorder::new(&store);
                let address = address_in(&vectors, &format!("worker{id}"), turn);
                let place = Place {
                    prefix: turn,
                    rounds_before: u64::from(turn) * 3,
                    ..place(id, Some(2))
                };
                tasks.spawn(async move {
                    let group_store = GroupStore::new(Arc::new(recorder.clone()), place).unwrap();
                    let entered = group_store.enter_static(dialect, HERE, &address).await;
                    let (_, mut gloo) = entered.unwrap();
                    gloo.barrier(TEST_TIMEOUT).await.unwrap();
                    for round in 1..=3 {
                        group_store.round(round, 0).await.unwrap();
                    }
                    (id, recorder.taken())
                });
            }
            for (id, lines) in tasks.join_all().await {
                let host = format!("rank_{id}\" {:?}", super::address::hostname());
                let lines: Vec<_> = lines
                    .iter()
                    .filter(|line| !line.starts_with("GET"))
                    .map(|line| line.replace(&host, &format!("rank_{id}\" \"(host)\"")))
                    .collect();
                let key = (format!("worker{id}"), format!("turn_{turn}"));
                let expected = comparable(&vectors[&key], id);
                assert_eq!(comparable(&lines, id), expected, "{key:?} {dialect:?}");
            }
        }
    }
}

#[tokio::test]
async fn the_calls_of_all_are_added_up() {
    let store = MemoryStore::new();
    let mut tasks = JoinSet::new();
    for (id, calls) in [(0u16, 2), (1, 0), (2, 5)] {
        let store = Arc::new(store.clone());
        tasks.spawn(async move {
            let group_store = GroupStore::new(store, place(id, Some(3))).unwrap();
            let rounds = [
                group_store.round(1, 0).await,
                group_store.round(2, calls).await,
            ];
            rounds.map(Result::unwrap)
        });
    }
    assert_eq!(tasks.join_all().await, [[0, 7]; 3]);
    // A fourth has nothing to do here.
    let group_store = GroupStore::new(Arc::new(store), place(0, Some(3))).unwrap();
    let error = group_store.round(1, 0).await.unwrap_err();
    assert!(matches!(error, GroupError::Corrupt { .. }), "{error}");
}

/// Others work for as long as they like: it is for joining that there is a limit.
#[tokio::test]
async fn a_round_waits_for_those_who_still_work() {
    let store = MemoryStore::new();
    let meet = |id| {
        let place = Place {
            patience: SHORT,
            ..place(id, Some(2))
        };
        GroupStore::new(Arc::new(store.clone()), place).unwrap()
    };
    let first = meet(0);
    let first = tokio::spawn(async move { first.round(1, 0).await });
    tokio::time::sleep(3 * SHORT).await;
    assert!(!meet(1).is_complete(1).await.unwrap());
    assert_eq!(meet(1).round(1, 0).await.unwrap(), 0);
    assert_eq!(first.await.unwrap().unwrap(), 0);
}

/// GR-4: whatever has come of it.
#[tokio::test]
async fn gr_4_a_turn_that_is_dropped_is_given_up() {
    let store = MemoryStore::new();
    let list = "rpc_prefix_0/names/_ALL_WORKER_INFOS";
    let turn = "rpc_prefix_0/RpcGroupManagementToken";
    for change in [Change::Join, Change::Leave] {
        let group_store = GroupStore::new(Arc::new(store.clone()), place(3, None)).unwrap();
        let group_store = Arc::new(group_store);
        let taken = Turn::take(&group_store, change).await.unwrap();
        group_store.enter_dynamic("uv://127.0.0.1:1").await.unwrap();
        drop(taken);
        group_store.settled().await;
        assert_eq!(store.try_get(turn).await.unwrap().unwrap(), "");
        assert_eq!(store.try_get(list).await.unwrap().unwrap(), "");
    }
    // One that waits for its turn takes nobody else's away.
    let other = GroupStore::new(Arc::new(store.clone()), place(4, None)).unwrap();
    let other = Turn::take(&Arc::new(other), Change::Join).await.unwrap();
    let group_store = Arc::new(GroupStore::new(Arc::new(store.clone()), place(3, None)).unwrap());
    let waiting = tokio::time::timeout(SHORT, Turn::take(&group_store, Change::Join)).await;
    assert!(waiting.is_err());
    group_store.settled().await;
    let holder = store.try_get(turn).await.unwrap().unwrap();
    assert_eq!(holder, format!("Token_for_{}_join", place(4, None).name));
    other.end(true).await.unwrap();
}

/// A store that carries out what it is asked, and once does not answer: when a key that ends so is written.
#[derive(Clone, Debug)]
struct Mute {
    store: MemoryStore,
    at: Arc<Mutex<Option<String>>>,
}

impl Mute {
    fn at(store: &MemoryStore, at: &str) -> Arc<Self> {
        Arc::new(Self {
            store: store.clone(),
            at: Arc::new(Mutex::new(Some(at.to_owned()))),
        })
    }

    async fn answer<T>(&self, key: &str, answer: T) -> T {
        let is_mute = {
            let mut at = self.at.lock().unwrap();
            at.take_if(|at| key.ends_with(&**at)).is_some()
        };
        match is_mute {
            true => std::future::pending().await,
            false => answer,
        }
    }
}

impl Store for Mute {
    fn set<'a>(&'a self, key: &'a str, value: &'a [u8]) -> StoreFuture<'a, ()> {
        Box::pin(async move {
            let set = self.store.set(key, value).await;
            self.answer(key, set).await
        })
    }

    fn get<'a>(&'a self, key: &'a str, deadline: Duration) -> StoreFuture<'a, Bytes> {
        self.store.get(key, deadline)
    }

    fn try_get<'a>(&'a self, key: &'a str) -> StoreFuture<'a, Option<Bytes>> {
        self.store.try_get(key)
    }

    fn add<'a>(&'a self, key: &'a str, delta: i64) -> StoreFuture<'a, i64> {
        self.store.add(key, delta)
    }

    fn compare_set<'a>(
        &'a self,
        key: &'a str,
        expected: &'a [u8],
        desired: &'a [u8],
    ) -> StoreFuture<'a, Bytes> {
        Box::pin(async move {
            let value = self.store.compare_set(key, expected, desired).await;
            self.answer(key, value).await
        })
    }

    fn delete<'a>(&'a self, key: &'a str) -> StoreFuture<'a, bool> {
        self.store.delete(key)
    }

    fn wait<'a>(&'a self, keys: &'a [String], deadline: Duration) -> StoreFuture<'a, ()> {
        self.store.wait(keys, deadline)
    }
}

const TURN: &str = "rpc_prefix_0/RpcGroupManagementToken";

/// GR-4: the store has its token, and this worker does not know.
#[tokio::test]
async fn gr_4_a_turn_is_given_up_that_was_taken_without_an_answer() {
    let store = MemoryStore::new();
    let mute = Mute::at(&store, "RpcGroupManagementToken");
    let group_store = Arc::new(GroupStore::new(mute, place(3, None)).unwrap());
    let taking = tokio::time::timeout(SHORT, Turn::take(&group_store, Change::Join)).await;
    assert!(taking.is_err(), "nobody answers");
    tokio::time::timeout(TEST_TIMEOUT, group_store.settled())
        .await
        .unwrap();
    assert_eq!(store.try_get(TURN).await.unwrap().unwrap(), "");
}

/// GR-4: it was given up, and somebody else has it, when whoever gave it up is dropped before it knows.
#[tokio::test]
async fn gr_4_a_turn_that_is_given_up_twice_is_not_taken_from_the_next() {
    let store = MemoryStore::new();
    let mute = Mute::at(&store, "Token_for_worker3_join");
    let group_store = Arc::new(GroupStore::new(mute, place(3, None)).unwrap());
    let turn = Turn::take(&group_store, Change::Join).await.unwrap();
    let mut ending = Box::pin(turn.end(true));
    let ended = tokio::time::timeout(SHORT, &mut ending).await;
    assert!(ended.is_err(), "nobody answers");
    let other = GroupStore::new(Arc::new(store.clone()), place(4, None)).unwrap();
    let other = Turn::take(&Arc::new(other), Change::Join).await.unwrap();
    drop(ending);
    tokio::time::timeout(TEST_TIMEOUT, group_store.settled())
        .await
        .unwrap();
    let holder = store.try_get(TURN).await.unwrap().unwrap();
    assert_eq!(holder, "Token_for_worker4_join");
    other.end(true).await.unwrap();
}

/// GR-4: a turn has the token of the one before, which is still being given up.
#[tokio::test]
async fn gr_4_a_turn_is_not_given_up_for_the_one_before() {
    let store = MemoryStore::new();
    let group_store = Arc::new(GroupStore::new(Arc::new(store.clone()), place(3, None)).unwrap());
    drop(Turn::take(&group_store, Change::Leave).await.unwrap());
    let turn = Turn::take(&group_store, Change::Leave).await.unwrap();
    group_store.settled().await;
    let holder = store.try_get(TURN).await.unwrap().unwrap();
    assert_eq!(holder, "Token_for_worker3_leave");
    turn.end(true).await.unwrap();
}

#[test]
fn names_and_ids_that_pytorch_would_not_take_are_refused() {
    let meet = |place: Place| GroupStore::new(Arc::new(MemoryStore::new()), place);
    let named = |name: &str, world| Place {
        name: name.to_owned(),
        ..place(0, world)
    };
    let long = "x".repeat(128);
    for name in ["", "two words", "é", "a.b", "a,b", &long] {
        let error = meet(named(name, Some(1))).unwrap_err();
        assert!(matches!(error, GroupError::Name { .. }), "{error}");
    }
    assert!(meet(named("a-b_c:9", Some(1))).is_ok());
    let error = meet(named("a-b", None)).unwrap_err();
    assert!(error.to_string().contains("dynamic"), "{error}");
    for (id, world) in [
        (3, Some(3)),
        (0, Some(0)),
        (1 << 15, None),
        (0, Some(u16::MAX)),
    ] {
        let error = meet(place(id, world)).unwrap_err();
        assert!(matches!(error, GroupError::Id { .. }), "{error}");
    }
    assert!(meet(place(i16::MAX as u16, Some(1 << 15))).is_ok());
}

#[tokio::test]
async fn a_group_of_the_other_kind_is_not_entered() {
    let store = MemoryStore::new();
    let key = "rpc_prefix_0/rpcIsStaticGroup";
    store.set(key, b"true").await.unwrap();
    let group_store = GroupStore::new(Arc::new(store.clone()), place(0, None)).unwrap();
    let error = group_store
        .enter_dynamic("uv://127.0.0.1:1")
        .await
        .unwrap_err();
    assert!(matches!(&error, GroupError::Kind { mine: "dynamic", group } if group == "static"));
    store.set(key, b"false").await.unwrap();
    let group_store = GroupStore::new(Arc::new(store.clone()), place(0, Some(1))).unwrap();
    let entered = group_store.enter_static(GlooDialect::PairIds, HERE, "uv://127.0.0.1:1");
    let error = entered.await.unwrap_err();
    assert!(matches!(&error, GroupError::Kind { mine: "static", group } if group == "dynamic"));
    store.set(key, b"maybe").await.unwrap();
    let error = group_store
        .enter_dynamic("uv://127.0.0.1:1")
        .await
        .unwrap_err();
    assert!(matches!(error, GroupError::Corrupt { .. }), "{error}");
}

#[tokio::test]
async fn two_workers_of_one_name_or_id_are_told_so() {
    // Both learn it in a static group.
    let store = MemoryStore::new();
    let mut tasks = JoinSet::new();
    for id in [0u16, 1] {
        let place = Place {
            name: "twin".to_owned(),
            ..place(id, Some(2))
        };
        let group_store = GroupStore::new(Arc::new(store.clone()), place).unwrap();
        tasks.spawn(async move {
            let entered = group_store.enter_static(GlooDialect::PairIds, HERE, "uv://127.0.0.1:1");
            (id, entered.await.unwrap_err())
        });
    }
    for (id, error) in tasks.join_all().await {
        let taken = matches!(error, GroupError::NameTaken { mine, other, .. } if (mine, other) == (id, 1 - id));
        assert!(taken, "{error}");
    }

    let store = MemoryStore::new();
    let enter = async |name: &str, id| {
        let name = name.to_owned();
        let place = Place {
            name,
            ..place(id, None)
        };
        let group_store = GroupStore::new(Arc::new(store.clone()), place).unwrap();
        group_store.enter_dynamic("uv://127.0.0.1:1").await
    };
    enter("a", 0).await.unwrap();
    let error = enter("b", 0).await.unwrap_err();
    assert!(
        matches!(&error, GroupError::IdTaken { id: 0, other } if other == "a"),
        "{error}"
    );
    let error = enter("a", 1).await.unwrap_err();
    assert!(
        matches!(
            &error,
            GroupError::NameTaken {
                mine: 1,
                other: 0,
                ..
            }
        ),
        "{error}"
    );
}

/// GR-2.
#[tokio::test]
async fn who_fails_to_join_is_not_in_the_list() {
    let store = MemoryStore::new();
    let list = "rpc_prefix_0/names/_ALL_WORKER_INFOS";
    store.set(list, b"ghost-7,").await.unwrap();
    let place = Place {
        patience: SHORT,
        ..place(0, None)
    };
    let group_store = GroupStore::new(Arc::new(store.clone()), place).unwrap();
    let error = group_store
        .enter_dynamic("uv://127.0.0.1:1")
        .await
        .unwrap_err();
    assert!(error.to_string().contains("addrs/ghost"), "{error}");
    assert_eq!(store.try_get(list).await.unwrap().unwrap(), "ghost-7,");
}

#[tokio::test]
async fn one_worker_at_a_time_changes_a_dynamic_group() {
    let store = MemoryStore::new();
    let inside = Arc::new(Mutex::new(false));
    let mut tasks = JoinSet::new();
    for id in 0..6u16 {
        let group_store = GroupStore::new(Arc::new(store.clone()), place(id, None)).unwrap();
        let inside = inside.clone();
        tasks.spawn(async move {
            // Again and again: that a token was given up once says nothing about the next time.
            for _ in 0..3 {
                for change in [Change::Join, Change::Leave] {
                    group_store.lock(change).await.unwrap();
                    assert!(!std::mem::replace(&mut *inside.lock().unwrap(), true));
                    tokio::time::sleep(Duration::from_millis(1)).await;
                    *inside.lock().unwrap() = false;
                    group_store.unlock(change).await.unwrap();
                }
            }
        });
    }
    tasks.join_all().await;
    // Somebody takes its turn and never comes back.
    let turn = "rpc_prefix_0/RpcGroupManagementToken";
    store.set(turn, b"Token_for_ghost_join").await.unwrap();
    let place = Place {
        patience: SHORT,
        ..place(0, None)
    };
    let group_store = GroupStore::new(Arc::new(store), place).unwrap();
    let error = group_store.lock(Change::Leave).await.unwrap_err();
    assert!(
        error.to_string().contains("Token_for_ghost_join"),
        "{error}"
    );
    assert!(matches!(error, GroupError::Busy { .. }));
}

/// GR-3.
#[tokio::test]
async fn what_is_no_list_and_no_address_is_named_by_its_key() {
    for bad in [
        &b"worker0"[..],
        b"-1,",
        b"a-x,",
        b"a-40000,",
        b"a-1,,",
        b"\xff-1,",
    ] {
        assert!(Listing::parse(bad).is_err(), "{bad:?}");
    }
    let store = MemoryStore::new();
    let list = "rpc_prefix_0/names/_ALL_WORKER_INFOS";
    store.set(list, b"what is this").await.unwrap();
    let group_store = GroupStore::new(Arc::new(store.clone()), place(0, None)).unwrap();
    let error = group_store
        .enter_dynamic("uv://127.0.0.1:1")
        .await
        .unwrap_err();
    assert!(error.to_string().contains(list), "{error}");
    let key = "rpc_prefix_0/addrs/other";
    store.set(key, b"shm://x").await.unwrap();
    let error = group_store.address_of("other").await.unwrap_err();
    assert!(error.to_string().contains(key), "{error}");
}

#[tokio::test]
async fn all_are_waited_for_and_how_they_meet_is_known_then() {
    for (old, dialect) in [
        (false, GlooDialect::PairIds),
        (true, GlooDialect::PortPerPeer),
    ] {
        let server = StoreServer::bind("127.0.0.1:0").await.unwrap();
        let port = server.local_addr().port();
        let host = TcpStoreClient::connect("127.0.0.1", port, TEST_TIMEOUT)
            .await
            .unwrap();
        let other = TcpStoreClient::connect("127.0.0.1", port, TEST_TIMEOUT)
            .await
            .unwrap();
        let torch = async {
            tokio::time::sleep(SHORT).await;
            let dialect = match old {
                true => StoreDialect::Old,
                false => StoreDialect::Greeted,
            };
            let client = TcpStoreClient::connect_as(dialect, "127.0.0.1", port, TEST_TIMEOUT);
            client.await.unwrap().arrive().await.unwrap();
        };
        let (host, other, ()) = tokio::join!(
            arrive(&host, 3, TEST_TIMEOUT),
            arrive(&other, 3, TEST_TIMEOUT),
            torch
        );
        assert_eq!((host.unwrap(), other.unwrap()), (dialect, dialect));
    }
    let server = StoreServer::bind("127.0.0.1:0").await.unwrap();
    let port = server.local_addr().port();
    let alone = TcpStoreClient::connect("127.0.0.1", port, TEST_TIMEOUT)
        .await
        .unwrap();
    let error = arrive(&alone, 3, SHORT).await.unwrap_err();
    assert!(
        matches!(
            error,
            GroupError::Absent {
                have: 1,
                world: 3,
                ..
            }
        ),
        "{error}"
    );
    drop(server);
    let error = arrive(&alone, 3, SHORT).await.unwrap_err();
    assert!(
        matches!(
            error,
            GroupError::Store {
                source: StoreError::Lost { .. } | StoreError::Unreachable { .. },
                ..
            }
        ),
        "{error}"
    );
}

proptest! {
    #[test]
    fn no_bytes_in_the_store_make_a_worker_panic(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
        fuzz(&bytes);
    }

    #[test]
    fn a_list_survives_the_store(members in proptest::collection::vec(("[a-zA-Z0-9_:-]{1,20}", 0u16..32768), 0..6)) {
        let text: String = members.iter().map(|(name, id)| format!("{name}-{id},")).collect();
        let list = Listing::parse(text.as_bytes()).unwrap();
        prop_assert_eq!(list.text(), text);
    }
}
