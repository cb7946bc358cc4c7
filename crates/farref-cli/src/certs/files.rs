//! How certificates and keys come into files: whole, or not at all.
//!
//! 1. An authority's files are made, and never replaced.
//! 2. A key can be read by this user only, from the first moment on.
//! 3. Nobody reads half of a file: it is written under another name, and renamed when it is on the disk.
//! 4. A pair of certificate and key that is there already is replaced by renaming both, the certificate first. Two files
//!    cannot be renamed at once. Who reads them in between has a certificate and a key that do not belong together,
//!    can see that by comparing their public keys, and reads both again. Whoever issues is alone in the folder
//!    meanwhile, so that in the end they do belong together.

use std::fs::{DirBuilder, File, OpenOptions};
use std::io::{self, Write as _};
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};

use rustix::fs::{FlockOperation, flock};

use super::authority::{Authority, CERTIFICATE, KEY, Pair};
use super::error::CertsError;

const PUBLIC: u32 = 0o644;
const PRIVATE: u32 = 0o600;

/// Makes a folder that only this user can look into, unless it is there.
pub(super) fn make_folder(folder: &Path) -> Result<(), CertsError> {
    match DirBuilder::new().recursive(true).mode(0o700).create(folder) {
        Err(error) if !folder.is_dir() => Err(CertsError::write(folder)(error)),
        _ => Ok(()),
    }
}

/// Puts a new authority into a folder.
pub(super) fn keep(
    authority: &Authority,
    certificate: &str,
    folder: &Path,
) -> Result<(), CertsError> {
    let (certificate_path, key_path) = (folder.join(CERTIFICATE), folder.join(KEY));
    if certificate_path.exists() {
        return Err(CertsError::Exists {
            path: certificate_path,
        });
    }
    write_new(&key_path, &authority.key(), PRIVATE).map_err(CertsError::write(&key_path))?;
    let written = write_new(&certificate_path, certificate, PUBLIC);
    written.map_err(|error| {
        // It was made just now, and there is nothing that it belongs to.
        let _ = std::fs::remove_file(&key_path);
        CertsError::write(&certificate_path)(error)
    })
}

/// A folder where nobody else issues meanwhile.
#[derive(Debug)]
pub(crate) struct Folder {
    path: PathBuf,
    /// Keeps it locked.
    _file: File,
}

impl Folder {
    /// Waits until whoever issues into this folder is done.
    pub(crate) fn lock(path: &Path) -> Result<Self, CertsError> {
        let file = File::open(path).map_err(CertsError::read(path))?;
        // Not every file system has locks. There two who issue for one name at the same time have to look out themselves.
        let _ = flock(&file, FlockOperation::LockExclusive);
        Ok(Self {
            path: path.into(),
            _file: file,
        })
    }

    /// Where the certificate is kept of who is called so.
    pub(crate) fn certificate(&self, stem: &str) -> PathBuf {
        self.path.join(format!("{stem}.pem"))
    }

    pub(crate) fn key(&self, stem: &str) -> PathBuf {
        self.path.join(format!("{stem}.key"))
    }

    /// Writes a pair, in place of the one that is there.
    pub(crate) fn write(&self, stem: &str, pair: &Pair) -> Result<(), CertsError> {
        let certificate = Staged::new(self.certificate(stem), &pair.certificate, PUBLIC)?;
        let key = Staged::new(self.key(stem), &pair.key, PRIVATE)?;
        certificate.rename()?;
        key.rename()?;
        // Where a folder cannot be brought to the disk, it gets there by itself.
        let _ = self._file.sync_all();
        Ok(())
    }

    /// Writes a pair that was not there. It need not outlive the machine.
    pub(crate) fn add(&self, stem: &str, pair: &Pair) -> Result<(), CertsError> {
        let (certificate, key) = (self.certificate(stem), self.key(stem));
        let written = create(&certificate, &pair.certificate, PUBLIC);
        written.map_err(CertsError::write(&certificate))?;
        let written = create(&key, &pair.key, PRIVATE);
        written.map(drop).map_err(CertsError::write(&key))
    }

    /// Writes the certificate of the authority.
    pub(crate) fn write_authority(&self, certificate: &str) -> Result<(), CertsError> {
        Staged::new(self.path.join(CERTIFICATE), certificate, PUBLIC)?.rename()
    }
}

/// A file that is written and has not got its name yet. Without it, it goes.
#[derive(Debug)]
struct Staged {
    from: PathBuf,
    to: PathBuf,
}

impl Staged {
    fn new(to: PathBuf, text: &str, mode: u32) -> Result<Self, CertsError> {
        let name = to.file_name().unwrap_or_default().display().to_string();
        let from = to.with_file_name(format!(".{name}.{:016x}", fastrand::u64(..)));
        let written = write_new(&from, text, mode);
        written.map_err(CertsError::write(&to))?;
        Ok(Self { from, to })
    }

    fn rename(self) -> Result<(), CertsError> {
        std::fs::rename(&self.from, &self.to).map_err(CertsError::write(&self.to))
    }
}

impl Drop for Staged {
    fn drop(&mut self) {
        // It has its name, as a rule.
        let _ = std::fs::remove_file(&self.from);
    }
}

/// Writes a file that was not there, onto the disk.
fn write_new(path: &Path, text: &str, mode: u32) -> io::Result<()> {
    let written = create(path, text, mode)?.sync_all();
    written.inspect_err(|_| _ = std::fs::remove_file(path))
}

/// Writes a file that was not there.
fn create(path: &Path, text: &str, mode: u32) -> io::Result<File> {
    let mut file = OpenOptions::new()
        .write(true)
        .create_new(true)
        .mode(mode)
        .open(path)?;
    match file.write_all(text.as_bytes()) {
        Ok(()) => Ok(file),
        Err(error) => {
            let _ = std::fs::remove_file(path);
            Err(error)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::certs::Bearer;

    /// Holds invariant 4.
    #[test]
    fn whoever_issues_is_alone_in_the_folder() -> anyhow::Result<()> {
        let path = std::env::temp_dir().join(format!("farref-alone-{}", std::process::id()));
        make_folder(&path)?;
        let is_free = || {
            let file = File::open(&path)?;
            let locked = flock(&file, FlockOperation::NonBlockingLockExclusive);
            io::Result::Ok(locked.is_ok())
        };
        let folder = Folder::lock(&path)?;
        assert!(!is_free()?);
        drop(folder);
        assert!(is_free()?);
        std::fs::remove_dir(path)?;
        Ok(())
    }

    /// Holds invariant 4. An issue that breaks off here is not in the way of the next: a certificate says whose it is, and
    /// a key by itself does not.
    #[test]
    fn a_pair_whose_key_cannot_be_written_is_a_certificate_and_nothing_else() -> anyhow::Result<()>
    {
        let path = std::env::temp_dir().join(format!("farref-half-{}", std::process::id()));
        make_folder(&path)?;
        let folder = Folder::lock(&path)?;
        let (authority, _) = Authority::make("test", 1)?;
        let bearer = Bearer::workers(vec!["a".into()])?;
        let pair = authority.issue(&bearer, "a", 1)?;
        std::fs::create_dir(folder.key("a"))?;
        assert!(folder.write("a", &pair).is_err());
        std::fs::remove_dir(folder.key("a"))?;
        let left = std::fs::read_dir(&path)?.map(|entry| Ok(entry?.path()));
        let left: Vec<PathBuf> = left.collect::<io::Result<_>>()?;
        assert_eq!(left, [folder.certificate("a")]);
        std::fs::remove_dir_all(path)?;
        Ok(())
    }
}
