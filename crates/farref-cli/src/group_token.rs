//! The token that the launcher makes for a group, and how whoever looks on comes by it.
//!
//! The ranks find it in their environment. Commands that look into the group are started by hand, elsewhere, and find it in a
//! file that only this user can read, under the address where the group meets; as Jupyter does it. The file is locked for
//! as long as its group is there, so what a launcher that was killed has left behind counts for nothing.

use std::fmt;
use std::fs::{DirBuilder, File, OpenOptions};
use std::io::{self, Read as _, Write as _};
use std::net::IpAddr;
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};

use anyhow::{Context as _, anyhow};
use farref::Rendezvous;
use ring::rand::{SecureRandom as _, SystemRandom};
use rustix::fs::{FlockOperation, flock};
use rustix::process::geteuid;

/// The variable that has a group's token.
pub(crate) const VARIABLE: &str = "FARREF_TOKEN";
/// So many random bytes.
const BYTES: usize = 32;

/// A group's secret.
#[derive(Clone)]
pub(crate) struct GroupToken(String);

impl GroupToken {
    /// One that nobody can guess.
    pub(crate) fn make() -> anyhow::Result<Self> {
        let mut bytes = [0; BYTES];
        let filled = SystemRandom::new().fill(&mut bytes);
        filled.map_err(|_| anyhow!("the system has no random numbers for the group's token"))?;
        Ok(Self(
            bytes.iter().map(|byte| format!("{byte:02x}")).collect(),
        ))
    }

    pub(crate) fn secret(&self) -> &str {
        &self.0
    }

    /// Puts it where commands of this user find it that look into the group that meets there.
    pub(crate) fn publish(&self, host: &str, port: u16) -> anyhow::Result<PublishedToken> {
        let directory = directory();
        let kept = directory.display().to_string();
        let published = || {
            make_private(&directory)?;
            let path = directory.join(file_name(host, port));
            let mut file = OpenOptions::new()
                .write(true)
                .create(true)
                .truncate(false)
                .mode(0o600)
                .open(&path)?;
            flock(&file, FlockOperation::NonBlockingLockExclusive)?;
            file.set_len(0)?;
            file.write_all(self.0.as_bytes())?;
            Ok::<_, io::Error>(PublishedToken { path, _file: file })
        };
        published().with_context(|| format!("cannot keep the group's token in {kept}"))
    }
}

impl fmt::Debug for GroupToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("(hidden)")
    }
}

/// A token in its file, which goes with this.
#[derive(Debug)]
pub(crate) struct PublishedToken {
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
pub(crate) fn from_environment() -> Option<String> {
    let token = std::env::var(VARIABLE).ok()?;
    (!token.trim().is_empty()).then_some(token)
}

/// The token of the group that meets at an address, if a launcher of this user has made it.
pub(crate) fn find(address: &str) -> Option<String> {
    let address = address.trim();
    let place = match address.contains("://") {
        true => address.parse(),
        false => format!("tcp://{address}").parse(),
    };
    let Ok(Rendezvous::Tcp { host, port }) = place else {
        return None;
    };
    let directory = directory();
    is_private(&directory).ok()?;
    let mut file = File::open(directory.join(file_name(&host, port))).ok()?;
    let mut token = String::new();
    file.read_to_string(&mut token).ok()?;
    // Nobody keeps it locked: its group is gone.
    let is_stale = flock(&file, FlockOperation::NonBlockingLockShared).is_ok();
    (!is_stale && !token.is_empty()).then_some(token)
}

/// What a file is called: all names of loopback are one.
fn file_name(host: &str, port: u16) -> String {
    let ip = host.trim_matches(['[', ']']).parse::<IpAddr>();
    match host == "localhost" || ip.is_ok_and(|ip| ip.is_loopback()) {
        true => format!("{port}.token"),
        false => format!("{}:{port}.token", host.replace('/', "_")),
    }
}

/// Where tokens are kept: a directory of this user's that nobody else can look into.
fn directory() -> PathBuf {
    match std::env::var_os("XDG_RUNTIME_DIR").filter(|directory| !directory.is_empty()) {
        Some(directory) => PathBuf::from(directory).join("farref"),
        None => std::env::temp_dir().join(format!("farref-{}", geteuid().as_raw())),
    }
}

fn make_private(directory: &Path) -> io::Result<()> {
    match DirBuilder::new().mode(0o700).create(directory) {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(error),
        _ => {}
    }
    is_private(directory)
}

/// An error unless it is this user's own. Where everybody may make directories, somebody else may have made it first.
fn is_private(directory: &Path) -> io::Result<()> {
    let found = std::fs::symlink_metadata(directory)?;
    match found.is_dir() && found.uid() == geteuid().as_raw() && found.mode() & 0o077 == 0 {
        true => Ok(()),
        false => Err(io::Error::new(
            io::ErrorKind::PermissionDenied,
            "it is there already, and others can look into it",
        )),
    }
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
        drop(token.publish("127.0.0.1", 1)?);
        assert!(!path.exists());
        Ok(())
    }
}
