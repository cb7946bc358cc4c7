//! A store in a file that all workers can reach, for hosts that share a file system.
//!
//! The whole contents are one file that is replaced at every change (written beside it, then
//! renamed), so a reader needs no lock and never sees half a change. Writers take turns by a lock on
//! a second file, `<path>.lock`. The kernel releases that lock when its holder ends, however it
//! ends; the file itself stays and means nothing.

use std::collections::BTreeMap;
use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use bytes::Bytes;
use rustix::fs::{FlockOperation, flock};
use tokio::time::{Instant, sleep};

use super::error::StoreError;
use super::limits::{MAX_KEY, MAX_KEYS, MAX_VALUE, check_size, end_of};
use super::{Store, StoreFuture};

/// The file starts with this; the last byte is the version of the format.
const MAGIC: &[u8; 8] = b"farrefS\x01";
/// How large the file may become.
const LIMIT: usize = 64 << 20;
/// How long a writer waits for its turn if no other writes meanwhile.
const LOCK: Duration = Duration::from_secs(10);
/// How long a writer waits for its turn at most.
const LOCK_UNDER_LOAD: Duration = Duration::from_secs(60);
const FIRST_PAUSE: Duration = Duration::from_millis(2);
const LONGEST_PAUSE: Duration = Duration::from_millis(200);

type Contents = BTreeMap<String, Vec<u8>>;

/// A store in a shared file. Clones, and stores opened on the same path, share their contents.
///
/// The file outlives the group: start every group with a file that does not exist yet, or with a
/// prefix of its own.
///
/// ```
/// use farref_rendezvous::{FileStore, Store};
///
/// # #[tokio::main]
/// # async fn main() -> Result<(), farref_rendezvous::StoreError> {
/// let path = std::env::temp_dir().join(format!("farref-file-store-{}", std::process::id()));
/// let one = FileStore::new(&path);
/// let two = FileStore::new(&path); // in another process, or on another host
/// one.set("key", b"value").await?;
/// assert_eq!(two.try_get("key").await?.as_deref(), Some(&b"value"[..]));
/// # for end in ["", ".lock", ".next"] {
/// #     let _ = std::fs::remove_file(format!("{}{end}", path.display()));
/// # }
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct FileStore {
    paths: Arc<Paths>,
}

#[derive(Debug)]
struct Paths {
    data: PathBuf,
    /// Where the next contents are written. Only the holder of the lock does that, so what a
    /// crashed writer left there is in nobody's way.
    next: PathBuf,
    lock: PathBuf,
}

impl FileStore {
    /// A store in the file at `path`, which need not exist yet; its directory must.
    ///
    /// ```
    /// use farref_rendezvous::{FileStore, Store, StoreError};
    ///
    /// # #[tokio::main]
    /// # async fn main() -> Result<(), farref_rendezvous::StoreError> {
    /// // What is wrong with the path is found out when it is first used.
    /// let store = FileStore::new("/no/such/directory/store");
    /// assert!(matches!(store.set("key", b"").await, Err(StoreError::File { .. })));
    /// # Ok(())
    /// # }
    /// ```
    pub fn new(path: impl Into<PathBuf>) -> Self {
        let data = path.into();
        let beside = |suffix| {
            let mut path = data.clone().into_os_string();
            path.push(suffix);
            PathBuf::from(path)
        };
        let paths = Paths {
            next: beside(".next"),
            lock: beside(".lock"),
            data,
        };
        Self {
            paths: Arc::new(paths),
        }
    }

    /// How many handles and threads use the store.
    #[cfg(test)]
    pub(super) fn users(&self) -> usize {
        Arc::strong_count(&self.paths)
    }

    /// Reads without a lock, on a thread that may block.
    async fn read<T: Send + 'static>(
        &self,
        look: impl FnOnce(&Contents) -> T + Send + 'static,
    ) -> Result<T, StoreError> {
        let paths = self.paths.clone();
        blocking(move || Ok(look(&paths.load()?))).await
    }

    /// Runs `change` under the lock. What it returns as its second result says whether to write.
    ///
    /// Dropping the future before its end keeps the file as it is. The thread cannot be stopped,
    /// and its later write might come into a file that another group has begun.
    async fn change<T: Send + 'static>(
        &self,
        change: impl FnOnce(&mut Contents) -> Result<(T, bool), StoreError> + Send + 'static,
    ) -> Result<T, StoreError> {
        let paths = self.paths.clone();
        let abandonment = Abandonment::default();
        let is_abandoned = Arc::clone(&abandonment.0);
        blocking(move || {
            let _lock = paths.lock()?;
            let mut contents = paths.load()?;
            let (result, changed) = change(&mut contents)?;
            if changed && !is_abandoned.load(Ordering::Relaxed) {
                paths.save(&contents)?;
            }
            Ok(result)
        })
        .await
    }

    async fn wait_until(&self, keys: &[String], end: Instant) -> Result<(), StoreError> {
        check_size("list of keys", keys.len(), MAX_KEYS)?;
        let began = Instant::now();
        let mut missing = keys.to_vec();
        let mut pause = FIRST_PAUSE;
        loop {
            // A key counts as soon as it has been seen, like at the other stores.
            missing = self
                .read(move |contents| {
                    missing.retain(|key| !contents.contains_key(key));
                    missing
                })
                .await?;
            if missing.is_empty() {
                return Ok(());
            }
            if Instant::now() >= end {
                let waited = began.elapsed();
                return Err(StoreError::Timeout { missing, waited });
            }
            sleep(pause.min(end - Instant::now())).await;
            pause = (pause * 2).min(LONGEST_PAUSE);
        }
    }
}

impl Store for FileStore {
    fn set<'a>(&'a self, key: &'a str, value: &'a [u8]) -> StoreFuture<'a, ()> {
        Box::pin(async move {
            let (key, value) = (checked_key(key)?, checked_value(value)?);
            self.change(move |contents| {
                contents.insert(key, value);
                Ok(((), true))
            })
            .await
        })
    }

    fn try_get<'a>(&'a self, key: &'a str) -> StoreFuture<'a, Option<Bytes>> {
        Box::pin(async move {
            let key = checked_key(key)?;
            self.read(move |contents| {
                contents
                    .get(&key)
                    .map(|value| Bytes::copy_from_slice(value))
            })
            .await
        })
    }

    fn add<'a>(&'a self, key: &'a str, delta: i64) -> StoreFuture<'a, i64> {
        Box::pin(async move {
            let key = checked_key(key)?;
            self.change(move |contents| {
                let sum = match contents.get(&key) {
                    None => Some(delta),
                    Some(value) => std::str::from_utf8(value)
                        .ok()
                        .and_then(|text| text.parse::<i64>().ok())
                        .and_then(|number| number.checked_add(delta)),
                };
                let Some(sum) = sum else {
                    return Err(StoreError::NotANumber { key });
                };
                contents.insert(key, sum.to_string().into_bytes());
                Ok((sum, true))
            })
            .await
        })
    }

    fn compare_set<'a>(
        &'a self,
        key: &'a str,
        expected: &'a [u8],
        desired: &'a [u8],
    ) -> StoreFuture<'a, Bytes> {
        Box::pin(async move {
            let key = checked_key(key)?;
            let (expected, desired) = (checked_value(expected)?, checked_value(desired)?);
            self.change(move |contents| {
                match contents.get(&key) {
                    Some(value) if *value != expected => {
                        return Ok((Bytes::copy_from_slice(value), false));
                    }
                    None if !expected.is_empty() => return Ok((Bytes::from(expected), false)),
                    _ => {}
                }
                contents.insert(key, desired.clone());
                Ok((Bytes::from(desired), true))
            })
            .await
        })
    }

    fn delete<'a>(&'a self, key: &'a str) -> StoreFuture<'a, bool> {
        Box::pin(async move {
            let key = checked_key(key)?;
            self.change(move |contents| {
                let deleted = contents.remove(&key).is_some();
                Ok((deleted, deleted))
            })
            .await
        })
    }

    fn wait<'a>(&'a self, keys: &'a [String], deadline: Duration) -> StoreFuture<'a, ()> {
        Box::pin(self.wait_until(keys, end_of(deadline)))
    }
}

/// What stands in a file.
fn contents(bytes: &[u8]) -> Result<Contents, String> {
    let Some(encoded) = bytes.strip_prefix(MAGIC) else {
        return Err("it does not begin as one does".into());
    };
    postcard::from_bytes(encoded).map_err(|error| error.to_string())
}

/// For fuzzers: what somebody has written into the file.
#[cfg(any(test, feature = "fuzzing"))]
pub fn store_file(data: &[u8]) {
    drop(contents(data));
    drop(contents(&[MAGIC, data].concat()));
}

impl Paths {
    fn load(&self) -> Result<Contents, StoreError> {
        let failed = |source| failed("read", &self.data, source);
        let bad = |reason: String| StoreError::BadFile {
            path: self.data.clone(),
            reason,
        };
        match fs::metadata(&self.data) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Contents::new()),
            Err(error) => return Err(failed(error)),
            Ok(found) if !found.is_file() => return Err(bad("it is not a file".into())),
            Ok(found) if found.len() > LIMIT as u64 => return Err(bad("it is too large".into())),
            // Launchers like to make the file with `mktemp`.
            Ok(found) if found.len() == 0 => return Ok(Contents::new()),
            Ok(_) => {}
        }
        let bytes = fs::read(&self.data).map_err(failed)?;
        contents(&bytes).map_err(bad)
    }

    fn save(&self, contents: &Contents) -> Result<(), StoreError> {
        let bytes = postcard::to_extend(contents, MAGIC.to_vec())
            .map_err(|error| failed("encode", &self.next, io::Error::other(error.to_string())))?;
        if bytes.len() > LIMIT {
            return Err(StoreError::Full { limit: LIMIT });
        }
        fs::write(&self.next, bytes).map_err(|source| failed("write", &self.next, source))?;
        fs::rename(&self.next, &self.data).map_err(|source| failed("replace", &self.data, source))
    }

    /// Waits for the lock; closing the file gives it back.
    fn lock(&self) -> Result<File, StoreError> {
        let began = std::time::Instant::now();
        let mut changed = began;
        let mut version = None; // looked at only if the lock is taken
        let mut pause = FIRST_PAUSE;
        loop {
            let mut options = OpenOptions::new();
            options.create(true).truncate(false).write(true);
            let file = options
                .open(&self.lock)
                .map_err(|source| failed("open", &self.lock, source))?;
            match flock(&file, FlockOperation::NonBlockingLockExclusive) {
                Ok(()) if self.is_current(&file) => return Ok(file),
                // Somebody removed the file we have locked: others lock another one by now.
                Ok(()) => continue,
                Err(rustix::io::Errno::WOULDBLOCK | rustix::io::Errno::INTR) => {}
                Err(error) => return Err(failed("lock", &self.lock, error.into())),
            }
            // Under load, others may come first for a long time. As long as they write, none of them
            // is stopped.
            let now = self.version();
            if now != version {
                (version, changed) = (now, std::time::Instant::now());
            }
            if changed.elapsed() > LOCK || began.elapsed() > LOCK_UNDER_LOAD {
                return Err(StoreError::Locked {
                    path: self.lock.clone(),
                    waited: began.elapsed(),
                });
            }
            std::thread::sleep(pause);
            pause = (pause * 2).min(LONGEST_PAUSE / 4);
        }
    }

    /// Differs after each [`save`](Self::save).
    fn version(&self) -> Option<(u64, i64, i64)> {
        let found = fs::metadata(&self.data).ok()?;
        Some((found.ino(), found.ctime(), found.ctime_nsec()))
    }

    fn is_current(&self, file: &File) -> bool {
        match (file.metadata(), fs::metadata(&self.lock)) {
            (Ok(ours), Ok(found)) => (ours.dev(), ours.ino()) == (found.dev(), found.ino()),
            _ => false,
        }
    }
}

/// Tells a blocking operation that its future was dropped.
#[derive(Default)]
struct Abandonment(Arc<AtomicBool>);

impl Drop for Abandonment {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, StoreError> + Send + 'static,
) -> Result<T, StoreError> {
    match tokio::task::spawn_blocking(work).await {
        Ok(result) => result,
        Err(error) => match error.try_into_panic() {
            Ok(panic) => std::panic::resume_unwind(panic),
            // The runtime is shutting down.
            Err(error) => Err(failed("use", Path::new(""), io::Error::other(error))),
        },
    }
}

fn failed(doing: &'static str, path: &Path, source: io::Error) -> StoreError {
    StoreError::File {
        doing,
        path: path.to_owned(),
        source,
    }
}

fn checked_key(key: &str) -> Result<String, StoreError> {
    check_size("key", key.len(), MAX_KEY)?;
    Ok(key.to_owned())
}

fn checked_value(value: &[u8]) -> Result<Vec<u8>, StoreError> {
    check_size("value", value.len(), MAX_VALUE)?;
    Ok(value.to_vec())
}
