//! What goes wrong between a store and its etcd, and in an etcd that does not do as etcds do.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use tokio::sync::Notify;

use super::meddler::{Asked, Deed, Meddler, Said};
use super::*;
use crate::RendezvousError;
use crate::group::{Address, Card, Liveness, LivenessProbe, Plan, enter};
use crate::store::etcd::http::{Connection, MAX_BODY};

pub(super) fn at(ports: &[u16], rest: &str) -> EtcdPlace {
    let endpoints: Vec<String> = ports
        .iter()
        .map(|port| format!("127.0.0.1:{port}"))
        .collect();
    let text = format!("etcd://{}/test/{rest}", endpoints.join(","));
    text.parse().unwrap()
}

async fn open(ports: &[u16], rest: &str) -> EtcdStore {
    EtcdStore::open(&at(ports, rest), TEST_TIMEOUT)
        .await
        .unwrap()
}

/// Invariant 5.
#[tokio::test]
async fn a_member_that_hangs_is_left_for_the_next() {
    let Some(etcd) = Etcd::start(false) else {
        return;
    };
    // Connections are made to it, and nobody takes them up.
    let hung = TcpListener::bind("127.0.0.1:0").unwrap();
    let ports = [hung.local_addr().unwrap().port(), etcd.port];
    // Which member is asked first is left to chance.
    let mut users = tokio::task::JoinSet::new();
    for number in 0..8 {
        users.spawn(async move {
            let store = open(&ports, "a").await;
            store.set(&number.to_string(), b"v").await.unwrap();
            store.leave().await.unwrap();
        });
    }
    users.join_all().await;
}

/// Invariant 5: what several find out at the same time is found out once.
#[tokio::test]
async fn those_who_turn_away_from_one_member_go_to_the_next_together() {
    let gateway = Gateway::new(&at(&[1, 2], "a")).unwrap();
    let first = gateway.preferred();
    gateway.turn_away(first);
    gateway.turn_away(first);
    assert_ne!(gateway.preferred(), first);
    gateway.turn_away(1 - first);
    assert_eq!(gateway.preferred(), first);
}

/// Invariant 6.
#[tokio::test]
async fn a_watch_that_has_gone_dead_is_not_relied_on() {
    let Some(etcd) = Etcd::start(false) else {
        return;
    };
    let watched = Arc::new(AtomicUsize::new(0));
    let watches = Arc::clone(&watched);
    let meddler = Meddler::before(etcd.port, move |asked| {
        if !asked.is_for("/v3/watch") {
            return Deed::Pass;
        }
        watches.fetch_add(1, Ordering::Relaxed);
        let head = "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n";
        let created = "1e\r\n{\"result\": {\"created\": true}}\n\r\n";
        Deed::Begin(format!("{head}{created}").into_bytes())
    })
    .await;
    let (member, guest) = (etcd.open("a").await, open(&[meddler.port], "a").await);
    member.settle().await.unwrap();
    let over = tokio::time::timeout(TEST_TIMEOUT, guest.over());
    let (got, over, ()) = tokio::join!(guest.get("k", TEST_TIMEOUT), over, async {
        while watched.load(Ordering::Relaxed) < 2 {
            sleep(Duration::from_millis(10)).await;
        }
        member.set("k", b"v").await.unwrap();
        member.leave().await.unwrap();
    });
    assert_eq!(got.unwrap(), "v");
    over.unwrap().unwrap();
}

/// Every other change is done, and not answered, or is not done.
fn every_other(answers: Option<serde_json::Value>) -> impl Fn(&Asked) -> Deed + Send + Sync {
    let changes = AtomicUsize::new(0);
    move |asked| {
        if !asked.writes() || changes.fetch_add(1, Ordering::Relaxed) % 2 == 1 {
            return Deed::Pass;
        }
        match &answers {
            Some(answer) => Deed::Say(503, answer.clone()),
            None => Deed::PassAndClose,
        }
    }
}

/// Finds no earlier life.
#[derive(Debug)]
struct Nobody;

impl LivenessProbe for Nobody {
    fn probe<'a>(
        &'a self,
        _: &'a Card,
        _: Duration,
    ) -> std::pin::Pin<Box<dyn Future<Output = Result<Liveness, RendezvousError>> + Send + 'a>>
    {
        Box::pin(async { Ok(Liveness::Gone) })
    }
}

/// Invariant 5.
#[tokio::test]
async fn who_joins_outlasts_answers_that_are_lost_and_elections() {
    let Some(etcd) = Etcd::start(false) else {
        return;
    };
    let elected = json!({ "code": 14, "message": "etcdserver: leader changed" });
    for (number, answer) in [None, Some(elected)].into_iter().enumerate() {
        let meddler = Meddler::before(etcd.port, every_other(answer)).await;
        let prefix = format!("group{number}");
        let store = Arc::new(open(&[meddler.port], &prefix).await);
        store.set("k", b"v").await.unwrap();
        assert_eq!(store.compare_set("k", b"v", b"w").await.unwrap(), "w");
        for name in ["one", "two"] {
            let plan = Plan {
                name: name.to_owned(),
                rank: None,
                world_size: None,
                addresses: vec![Address::Memory(name.to_owned())],
                host: "host".to_owned(),
                timeout: TEST_TIMEOUT,
                grace: Duration::ZERO,
                prefix: "group".to_owned(),
                wire: 1,
                token: None,
                certificate: None,
                probe: Arc::new(Nobody),
            };
            let entry = enter(Arc::clone(&store) as Arc<dyn Store>, plan).await;
            entry.unwrap().directory.settle().await.unwrap();
        }
        let seen = etcd.open(&prefix).await;
        assert_eq!(seen.try_get("k").await.unwrap().unwrap(), "w");
        assert!(count(&etcd, &store.era.part("members/")).await > 0);
    }
}

pub(super) async fn count(etcd: &Etcd, prefix: &str) -> i64 {
    let gateway = Gateway::new(&etcd.place("", "admin")).unwrap();
    let look = Transaction::new().count(prefix);
    let found = gateway.transact(look, Instant::now() + TEST_TIMEOUT).await;
    found.unwrap().count(0)
}

#[tokio::test]
async fn operations_wait_for_etcd_as_long_as_opening_may_take() {
    let Some(etcd) = Etcd::start(false) else {
        return;
    };
    let long = Duration::from_secs(3600);
    let before = Instant::now() + long;
    let place = etcd.place("", "a");
    let store = EtcdStore::open(&place, long).await.unwrap();
    assert!(store.era.end() >= before);
    let hurried = EtcdStore::open(&place, TEST_TIMEOUT).await.unwrap();
    assert!(hurried.era.end() < before);
}

#[tokio::test]
async fn who_settles_while_its_lease_is_replaced_is_a_member_in_etcd_too() {
    let Some(etcd) = Etcd::start(false) else {
        return;
    };
    let (told, was_asked) = (Arc::new(Notify::new()), Arc::new(Notify::new()));
    let (tell, asked_so) = (Arc::clone(&told), Arc::clone(&was_asked));
    let arrivals = AtomicUsize::new(0);
    let meddler = Meddler::before(etcd.port, move |asked| {
        // To enter, and with the next lease.
        if asked.writes() && arrivals.fetch_add(1, Ordering::Relaxed) == 1 {
            asked_so.notify_one();
            return Deed::PassWhenTold(Arc::clone(&tell));
        }
        Deed::Pass
    })
    .await;
    let user = open(&[meddler.port], "a?ttl=5").await;
    let lease = user.era.lease().await.unwrap();
    let end = Instant::now() + TEST_TIMEOUT;
    user.era.gateway().revoke(lease, end).await.unwrap();
    // The lease is found to be lost.
    let lost = tokio::time::timeout(TEST_TIMEOUT, was_asked.notified());
    lost.await.unwrap();
    let (settled, ()) = tokio::join!(user.settle(), async {
        // Only so that it finds the old lease there; it is a member whenever it begins.
        sleep(SHORT).await;
        told.notify_one();
    });
    settled.unwrap();
    assert!(count(&etcd, &user.era.part("members/")).await > 0);
}

/// Invariant 4.
#[tokio::test]
async fn what_is_no_answer_of_etcds_ends_no_era() {
    let Some(etcd) = Etcd::start(false) else {
        return;
    };
    let said = Said::default();
    let meddling = said.clone();
    let meddler = Meddler::before(etcd.port, move |_| meddling.deed()).await;
    let member = open(&[meddler.port], "a").await;
    member.settle().await.unwrap();
    let lease = member.era.lease().await.unwrap();
    // As a proxy may say, of transactions and leases alike.
    said.say(json!({}));
    for failed in [
        member.set("k", b"v").await.unwrap_err(),
        member.try_get("k").await.unwrap_err(),
        member.era.renew(Some(lease)).await.unwrap_err(),
        member.settle().await.unwrap_err(),
    ] {
        assert!(matches!(failed, StoreError::NotEtcd { .. }), "{failed}");
    }
    let end = Instant::now() + TEST_TIMEOUT;
    let kept = member.era.gateway().keep_alive(lease, end).await;
    assert!(matches!(kept, Err(StoreError::NotEtcd { .. })), "{kept:?}");
    let opened = EtcdStore::open(&at(&[meddler.port], "b"), TEST_TIMEOUT).await;
    assert!(matches!(opened, Err(StoreError::NotEtcd { .. })));

    // A value that is none.
    let group = json!({ "response_range": { "kvs": [{ "value": transaction::encoded("x") }] } });
    let odd = json!({ "response_range": { "kvs": [{ "value": "?" }] } });
    said.say(json!({ "header": { "revision": "1" }, "responses": [group, odd] }));
    let compared = tokio::time::timeout(TEST_TIMEOUT, member.compare_set("k", b"", b"v")).await;
    let compared = compared.unwrap().unwrap_err();
    assert!(matches!(compared, StoreError::NotEtcd { .. }), "{compared}");

    // A count after which there is none.
    let last = json!({ "header": { "revision": i64::MAX.to_string() }, "succeeded": true });
    said.say(last);
    member.get("k", SHORT).await.unwrap_err();

    said.say(None);
    member.set("k", b"v").await.unwrap();
    assert_eq!(
        etcd.open("a").await.try_get("k").await.unwrap().unwrap(),
        "v"
    );
}

#[tokio::test]
async fn what_etcd_says_is_told_in_one_line_and_not_at_length() {
    let meddler = Meddler::alone(|_| {
        let words = "\u{1b}[31mno\n".repeat(10_000);
        Deed::Say(400, json!({ "code": 2, "message": words }))
    })
    .await;
    let opened = EtcdStore::open(&at(&[meddler.port], "a"), TEST_TIMEOUT).await;
    let told = opened.unwrap_err().to_string();
    assert!(told.len() < 1_000 && told.contains("no"), "{told}");
    assert!(!told.contains(char::is_control), "{told:?}");
}

#[tokio::test]
async fn a_line_without_an_end_is_not_kept_and_not_waited_for() {
    let Some(etcd) = Etcd::start(false) else {
        return;
    };
    let meddler = Meddler::before(etcd.port, |asked| {
        if !asked.is_for("/v3/watch") {
            return Deed::Pass;
        }
        let mut bytes = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n".to_vec();
        for _ in 0..=MAX_BODY >> 16 {
            bytes.extend_from_slice(b"10000\r\n");
            bytes.resize(bytes.len() + (1 << 16), b' ');
            bytes.extend_from_slice(b"\r\n");
        }
        Deed::Begin(bytes)
    })
    .await;
    let store = open(&[meddler.port], "a").await;
    let mut missing = vec!["k".to_owned()];
    let watching = store.watch_for(&mut missing, 1);
    tokio::time::timeout(TEST_TIMEOUT, watching)
        .await
        .unwrap()
        .unwrap();
    assert_eq!(missing, ["k"], "it is to look again");
}

#[tokio::test]
async fn a_token_from_before_a_change_of_users_is_replaced() {
    let Some(etcd) = Etcd::start(false) else {
        return;
    };
    let (has_changed, tokens) = (Arc::new(AtomicBool::new(false)), AtomicUsize::new(0));
    let changed = Arc::clone(&has_changed);
    let meddler = Meddler::before(etcd.port, move |asked| {
        if asked.is_for("/v3/auth/authenticate") {
            let token = tokens.fetch_add(1, Ordering::Relaxed).to_string();
            return Deed::Say(200, json!({ "token": token }));
        }
        // Tokens with a signature are of one state of all users, as etcd says in these words.
        let is_old = asked.token.as_deref() == Some("0") && changed.load(Ordering::Relaxed);
        let words = "etcdserver: revision of auth store is old";
        match is_old {
            true => Deed::Say(400, json!({ "code": 3, "message": words })),
            false => Deed::Pass,
        }
    })
    .await;
    let place = format!("etcd://w@127.0.0.1:{}/test/a", meddler.port);
    let store = EtcdStore::open(&place.parse().unwrap(), TEST_TIMEOUT)
        .await
        .unwrap();
    has_changed.store(true, Ordering::Relaxed);
    store.set("k", b"v").await.unwrap();
    assert_eq!(store.try_get("k").await.unwrap().unwrap(), "v");
}

#[tokio::test]
async fn a_wait_outlasts_a_watch_that_is_refused() {
    let Some(etcd) = Etcd::start(false) else {
        return;
    };
    let watches = AtomicUsize::new(0);
    let meddler = Meddler::before(etcd.port, move |asked| {
        if asked.is_for("/v3/watch") && watches.fetch_add(1, Ordering::Relaxed) == 0 {
            return Deed::Say(401, json!({ "code": 16, "message": "invalid auth token" }));
        }
        Deed::Pass
    })
    .await;
    let (store, other) = (open(&[meddler.port], "a").await, etcd.open("a").await);
    let (got, ()) = tokio::join!(store.get("k", TEST_TIMEOUT), async {
        sleep(SHORT).await;
        other.set("k", b"v").await.unwrap();
    });
    assert_eq!(got.unwrap(), "v");
}

/// Invariant 5: what a member that was hung gets to when nobody waits for it any more.
#[tokio::test]
async fn a_deletion_that_comes_late_takes_nothing_away_that_was_set_since() {
    let Some(etcd) = Etcd::start(false) else {
        return;
    };
    let held = Arc::<std::sync::Mutex<Option<serde_json::Value>>>::default();
    let holds = Arc::clone(&held);
    let meddler = Meddler::before(etcd.port, move |asked| {
        if !asked.deletes() {
            return Deed::Pass;
        }
        *holds.lock().unwrap() = Some(asked.body.clone());
        Deed::Begin(Vec::new())
    })
    .await;
    // Who comes first takes away what was there before.
    let (other, slow) = (etcd.open("a").await, open(&[meddler.port], "a").await);
    other.set("k", b"former").await.unwrap();
    let late = async {
        loop {
            if let Some(late) = held.lock().unwrap().take() {
                return late;
            }
            sleep(Duration::from_millis(1)).await;
        }
    };
    let late = tokio::select! {
        late = late => late,
        deleted = slow.delete("k") => panic!("{deleted:?}"),
    };
    other.set("k", b"since").await.unwrap();
    let mut member = Connection::open("127.0.0.1", etcd.port, None)
        .await
        .unwrap();
    let late = late.to_string();
    let answer = member.post("/v3/kv/txn", None, late.as_bytes());
    assert_eq!(answer.await.unwrap().status, 200);
    assert_eq!(other.try_get("k").await.unwrap().unwrap(), "since");
    assert!(other.delete("k").await.unwrap());
    assert!(!other.delete("k").await.unwrap());
}
