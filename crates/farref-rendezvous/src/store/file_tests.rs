//! A store in a file, and those who write it: crashed, slow, or not stores at all.

use std::path::{Path, PathBuf};
use std::time::Duration;

use farref_testkit::{Scratch, eventually};

use super::{FileStore, Store, StoreError};

const SHORT: Duration = Duration::from_millis(60);

#[tokio::test]
async fn a_crashed_writer_wedges_nobody() {
    let scratch = Scratch::new().unwrap();
    let path = scratch.path().join("store");
    // What is left of one that died while it wrote, with the lock in its hand.
    std::fs::write(path.with_extension("lock"), "").unwrap();
    std::fs::write(beside(&path, ".lock"), "12345").unwrap();
    std::fs::write(beside(&path, ".next"), "half of someth").unwrap();
    let store = FileStore::new(&path);
    store.set("k", b"v").await.unwrap();
    assert_eq!(store.try_get("k").await.unwrap().unwrap(), "v");
    assert!(!beside(&path, ".next").exists());
    assert_eq!(scratch.files().unwrap(), ["store", "store.lock"]);
}

#[tokio::test]
async fn a_dropped_operation_writes_nothing_from_then_on() {
    let scratch = Scratch::new().unwrap();
    let path = scratch.path().join("store");
    let store = FileStore::new(&path);
    store.set("k", b"1").await.unwrap();
    let lock = take_lock(&path);
    let writer = store.clone();
    let write = tokio::spawn(async move { writer.set("k", b"2").await });
    // This test, the task and its thread.
    let waits = eventually("the thread waits for the lock", || store.users() == 3);
    waits.await.unwrap();
    write.abort();
    assert!(write.await.unwrap_err().is_cancelled());
    drop(lock);
    let ends = eventually("the thread has ended", || store.users() == 1);
    ends.await.unwrap();
    assert_eq!(store.try_get("k").await.unwrap().unwrap(), "1");
}

#[tokio::test]
async fn a_live_lock_is_waited_for_and_a_removed_one_is_noticed() {
    let scratch = Scratch::new().unwrap();
    let path = scratch.path().join("store");
    let store = FileStore::new(&path);
    store.set("k", b"1").await.unwrap();
    let lock = take_lock(&path);
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
    let scratch = Scratch::new().unwrap();
    let text = "a letter to my grandmother";
    std::fs::write(scratch.path().join("store"), text).unwrap();
    let store = FileStore::new(scratch.path().join("store"));
    let error = store.set("k", b"v").await.unwrap_err();
    assert!(matches!(error, StoreError::BadFile { .. }), "{error}");
    assert_eq!(
        std::fs::read_to_string(scratch.path().join("store")).unwrap(),
        text
    );
    std::fs::write(scratch.path().join("store"), "").unwrap();
    store.set("k", b"v").await.unwrap();
    let nowhere = FileStore::new(scratch.path().join("store").join("below a file"));
    let error = nowhere.set("k", b"v").await.unwrap_err();
    assert!(matches!(error, StoreError::File { .. }), "{error}");
}

/// Takes the lock of the store, as a slow writer does, until the file is dropped.
fn take_lock(path: &Path) -> std::fs::File {
    let lock = std::fs::File::open(beside(path, ".lock")).unwrap();
    rustix::fs::flock(&lock, rustix::fs::FlockOperation::LockExclusive).unwrap();
    lock
}

fn beside(path: &Path, suffix: &str) -> PathBuf {
    let mut path = path.as_os_str().to_owned();
    path.push(suffix);
    path.into()
}
