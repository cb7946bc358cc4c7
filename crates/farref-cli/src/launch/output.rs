//! What the ranks print, line by line behind their names.
//!
//! 1. A line is written whole: lines of different ranks never mix.
//! 2. Nothing grows without bound: a line longer than [`MAX_LINE`] is broken into several, and a rank that
//!    prints faster than the launcher's own output is read waits.
//! 3. If that output is closed, the ranks find theirs closed too, as they would without a launcher.
//!
//! Two threads write, one for each of stdout and stderr, so that a reader who pauses does not keep the
//! launcher from hearing signals.

use std::io::{self, IsTerminal as _, Write};

use clap::ValueEnum;
use tokio::net::unix::pipe;
use tokio::sync::{mpsc, oneshot, watch};

/// Where a line is broken that does not end.
const MAX_LINE: usize = 64 << 10;
/// How much is handed to a writer at once, give or take a line.
const PIECE: usize = 64 << 10;
/// How many pieces wait for a writer.
const QUEUE: usize = 16;

#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
pub(super) enum Color {
    /// If the output is a terminal and NO_COLOR is not set
    Auto,
    Always,
    Never,
}

impl Color {
    fn applies(self, is_terminal: bool) -> bool {
        let is_set = |variable| std::env::var_os(variable).is_some_and(|value| !value.is_empty());
        let dumb = || std::env::var_os("TERM").is_some_and(|terminal| terminal == "dumb");
        match self {
            Self::Always => true,
            Self::Never => false,
            Self::Auto => is_terminal && !is_set("NO_COLOR") && !dumb(),
        }
    }
}

/// The launcher's own output.
#[derive(Debug)]
pub(super) struct Output {
    stdout: Sink,
    stderr: Sink,
}

impl Output {
    pub(super) fn start(color: Color) -> Self {
        Self {
            stdout: Sink::start(io::stdout(), color.applies(io::stdout().is_terminal())),
            stderr: Sink::start(io::stderr(), color.applies(io::stderr().is_terminal())),
        }
    }

    /// How a rank's lines get out.
    pub(super) fn printers(&self, label: &str, rank: u32) -> (Printer, Printer) {
        (
            self.stdout.printer(label, rank),
            self.stderr.printer(label, rank),
        )
    }

    /// Says something of the launcher's own, without waiting for whoever reads it.
    pub(super) fn say(&self, text: &str) {
        let line = format!("farref launch: {text}\n").into_bytes();
        if let Err(mpsc::error::TrySendError::Full(line)) = self.stderr.pieces.try_send(line) {
            let pieces = self.stderr.pieces.clone();
            tokio::spawn(async move { pieces.send(line).await });
        }
    }

    /// Waits until everything is written.
    pub(super) async fn finish(self) {
        for Sink {
            pieces, written, ..
        } in [self.stdout, self.stderr]
        {
            drop(pieces);
            let _ = written.await;
        }
    }
}

/// A thread that writes, and the way to it.
#[derive(Debug)]
struct Sink {
    pieces: mpsc::Sender<Vec<u8>>,
    written: oneshot::Receiver<()>,
    colored: bool,
}

impl Sink {
    fn start(mut to: impl Write + Send + 'static, colored: bool) -> Self {
        let (pieces, mut queue) = mpsc::channel::<Vec<u8>>(QUEUE);
        let (done, written) = oneshot::channel();
        std::thread::spawn(move || {
            while let Some(piece) = queue.blocking_recv() {
                if to.write_all(&piece).and_then(|()| to.flush()).is_err() {
                    break;
                }
            }
            // The queue closes before anybody is told that all is written.
            drop(queue);
            let _ = done.send(());
        });
        Self {
            pieces,
            written,
            colored,
        }
    }

    fn printer(&self, label: &str, rank: u32) -> Printer {
        // Legible on dark and on light ground.
        const COLORS: [u8; 12] = [36, 33, 32, 35, 34, 31, 96, 93, 92, 95, 94, 91];
        let color = COLORS[rank as usize % COLORS.len()];
        let prefix = match self.colored {
            true => format!("\x1b[0;{color}m[{label}]\x1b[0m "),
            false => format!("[{label}] "),
        };
        Printer {
            prefix: prefix.into_bytes(),
            unfinished: Vec::new(),
            pieces: self.pieces.clone(),
        }
    }
}

/// Makes lines of what one stream of a rank brings.
#[derive(Debug)]
pub(super) struct Printer {
    prefix: Vec<u8>,
    /// The line that has begun.
    unfinished: Vec<u8>,
    pieces: mpsc::Sender<Vec<u8>>,
}

/// The launcher's own output is closed.
struct Closed;

impl Printer {
    fn has_line(&self) -> bool {
        self.unfinished.len() >= MAX_LINE || self.unfinished.contains(&b'\n')
    }

    /// Takes whole lines out of what has come, with the prefix before each, as much as one piece has
    /// room for.
    fn piece(&mut self) -> Option<Vec<u8>> {
        let mut piece = Vec::new();
        let mut taken = 0;
        while piece.len() < PIECE {
            let rest = &self.unfinished[taken..];
            let window = &rest[..rest.len().min(MAX_LINE)];
            let (line, used) = match window.iter().position(|byte| *byte == b'\n') {
                Some(end) => (&window[..end], end + 1),
                None if window.len() == MAX_LINE => (window, MAX_LINE),
                None => break,
            };
            piece.extend_from_slice(&self.prefix);
            piece.extend_from_slice(line);
            piece.push(b'\n');
            taken += used;
        }
        self.unfinished.drain(..taken);
        // Thousands of silent ranks should not keep what they once needed.
        if self.unfinished.is_empty() {
            self.unfinished = Vec::new();
        }
        (!piece.is_empty()).then_some(piece)
    }

    /// Copies until the pipe is closed. Dropping this loses nothing.
    async fn copy_all(&mut self, from: &pipe::Receiver) -> Result<(), Closed> {
        loop {
            self.flush().await?;
            if from.readable().await.is_err() {
                return Ok(());
            }
            match self.take(|buffer| from.try_read(buffer)) {
                Ok(0) => return Ok(()),
                Ok(_) => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Err(_) => return Ok(()),
            }
        }
    }

    /// Copies what is in the pipe now. Asks the system for it: what the runtime knows to be readable may
    /// lag behind.
    async fn copy_rest(&mut self, from: &pipe::Receiver) -> Result<(), Closed> {
        loop {
            self.flush().await?;
            match self.take(|buffer| Ok(rustix::io::read(from, buffer)?)) {
                Ok(0) => return Ok(()),
                Ok(_) => {}
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(_) => return Ok(()),
            }
        }
    }

    fn take(&mut self, read: impl FnOnce(&mut [u8]) -> io::Result<usize>) -> io::Result<usize> {
        let mut buffer = [0; 16 << 10];
        let count = read(&mut buffer)?;
        self.unfinished.extend_from_slice(&buffer[..count]);
        Ok(count)
    }

    async fn flush(&mut self) -> Result<(), Closed> {
        while self.has_line() {
            // Room first: a piece that waits for it would be lost if nobody waited on.
            let room = self.pieces.clone().reserve_owned().await;
            let room = room.map_err(|_| Closed)?;
            if let Some(piece) = self.piece() {
                room.send(piece);
            }
        }
        Ok(())
    }
}

/// Copies what a rank prints until it has closed both pipes, or until `gone` is set and they are empty:
/// somebody who left the rank's process group may keep them open.
pub(super) async fn copy(
    streams: (pipe::Receiver, pipe::Receiver),
    to: (Printer, Printer),
    gone: watch::Receiver<bool>,
) {
    tokio::join!(
        copy_stream(streams.0, to.0, gone.clone()),
        copy_stream(streams.1, to.1, gone)
    );
}

async fn copy_stream(from: pipe::Receiver, mut to: Printer, mut gone: watch::Receiver<bool>) {
    let pieces = to.pieces.clone();
    let copied = tokio::select! {
        copied = to.copy_all(&from) => copied,
        // Everything that the rank wrote is in the pipe by now.
        () = is_set(&mut gone) => to.copy_rest(&from).await,
        // Nobody will read it; the rank learns that when the pipe closes.
        () = pieces.closed() => Err(Closed),
    };
    if copied.is_ok() && !to.unfinished.is_empty() {
        to.unfinished.push(b'\n');
        let _ = to.flush().await;
    }
}

async fn is_set(gone: &mut watch::Receiver<bool>) {
    let _ = gone.wait_for(|gone| *gone).await;
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lines(text: &[u8]) -> (Vec<u8>, Vec<u8>) {
        let (pieces, _queue) = mpsc::channel(1);
        let mut printer = Printer {
            prefix: b"[0] ".to_vec(),
            unfinished: text.to_vec(),
            pieces,
        };
        let mut printed = Vec::new();
        while let Some(piece) = printer.piece() {
            assert!(piece.len() < PIECE + MAX_LINE + 16);
            assert_eq!(piece.last(), Some(&b'\n'));
            printed.extend(piece);
        }
        (printed, printer.unfinished)
    }

    #[test]
    fn only_whole_lines_are_printed() {
        assert_eq!(lines(b"a\n\nb"), (b"[0] a\n[0] \n".to_vec(), b"b".to_vec()));
        assert_eq!(lines(b""), (vec![], vec![]));
    }

    #[test]
    fn bytes_that_are_no_text_pass() {
        let (printed, _) = lines(b"\xff\x00\xfe\n");
        assert_eq!(printed, b"[0] \xff\x00\xfe\n");
    }

    #[test]
    fn a_line_without_end_is_broken() {
        let (printed, rest) = lines(&vec![b'x'; 2 * MAX_LINE + 5]);
        assert_eq!(printed.len(), 2 * (MAX_LINE + 5));
        assert_eq!(rest.len(), 5);
    }

    #[test]
    fn many_short_lines_make_several_pieces() {
        let (printed, rest) = lines(&vec![b'\n'; 100_000]);
        assert_eq!((printed.len(), rest.len()), (500_000, 0));
    }
}
