//! What the ranks print, line by line behind their names.
//!
//! 1. A line is written whole: lines of different ranks never mix. Only a line that takes longer than
//!    [`PAUSE`] is shown as far as it is; if another rank prints meanwhile, its rest has a line of its own.
//! 2. Nothing grows without bound: a line longer than [`MAX_LINE`] is broken into several, and a rank that
//!    prints faster than the launcher's own output is read waits.
//! 3. If that output is closed, the ranks find theirs closed too, as they would without a launcher.
//!
//! Two threads write ([`sink`]), one for each of stdout and stderr, so that a reader who pauses does not
//! keep the launcher from hearing signals.

mod lines;
mod sink;

use std::io;
use std::time::Duration;

use clap::ValueEnum;
use tokio::net::unix::pipe;
use tokio::sync::{mpsc, watch};
use tokio::time::{Instant, sleep_until};

use lines::Lines;
use sink::{Piece, Sink};

/// How long the rest of a line may take before its beginning is shown. Shorter, and a rank that the system
/// holds up in the middle of a line would have it broken.
const PAUSE: Duration = Duration::from_secs(1);

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
            stdout: sink(io::stdout(), color),
            stderr: sink(io::stderr(), color),
        }
    }

    /// How a rank's lines get out.
    pub(super) fn printers(&self, label: &str, rank: u32) -> (Printer, Printer) {
        let printer = |sink: &Sink| Printer {
            lines: Lines::new(sink.prefix(label, rank), sink.author(), sink.is_terminal()),
            since: None,
            pieces: sink.pieces().clone(),
        };
        (printer(&self.stdout), printer(&self.stderr))
    }

    /// Says something of the launcher's own, without waiting for whoever reads it.
    pub(super) fn say(&self, text: &str) {
        let line = Piece::of_launcher(format!("farref launch: {text}\n"));
        let pieces = self.stderr.pieces();
        if let Err(mpsc::error::TrySendError::Full(line)) = pieces.try_send(line) {
            let pieces = pieces.clone();
            tokio::spawn(async move { pieces.send(line).await });
        }
    }

    /// Waits until everything is written.
    pub(super) async fn finish(self) {
        tokio::join!(self.stdout.finish(), self.stderr.finish());
    }
}

fn sink(to: impl io::Write + io::IsTerminal + Send + 'static, color: Color) -> Sink {
    let is_terminal = to.is_terminal();
    Sink::start(to, is_terminal, color.applies(is_terminal))
}

/// Prints what one stream of a rank brings.
#[derive(Debug)]
pub(super) struct Printer {
    lines: Lines,
    /// Since when a line has been waiting for its end.
    since: Option<Instant>,
    pieces: mpsc::Sender<Piece>,
}

/// The launcher's own output is closed.
struct Closed;

impl Printer {
    /// Copies until the pipe is closed. Dropping this loses nothing.
    async fn copy_all(&mut self, from: &pipe::Receiver) -> Result<(), Closed> {
        loop {
            self.print_lines().await?;
            let shown = self.since.map(|since| since + PAUSE);
            tokio::select! {
                readable = from.readable() => if readable.is_err() {
                    return Ok(());
                },
                () = sleep_until(shown.unwrap_or_else(Instant::now)), if shown.is_some() => {
                    self.print_begun().await?;
                    continue;
                }
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
            self.print_lines().await?;
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
        self.lines.push(&buffer[..count]);
        Ok(count)
    }

    async fn print_lines(&mut self) -> Result<(), Closed> {
        while self.lines.has_line() {
            let room = self.room().await?;
            if let Some(piece) = self.lines.take_lines() {
                room.send(piece);
            }
            self.since = None;
        }
        match self.lines.has_begun() {
            true => _ = self.since.get_or_insert_with(Instant::now),
            false => self.since = None,
        }
        Ok(())
    }

    /// Prints the line that has begun as far as it is.
    async fn print_begun(&mut self) -> Result<(), Closed> {
        let room = self.room().await?;
        if let Some(piece) = self.lines.take_begun() {
            room.send(piece);
        }
        self.since = None;
        Ok(())
    }

    /// Asked for before a piece is made: one that waits for room would be lost if nobody waited on.
    async fn room(&self) -> Result<mpsc::OwnedPermit<Piece>, Closed> {
        let room = self.pieces.clone().reserve_owned().await;
        room.map_err(|_| Closed)
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
    if copied.is_ok() {
        to.lines.end();
        let _ = to.print_lines().await;
    }
}

async fn is_set(gone: &mut watch::Receiver<bool>) {
    let _ = gone.wait_for(|gone| *gone).await;
}
