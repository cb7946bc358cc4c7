//! A directory that goes with the test.

use std::path::PathBuf;

pub(crate) struct Scratch(PathBuf);

impl Scratch {
    pub(crate) fn new() -> anyhow::Result<Self> {
        let name = format!("farref-test-{}-{:x}", std::process::id(), fastrand::u64(..));
        let path = std::env::temp_dir().join(name);
        std::fs::create_dir(&path)?;
        Ok(Self(path))
    }

    /// The path of a file in it.
    pub(crate) fn file(&self, name: &str) -> String {
        self.0.join(name).display().to_string()
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}
