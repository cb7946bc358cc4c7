//! How much a test does: enough to notice a fault, or all that a night allows.

/// Whether `FARREF_THOROUGH` is set: all random cases and full sizes, instead of a few.
pub fn thorough() -> bool {
    std::env::var_os("FARREF_THOROUGH").is_some()
}
