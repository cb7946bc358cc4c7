//! The laws that hold for every store, whatever it is made of.

use std::sync::Arc;
use std::time::Duration;

use super::{FileStore, MemoryStore, Store, StoreDialect, StoreError, StoreServer, TcpStoreClient};
use crate::scratch::Scratch;

const SOON: Duration = Duration::from_secs(10);
const SHORT: Duration = Duration::from_millis(60);

/// Runs `law` on every kind of store. `other` is a second way into the same store.
async fn for_every_store<F>(law: impl Fn(Arc<dyn Store>, Arc<dyn Store>) -> F)
where
    F: Future<Output = ()>,
{
    let memory = MemoryStore::new();
    law(Arc::new(memory.clone()), Arc::new(memory)).await;

    let scratch = Scratch::new();
    let file = || Arc::new(FileStore::new(scratch.file()));
    law(file(), file()).await;

    let server = StoreServer::bind("127.0.0.1:0").await.unwrap();
    let port = server.local_addr().port();
    let client = || TcpStoreClient::connect("127.0.0.1", port, SOON);
    let (one, other) = (client().await.unwrap(), client().await.unwrap());
    law(Arc::new(one), Arc::new(other)).await;

    // As PyTorch 1.13 speaks.
    let server = StoreServer::bind("127.0.0.1:0").await.unwrap();
    let port = server.local_addr().port();
    let client = || TcpStoreClient::connect_as(StoreDialect::Old, "127.0.0.1", port, SOON);
    let (one, other) = (client().await.unwrap(), client().await.unwrap());
    law(Arc::new(one), Arc::new(other)).await;
}

#[tokio::test]
async fn what_is_set_is_seen_by_others_until_it_is_deleted() {
    for_every_store(|store, other| async move {
        assert_eq!(store.try_get("k").await.unwrap(), None);
        for value in [&b"first"[..], b"", &[0, 255, 7]] {
            store.set("k", value).await.unwrap();
            assert_eq!(other.try_get("k").await.unwrap().unwrap(), value);
            assert_eq!(other.get("k", Duration::ZERO).await.unwrap(), value);
        }
        assert!(other.delete("k").await.unwrap());
        assert!(!store.delete("k").await.unwrap());
        assert_eq!(store.try_get("k").await.unwrap(), None);
    })
    .await;
}

#[tokio::test]
async fn a_value_is_replaced_only_if_it_is_the_expected_one() {
    for_every_store(|store, other| async move {
        assert_eq!(store.compare_set("k", b"x", b"y").await.unwrap(), "x");
        assert_eq!(store.try_get("k").await.unwrap(), None, "nothing was set");
        assert_eq!(store.compare_set("k", b"", b"a").await.unwrap(), "a");
        assert_eq!(other.compare_set("k", b"", b"b").await.unwrap(), "a");
        assert_eq!(other.compare_set("k", b"a", b"b").await.unwrap(), "b");
        assert_eq!(store.try_get("k").await.unwrap().unwrap(), "b");
    })
    .await;
}

#[tokio::test]
async fn no_addition_is_lost_and_a_text_is_not_added_to() {
    for_every_store(|store, other| async move {
        let mut tasks = Vec::new();
        for task in 0..8 {
            let store = if task % 2 == 0 {
                store.clone()
            } else {
                other.clone()
            };
            tasks.push(tokio::spawn(async move {
                let mut sums = Vec::new();
                for _ in 0..10 {
                    sums.push(store.add("n", 1).await.unwrap());
                }
                sums
            }));
        }
        let mut sums = Vec::new();
        for task in tasks {
            sums.extend(task.await.unwrap());
        }
        sums.sort();
        assert_eq!(sums, (1..=80).collect::<Vec<_>>());
        assert_eq!(store.add("n", -81).await.unwrap(), -1);
        assert_eq!(store.try_get("n").await.unwrap().unwrap(), "-1");
        store.set("text", b"words").await.unwrap();
        assert!(store.add("text", 1).await.is_err());
        assert_eq!(other.try_get("text").await.unwrap().unwrap(), "words");
    })
    .await;
}

#[tokio::test]
async fn a_wait_ends_when_the_last_key_comes_and_others_go_on_meanwhile() {
    for_every_store(|store, other| async move {
        let waiting = store.clone();
        let keys = ["a".to_owned(), "b".to_owned()];
        let wait = tokio::spawn(async move { waiting.wait(&keys, SOON).await });
        let getting = store.clone();
        let get = tokio::spawn(async move { getting.get("b", SOON).await });
        tokio::time::sleep(SHORT).await;
        // Through the same store as those who wait.
        store.set("a", b"1").await.unwrap();
        tokio::time::sleep(SHORT).await;
        assert!(!wait.is_finished() && !get.is_finished());
        other.compare_set("b", b"", b"2").await.unwrap();
        wait.await.unwrap().unwrap();
        assert_eq!(get.await.unwrap().unwrap(), "2");
    })
    .await;
}

#[tokio::test]
async fn a_wait_in_vain_names_the_missing_keys() {
    for_every_store(|store, _| async move {
        store.set("here", b"").await.unwrap();
        let keys = ["here", "gone", "away"].map(str::to_owned);
        match store.wait(&keys, SHORT).await {
            Err(StoreError::Timeout { missing, waited }) => {
                assert_eq!(missing, ["gone", "away"]);
                assert!(waited >= SHORT);
            }
            other => panic!("{other:?}"),
        }
        let error = store.get("nothing", SHORT).await.unwrap_err();
        assert!(error.to_string().contains("`nothing`"), "{error}");
        store.wait(&[], Duration::ZERO).await.unwrap();
    })
    .await;
}

#[tokio::test]
async fn what_is_too_large_is_refused_and_names_the_limit() {
    for_every_store(|store, _| async move {
        let error = store.set(&"k".repeat(9000), b"").await.unwrap_err();
        assert!(
            matches!(error, StoreError::TooLarge { what: "key", .. }),
            "{error}"
        );
        let error = store.set("k", &vec![0; (8 << 20) + 1]).await.unwrap_err();
        assert!(
            matches!(error, StoreError::TooLarge { what: "value", .. }),
            "{error}"
        );
        store.set("k", b"still works").await.unwrap();
    })
    .await;
}
