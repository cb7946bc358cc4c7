//! The certificates that the launcher makes for a group on one node, and how whoever looks on comes by one.
//!
//! 1. The authority is there while it issues, and its key in no file: nobody can issue another certificate for the group.
//! 2. Certificates and keys are in a folder that only this user can look into, beside the group's token, and go with the
//!    launcher. One that was killed cannot clean up; the next does it, because the folder of a launcher that is there is locked.
//! 3. A rank has a key of its own, and a certificate for its own name only, unless its program chooses names.

use std::fs::{DirBuilder, File};
use std::os::unix::fs::DirBuilderExt as _;
use std::path::{Path, PathBuf};

use anyhow::Context as _;
use rustix::fs::{FlockOperation, flock};

use crate::certs::{Authority, Bearer, Folder};
use farref_group::folder as group_folder;

/// The variables that name a worker's certificate, its key, and the certificate of the authority.
pub const VARIABLES: [&str; 3] = ["FARREF_TLS_CERT", "FARREF_TLS_KEY", "FARREF_TLS_CA"];

/// How the folder's name ends.
const KIND: &str = "tls";
const OBSERVER: &str = "observer";
const ANY: &str = "any";
/// Longer than any run.
const DAYS: u32 = 3650;

/// The certificates of a group, which go with this.
#[derive(Debug)]
pub struct GroupTls {
    path: PathBuf,
    folder: Folder,
    is_for_any: bool,
}

impl GroupTls {
    /// Makes them for the group that meets there: for each of these names, or one for any name.
    pub fn make(
        host: &str,
        port: u16,
        names: Option<impl Iterator<Item = String>>,
    ) -> anyhow::Result<Self> {
        let kept = group_folder::path().display().to_string();
        let made = || {
            let made = Self::make_folder(host, port, names.is_none())?;
            made.fill(names)?;
            anyhow::Ok(made)
        };
        made().with_context(|| format!("cannot keep the group's certificates in {kept}"))
    }

    fn make_folder(host: &str, port: u16, is_for_any: bool) -> anyhow::Result<Self> {
        let all = group_folder::make()?;
        // Until the new folder is locked, nobody may take it for one that was left behind.
        let _alone = Folder::lock(&all)?;
        remove_left_behind(&all);
        let path = all.join(group_folder::name(host, port, KIND));
        DirBuilder::new().mode(0o700).create(&path)?;
        let folder = Folder::lock(&path)?;
        Ok(Self {
            path,
            folder,
            is_for_any,
        })
    }

    fn fill(&self, names: Option<impl Iterator<Item = String>>) -> anyhow::Result<()> {
        // What is handed out as text has to be text.
        self.path.to_str().context("its path is no text")?;
        let (authority, certificate) = Authority::make("farref launch", DAYS)?;
        self.folder.write_authority(&certificate)?;
        let add = |stem: &str, label: &str, bearer: Bearer| {
            let pair = authority.issue(&bearer, label, DAYS)?;
            anyhow::Ok(self.folder.add(stem, &pair)?)
        };
        add(OBSERVER, OBSERVER, Bearer::Observer)?;
        let Some(names) = names else {
            return add(ANY, "any worker", Bearer::AnyWorker);
        };
        for (local, name) in names.enumerate() {
            let bearer = Bearer::workers(vec![name.clone()])?;
            // Not after its name, which may be `observer` or `ca`.
            add(&local.to_string(), &name, bearer)?;
        }
        Ok(())
    }

    /// What a rank finds in its environment.
    pub fn variables(&self, local: u32) -> [(&'static str, String); 3] {
        let stem = match self.is_for_any {
            true => ANY.to_owned(),
            false => local.to_string(),
        };
        let [certificate, key, authority] = VARIABLES;
        let files = files(&self.path, &stem).map(|path| path.display().to_string());
        let [certificate_file, key_file, authority_file] = files;
        [
            (certificate, certificate_file),
            (key, key_file),
            (authority, authority_file),
        ]
    }
}

impl Drop for GroupTls {
    fn drop(&mut self) {
        // Somebody may have cleaned up.
        let _ = std::fs::remove_dir_all(&self.path);
    }
}

/// The certificate, the key and the authority's certificate of whoever looks into the group that meets at an address, if a
/// launcher of this user has made them.
pub(crate) fn find(address: &str) -> Option<[PathBuf; 3]> {
    let path = group_folder::find(address, KIND)?;
    is_in_use(&path).then(|| files(&path, OBSERVER))
}

fn files(folder: &Path, stem: &str) -> [PathBuf; 3] {
    [
        folder.join(format!("{stem}.pem")),
        folder.join(format!("{stem}.key")),
        folder.join(crate::certs::CERTIFICATE),
    ]
}

/// Whether a launcher keeps it locked.
fn is_in_use(folder: &Path) -> bool {
    let Ok(folder) = File::open(folder) else {
        return false;
    };
    flock(&folder, FlockOperation::NonBlockingLockShared).is_err()
}

/// Removes the keys of launchers that were killed.
fn remove_left_behind(all: &Path) {
    let Ok(entries) = std::fs::read_dir(all) else {
        return;
    };
    for entry in entries.flatten() {
        let path = entry.path();
        if path.extension().is_some_and(|extension| extension == KIND) && !is_in_use(&path) {
            let _ = std::fs::remove_dir_all(path);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NONE: Option<std::iter::Empty<String>> = None;

    /// Holds invariants 1 and 2.
    #[test]
    fn who_looks_on_finds_a_certificate_for_as_long_as_the_group_is_there() -> anyhow::Result<()> {
        // Where no group of another test is.
        let host = format!("test-{}", std::process::id());
        let (mine, others) = (format!("{host}:2"), format!("{host}:3"));
        let tls = GroupTls::make(&host, 2, NONE)?;
        let found = find(&mine).context("it is not found")?;
        assert!(found.iter().all(|path| path.is_file()), "{found:?}");
        assert_eq!(find(&format!("tcp://{mine}")), Some(found));
        assert_eq!(find(&others), None);
        let entries = std::fs::read_dir(&tls.path)?;
        let names = entries.map(|entry| Ok(entry?.file_name().display().to_string()));
        let mut names: Vec<String> = names.collect::<std::io::Result<_>>()?;
        names.sort();
        let expected = [
            "any.key",
            "any.pem",
            "ca.pem",
            "observer.key",
            "observer.pem",
        ];
        assert_eq!(names, expected);
        // Somebody else's folder is left alone, and one that was left behind is not.
        let left = tls.path.with_file_name(group_folder::name(&host, 3, KIND));
        std::fs::create_dir(&left)?;
        assert_eq!(find(&others), None, "nobody keeps it");
        let other = GroupTls::make(&host, 4, NONE)?;
        assert!(!left.exists());
        assert!(find(&mine).is_some() && find(&format!("{host}:4")).is_some());
        let paths = [tls.path.clone(), other.path.clone()];
        drop((tls, other));
        assert!(find(&mine).is_none() && !paths.iter().any(|path| path.exists()));
        Ok(())
    }
}
