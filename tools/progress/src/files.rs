//! Files that results are written to.

use std::path::Path;

use anyhow::Context as _;

/// Before long work, not after it: an error if the file that this option names cannot be written.
pub fn check_writable(file: &Path, option: &str) -> anyhow::Result<()> {
    let found = std::fs::metadata(file);
    if found
        .as_ref()
        .is_ok_and(|found| !found.is_file() && !found.is_dir())
    {
        // Who waits at the other end of a pipe would take a look for the end.
        return Ok(());
    }
    let opened = std::fs::OpenOptions::new()
        .create(true)
        .append(true)
        .open(file);
    opened.with_context(|| {
        format!(
            "cannot write {}: choose another file for {option}",
            file.display()
        )
    })?;
    if found.is_err() {
        // If nothing comes of the work, no empty file is left.
        let _ = std::fs::remove_file(file);
    }
    Ok(())
}
