//! Finds the program before anything is started, so that a typing error is one line and not one per rank.

use std::ffi::{OsStr, OsString};
use std::io;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, bail};
use rustix::fs::{Access, access};

/// What every rank runs.
#[derive(Debug)]
pub(super) struct Program {
    pub(super) path: PathBuf,
    /// As it was written: what the program sees as its own name, and its arguments.
    pub(super) words: Vec<OsString>,
}

impl Program {
    pub(super) fn find(words: &[OsString]) -> anyhow::Result<Self> {
        let name = words.first().context("which program? Say it behind `--`")?;
        let shown = name.display();
        let path = if leads_somewhere(name) {
            let path = PathBuf::from(name);
            match path.metadata() {
                Ok(about) if about.is_dir() => {
                    bail!("cannot start `{shown}`: it is a directory")
                }
                Ok(_) => {}
                Err(error) if error.kind() == io::ErrorKind::NotFound => {
                    bail!("cannot start `{shown}`: no such file")
                }
                Err(error) => return Err(error).context(format!("cannot start `{shown}`")),
            }
            if !is_executable(&path) {
                bail!(
                    "cannot start `{shown}`: it is not executable; `chmod +x {shown}`, or say what \
                     runs it, as in `-- python3 {shown}`"
                );
            }
            path
        } else {
            match on_path(name) {
                Some(path) => path,
                None if Path::new(name).exists() => bail!(
                    "cannot start `{shown}`: no such program on PATH; for the file in this \
                     directory say `./{shown}`"
                ),
                None => bail!("cannot start `{shown}`: no such program; is it on PATH?"),
            }
        };
        let words = words.to_vec();
        Ok(Self { path, words })
    }
}

/// Whether the name is a path by itself, and not one to look for on `PATH`.
fn leads_somewhere(name: &OsStr) -> bool {
    name.as_encoded_bytes().contains(&b'/')
}

fn on_path(name: &OsStr) -> Option<PathBuf> {
    let directories = std::env::var_os("PATH")?;
    std::env::split_paths(&directories)
        .map(|directory| directory.join(name))
        .find(|path| path.is_file() && is_executable(path))
}

fn is_executable(path: &Path) -> bool {
    access(path, Access::EXEC_OK).is_ok()
}
