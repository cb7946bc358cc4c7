//! The inputs in `fuzz/seeds`, embedded when this crate is built.

/// One input of a fuzz target.
#[derive(Clone, Copy, Debug)]
pub struct Seed {
    /// The name of its file.
    pub name: &'static str,
    /// Its content.
    pub bytes: &'static [u8],
}

/// Target, name and content of every file, sorted.
static SEEDS: &[(&str, &str, &[u8])] = include!(concat!(env!("OUT_DIR"), "/seeds.rs"));

/// The inputs of one fuzz target, sorted by name.
///
/// # Panics
///
/// If the target has none, so that a misspelt name does not pass for an empty folder.
pub fn seeds(target: &str) -> Vec<Seed> {
    let of_target = SEEDS.iter().filter(|(folder, ..)| *folder == target);
    let seeds: Vec<_> = of_target
        .map(|&(_, name, bytes)| Seed { name, bytes })
        .collect();
    assert!(
        !seeds.is_empty(),
        "fuzz/seeds has no folder `{target}` with inputs"
    );
    seeds
}
