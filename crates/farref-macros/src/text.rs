//! Types as a person would write them, for error messages and names.

use proc_macro2::{Delimiter, Spacing, TokenStream, TokenTree};

/// Writes the tokens of a type: `Option<(i64, String)>`, not `Option < (i64 , String) >`.
pub(crate) fn of(tokens: TokenStream) -> String {
    let mut text = String::new();
    write(tokens, &mut text);
    text
}

fn write(tokens: TokenStream, text: &mut String) {
    // Two words in a row would become one without a space.
    let mut after_word = false;
    // `mut`, `'static` and the like stand apart even from `(` and `[`.
    let mut after_prefix = false;
    let mut in_lifetime = false;
    let mut arrow = false;
    for token in tokens {
        let is_word = matches!(token, TokenTree::Ident(_) | TokenTree::Literal(_));
        let is_group = matches!(token, TokenTree::Group(_));
        if after_word && is_word || after_prefix && is_group {
            text.push(' ');
        }
        after_word = is_word;
        after_prefix = is_word && (in_lifetime || is_prefix(&token));
        in_lifetime = matches!(&token, TokenTree::Punct(punct) if punct.as_char() == '\'');
        match token {
            TokenTree::Group(group) => {
                let (open, close) = match group.delimiter() {
                    Delimiter::Parenthesis => ("(", ")"),
                    Delimiter::Bracket => ("[", "]"),
                    Delimiter::Brace => ("{ ", " }"),
                    Delimiter::None => ("", ""),
                };
                text.push_str(open);
                write(group.stream(), text);
                text.push_str(close);
                after_word = group.delimiter() == Delimiter::None;
            }
            TokenTree::Punct(punct) => match punct.as_char() {
                sign @ (',' | ';') => text.extend([sign, ' ']),
                '-' if punct.spacing() == Spacing::Joint => {
                    arrow = true;
                    text.push_str(" -");
                    continue;
                }
                '>' if arrow => text.push_str("> "),
                sign @ ('+' | '=' | '*' | '-')
                    if !text.ends_with(['(', '<', ' ']) && !text.is_empty() =>
                {
                    text.extend([' ', sign, ' ']);
                }
                ':' if punct.spacing() == Spacing::Alone && !text.ends_with(':') => {
                    text.push_str(": ");
                }
                sign => text.push(sign),
            },
            word => text.push_str(&word.to_string()),
        }
        arrow = false;
    }
    if text.ends_with(", ") {
        text.pop();
    }
}

fn is_prefix(token: &TokenTree) -> bool {
    matches!(token, TokenTree::Ident(word) if ["mut", "const", "dyn", "as"].iter().any(|prefix| word == prefix))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn is_kept(text: &str) {
        assert_eq!(of(text.parse().unwrap()), text);
    }

    #[test]
    fn types_are_written_as_people_write_them() {
        for text in [
            "i64",
            "()",
            "(i64,)",
            "Option<(i64, String)>",
            "std::collections::HashMap<String, Vec<Option<u8>>>",
            "[f32; 4]",
            "[f32; Self::N]",
            "Box<dyn Error + Send + Sync>",
            "Arc<dyn Fn(i64) -> Option<i64> + Send>",
            "<Table as Rows>::Row",
            "Cow<'static, str>",
            "Box<dyn Iterator<Item = u8>>",
            "&'static mut str",
            "&'static [u8]",
            "&mut (u8, &[u8])",
            "*const u8",
            "Result<(), Box<dyn Error>>",
        ] {
            is_kept(text);
        }
    }
}
