//! The token that the launcher makes for a group, and how whoever looks on comes by it.
//!
//! The ranks find it in their environment. Commands that look into the group are started by hand, elsewhere, and find it in a
//! file that only this user can read, under the address where the group meets; as Jupyter does it. The file is locked for
//! as long as its group is there, so what a launcher that was killed has left behind counts for nothing, and the next one removes it.

use std::fmt;
use std::fs::{File, OpenOptions};
use std::io::{self, Read as _, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context as _, anyhow};
use ring::rand::{SecureRandom as _, SystemRandom};
use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;

use crate::folder;

/// The variable that has a group's token.
pub const VARIABLE: &str = "FARREF_TOKEN";
/// How its file ends.
const KIND: &str = "token";
/// So many random bytes.
const BYTES: usize = 32;
/// How long who looks for a token may have it locked, and how often it is waited for.
const LOOK: Duration = Duration::from_millis(20);
const LOOKS: u32 = 10;

/// A group's secret.
#[derive(Clone)]
pub struct GroupToken(String);

impl GroupToken {
    /// One that nobody can guess.
    pub fn make() -> anyhow::Result<Self> {
        let mut bytes = [0; BYTES];
        let filled = SystemRandom::new().fill(&mut bytes);
        filled.map_err(|_| anyhow!("the system has no random numbers for the group's token"))?;
        Ok(Self(
            bytes.iter().map(|byte| format!("{byte:02x}")).collect(),
        ))
    }

    /// What the workers of the group prove to each other that they know.
    pub fn secret(&self) -> &str {
        &self.0
    }

    /// Puts it where commands of this user find it that look into the group that meets there.
    pub fn publish(&self, host: &str, port: u16) -> anyhow::Result<PublishedToken> {
        let kept = folder::path().display().to_string();
        let published = || {
            let all = folder::make()?;
            // Until the file is locked, nobody may take it for one that was left behind.
            let alone = File::open(&all)?;
            // Not every file system has locks.
            let _ = flock(&alone, FlockOperation::LockExclusive);
            remove_left_behind(&all);
            let path = all.join(folder::name(host, port, KIND));
            let mut file = OpenOptions::new()
                .write(true)
                .create(true)
                .truncate(false)
                .mode(0o600)
                .open(&path)?;
            lock(&file, || std::thread::sleep(LOOK))?;
            file.set_len(0)?;
            file.write_all(self.0.as_bytes())?;
            Ok::<_, io::Error>(PublishedToken { path, _file: file })
        };
        published().with_context(|| format!("cannot keep the group's token in {kept}"))
    }
}

/// Locks a token's file for its group. Who looks for a token has it locked for a moment, which is waited for.
fn lock(file: &File, mut wait: impl FnMut()) -> io::Result<()> {
    for _ in 0..LOOKS {
        match flock(file, FlockOperation::NonBlockingLockExclusive) {
            Err(Errno::WOULDBLOCK) => wait(),
            locked => return Ok(locked?),
        }
    }
    Ok(flock(file, FlockOperation::NonBlockingLockExclusive)?)
}

/// Removes the files of launchers that were killed. Nobody else makes one meanwhile.
fn remove_left_behind(all: &Path) {
    let Ok(entries) = std::fs::read_dir(all) else {
        return;
    };
    for entry in entries.flatten() {
        let path = entry.path();
        let is_token = path.extension().is_some_and(|extension| extension == KIND);
        let is_stale = |file: File| flock(&file, FlockOperation::NonBlockingLockExclusive).is_ok();
        if is_token && File::open(&path).is_ok_and(is_stale) {
            let _ = std::fs::remove_file(path);
        }
    }
}

impl fmt::Debug for GroupToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("(hidden)")
    }
}

/// A token in its file, which goes with this.
#[derive(Debug)]
pub struct PublishedToken {
    path: PathBuf,
    /// Keeps it locked.
    _file: File,
}

impl Drop for PublishedToken {
    fn drop(&mut self) {
        // Somebody may have cleaned up.
        let _ = std::fs::remove_file(&self.path);
    }
}

/// The token of the environment, if it has one.
pub fn from_environment() -> Option<String> {
    as_workers_take_it(&std::env::var(VARIABLE).ok()?)
}

/// Without what stands around it: the end of a line, where it is out of a file.
fn as_workers_take_it(token: &str) -> Option<String> {
    let token = token.trim();
    (!token.is_empty()).then(|| token.to_owned())
}

/// The token of the group that meets at an address, if a launcher of this user has made it.
pub fn find(address: &str) -> Option<String> {
    let mut file = File::open(folder::find(address, KIND)?).ok()?;
    let mut token = String::new();
    file.read_to_string(&mut token).ok()?;
    // Nobody keeps it locked: its group is gone.
    let is_stale = flock(&file, FlockOperation::NonBlockingLockShared).is_ok();
    (!is_stale && !token.is_empty()).then_some(token)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_two_tokens_are_alike_and_none_is_in_a_log() -> anyhow::Result<()> {
        let (one, other) = (GroupToken::make()?, GroupToken::make()?);
        assert_ne!(one.secret(), other.secret());
        assert_eq!(one.secret().len(), 2 * BYTES);
        assert!(!format!("{one:?}").contains(one.secret()));
        Ok(())
    }

    #[test]
    fn a_token_is_found_for_as_long_as_its_group_is_there() -> anyhow::Result<()> {
        let token = GroupToken::make()?;
        // A port that no group of a test has.
        let published = token.publish("127.0.0.1", 1)?;
        for address in ["127.0.0.1:1", "localhost:1", "[::1]:1", "tcp://127.0.0.1:1"] {
            assert_eq!(find(address).as_deref(), Some(token.secret()), "{address}");
        }
        for address in ["127.0.0.1:2", "10.0.0.1:1", "unix:x", "file:///x", ""] {
            assert_eq!(find(address), None, "{address}");
        }
        // As if the launcher had been killed.
        let left = std::fs::read(&published.path)?;
        let path = published.path.clone();
        drop(published);
        assert!(!path.exists());
        std::fs::write(&path, left)?;
        assert_eq!(find("127.0.0.1:1"), None, "nobody keeps it");
        // Somebody who looks at it at this moment is waited for.
        let mut looking = Some(File::open(&path)?);
        if let Some(looking) = &looking {
            flock(looking, FlockOperation::NonBlockingLockShared)?;
        }
        lock(&File::open(&path)?, || drop(looking.take()))?;
        assert!(looking.is_none());
        drop(token.publish("127.0.0.1", 1)?);
        assert!(!path.exists());
        // What other launchers have left goes, too, and what they keep stays.
        let kept = token.publish("127.0.0.1", 3)?;
        let left = path.with_file_name(folder::name("test.invalid", 4, KIND));
        std::fs::write(&left, "left")?;
        drop(token.publish("127.0.0.1", 1)?);
        assert!(!left.exists());
        assert_eq!(find("127.0.0.1:3").as_deref(), Some(token.secret()));
        drop(kept);
        Ok(())
    }

    #[test]
    fn a_token_out_of_a_file_is_the_one_that_workers_take() {
        assert_eq!(as_workers_take_it(" secret\r\n").as_deref(), Some("secret"));
        assert_eq!(as_workers_take_it(" \n"), None);
    }
}
