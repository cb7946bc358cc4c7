//! Nothing: its manifest is what matters.
//!
//! Cargo builds a package once for all that it is asked to build, with the features that any of them wants. This
//! one wants all of `farref-cli`'s, and is a default member of the workspace. So `cargo run -- demo` in the root has
//! the demo, `cargo test --workspace` tests all, and `cargo install --path crates/farref-cli`, which knows nothing of
//! this, does not compile candle.
