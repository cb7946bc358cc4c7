//! Folders that are removed with the test.

use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};

/// A new folder in the system's folder for temporary files. Dropping it removes all that is in it.
#[derive(Debug)]
pub struct Scratch(PathBuf);

impl Scratch {
    /// Creates the folder.
    pub fn new() -> Result<Self> {
        let name = format!("farref-test-{}-{:x}", std::process::id(), fastrand::u64(..));
        let path = std::env::temp_dir().join(name);
        std::fs::create_dir(&path).with_context(|| format!("creating {}", path.display()))?;
        Ok(Self(path))
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.0
    }

    /// The path of a file in it, as text for URLs and command lines.
    pub fn file(&self, name: &str) -> String {
        self.0.join(name).display().to_string()
    }

    /// The names of the files in it, sorted.
    pub fn files(&self) -> Result<Vec<String>> {
        let mut names = Vec::new();
        for entry in std::fs::read_dir(&self.0)? {
            names.push(entry?.file_name().to_string_lossy().into_owned());
        }
        names.sort();
        Ok(names)
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}
