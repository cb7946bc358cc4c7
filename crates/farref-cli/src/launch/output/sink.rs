//! A thread that writes what all ranks print, and the way to it.

use std::io::Write;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use tokio::sync::{mpsc, oneshot};

/// How many pieces wait for a writer.
const QUEUE: usize = 16;

/// Whose a piece is: one stream of one life of a rank.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Author(u64);

impl Author {
    pub(super) const LAUNCHER: Self = Self(0);
}

/// Some lines of one author.
#[derive(Debug)]
pub(super) struct Piece {
    pub(super) author: Author,
    /// Goes on with the line that the author's piece before this one left open.
    pub(super) continues: bool,
    pub(super) bytes: Vec<u8>,
    /// Leaves its last line open.
    pub(super) is_open: bool,
    /// What stands before the author's lines.
    pub(super) prefix: Arc<[u8]>,
}

impl Piece {
    /// Whole lines of the launcher's own.
    pub(super) fn of_launcher(lines: String) -> Self {
        Self {
            author: Author::LAUNCHER,
            continues: false,
            bytes: lines.into_bytes(),
            is_open: false,
            prefix: Arc::default(),
        }
    }
}

#[derive(Debug)]
pub(super) struct Sink {
    pieces: mpsc::Sender<Piece>,
    written: oneshot::Receiver<()>,
    authors: AtomicU64,
    is_terminal: bool,
    colored: bool,
}

impl Sink {
    pub(super) fn start(to: impl Write + Send + 'static, is_terminal: bool, colored: bool) -> Self {
        let (pieces, mut queue) = mpsc::channel::<Piece>(QUEUE);
        let (done, written) = oneshot::channel();
        std::thread::spawn(move || {
            let mut writer = Writer { to, open: None };
            let mut all = Ok(());
            while let (Ok(()), Some(piece)) = (&all, queue.blocking_recv()) {
                all = writer.write(piece);
            }
            let _ = all.and_then(|()| writer.end_line());
            // The queue closes before anybody is told that all is written.
            drop(queue);
            let _ = done.send(());
        });
        Self {
            pieces,
            written,
            authors: AtomicU64::new(1),
            is_terminal,
            colored,
        }
    }

    pub(super) fn pieces(&self) -> &mpsc::Sender<Piece> {
        &self.pieces
    }

    pub(super) fn is_terminal(&self) -> bool {
        self.is_terminal
    }

    pub(super) fn author(&self) -> Author {
        Author(self.authors.fetch_add(1, Ordering::Relaxed))
    }

    /// What stands before the lines of a rank.
    pub(super) fn prefix(&self, label: &str, rank: u32) -> Arc<[u8]> {
        // Legible on dark and on light ground.
        const COLORS: [u8; 12] = [36, 33, 32, 35, 34, 31, 96, 93, 92, 95, 94, 91];
        let color = COLORS[rank as usize % COLORS.len()];
        let prefix = match self.colored {
            true => format!("\x1b[0;{color}m[{label}]\x1b[0m "),
            false => format!("[{label}] "),
        };
        prefix.into_bytes().into()
    }

    /// Waits until everything is written.
    pub(super) async fn finish(self) {
        drop(self.pieces);
        let _ = self.written.await;
    }
}

/// Puts the pieces of different authors below each other.
struct Writer<W> {
    to: W,
    /// Whose line is open.
    open: Option<Author>,
}

impl<W: Write> Writer<W> {
    fn write(&mut self, piece: Piece) -> std::io::Result<()> {
        let mut bytes = &piece.bytes[..];
        if self.open != Some(piece.author) {
            let broken_off = piece.continues;
            self.end_line()?;
            if broken_off && bytes.first() == Some(&b'\n') {
                // The line has its end already.
                bytes = &bytes[1..];
            } else if broken_off {
                self.to.write_all(&piece.prefix)?;
            }
        }
        self.open = piece.is_open.then_some(piece.author);
        self.to.write_all(bytes)?;
        self.to.flush()
    }

    fn end_line(&mut self) -> std::io::Result<()> {
        match self.open.take() {
            Some(_) => self.to.write_all(b"\n"),
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn written(pieces: &[(u64, bool, &str, bool)]) -> String {
        let mut to = Vec::new();
        let mut writer = Writer {
            to: &mut to,
            open: None,
        };
        for (author, continues, bytes, is_open) in pieces {
            let piece = Piece {
                author: Author(*author),
                continues: *continues,
                bytes: bytes.as_bytes().into(),
                is_open: *is_open,
                prefix: format!("[{author}] ").into_bytes().into(),
            };
            writer.write(piece).unwrap();
        }
        writer.end_line().unwrap();
        String::from_utf8(to).unwrap()
    }

    #[test]
    fn an_open_line_goes_on_unless_another_author_has_broken_it_off() {
        assert_eq!(
            written(&[(1, false, "[1] a", true), (1, true, "b\n", false)]),
            "[1] ab\n"
        );
        assert_eq!(
            written(&[
                (1, false, "[1] a", true),
                (2, false, "[2] x\n", false),
                (1, true, "b\n", false),
            ]),
            "[1] a\n[2] x\n[1] b\n"
        );
        assert_eq!(
            written(&[
                (1, false, "[1] a", true),
                (2, false, "[2] x\n", false),
                (1, true, "\n[1] c\n", false),
            ]),
            "[1] a\n[2] x\n[1] c\n"
        );
        assert_eq!(written(&[(1, false, "[1] a", true)]), "[1] a\n");
    }

    #[test]
    fn a_progress_bar_overwrites_itself_and_nobody_else() {
        assert_eq!(
            written(&[
                (1, false, "[1] 10%\r", true),
                (1, false, "[1] 20%\r", true),
                (2, false, "[2] x\n", false),
                (1, false, "[1] 30%\r", true),
            ]),
            "[1] 10%\r[1] 20%\r\n[2] x\n[1] 30%\r\n"
        );
    }
}
