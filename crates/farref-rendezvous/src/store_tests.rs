//! The laws that hold for every store, whatever it is made of.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use super::open::open;
use super::store::{Store, StoreError};
use super::{FileStore, MemoryStore, Rendezvous, StoreDialect, StoreServer, TcpStoreClient};

const SOON: Duration = Duration::from_secs(10);
const SHORT: Duration = Duration::from_millis(60);

/// A directory of its own for a test, removed with all that is in it.
pub(super) struct Scratch(PathBuf);

impl Scratch {
    pub(super) fn new() -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let name = format!("farref-rendezvous-{}-{number}", std::process::id());
        let path = std::env::temp_dir().join(name);
        std::fs::create_dir(&path).unwrap();
        Self(path)
    }

    pub(super) fn file(&self) -> PathBuf {
        self.0.join("store")
    }

    /// What is in the directory, sorted.
    fn files(&self) -> Vec<String> {
        let mut files: Vec<_> = std::fs::read_dir(&self.0)
            .unwrap()
            .map(|file| file.unwrap().file_name().into_string().unwrap())
            .collect();
        files.sort();
        files
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        std::fs::remove_dir_all(&self.0).unwrap();
        assert!(!self.0.exists());
    }
}

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

#[tokio::test]
async fn a_crashed_writer_wedges_nobody() {
    let scratch = Scratch::new();
    let path = scratch.file();
    // What is left of one that died while it wrote, with the lock in its hand.
    std::fs::write(path.with_extension("lock"), "").unwrap();
    std::fs::write(beside(&path, ".lock"), "12345").unwrap();
    std::fs::write(beside(&path, ".next"), "half of someth").unwrap();
    let store = FileStore::new(&path);
    store.set("k", b"v").await.unwrap();
    assert_eq!(store.try_get("k").await.unwrap().unwrap(), "v");
    assert!(!beside(&path, ".next").exists());
    assert_eq!(scratch.files(), ["store", "store.lock"]);
}

#[tokio::test]
async fn a_live_lock_is_waited_for_and_a_removed_one_is_noticed() {
    let scratch = Scratch::new();
    let path = scratch.file();
    let store = FileStore::new(&path);
    store.set("k", b"1").await.unwrap();
    let lock = std::fs::File::open(beside(&path, ".lock")).unwrap();
    rustix::fs::flock(&lock, rustix::fs::FlockOperation::LockExclusive).unwrap();
    let writer = store.clone();
    let write = tokio::spawn(async move { writer.set("k", b"2").await });
    tokio::time::sleep(SHORT).await;
    assert!(!write.is_finished());
    assert_eq!(
        store.try_get("k").await.unwrap().unwrap(),
        "1",
        "readers need no lock"
    );
    // Somebody cleans up: the lock we hold is not the lock any more.
    std::fs::remove_file(beside(&path, ".lock")).unwrap();
    write.await.unwrap().unwrap();
    assert_eq!(store.try_get("k").await.unwrap().unwrap(), "2");
    drop(lock);
}

#[tokio::test]
async fn a_file_that_is_no_store_is_left_as_it_is() {
    let scratch = Scratch::new();
    let text = "a letter to my grandmother";
    std::fs::write(scratch.file(), text).unwrap();
    let store = FileStore::new(scratch.file());
    let error = store.set("k", b"v").await.unwrap_err();
    assert!(matches!(error, StoreError::BadFile { .. }), "{error}");
    assert_eq!(std::fs::read_to_string(scratch.file()).unwrap(), text);
    std::fs::write(scratch.file(), "").unwrap();
    store.set("k", b"v").await.unwrap();
    let nowhere = FileStore::new(scratch.file().join("below a file"));
    let error = nowhere.set("k", b"v").await.unwrap_err();
    assert!(matches!(error, StoreError::File { .. }), "{error}");
}

#[tokio::test]
async fn a_rendezvous_opens_the_store_it_names() {
    let scratch = Scratch::new();
    let free = StoreServer::bind("127.0.0.1:0").await.unwrap();
    let port = free.local_addr().port();
    free.close().await;
    for host in ["127.0.0.1", "localhost", "0.0.0.0"] {
        let at: Rendezvous = format!("tcp://{host}:{port}").parse().unwrap();
        let hosted = open(&at, true, SOON).await.unwrap();
        let used = open(&at, false, SOON).await.unwrap();
        assert!(hosted.server.is_some() && used.server.is_none());
        hosted.store.set("k", b"v").await.unwrap();
        assert_eq!(used.store.try_get("k").await.unwrap().unwrap(), "v");
        let taken = open(&at, true, SOON).await.unwrap_err().to_string();
        assert!(taken.contains("another process"), "{taken}");
        drop(used);
        hosted.server.unwrap().close().await;
    }
    let at = Rendezvous::File(scratch.file());
    let opened = open(&at, true, SOON).await.unwrap();
    assert!(opened.server.is_none());
    opened.store.set("k", b"v").await.unwrap();
}

fn beside(path: &Path, suffix: &str) -> PathBuf {
    let mut path = path.as_os_str().to_owned();
    path.push(suffix);
    path.into()
}
