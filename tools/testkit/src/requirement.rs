//! Tests that need something that not every machine has.

use anyhow::{Result, bail};

/// Something that a test needs, and the variable that makes its absence a failure.
#[derive(Clone, Copy, Debug)]
pub struct Requirement {
    /// What is needed and how to get it, as in "Chromium (Debian: chromium, chromium-driver)".
    pub needed: &'static str,
    /// The environment variable, as in `FARREF_REQUIRE_CHROMIUM`.
    pub variable: &'static str,
}

impl Requirement {
    /// Returns `true` if `missing` is `None`; otherwise `missing` is the reason.
    ///
    /// If there is a reason, prints a `LEFT OUT` line to standard error and returns `false`. Returns an
    /// error instead if the environment variable is set.
    pub fn is_met(&self, missing: Option<&str>) -> Result<bool> {
        let Some(missing) = missing else {
            return Ok(true);
        };
        if self.is_required() {
            bail!(
                "{} is set, and {} is missing: {missing}",
                self.variable,
                self.needed
            );
        }
        eprintln!("LEFT OUT: needs {}: {missing}", self.needed);
        Ok(false)
    }

    /// Whether its absence is a failure.
    pub fn is_required(&self) -> bool {
        std::env::var_os(self.variable).is_some()
    }
}
