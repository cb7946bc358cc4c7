//! Embeds the inputs in `fuzz/seeds`, so that built tests run on machines that have no source tree.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::{env, fs, io};

fn main() -> io::Result<()> {
    let seeds = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/seeds");
    println!("cargo::rerun-if-changed={}", seeds.display());
    let mut table = String::from("&[\n");
    for folder in sorted(&seeds)?.iter().filter(|path| path.is_dir()) {
        for file in sorted(folder)? {
            let (Some(target), Some(name)) = (folder.file_name(), file.file_name()) else {
                continue;
            };
            let file = fs::canonicalize(&file)?;
            let (target, name) = (target.to_string_lossy(), name.to_string_lossy());
            // Writing to a string cannot fail.
            let _ = writeln!(table, "({target:?}, {name:?}, include_bytes!({file:?})),");
        }
    }
    table.push(']');
    let out = env::var_os("OUT_DIR")
        .map(PathBuf::from)
        .unwrap_or_default();
    fs::write(out.join("seeds.rs"), table)
}

fn sorted(folder: &Path) -> io::Result<Vec<PathBuf>> {
    let entries: io::Result<Vec<_>> = fs::read_dir(folder)?
        .map(|entry| Ok(entry?.path()))
        .collect();
    let mut paths = entries?;
    paths.sort();
    Ok(paths)
}
