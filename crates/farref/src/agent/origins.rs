//! Where the references that travel with a message were made, for leak reports.

use std::cell::RefCell;
use std::fmt;
use std::hash::{Hash, Hasher};
use std::panic::Location;
use std::sync::Arc;

use serde::de::{Error as _, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// The longest name of a file that travels; of a longer one the end does.
const MAX_FILE: usize = 200;
/// So many different lines are named in one message.
const MAX_LINES: usize = u8::MAX as usize;

/// The source lines that made the references which a message carries.
///
/// It only helps people: a wire that has no room for it leaves it empty, and nobody knows then.
///
/// ```
/// use farref::agent::Origins;
///
/// let nobody_knows = Origins::default();
/// assert!(nobody_knows.line_of(0).is_none());
///
/// let wire = r#"{"lines":[["src/main.rs",7,5]],"of":[0,1,1]}"#;
/// let origins: Origins = serde_json::from_str(wire)?;
/// assert!(origins.line_of(0).is_none());
/// assert_eq!(origins.line_of(2).unwrap().to_string(), "src/main.rs:7:5");
/// # Ok::<(), serde_json::Error>(())
/// ```
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(from = "Listed", into = "Listed")]
pub struct Origins(
    /// Nearly no message has any, so they take no room in one.
    Option<Box<Lines>>,
);

#[derive(Clone, PartialEq, Eq, Debug)]
enum Lines {
    /// There is one reference, which this line made.
    One(SourceLine),
    Listed(Listed),
}

#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(rename = "Origins")]
struct Listed {
    /// Each once.
    #[serde(deserialize_with = "few_lines")]
    lines: Vec<SourceLine>,
    /// For each reference, in the order of the message: which of them, counted from one. Zero: unknown.
    of: Vec<u8>,
}

impl Origins {
    /// Of references that were made by these lines, as far as that is known.
    pub(crate) fn new(lines: impl IntoIterator<Item = Option<SourceLine>>) -> Self {
        let mut lines = lines.into_iter();
        let mut listed = Listed::default();
        if lines.size_hint() == (1, Some(1)) {
            let only = lines.next().flatten();
            return Self(only.map(|line| Box::new(Lines::One(line))));
        }
        for line in lines {
            let number = line.map_or(0, |line| listed.number(line));
            listed.of.push(number);
        }
        listed.into()
    }

    /// The line that made the reference with this number, if it is known.
    pub fn line_of(&self, reference: usize) -> Option<&SourceLine> {
        self.lines().get(self.index_of(reference)?)
    }

    pub(crate) fn index_of(&self, reference: usize) -> Option<usize> {
        match &**self.0.as_ref()? {
            Lines::One(_) => (reference == 0).then_some(0),
            Lines::Listed(listed) => {
                let number = *listed.of.get(reference)?;
                usize::from(number).checked_sub(1)
            }
        }
    }

    pub(crate) fn lines(&self) -> &[SourceLine] {
        match self.0.as_deref() {
            None => &[],
            Some(Lines::One(line)) => std::slice::from_ref(line),
            Some(Lines::Listed(listed)) => &listed.lines,
        }
    }

    /// The line of the only reference, if there is but one and its line is known.
    pub(crate) fn of_one(&self) -> Option<&SourceLine> {
        match self.0.as_deref()? {
            Lines::One(line) => Some(line),
            Lines::Listed(_) => None,
        }
    }

    /// Of one reference that this line of a peer's program made. None if the name is not fit to be kept as it is.
    pub(crate) fn of_line(file: &str, line: u32, column: u32) -> Option<Self> {
        if file.len() > MAX_FILE || file.contains(char::is_control) {
            return None;
        }
        let made_by = LAST.with_borrow_mut(|last| match last {
            Some(last) if last.parts() == (file, line, column) => last.clone(),
            last => {
                let file = file.into();
                let line = SourceLine(Line::Theirs(Arc::new(Theirs { file, line, column })));
                last.insert(line).clone()
            }
        });
        Some(Self(Some(Box::new(Lines::One(made_by)))))
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_none()
    }
}

thread_local! {
    /// The line that references read by this thread were made by lately: it is often the same again.
    static LAST: RefCell<Option<SourceLine>> = const { RefCell::new(None) };
}

impl From<Listed> for Origins {
    fn from(mut listed: Listed) -> Self {
        let lines = match (listed.lines.len(), &listed.of[..]) {
            (0, _) => return Self(None),
            (1, [1]) => Lines::One(listed.lines.remove(0)),
            _ => Lines::Listed(listed),
        };
        Self(Some(Box::new(lines)))
    }
}

impl From<Origins> for Listed {
    fn from(origins: Origins) -> Self {
        match origins.0.map(|lines| *lines) {
            None => Self::default(),
            Some(Lines::One(line)) => Self {
                lines: vec![line],
                of: vec![1],
            },
            Some(Lines::Listed(listed)) => listed,
        }
    }
}

impl Listed {
    fn number(&mut self, line: SourceLine) -> u8 {
        // References of one message are nearly always of one line, or of a few.
        let known = self.lines.iter().position(|known| *known == line);
        let index = known.unwrap_or_else(|| {
            if self.lines.len() < MAX_LINES {
                self.lines.push(line);
                self.lines.len() - 1
            } else {
                MAX_LINES
            }
        });
        u8::try_from(index + 1).unwrap_or(0)
    }
}

/// A line of a program's source.
///
/// Cheap to clone, and bounded: how long its text is, is not up to whoever sends it.
///
/// ```
/// use farref::agent::SourceLine;
///
/// let wire = r#"["src/main.rs",7,5]"#;
/// let line: SourceLine = serde_json::from_str(wire)?;
/// assert_eq!(line.to_string(), "src/main.rs:7:5");
/// assert_eq!(serde_json::to_string(&line)?, wire);
///
/// let endless = format!(r#"["{}",7,5]"#, "x".repeat(10_000));
/// assert!(serde_json::from_str::<SourceLine>(&endless).is_err());
/// # Ok::<(), serde_json::Error>(())
/// ```
#[derive(Clone)]
pub struct SourceLine(Line);

#[derive(Clone)]
enum Line {
    /// Of this program.
    Ours(&'static Location<'static>),
    /// Of a program that said so.
    Theirs(Arc<Theirs>),
}

struct Theirs {
    file: Box<str>,
    line: u32,
    column: u32,
}

impl SourceLine {
    pub(crate) fn ours(location: &'static Location<'static>) -> Self {
        Self(Line::Ours(location))
    }

    /// Of a program in another language, whose lines have no columns.
    pub(crate) fn told(file: &str, line: u32) -> Self {
        let file = file.replace(char::is_control, "?").into();
        Self(Line::Theirs(Arc::new(Theirs {
            file,
            line,
            column: 0,
        })))
    }

    pub(crate) fn parts(&self) -> (&str, u32, u32) {
        let (file, line, column) = match &self.0 {
            Line::Ours(location) => (location.file(), location.line(), location.column()),
            Line::Theirs(theirs) => (&*theirs.file, theirs.line, theirs.column),
        };
        let mut start = file.len().saturating_sub(MAX_FILE);
        while !file.is_char_boundary(start) {
            start += 1;
        }
        (file.get(start..).unwrap_or_default(), line, column)
    }
}

impl PartialEq for SourceLine {
    fn eq(&self, other: &Self) -> bool {
        match (&self.0, &other.0) {
            (Line::Ours(one), Line::Ours(other)) if std::ptr::eq(*one, *other) => true,
            _ => self.parts() == other.parts(),
        }
    }
}

impl Eq for SourceLine {}

impl Hash for SourceLine {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.parts().hash(state);
    }
}

impl fmt::Display for SourceLine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.parts() {
            (file, line, 0) => write!(f, "{file}:{line}"),
            (file, line, column) => write!(f, "{file}:{line}:{column}"),
        }
    }
}

impl fmt::Debug for SourceLine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl Serialize for SourceLine {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        self.parts().serialize(serializer)
    }
}

impl<'de> Deserialize<'de> for SourceLine {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let (mut file, line, column) = <(Box<str>, u32, u32)>::deserialize(deserializer)?;
        if file.len() > MAX_FILE {
            return Err(D::Error::custom("a source file with too long a name"));
        }
        if file.contains(char::is_control) {
            // It ends up in logs and on terminals.
            file = file.replace(char::is_control, "?").into();
        }
        Ok(Self(Line::Theirs(Arc::new(Theirs { file, line, column }))))
    }
}

/// Reads no more lines than any correct peer sends.
fn few_lines<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<SourceLine>, D::Error> {
    struct Few;

    impl<'de> Visitor<'de> for Few {
        type Value = Vec<SourceLine>;

        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            write!(f, "at most {MAX_LINES} source lines")
        }

        fn visit_seq<A: SeqAccess<'de>>(self, mut lines: A) -> Result<Vec<SourceLine>, A::Error> {
            let mut few = Vec::new();
            while let Some(line) = lines.next_element()? {
                if few.len() == MAX_LINES {
                    return Err(A::Error::invalid_length(MAX_LINES + 1, &self));
                }
                few.push(line);
            }
            Ok(few)
        }
    }

    deserializer.deserialize_seq(Few)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn here() -> SourceLine {
        SourceLine::ours(Location::caller())
    }

    /// What travels grows with the number of lines, not with that of references.
    #[test]
    fn a_line_is_named_once_however_many_references_it_made() {
        let line = here();
        let origins = Origins::new(vec![Some(line.clone()); 10_000]);
        assert_eq!(origins.lines(), [line]);
        let bytes = postcard::to_allocvec(&origins).unwrap_or_default();
        assert!((10_000..10_300).contains(&bytes.len()), "{}", bytes.len());
        assert_eq!(postcard::from_bytes(&bytes), Ok(origins));
        assert_eq!(Origins::new([None, None]), Origins::default());

        let one = Origins::new([Some(here())]);
        assert_eq!(
            (one.lines().len(), one.index_of(0), one.index_of(1)),
            (1, Some(0), None)
        );
        let bytes = postcard::to_allocvec(&one).unwrap_or_default();
        assert_eq!(postcard::from_bytes(&bytes), Ok(one));
    }

    /// More lines than a message names are unknown, and nothing worse.
    #[test]
    fn lines_beyond_the_most_are_unknown() {
        let line = |number: u32| {
            let theirs = Theirs {
                file: "far.rs".into(),
                line: number,
                column: 1,
            };
            SourceLine(Line::Theirs(Arc::new(theirs)))
        };
        let origins = Origins::new((0..1000).map(|number| Some(line(number))));
        assert_eq!(origins.line_of(254), Some(&line(254)));
        assert_eq!((origins.line_of(255), origins.line_of(9999)), (None, None));
        let bytes = postcard::to_allocvec(&origins).unwrap_or_default();
        assert_eq!(postcard::from_bytes(&bytes), Ok(origins));
    }

    /// What no correct peer sends is refused before it takes memory.
    #[test]
    fn a_peer_cannot_make_it_grow() {
        let lines = vec![("a.rs", 1_u32, 1_u32); MAX_LINES + 1];
        let bytes = postcard::to_allocvec(&(lines, Vec::<u8>::new())).unwrap_or_default();
        assert!(postcard::from_bytes::<Origins>(&bytes).is_err());
    }

    /// What a peer calls its files is shown to people.
    #[test]
    fn a_line_of_a_peer_has_no_control_characters() {
        let bytes = postcard::to_allocvec(&("\x1b[2Ja\n.rs", 1_u32, 1_u32)).unwrap_or_default();
        let line = postcard::from_bytes::<SourceLine>(&bytes).map(|line| line.to_string());
        assert_eq!(line.as_deref(), Ok("?[2Ja?.rs:1:1"));
    }
}
