//! The options of the attribute: `#[remote(name = "..", timeout = "5s", task)]`.

use std::time::Duration;

use proc_macro2::{Span, TokenStream};
use syn::ext::IdentExt;
use syn::parse::{ParseStream, Parser};
use syn::{Ident, LitStr, Token};

use crate::errors::{Errors, error};
use crate::timeout;

/// What the attribute says.
#[derive(Clone, Default)]
pub(crate) struct Options {
    /// What callers ask for; on a block, what the names of its functions begin with.
    pub(crate) name: Option<LitStr>,
    /// What Python workers call it; on a block, what they call the class.
    pub(crate) python: Option<LitStr>,
    /// The time limit of calls that do not set their own.
    pub(crate) timeout: Option<Duration>,
    /// Where functions run, and where the user said so.
    mode: Option<(Mode, Span)>,
    /// Whether the function is not remote.
    pub(crate) skip: bool,
    /// The name of the trait of a block.
    pub(crate) trait_name: Option<Ident>,
}

/// Where the attribute stands.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Place {
    /// On a free function.
    Function,
    /// On an impl block.
    Block,
    /// On a function inside of an impl block.
    Method,
}

/// Where a function runs; see `farref`'s type of the same name.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Mode {
    Task,
    Blocking,
}

/// All options, how to write them, and where they may stand.
const KNOWN: [(&str, &str, &[Place]); 7] = {
    use Place::{Block, Function, Method};
    [
        ("name", "name = \"..\"", &[Function, Block, Method]),
        (
            "python",
            "python = \"module.name\"",
            &[Function, Block, Method],
        ),
        ("timeout", "timeout = \"5s\"", &[Function, Block, Method]),
        ("blocking", "blocking", &[Function, Block, Method]),
        ("task", "task", &[Function, Block, Method]),
        ("skip", "skip", &[Method]),
        ("trait", "trait = Name", &[Block]),
    ]
};

impl Options {
    /// Reads what is inside of the parentheses.
    pub(crate) fn parse(tokens: TokenStream, place: Place) -> syn::Result<Self> {
        (|input: ParseStream<'_>| Self::parse_all(input, place)).parse2(tokens)
    }

    /// These options, and those of the block for what they leave open.
    pub(crate) fn within(&self, block: &Self) -> Self {
        Self {
            timeout: self.timeout.or(block.timeout),
            mode: self.mode.or(block.mode),
            ..self.clone()
        }
    }

    /// Where a function runs.
    pub(crate) fn mode(&self, is_async: bool) -> syn::Result<Mode> {
        match self.mode {
            Some((Mode::Blocking, at)) if is_async => Err(error(
                at,
                "an `async fn` runs as a task, not on the blocking pool: remove `blocking`, or make \
                 it a plain `fn`",
            )),
            Some((mode, _)) => Ok(mode),
            None if is_async => Ok(Mode::Task),
            None => Ok(Mode::Blocking),
        }
    }

    fn parse_all(input: ParseStream<'_>, place: Place) -> syn::Result<Self> {
        let mut options = Self::default();
        let mut errors = Errors::default();
        let mut seen = Vec::<Ident>::new();
        while !input.is_empty() {
            let key = input.call(Ident::parse_any)?;
            if seen.contains(&key) {
                errors.push(error(
                    key.span(),
                    format_args!("`{key}` is there twice: remove one"),
                ));
            }
            if let Some(problem) = misplaced(&key, place) {
                errors.push(problem);
                skip_value(input)?;
            } else {
                let parsed = options.parse_one(&key, input);
                if parsed.is_err() {
                    skip_value(input)?;
                }
                errors.take(parsed);
            }
            seen.push(key);
            if !input.is_empty() {
                input.parse::<Token![,]>()?;
            }
        }
        if options.skip && seen.len() > 1 {
            errors.push(error(
                seen[0].span(),
                "a function that is left out has no other options: remove them, or remove `skip`",
            ));
        }
        errors.finish(options)
    }

    fn parse_one(&mut self, key: &Ident, input: ParseStream<'_>) -> syn::Result<()> {
        match key.to_string().as_str() {
            "name" => {
                let name: LitStr = value(key, input)?;
                if name.value().is_empty() || name.value().contains(char::is_whitespace) {
                    return Err(error(
                        name.span(),
                        "a name has at least one letter and no spaces",
                    ));
                }
                self.name = Some(name);
            }
            "python" => {
                let name: LitStr = value(key, input)?;
                let text = name.value();
                let is_name = |part: &str| {
                    let mut letters = part.chars();
                    letters
                        .next()
                        .is_some_and(|first| first == '_' || first.is_alphabetic())
                        && letters.all(|letter| letter == '_' || letter.is_alphanumeric())
                };
                if !text.contains('.') || !text.split('.').all(is_name) {
                    return Err(error(
                        name.span(),
                        "a name in Python is a module and a name in it: `module.function`",
                    ));
                }
                self.python = Some(name);
            }
            "timeout" => {
                let text: LitStr = value(key, input)?;
                let limit = timeout::parse(&text.value()).map_err(|why| {
                    error(text.span(), format_args!("this is no time limit: {why}"))
                })?;
                self.timeout = Some(limit);
            }
            "trait" => self.trait_name = Some(value(key, input)?),
            "skip" => {
                no_value(key, input)?;
                self.skip = true;
            }
            mode => {
                no_value(key, input)?;
                if let Some((earlier, _)) = self.mode {
                    return Err(error(
                        key.span(),
                        format_args!(
                            "`{mode}` contradicts `{}`: a function runs in one place",
                            format!("{earlier:?}").to_lowercase()
                        ),
                    ));
                }
                let mode = match mode {
                    "blocking" => Mode::Blocking,
                    _ => Mode::Task,
                };
                self.mode = Some((mode, key.span()));
            }
        }
        Ok(())
    }
}

/// Why an option may not stand where it does.
fn misplaced(key: &Ident, place: Place) -> Option<syn::Error> {
    let name = key.unraw().to_string();
    let known = KNOWN.iter().find(|(known, ..)| *known == name);
    let message = match known {
        Some((_, _, places)) if places.contains(&place) => return None,
        Some((_, _, [Place::Block])) => {
            format!("`{name}` is an option of `impl` blocks: put it there")
        }
        Some(_) => format!(
            "`{name}` is an option of functions inside of a remote `impl` block: remove it, or \
             remove the attribute"
        ),
        None => {
            let here = KNOWN.iter().filter(|(.., places)| places.contains(&place));
            let nearest = here
                .clone()
                .map(|(known, ..)| (distance(known, &name), known))
                .min()
                .filter(|(distance, known)| *distance <= known.len() / 2);
            let suggestion = match nearest {
                Some((_, known)) => format!("did you mean `{known}`? The"),
                None => "the".to_owned(),
            };
            let all: Vec<_> = here.map(|(_, usage, _)| format!("`{usage}`")).collect();
            format!(
                "unknown option `{name}`: {suggestion} options are {}",
                all.join(", ")
            )
        }
    };
    Some(error(key.span(), message))
}

fn value<T: syn::parse::Parse>(key: &Ident, input: ParseStream<'_>) -> syn::Result<T> {
    let usage = KNOWN
        .iter()
        .find(|(known, ..)| key == known)
        .map_or("", |(_, usage, _)| usage);
    let problem = |at| error(at, format_args!("`{key}` needs a value: `{usage}`"));
    if !input.peek(Token![=]) {
        return Err(problem(key.span()));
    }
    input.parse::<Token![=]>()?;
    let at = if input.is_empty() {
        key.span()
    } else {
        input.span()
    };
    input.parse().map_err(|_| problem(at))
}

fn no_value(key: &Ident, input: ParseStream<'_>) -> syn::Result<()> {
    if input.peek(Token![=]) || input.peek(syn::token::Paren) {
        return Err(error(
            input.span(),
            format_args!("`{key}` takes no value: write `{key}` alone"),
        ));
    }
    Ok(())
}

/// Goes on to the next comma.
fn skip_value(input: ParseStream<'_>) -> syn::Result<()> {
    while !input.is_empty() && !input.peek(Token![,]) {
        input.parse::<proc_macro2::TokenTree>()?;
    }
    Ok(())
}

/// How many letters must change to make one word of the other.
fn distance(from: &str, to: &str) -> usize {
    let mut row: Vec<usize> = (0..=to.chars().count()).collect();
    for (i, a) in from.chars().enumerate() {
        let mut diagonal = row[0];
        row[0] = i + 1;
        for (j, b) in to.chars().enumerate() {
            let change = diagonal + usize::from(a != b);
            diagonal = row[j + 1];
            row[j + 1] = change.min(diagonal + 1).min(row[j] + 1);
        }
    }
    row[row.len() - 1]
}

#[cfg(test)]
mod tests {
    use quote::quote;

    use super::*;

    fn messages(tokens: TokenStream, place: Place) -> Vec<String> {
        match Options::parse(tokens, place) {
            Ok(_) => Vec::new(),
            Err(error) => error.into_iter().map(|error| error.to_string()).collect(),
        }
    }

    #[test]
    fn options_are_read_in_any_order_with_or_without_a_last_comma() {
        let options = Options::parse(
            quote!(task, timeout = "5s", name = "a::b",),
            Place::Function,
        )
        .unwrap();
        assert_eq!(options.name.as_ref().unwrap().value(), "a::b");
        assert_eq!(options.timeout, Some(Duration::from_secs(5)));
        assert_eq!(options.mode(false).unwrap(), Mode::Task);
        assert!(messages(quote!(), Place::Function).is_empty());
    }

    #[test]
    fn a_plain_function_may_block_unless_it_says_otherwise() {
        let none = Options::default();
        assert_eq!(none.mode(false).unwrap(), Mode::Blocking);
        assert_eq!(none.mode(true).unwrap(), Mode::Task);
        let task = Options::parse(quote!(task), Place::Method).unwrap();
        assert_eq!(task.mode(false).unwrap(), Mode::Task);
        let blocking = Options::parse(quote!(blocking), Place::Method).unwrap();
        assert!(blocking.mode(true).is_err());
    }

    #[test]
    fn what_a_function_says_goes_before_what_its_block_says() {
        let block =
            Options::parse(quote!(blocking, timeout = "5s", name = "t"), Place::Block).unwrap();
        let method = Options::parse(quote!(task), Place::Method)
            .unwrap()
            .within(&block);
        assert_eq!(method.mode(false).unwrap(), Mode::Task);
        assert_eq!(method.timeout, Some(Duration::from_secs(5)));
        assert!(
            method.name.is_none(),
            "the name of a block is a prefix, not a name"
        );
    }

    #[test]
    fn an_unknown_option_is_answered_with_the_nearest() {
        let [message] = &messages(quote!(timout = "5s"), Place::Function)[..] else {
            panic!()
        };
        assert!(message.starts_with("unknown option `timout`: did you mean `timeout`? "));
        assert!(
            !message.contains("skip"),
            "{message} names options for other places"
        );
        let [message] = &messages(quote!(retries = 3), Place::Method)[..] else {
            panic!()
        };
        assert!(message.starts_with("unknown option `retries`: the options are `name = \"..\"`, "));
    }

    #[test]
    fn a_name_in_python_is_a_module_and_a_name() {
        for good in ["m.f", "a.b.C.d", "_m.__len__", "m1.f2", "läden.öffne"] {
            for place in [Place::Function, Place::Block, Place::Method] {
                let options = Options::parse(quote!(python = #good), place).unwrap();
                assert_eq!(
                    options.python.map(|name| name.value()).as_deref(),
                    Some(good)
                );
            }
        }
        for bad in [
            "", ".", "f", "m.", ".f", "m..f", "1m.f", "m.2f", "m.f g", "m-n.f", "m::f", "m.f()",
        ] {
            let found = messages(quote!(python = #bad), Place::Function);
            let expected = "a name in Python is a module and a name in it: `module.function`";
            assert_eq!(found, [expected], "{bad}");
        }
        assert_eq!(
            messages(quote!(python), Place::Function),
            ["`python` needs a value: `python = \"module.name\"`"]
        );
    }

    #[test]
    fn the_class_of_a_block_is_no_name_of_its_functions() {
        let block = Options::parse(quote!(python = "m.Table"), Place::Block).unwrap();
        let method = Options::parse(quote!(task), Place::Method).unwrap();
        assert!(method.within(&block).python.is_none());
    }

    #[test]
    fn all_mistakes_are_reported_at_once() {
        let found = messages(
            quote!(
                timeout = "soon",
                skip,
                timeot = 3,
                blocking,
                task,
                name,
                name = "a b"
            ),
            Place::Function,
        );
        assert_eq!(found.len(), 7, "{found:#?}");
    }

    #[test]
    fn distance_counts_changed_letters() {
        assert_eq!(distance("timeout", "timeout"), 0);
        assert_eq!(distance("timeout", "timout"), 1);
        assert_eq!(distance("", "skip"), 4);
        assert_eq!(distance("task", "mask"), 1);
    }
}
