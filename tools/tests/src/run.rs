//! Runs one test program, and reads how many tests passed.

use std::fmt;
use std::io::{self, Read};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{self, Receiver};
use std::thread;
use std::time::{Duration, Instant};

use crate::build::Program;

/// A test program that runs longer is killed as hung. Each of its tests has a limit of minutes.
const PROGRAM_LIMIT: Duration = Duration::from_secs(30 * 60);

/// Interval between checks whether the program has exited.
const POLL_INTERVAL: Duration = Duration::from_millis(20);

/// How long to wait for the rest of the output after the program has exited. Processes that it left
/// running keep the pipes open.
const OUTPUT_LIMIT: Duration = Duration::from_secs(10);

/// The result of a program.
pub(crate) struct Outcome {
    pub(crate) name: String,
    pub(crate) ok: bool,
    pub(crate) passed: u64,
    pub(crate) failed: u64,
    pub(crate) duration: Duration,
    pub(crate) output: String,
}

impl fmt::Display for Outcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let word = if self.ok { "ok" } else { "FAILED" };
        let (name, duration) = (&self.name, self.duration);
        write!(f, "{word:6} {name}: {} passed", self.passed)?;
        if self.failed > 0 {
            write!(f, ", {} failed", self.failed)?;
        }
        write!(f, " ({duration:.1?})")?;
        // Tests that were left out for something that is missing.
        for line in self
            .output
            .lines()
            .filter(|line| line.starts_with("LEFT OUT"))
        {
            write!(f, "\n       {line}")?;
        }
        Ok(())
    }
}

pub(crate) fn run(program: Program) -> Outcome {
    let Program { name, mut command } = program;
    let began = Instant::now();
    let (ended_well, output) = match output(&mut command) {
        Ok(ended) => ended,
        Err(error) => (false, format!("`{command:?}` does not start: {error}\n")),
    };
    let (passed, failed) = counts(&output);
    Outcome {
        name,
        // Without a "test result" line the program has not run its tests.
        ok: ended_well && failed == 0 && output.contains("test result: "),
        passed,
        failed,
        duration: began.elapsed(),
        output,
    }
}

/// Whether the command ended well and in time, and what it wrote.
fn output(command: &mut Command) -> io::Result<(bool, String)> {
    command.stdin(Stdio::null());
    command.stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn()?;
    let pieces = read_all(&mut child);
    let began = Instant::now();
    let status = loop {
        match child.try_wait()? {
            Some(status) => break Some(status),
            None if began.elapsed() > PROGRAM_LIMIT => {
                child.kill()?;
                child.wait()?;
                break None;
            }
            None => thread::sleep(POLL_INTERVAL),
        }
    };
    let mut output = Vec::new();
    let until = Instant::now() + OUTPUT_LIMIT;
    let left = || until.saturating_duration_since(Instant::now());
    while let Ok(piece) = pieces.recv_timeout(left()) {
        output.extend(piece);
    }
    let mut output = String::from_utf8_lossy(&output).into_owned();
    match status {
        Some(status) if !status.success() => output += &format!("it ended with {status}\n"),
        Some(_) => {}
        None => output += &format!("it ran for {PROGRAM_LIMIT:?} and was killed\n"),
    }
    Ok((status.is_some_and(|status| status.success()), output))
}

/// Reads both output streams of the child, in the order of arrival.
fn read_all(child: &mut Child) -> Receiver<Vec<u8>> {
    let (sender, receiver) = mpsc::channel();
    let streams: [Option<Box<dyn Read + Send>>; 2] = [
        child.stdout.take().map(|stream| Box::new(stream) as _),
        child.stderr.take().map(|stream| Box::new(stream) as _),
    ];
    for mut stream in streams.into_iter().flatten() {
        let sender = sender.clone();
        thread::spawn(move || {
            let mut buffer = [0; 8192];
            while let Ok(length) = stream.read(&mut buffer) {
                if length == 0 || sender.send(buffer[..length].to_vec()).is_err() {
                    break;
                }
            }
        });
    }
    receiver
}

/// Numbers of passed and failed tests, summed over all harnesses in the output.
fn counts(output: &str) -> (u64, u64) {
    let results = output
        .lines()
        .filter_map(|line| line.strip_prefix("test result: "));
    results.fold((0, 0), |(passed, failed), result| {
        (
            passed + number_before(result, " passed"),
            failed + number_before(result, " failed"),
        )
    })
}

fn number_before(text: &str, word: &str) -> u64 {
    let before = text.split(word).next().unwrap_or_default();
    let digits = before.rsplit(' ').next().unwrap_or_default();
    digits.parse().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn results_of_all_harnesses_of_a_program_are_added() {
        let output = "running 2 tests\n\
            test result: ok. 2 passed; 0 failed; 0 ignored; 0 measured; 0 filtered out; finished in 0.1s\n\
            test result: FAILED. 11 passed; 1 failed; 0 ignored\n";
        assert_eq!(counts(output), (13, 1));
        assert_eq!(counts("no result"), (0, 0));
    }

    #[test]
    fn output_of_both_streams_and_the_status_are_kept() -> io::Result<()> {
        let mut command = Command::new("sh");
        command.args(["-c", "echo out; echo err >&2; exit 3"]);
        let (ended_well, output) = output(&mut command)?;
        assert!(!ended_well);
        for part in ["out\n", "err\n", "exit status: 3"] {
            assert!(output.contains(part), "{output}");
        }
        Ok(())
    }
}
