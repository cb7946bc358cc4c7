//! Texts that somebody else wrote, fit for logs and terminals.

use std::fmt::{self, Write as _};

/// The bytes of a text that are kept.
pub(crate) const MAX_TEXT: usize = 64 << 10;

/// What something says: no more than [`MAX_TEXT`] of it, as a [text of several lines](prose).
pub(crate) fn said(message: impl fmt::Display) -> String {
    let mut beginning = Beginning(String::new());
    // An error is its own: there is no room for the rest.
    let _ = write!(beginning, "{message}");
    prose(beginning.0)
}

/// Takes the beginning of what is written.
struct Beginning(String);

impl fmt::Write for Beginning {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        let room = MAX_TEXT - self.0.len();
        let fits = &text[..boundary(text, room)];
        self.0.push_str(fits);
        match fits.len() == text.len() {
            true => Ok(()),
            false => Err(fmt::Error),
        }
    }
}

/// A text of several lines.
pub(crate) fn prose(text: String) -> String {
    clean(text, |character| matches!(character, '\n' | '\t'))
}

/// A text without control characters, but for some.
pub(crate) fn clean(text: String, keeps: fn(char) -> bool) -> String {
    let is_harmful = |character: char| character.is_control() && !keeps(character);
    // Most texts are clean.
    if text.contains(is_harmful) {
        text.replace(is_harmful, "?")
    } else {
        text
    }
}

/// Cuts a text off between two characters.
pub(crate) fn shorten(text: &mut String, most: usize) {
    if text.len() > most {
        text.truncate(boundary(text, most));
        text.shrink_to_fit();
    }
}

/// Where a text can be cut, if no more than `most` bytes of it may be left.
fn boundary(text: &str, most: usize) -> usize {
    let mut ends = (0..=most.min(text.len())).rev();
    ends.find(|&end| text.is_char_boundary(end)).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_beginning_of_a_long_text_is_kept_and_ends_between_two_characters() {
        assert_eq!(said(format_args!("a\n{}\u{1b}", 1)), "a\n1?");
        let long = said(format_args!("x{}y", "\u{e4}".repeat(MAX_TEXT)));
        assert_eq!(long.len(), MAX_TEXT - 1);
        assert!(long.ends_with('\u{e4}'));
    }
}
