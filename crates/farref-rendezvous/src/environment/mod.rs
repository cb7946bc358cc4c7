//! What a worker learns from where it runs: the variables that launchers set, and its host.
//!
//! For farref's own use: programs set up a `farref::Worker`, which reads them.

#[cfg(any(test, feature = "fuzzing"))]
pub(crate) mod fuzzing;
mod host;
mod launcher;
mod settings;
mod variables;

#[cfg(test)]
mod tests;

pub use self::host::{advertised_address, host_id};
pub use self::settings::Settings;
pub use crate::place_text::without_password;
