//! Names, types and source lines, as a person reads them on a terminal.

use ratatui::text::Span;

/// How many columns the text takes.
pub(crate) fn width(text: &str) -> usize {
    match text.is_ascii() {
        true => text.len(),
        false => Span::raw(text).width(),
    }
}

/// Text from elsewhere without what could move the cursor, change colours or turn the line around.
pub(crate) fn clean(text: &str) -> String {
    let harmful = |character: char| {
        let turns = matches!(character, '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{206f}' | '\u{feff}');
        character.is_control() || turns
    };
    text.chars()
        .map(|character| {
            if harmful(character) {
                '\u{fffd}'
            } else {
                character
            }
        })
        .collect()
}

/// Which end of a text says less.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Cut {
    /// The beginning, as of paths.
    Front,
    /// The end, as of names.
    Back,
}

/// The text in at most so many columns.
pub(crate) fn fit(text: &str, columns: usize, cut: Cut) -> String {
    if width(text) <= columns {
        return text.to_owned();
    }
    let Some(room) = columns.checked_sub(1) else {
        return String::new();
    };
    let mut used = 0;
    let mut fits = |character: &char| {
        used += width(character.encode_utf8(&mut [0; 4]));
        used <= room
    };
    match cut {
        Cut::Back => text.chars().take_while(&mut fits).chain(['…']).collect(),
        Cut::Front => {
            let kept: Vec<char> = text.chars().rev().take_while(&mut fits).collect();
            ['…'].into_iter().chain(kept.into_iter().rev()).collect()
        }
    }
}

/// A type's name without the modules: `alloc::vec::Vec<my::Thing>` is `Vec<Thing>`.
pub(crate) fn short_type(name: &str) -> String {
    let mut short = String::new();
    let mut path = String::new();
    for character in name.chars() {
        if character.is_alphanumeric() || matches!(character, '_' | ':' | '{' | '}' | '#') {
            path.push(character);
        } else {
            short.push_str(last_segment(&path));
            path.clear();
            short.push(character);
        }
    }
    short.push_str(last_segment(&path));
    short
}

/// The last segment of a path, and what it belongs to if it has no name of its own.
fn last_segment(path: &str) -> &str {
    let mut start = 0;
    for (at, _) in path.rmatch_indices("::") {
        let segment = &path[at + 2..];
        // `>::Item` goes on after what was written already.
        start = if at == 0 { 0 } else { at + 2 };
        if !segment.starts_with('{') {
            break;
        }
        start = 0;
    }
    &path[start..]
}

/// A source line without the column: `src/main.rs:12:5` is `src/main.rs:12`.
pub(crate) fn short_line(location: &str) -> &str {
    let is_number = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    match location.rsplit_once(':') {
        Some((rest, column))
            if is_number(column)
                && rest
                    .rsplit_once(':')
                    .is_some_and(|(_, line)| is_number(line)) =>
        {
            rest
        }
        _ => location,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn types_keep_their_generics_and_lose_their_modules() {
        for (name, short) in [
            ("alloc::string::String", "String"),
            ("u8", "u8"),
            ("", ""),
            (
                "alloc::vec::Vec<core::option::Option<my_crate::Thing>>",
                "Vec<Option<Thing>>",
            ),
            ("(a::B, [c::D; 4], &str)", "(B, [D; 4], &str)"),
            ("fn(a::B) -> c::D", "fn(B) -> D"),
            (
                "alloc::boxed::Box<dyn my::Trait + Send>",
                "Box<dyn Trait + Send>",
            ),
            ("<a::B as c::D>::Item", "<B as D>::Item"),
            ("my::run::{{closure}}", "run::{{closure}}"),
            (
                "my::run::{{closure}}::{{closure}}",
                "run::{{closure}}::{{closure}}",
            ),
        ] {
            assert_eq!(short_type(name), short);
        }
    }

    #[test]
    fn text_that_does_not_fit_is_cut_at_the_end_that_says_less() {
        assert_eq!(fit("parameters", 6, Cut::Back), "param…");
        assert_eq!(fit("src/deep/main.rs:7", 10, Cut::Front), "…main.rs:7");
        assert_eq!(fit("fits", 4, Cut::Back), "fits");
        assert_eq!(fit("x", 0, Cut::Back), "");
        // Two columns each.
        assert_eq!(fit("日本語", 4, Cut::Back), "日…");
    }

    #[test]
    fn nothing_that_a_peer_sends_can_steer_the_terminal() {
        let text = clean("a\x1b[31mb\r\nc\u{9b}d\u{202e}e\u{7f}");
        assert_eq!(
            text,
            "a\u{fffd}[31mb\u{fffd}\u{fffd}c\u{fffd}d\u{fffd}e\u{fffd}"
        );
    }

    #[test]
    fn a_source_line_is_shown_without_its_column() {
        assert_eq!(short_line("src/main.rs:12:5"), "src/main.rs:12");
        assert_eq!(short_line("src/main.rs:12"), "src/main.rs:12");
        assert_eq!(short_line("somewhere"), "somewhere");
    }
}
