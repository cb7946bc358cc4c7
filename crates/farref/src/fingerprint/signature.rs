//! What a function takes and returns, in words, and where two builds differ about it (R8).
//!
//! A declaration says `Point`, and so does that of another build whose `Point` is another type. So a
//! signature also has the full names of the types, and the shape of the arguments; both travel with the
//! error, and the side that reports it looks for the first thing that differs.

use std::any::type_name;
use std::collections::HashSet;
use std::fmt;

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::fingerprint::{self, ErrorType};

/// The longest text of each kind that travels, and the longest that is shown of a name.
const MAX_TEXT: usize = 8 << 10;
const MAX_SHOWN: usize = 300;
/// How many parts are compared: the other side's are not to keep this one busy.
const MAX_PAIRS: usize = 10_000;

/// The signature of a remote function as one build has it. Shows itself as the function is declared.
///
/// ```
/// use farref::{Error, Signature};
///
/// /// What a log says of two builds that disagree.
/// fn line(error: &Error) -> Option<String> {
///     let Error::SignatureMismatch { ours, theirs, .. } = error else {
///         return None;
///     };
///     let difference = Signature::difference(ours, theirs);
///     Some(format!("{ours} / {theirs}: {difference}"))
/// }
/// # assert_eq!(line(&Error::ContextReleased), None);
/// ```
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct Signature {
    declaration: String,
    arguments: String,
    output: String,
    shape: String,
    /// The error's, if it is sent as what it is.
    error: String,
    error_shape: String,
}

impl Signature {
    pub(crate) fn of<A: DeserializeOwned + 'static, O: 'static>(
        declaration: &str,
        error: Option<&ErrorType>,
    ) -> Self {
        let (error, error_shape) = error.map_or(("", ""), |error| (error.name, &*error.shape));
        Self {
            declaration: cut(declaration, MAX_TEXT).to_owned(),
            arguments: cut(type_name::<A>(), MAX_TEXT).to_owned(),
            output: cut(type_name::<O>(), MAX_TEXT).to_owned(),
            shape: cut(&fingerprint::shape_text::<A>(), MAX_TEXT).to_owned(),
            error: cut(error, MAX_TEXT).to_owned(),
            error_shape: cut(error_shape, MAX_TEXT).to_owned(),
        }
    }

    /// As another worker may have sent it.
    pub(crate) fn received(self, clean: impl Fn(String) -> String) -> Self {
        let text = |text: String| clean(cut(&text, MAX_TEXT).to_owned());
        Self {
            declaration: text(self.declaration),
            arguments: text(self.arguments),
            output: text(self.output),
            shape: text(self.shape),
            error: text(self.error),
            error_shape: text(self.error_shape),
        }
    }

    /// One that says the same of everything.
    #[cfg(test)]
    pub(crate) fn said(text: &str) -> Self {
        Self {
            declaration: text.to_owned(),
            arguments: text.to_owned(),
            output: text.to_owned(),
            shape: text.to_owned(),
            error: text.to_owned(),
            error_shape: text.to_owned(),
        }
    }

    /// The first thing in which this signature, here, differs from another one, there.
    ///
    /// ```
    /// use farref::Signature;
    ///
    /// let unknown = Signature::default();
    /// assert_eq!(unknown.difference(&unknown), "a type in it has changed");
    /// ```
    pub fn difference(&self, theirs: &Self) -> String {
        names_differ(&self.arguments, &theirs.arguments)
            .or_else(|| names_differ(&self.output, &theirs.output))
            .or_else(|| errors_differ(&self.error, &theirs.error))
            .or_else(|| shapes_differ("", &self.shape, &theirs.shape))
            .or_else(|| shapes_differ("its error", &self.error_shape, &theirs.error_shape))
            .unwrap_or_else(|| "a type in it has changed".to_owned())
    }
}

impl fmt::Display for Signature {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.declaration)
    }
}

/// The first path in the name of a type that is another one there.
fn names_differ(ours: &str, theirs: &str) -> Option<String> {
    if ours == theirs {
        return None;
    }
    let paths = |name| {
        let is_path = |c: char| c.is_alphanumeric() || c == '_' || c == ':';
        str::split(name, move |c| !is_path(c)).filter(|path| !path.is_empty())
    };
    let mut pairs = paths(ours).zip(paths(theirs));
    let (ours, theirs) = pairs
        .find(|(ours, theirs)| ours != theirs)
        .unwrap_or((ours, theirs));
    Some(here_and_there(ours, theirs))
}

/// The same of errors, of which only some are sent as what they are.
fn errors_differ(ours: &str, theirs: &str) -> Option<String> {
    let shown = |name| cut(name, MAX_SHOWN);
    match (ours, theirs) {
        ("", "") => None,
        ("", sent) => Some(format!(
            "its error is only text here and sent as `{}` there",
            shown(sent)
        )),
        (sent, "") => Some(format!(
            "its error is sent as `{}` here and only text there",
            shown(sent)
        )),
        (ours, theirs) => names_differ(ours, theirs),
    }
}

fn here_and_there(ours: &str, theirs: &str) -> String {
    let [ours, theirs] = [ours, theirs].map(|text| cut(text, MAX_SHOWN));
    format!("what is `{ours}` here is `{theirs}` there")
}

/// The first part of something that is another one there; of the arguments if it has no name.
fn shapes_differ(whole: &str, ours: &str, theirs: &str) -> Option<String> {
    let [ours, theirs] = [ours, theirs].map(|shape| {
        let lines = cut(shape, MAX_TEXT).lines();
        lines.map(Part::parse).collect::<Vec<_>>()
    });
    let mut seen = HashSet::new();
    let mut next = vec![(0, 0, whole.to_owned())];
    while let Some((here, there, path)) = next.pop() {
        // The same part may stand for one thing here and for two there.
        if seen.len() >= MAX_PAIRS || !seen.insert((here, there)) {
            continue;
        }
        let (Some(here), Some(there)) = (ours.get(here), theirs.get(there)) else {
            // One of them was cut off.
            continue;
        };
        if let Some(difference) = here.differs(there) {
            return Some(match path.as_str() {
                "" => difference,
                path => format!("in {path}, {difference}"),
            });
        }
        let parts = here.parts.iter().zip(&there.parts).enumerate();
        // The last to be put on is looked at first.
        for (index, (a, b)) in parts.rev() {
            let path = match path.len() {
                0 => format!("argument {}", index + 1),
                1..MAX_SHOWN => format!("{path}{}", here.step(index)),
                _ => path.clone(),
            };
            next.push((*a, *b, path));
        }
    }
    None
}

/// One line of a shape: what is asked for, the names in it, and the lines of its parts.
struct Part<'a> {
    kind: String,
    names: Vec<&'a str>,
    parts: Vec<usize>,
}

impl<'a> Part<'a> {
    /// Reads what `shape` writes. The line may come from another build, so nothing is taken for granted.
    fn parse(line: &'a str) -> Self {
        let mut part = Self {
            kind: String::new(),
            names: Vec::new(),
            parts: Vec::new(),
        };
        let mut rest = line;
        while !rest.is_empty() {
            if let Some((length, after)) = rest.split_once(':')
                && let Ok(length) = length.parse::<usize>()
                && let Some((name, after)) = after.split_at_checked(length)
            {
                part.names.push(name);
                rest = after.strip_prefix(' ').unwrap_or(after);
                continue;
            }
            let (word, after) = rest.split_once(' ').unwrap_or((rest, ""));
            match word.strip_prefix('#').map(str::parse) {
                Some(Ok(number)) => part.parts.push(number),
                _ if part.kind.is_empty() => part.kind.push_str(word),
                _ => part.kind = format!("{} {word}", part.kind),
            }
            rest = after;
        }
        part
    }

    /// What the names of its parts follow: what it is called itself, if it is called anything.
    fn own_names(&self) -> usize {
        usize::from(self.kind != "struct variant")
    }

    fn part_names(&self) -> &[&'a str] {
        self.names.get(self.own_names()..).unwrap_or_default()
    }

    fn differs(&self, there: &Self) -> Option<String> {
        if self.kind == there.kind && self.names == there.names {
            return None;
        }
        let same_thing = self.kind == there.kind
            && self.names.get(..self.own_names()) == there.names.get(..there.own_names());
        let (ours, theirs) = (self.part_names(), there.part_names());
        if same_thing && ours != theirs {
            let what = match self.names.first() {
                Some(name) if self.own_names() == 1 => format!("`{}` ", cut(name, MAX_SHOWN)),
                _ => String::new(),
            };
            let only = |these: &[&str], those: &[&str]| {
                let name = these.iter().find(|name| !those.contains(name));
                name.map(|name| cut(name, MAX_SHOWN).to_owned())
            };
            return Some(match (only(ours, theirs), only(theirs, ours)) {
                (Some(ours), Some(theirs)) => {
                    format!("{what}has `{ours}` here and `{theirs}` there")
                }
                (Some(ours), None) => format!("{what}has `{ours}` here and not there"),
                (None, Some(theirs)) => format!("{what}has `{theirs}` there and not here"),
                (None, None) => format!("{what}has its parts in another order"),
            });
        }
        Some(here_and_there(&self.to_string(), &there.to_string()))
    }

    /// How the way to a part goes on.
    fn step(&self, index: usize) -> String {
        match (self.part_names().get(index), self.kind.as_str()) {
            (Some(name), "enum") => format!("::{name}"),
            (Some(name), _) => format!(".{name}"),
            (None, "option" | "seq" | "map" | "newtype struct" | "newtype variant") => {
                String::new()
            }
            (None, _) => format!(".{index}"),
        }
    }
}

impl fmt::Display for Part<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.kind)?;
        match self.names.first().filter(|_| self.own_names() == 1) {
            Some(name) => write!(f, " {name}"),
            None => Ok(()),
        }
    }
}

/// The beginning of a text that may be too long.
fn cut(text: &str, most: usize) -> &str {
    let ends = (0..=most.min(text.len())).rev();
    let end = ends.into_iter().find(|end| text.is_char_boundary(*end));
    text.get(..end.unwrap_or(0)).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use serde::{Deserialize, Serialize};

    use super::*;

    mod before {
        use super::*;

        #[derive(Serialize, Deserialize)]
        pub(super) struct Point {
            pub(super) x: f32,
            pub(super) y: f32,
        }

        #[derive(Serialize, Deserialize)]
        pub(super) enum Shape {
            Dot(Point),
            Line { from: Point, to: Point },
        }
    }

    mod after {
        use super::*;

        #[derive(Serialize, Deserialize)]
        pub(super) struct Point {
            pub(super) x: f32,
            pub(super) y: f64,
        }

        #[derive(Serialize, Deserialize)]
        pub(super) enum Shape {
            Dot(Point),
            Line { from: Point, until: Point },
        }
    }

    #[derive(Serialize, Deserialize)]
    #[serde(rename = "Point")]
    struct WithZ {
        x: f32,
        y: f32,
        z: f32,
    }

    /// The signature of another build whose types have the same names.
    fn renamed<A: DeserializeOwned + 'static, B: DeserializeOwned + 'static>() -> [Signature; 2] {
        let ours = Signature::of::<A, ()>("fn f(a: A)", None);
        let mut theirs = Signature::of::<B, ()>("fn f(a: A)", None);
        theirs.arguments.clone_from(&ours.arguments);
        [ours, theirs]
    }

    /// R8
    #[test]
    fn types_that_are_called_alike_are_told_apart_by_their_paths() {
        let ours =
            Signature::of::<(u8, Vec<before::Point>), ()>("fn f(n: u8, p: Vec<Point>)", None);
        let theirs =
            Signature::of::<(u8, Vec<after::Point>), ()>("fn f(n: u8, p: Vec<Point>)", None);
        assert_eq!(ours.to_string(), theirs.to_string());
        let difference = ours.difference(&theirs);
        assert!(difference.contains("before::Point` here"), "{difference}");
        assert!(difference.contains("after::Point` there"), "{difference}");
        let ours = Signature::of::<(), Option<u32>>("fn f()", None);
        let theirs = Signature::of::<(), Option<u64>>("fn f()", None);
        let difference = ours.difference(&theirs);
        assert_eq!(difference, "what is `u32` here is `u64` there");
    }

    /// R8
    #[test]
    fn types_of_one_path_are_told_apart_by_the_first_part_that_differs() {
        let [ours, theirs] = renamed::<(u8, before::Point), (u8, after::Point)>();
        assert_eq!(
            ours.difference(&theirs),
            "in argument 2.y, what is `f32` here is `f64` there"
        );
        let [ours, theirs] = renamed::<(Vec<before::Point>,), (Vec<WithZ>,)>();
        assert_eq!(
            ours.difference(&theirs),
            "in argument 1, `Point` has `z` there and not here"
        );
        assert_eq!(
            theirs.difference(&ours),
            "in argument 1, `Point` has `z` here and not there"
        );
        let [ours, theirs] = renamed::<(before::Shape,), (after::Shape,)>();
        let difference = ours.difference(&theirs);
        assert_eq!(
            difference,
            "in argument 1::Dot.y, what is `f32` here is `f64` there"
        );
        let [ours, theirs] = renamed::<(u8, u16), (u8, Option<u16>)>();
        let difference = ours.difference(&theirs);
        assert_eq!(
            difference,
            "in argument 2, what is `u16` here is `option` there"
        );
    }

    /// R8
    #[test]
    fn errors_that_are_sent_are_told_apart_as_arguments_are() {
        let with =
            |error: Option<&ErrorType>| Signature::of::<(), ()>("fn f() -> Result<(), E>", error);
        let error = ErrorType::of::<before::Shape>();
        let ours = with(Some(&error));
        let theirs = with(Some(&ErrorType {
            shape: fingerprint::shape_text::<after::Shape>(),
            ..ErrorType::of::<before::Shape>()
        }));
        assert_eq!(
            ours.difference(&theirs),
            "in its error::Dot.y, what is `f32` here is `f64` there"
        );
        let theirs = with(Some(&ErrorType::of::<String>()));
        let difference = ours.difference(&theirs);
        assert!(
            difference.ends_with("Shape` here is `alloc::string::String` there"),
            "{difference}"
        );
        let difference = with(None).difference(&ours);
        assert!(
            difference.starts_with("its error is only text here"),
            "{difference}"
        );
        assert!(difference.ends_with("Shape` there"), "{difference}");
    }

    #[test]
    fn what_cannot_be_read_is_no_difference_and_no_panic() {
        let ours = Signature::of::<(before::Point,), ()>("fn f(p: Point)", None);
        for shape in [
            "",
            "\n\n",
            "struct 99:Point #1",
            "tuple 1 #7 #x",
            "tuple 1 #0",
        ] {
            let theirs = Signature {
                shape: shape.to_owned(),
                ..ours.clone()
            };
            let _ = ours.difference(&theirs);
            let _ = theirs.difference(&ours);
        }
        assert_eq!(ours.difference(&ours), "a type in it has changed");
        let long = "é".repeat(MAX_TEXT);
        assert!(Signature::of::<(), ()>(&long, None).to_string().len() <= MAX_TEXT);
    }
}
