//! Files that results are written to.

use std::path::Path;

use anyhow::Context as _;

/// Before long work, not after it: an error if the file that this option names cannot be written.
pub(crate) fn check_writable(file: &Path, option: &str) -> anyhow::Result<()> {
    let opened = std::fs::OpenOptions::new()
        .create(true)
        .append(true)
        .open(file);
    opened.map(drop).with_context(|| {
        format!(
            "cannot write {}: choose another file for {option}",
            file.display()
        )
    })
}
