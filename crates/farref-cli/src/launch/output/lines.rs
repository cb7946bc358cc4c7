//! Makes lines of what one stream of a rank brings.
//!
//! A line ends with a newline, with a carriage return, as those of progress bars do, or with both. On a
//! terminal a carriage return stays one, so that the next line takes the place of this one; elsewhere it
//! becomes a newline.

use std::sync::Arc;

use super::sink::{Author, Piece};

/// Where a line is broken that does not end.
const MAX_LINE: usize = 64 << 10;
/// How much is handed to a writer at once, give or take a line.
const PIECE: usize = 64 << 10;

#[derive(Debug)]
pub(super) struct Lines {
    prefix: Arc<[u8]>,
    author: Author,
    is_terminal: bool,
    /// What has come and was not taken, from the middle of a line if `taken` is not 0.
    unfinished: Vec<u8>,
    /// How much of the line that has begun was taken.
    taken: usize,
    /// The line before ended with a carriage return: a newline belongs to it.
    returned: bool,
}

impl Lines {
    pub(super) fn new(prefix: Arc<[u8]>, author: Author, is_terminal: bool) -> Self {
        Self {
            prefix,
            author,
            is_terminal,
            unfinished: Vec::new(),
            taken: 0,
            returned: false,
        }
    }

    pub(super) fn push(&mut self, bytes: &[u8]) {
        self.unfinished.extend_from_slice(bytes);
    }

    pub(super) fn has_line(&self) -> bool {
        self.taken + self.unfinished.len() >= MAX_LINE || self.unfinished.iter().any(ends_line)
    }

    /// Whether there is a beginning of a line that nobody has seen.
    pub(super) fn has_begun(&self) -> bool {
        !self.unfinished.is_empty()
    }

    /// There will be no more: ends the line that has begun.
    pub(super) fn end(&mut self) {
        if self.taken > 0 || !self.unfinished.is_empty() {
            self.unfinished.push(b'\n');
        }
    }

    /// Takes whole lines, with the prefix before each, as much as one piece has room for.
    pub(super) fn take_lines(&mut self) -> Option<Piece> {
        let ends_bar = self.is_terminal && self.returned && self.unfinished.first() == Some(&b'\n');
        let continues = self.taken > 0 || ends_bar;
        let mut bytes = Vec::new();
        let mut is_open = false;
        let mut used = 0;
        while bytes.len() < PIECE {
            let rest = &self.unfinished[used..];
            if self.returned && !rest.is_empty() {
                self.returned = false;
                if rest[0] == b'\n' {
                    // The second half of an end.
                    used += 1;
                    if self.is_terminal {
                        bytes.push(b'\n');
                        is_open = false;
                    }
                    continue;
                }
            }
            let window = &rest[..rest.len().min(MAX_LINE.saturating_sub(self.taken))];
            let (line, end) = match window.iter().position(ends_line) {
                Some(end) => (&window[..end], Some(window[end])),
                None if self.taken + window.len() >= MAX_LINE => (window, None),
                None => break,
            };
            let next = rest.get(line.len() + 1);
            used += line.len() + usize::from(end.is_some());
            let returned = end == Some(b'\r') && next != Some(&b'\n');
            if end == Some(b'\r') && next == Some(&b'\n') {
                used += 1;
            }
            // A progress bar that begins with a carriage return has no line before it.
            if returned && line.is_empty() && self.taken == 0 {
                continue;
            }
            if self.taken == 0 {
                bytes.extend_from_slice(&self.prefix);
            }
            bytes.extend_from_slice(line);
            is_open = returned && self.is_terminal;
            bytes.push(if is_open { b'\r' } else { b'\n' });
            self.taken = 0;
            self.returned = returned;
        }
        self.unfinished.drain(..used);
        self.shrink();
        (!bytes.is_empty()).then(|| self.piece(continues, bytes, is_open))
    }

    /// Takes the beginning of a line whose end has not come.
    pub(super) fn take_begun(&mut self) -> Option<Piece> {
        let rest = std::mem::take(&mut self.unfinished);
        if rest.is_empty() {
            return None;
        }
        let continues = self.taken > 0;
        let mut bytes = match continues {
            true => Vec::new(),
            false => self.prefix.to_vec(),
        };
        bytes.extend_from_slice(&rest);
        self.taken += rest.len();
        self.returned = false;
        Some(self.piece(continues, bytes, true))
    }

    fn piece(&self, continues: bool, bytes: Vec<u8>, is_open: bool) -> Piece {
        Piece {
            author: self.author,
            continues,
            bytes,
            is_open,
            prefix: Arc::clone(&self.prefix),
        }
    }

    /// Thousands of silent ranks should not keep what they once needed.
    fn shrink(&mut self) {
        if self.unfinished.is_empty() {
            self.unfinished = Vec::new();
        }
    }
}

fn ends_line(byte: &u8) -> bool {
    matches!(byte, b'\n' | b'\r')
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lines(is_terminal: bool) -> Lines {
        Lines::new((*b"[0] ").into(), Author::LAUNCHER, is_terminal)
    }

    /// Everything that is printed if the parts come one after the other, and what is left.
    fn printed(is_terminal: bool, parts: &[&[u8]]) -> (Vec<u8>, Vec<u8>) {
        let mut lines = lines(is_terminal);
        let mut printed = Vec::new();
        for part in parts {
            lines.push(part);
            while lines.has_line() {
                if let Some(piece) = lines.take_lines() {
                    assert!(piece.bytes.len() < PIECE + MAX_LINE + 16);
                    assert!(piece.is_open || piece.bytes.last() == Some(&b'\n'));
                    printed.extend(piece.bytes);
                }
            }
        }
        (printed, lines.unfinished)
    }

    #[test]
    fn only_whole_lines_are_printed() {
        let (text, rest) = printed(false, &[b"a\n\nb"]);
        assert_eq!((text, rest), (b"[0] a\n[0] \n".to_vec(), b"b".to_vec()));
        assert_eq!(printed(false, &[b""]), (vec![], vec![]));
    }

    #[test]
    fn bytes_that_are_no_text_pass() {
        assert_eq!(
            printed(false, &[b"\xff\x00\xfe\n"]).0,
            b"[0] \xff\x00\xfe\n"
        );
    }

    #[test]
    fn a_line_without_end_is_broken() {
        let (text, rest) = printed(false, &[&vec![b'x'; 2 * MAX_LINE + 5]]);
        assert_eq!(text.len(), 2 * (MAX_LINE + 5));
        assert_eq!(rest.len(), 5);
    }

    #[test]
    fn a_line_is_broken_at_the_same_place_if_its_beginning_was_shown() {
        let mut lines = lines(false);
        lines.push(&[b'x'; 100]);
        let begun = lines.take_begun().unwrap();
        assert!(begun.is_open && !begun.continues && begun.bytes.len() == 104);
        lines.push(&[b'x'; MAX_LINE]);
        let rest = lines.take_lines().unwrap();
        assert!(rest.continues && !rest.is_open && rest.bytes.len() == MAX_LINE - 100 + 1);
        assert_eq!(lines.unfinished.len(), 100);
    }

    #[test]
    fn many_short_lines_make_several_pieces() {
        let (text, rest) = printed(false, &[&vec![b'\n'; 100_000]]);
        assert_eq!((text.len(), rest.len()), (500_000, 0));
    }

    #[test]
    fn a_carriage_return_ends_a_line_with_or_without_a_newline_behind_it() {
        for parts in [
            &[&b"\r1\r2\r\n3\r\n\r\n4\n"[..]][..],
            &[b"\r1\r", b"2\r", b"\n3", b"\r", b"\n", b"\r", b"\n4\n"],
        ] {
            let (text, rest) = printed(false, parts);
            assert_eq!(text, b"[0] 1\n[0] 2\n[0] 3\n[0] \n[0] 4\n");
            assert!(rest.is_empty());
        }
    }

    #[test]
    fn on_a_terminal_a_progress_bar_stays_in_its_place() {
        for parts in [
            &[&b"\r1\r2\r\n3\n"[..]][..],
            &[b"\r1", b"\r2\r", b"\n", b"3\n"],
        ] {
            let (text, _) = printed(true, parts);
            let text = String::from_utf8(text).unwrap();
            let shown = text.replace("\r\n", "\n");
            assert_eq!(shown, "[0] 1\r[0] 2\n[0] 3\n");
        }
    }

    #[test]
    fn what_ends_ends_its_line() {
        let mut lines = lines(false);
        lines.end();
        assert!(!lines.has_line());
        lines.push(b"a");
        lines.take_begun();
        lines.end();
        let end = lines.take_lines().unwrap();
        assert!(end.continues && end.bytes == b"\n");
    }
}
