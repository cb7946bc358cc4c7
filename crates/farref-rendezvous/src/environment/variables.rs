//! Variables of the environment as values.

use crate::error::RendezvousError;
use crate::identity::MAX_WORLD_SIZE;

/// Typed access to variables; every error names the variable and its value.
pub(super) struct Variables<'a>(pub(super) &'a dyn Fn(&str) -> Option<String>);

impl Variables<'_> {
    /// What it says, if it says anything.
    pub(super) fn text(&self, variable: &str) -> Option<String> {
        (self.0)(variable)
            .map(|text| text.trim().to_owned())
            .filter(|text| !text.is_empty())
    }

    /// A rank.
    pub(super) fn rank(&self, variable: &'static str) -> Result<Option<u32>, RendezvousError> {
        let Some(text) = self.text(variable) else {
            return Ok(None);
        };
        match text.parse() {
            Ok(number) if number < MAX_WORLD_SIZE => Ok(Some(number)),
            _ => {
                let expected = format!("a number from 0 to {}", MAX_WORLD_SIZE - 1);
                Err(malformed(variable, text, expected))
            }
        }
    }

    /// A number of workers.
    pub(super) fn world_size(
        &self,
        variable: &'static str,
    ) -> Result<Option<u32>, RendezvousError> {
        let Some(text) = self.text(variable) else {
            return Ok(None);
        };
        match text.parse() {
            Ok(size) if (1..=MAX_WORLD_SIZE).contains(&size) => Ok(Some(size)),
            _ => {
                let expected = format!("a number from 1 to {MAX_WORLD_SIZE}");
                Err(malformed(variable, text, expected))
            }
        }
    }

    /// Yes or no; no if it is not set.
    pub(super) fn flag(&self, variable: &'static str) -> Result<bool, RendezvousError> {
        let text = self.text(variable).unwrap_or_default();
        match text.to_ascii_lowercase().as_str() {
            "true" | "1" => Ok(true),
            "" | "false" | "0" => Ok(false),
            _ => Err(malformed(variable, text, "True or False".into())),
        }
    }
}

/// The variable's value is not what it should be.
pub(super) fn malformed(
    variable: &'static str,
    value: String,
    expected: String,
) -> RendezvousError {
    RendezvousError::Setting {
        variable,
        value,
        expected,
    }
}
