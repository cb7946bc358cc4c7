//! Eras that end, and others that begin, while somebody comes or is away.

use std::sync::atomic::{AtomicBool, Ordering};

use tokio::sync::Notify;

use super::faults::{at, count};
use super::meddler::{Asked, Deed, Meddler};
use super::*;

/// Nobody looks after such a lease within a test.
const LONG: &str = "a?ttl=600";

/// Keeps the first request back that is like this, until something has happened.
struct Holder {
    meddler: Meddler,
    was_asked: Arc<Notify>,
    told: Arc<Notify>,
}

impl Holder {
    async fn before(etcd: &Etcd, is_held: impl Fn(&Asked) -> bool + Send + Sync + 'static) -> Self {
        let (was_asked, told) = (Arc::new(Notify::new()), Arc::new(Notify::new()));
        let (asks, tell, has_held) = (was_asked.clone(), told.clone(), AtomicBool::new(false));
        let meddler = Meddler::before(etcd.port, move |asked| {
            if !is_held(asked) || has_held.swap(true, Ordering::Relaxed) {
                return Deed::Pass;
            }
            asks.notify_one();
            Deed::PassWhenTold(Arc::clone(&tell))
        })
        .await;
        Self {
            meddler,
            was_asked,
            told,
        }
    }

    /// Does something, and something else while a request of that is held.
    async fn during<A, B>(
        &self,
        work: impl Future<Output = A>,
        other: impl Future<Output = B>,
    ) -> (A, B) {
        let meanwhile = async {
            self.was_asked.notified().await;
            let done = other.await;
            self.told.notify_one();
            done
        };
        let both = async { tokio::join!(work, meanwhile) };
        tokio::time::timeout(TEST_TIMEOUT, both).await.unwrap()
    }

    async fn open(&self) -> EtcdStore {
        let place = at(&[self.meddler.port], "a");
        EtcdStore::open(&place, TEST_TIMEOUT).await.unwrap()
    }
}

async fn assert_together(one: &EtcdStore, other: &EtcdStore) {
    one.set("here", b"both").await.unwrap();
    assert_eq!(other.try_get("here").await.unwrap().unwrap(), "both");
}

/// As if nothing had been heard of it for long.
async fn lose_lease(user: &EtcdStore) -> i64 {
    let lease = user.era.lease().await.unwrap();
    let end = Instant::now() + TEST_TIMEOUT;
    user.era.gateway().revoke(lease, end).await.unwrap();
    lease
}

/// Invariant 2.
#[tokio::test]
async fn of_two_who_find_an_era_over_one_enters_what_the_other_begins() {
    let Some(etcd) = Etcd::start(false) else {
        return;
    };
    etcd.open("a").await.leave().await.unwrap();
    let holder = Holder::before(&etcd, Asked::writes).await;
    let (late, early) = holder.during(holder.open(), etcd.open("a")).await;
    assert_together(&early, &late).await;
}

/// Invariant 2.
#[tokio::test]
async fn who_is_about_to_enter_an_era_that_ends_is_in_the_next_one() {
    let Some(etcd) = Etcd::start(false) else {
        return;
    };
    let former = etcd.open("a").await;
    let holder = Holder::before(&etcd, Asked::writes).await;
    let next = async {
        former.leave().await.unwrap();
        etcd.open("a").await
    };
    let (late, early) = holder.during(holder.open(), next).await;
    assert_together(&early, &late).await;
}

/// Invariant 2.
#[tokio::test]
async fn an_era_whose_last_member_is_back_in_time_goes_on() {
    let Some(etcd) = Etcd::start(false) else {
        return;
    };
    let member = etcd.open(LONG).await;
    member.settle().await.unwrap();
    let lost = lose_lease(&member).await;
    let holder = Holder::before(&etcd, Asked::writes).await;
    let (guest, back) = holder
        .during(holder.open(), member.era.renew(Some(lost)))
        .await;
    back.unwrap();
    assert_together(&member, &guest).await;
}

/// Invariant 3.
#[tokio::test]
async fn who_comes_back_after_others_have_begun_anew_does_not_take_their_place() {
    let Some(etcd) = Etcd::start(false) else {
        return;
    };
    let former = etcd.open(LONG).await;
    former.settle().await.unwrap();
    let lost = lose_lease(&former).await;
    let next = etcd.open(LONG).await;
    let ended = former.era.renew(Some(lost)).await.unwrap_err();
    assert!(matches!(ended, StoreError::Ended { .. }), "{ended}");
    assert_together(&next, &etcd.open(LONG).await).await;
    // Nothing is kept of what is over.
    assert_eq!(count(&etcd, &former.era.part("")).await, 0);
}

/// Invariant 3.
#[tokio::test]
async fn a_lease_that_several_find_lost_is_replaced_by_one() {
    let Some(etcd) = Etcd::start(false) else {
        return;
    };
    let user = etcd.open(LONG).await;
    let lost = Some(lose_lease(&user).await);
    let (one, other) = tokio::join!(user.era.renew(lost), user.era.renew(lost));
    assert_eq!(one.unwrap(), other.unwrap());
    assert_eq!(count(&etcd, &user.era.part("here/")).await, 1);
}

/// Invariant 3.
#[tokio::test]
async fn what_is_set_while_here_is_set_with_the_lease_that_replaces_a_lost_one() {
    let Some(etcd) = Etcd::start(false) else {
        return;
    };
    let (user, other) = (etcd.open(LONG).await, etcd.open(LONG).await);
    lose_lease(&user).await;
    let set = user.compare_set_while_here("card", b"", b"me").await;
    assert_eq!(set.unwrap(), "me");
    lose_lease(&user).await;
    assert_eq!(other.try_get("card").await.unwrap(), None);
}

#[tokio::test]
async fn what_is_set_while_a_list_is_looked_through_is_not_missed() {
    let Some(etcd) = Etcd::start(false) else {
        return;
    };
    let keys: Vec<String> = (0..=KEYS_AT_ONCE).map(|key| key.to_string()).collect();
    let (first, other) = (keys[0].clone(), etcd.open("a").await);
    // The last one is looked for by itself.
    let holder = Holder::before(&etcd, |asked| {
        let looked_for = asked.body["success"].as_array();
        looked_for
            .is_some_and(|list| list.len() == 1 && list[0]["request_range"]["count_only"] == true)
    })
    .await;
    let store = holder.open().await;
    let (found, set) = holder
        .during(store.missing(&keys), other.set(&first, b"v"))
        .await;
    set.unwrap();
    let (missing, revision) = found.unwrap();
    assert_eq!(missing, keys);
    let mut awaited = vec![first];
    let watching = store.watch_for(&mut awaited, revision);
    tokio::time::timeout(TEST_TIMEOUT, watching)
        .await
        .unwrap()
        .unwrap();
    assert!(awaited.is_empty());
}

/// Invariant 5.
#[tokio::test]
async fn who_does_not_hear_whether_a_key_was_deleted_is_not_told_that_it_was_not_there() {
    let Some(etcd) = Etcd::start(false) else {
        return;
    };
    let has_closed = AtomicBool::new(false);
    let meddler = Meddler::before(etcd.port, move |asked| {
        match asked.deletes() && !has_closed.swap(true, Ordering::Relaxed) {
            true => Deed::PassAndClose,
            false => Deed::Pass,
        }
    })
    .await;
    let other = etcd.open("a").await;
    other.set("k", b"v").await.unwrap();
    let store = EtcdStore::open(&at(&[meddler.port], "a"), TEST_TIMEOUT)
        .await
        .unwrap();
    let deleted = store.delete("k").await.unwrap_err();
    assert!(deleted.is_passing(), "{deleted}");
    assert_eq!(other.try_get("k").await.unwrap(), None);
}
