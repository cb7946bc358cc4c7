//! `farref-chaos`: a group of processes under a random workload and random faults, and a check of everything that they promise.
//!
//! | part | job |
//! | --- | --- |
//! | `arguments`, `settings` | the command line; what a process is told |
//! | `python` | whether Python workers can be run |
//! | `plan` | which faults come when |
//! | `operations` | what the workers do |
//! | `functions`, `probe`, `data`, `trouble` | what they can be called for, the values that stay, what is sent, what can go wrong |
//! | `pool` | which references they keep |
//! | `program`, `worker` | a worker: its own program, its process (in Python: `farref_chaos.py`) |
//! | `history` | what they write down |
//! | `proxy` | what stands between them |
//! | `group`, `faults`, `driver`, `interrupts` | the processes, what is done to them, the run, its end before its time |
//! | `checker` | what in the histories must not be |
//! | `report` | what is said in the end |

#![forbid(unsafe_code)]

mod arguments;
mod checker;
mod data;
mod driver;
mod faults;
mod functions;
mod group;
mod history;
mod interrupts;
mod operations;
mod plan;
mod pool;
mod probe;
mod program;
mod proxy;
mod python;
mod report;
mod settings;
mod trouble;
mod worker;

use std::fs::DirBuilder;
use std::io::Write as _;
use std::os::unix::fs::DirBuilderExt as _;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail, ensure};
use clap::Parser as _;

use arguments::Arguments;
use checker::{Findings, Times};
use farref_group::allow_open_files;
use farref_progress::{Progress, check_writable};
use group::Setup;
use history::Record;
use interrupts::Interrupts;
use plan::Figures;
use report::Report;

/// Does what the command line of this process says.
pub fn main() -> ExitCode {
    run(&Arguments::parse()).unwrap_or_else(|error| {
        eprintln!("farref-chaos: {error:#}");
        ExitCode::FAILURE
    })
}

fn run(arguments: &Arguments) -> anyhow::Result<ExitCode> {
    if let Some(settings) = &arguments.settings {
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(2)
            .enable_all()
            .build()
            .context("cannot start the runtime")?;
        return runtime.block_on(worker::be_a_worker(settings.clone()));
    }
    let json = check(arguments)?;
    if arguments.python > 0 {
        python::check(&arguments.python_program)?;
    }
    allow_open_files(
        files(arguments.workers),
        &format!("{} workers", arguments.workers),
    )?;
    let seed = arguments.seed.unwrap_or_else(|| fastrand::u64(..1 << 32));
    let folder = Folder::make(arguments.histories.clone(), seed)?;
    let outcome = run_in(arguments, seed, &folder.path);
    let mut report = match outcome {
        Ok(report) => report,
        Err(error) => {
            let folder = folder.keep();
            let folder = folder.display();
            return Err(error.context(format!("seed {seed}, histories in {folder}")));
        }
    };

    let is_kept = !report.ok || arguments.histories.is_some();
    report.histories = is_kept.then(|| folder.path.clone());
    let text = serde_json::to_string_pretty(&report)? + "\n";
    let is_printed = arguments.json.is_some() && json.is_none();
    let said = if is_printed { &text } else { &report.summary() };
    let shown = std::io::stdout().write_all(said.as_bytes());
    let shown = shown.context("cannot print the results");
    let as_json = write(json, &text);
    let page = write(arguments.html.as_deref(), &report.page());
    if is_kept {
        let kept = folder.keep();
        eprintln!("seed {seed}, histories in {}", kept.display());
    }
    shown.and(as_json).and(page)?;
    Ok(match report.ok {
        true => ExitCode::SUCCESS,
        false => ExitCode::FAILURE,
    })
}

/// Before long work: whether what is asked for makes sense, and can be written. The file for JSON, if it is one.
fn check(arguments: &Arguments) -> anyhow::Result<Option<&Path>> {
    ensure!(
        arguments.python < arguments.workers,
        "--python {} leaves no worker that is not Python's: say --workers {} or more",
        arguments.python,
        arguments.python + 1
    );
    if arguments.html.is_some() && arguments.html == arguments.json {
        bail!("--json and --html name the same file: choose another one for one of them");
    }
    if arguments.html.as_deref() == Some(Path::new("-")) {
        bail!("a page is not printed: name a file with --html");
    }
    let json = arguments.json.as_deref();
    let json = json.filter(|file| *file != Path::new("-"));
    for (file, option) in [(json, "--json"), (arguments.html.as_deref(), "--html")] {
        if let Some(file) = file {
            check_writable(file, option)?;
        }
    }
    Ok(json)
}

/// Open files of the driver: pipes, a process descriptor and a door for each worker, and both ends of all connections, of which two workers
/// may have some between them.
fn files(workers: u32) -> u64 {
    let workers = u64::from(workers);
    64 + 16 * workers + 4 * workers * workers
}

fn write(file: Option<&Path>, text: &str) -> anyhow::Result<()> {
    match file {
        Some(file) => {
            std::fs::write(file, text).with_context(|| format!("cannot write {}", file.display()))
        }
        None => Ok(()),
    }
}

/// The run, and what is to be said of it.
fn run_in(arguments: &Arguments, seed: u64, folder: &Path) -> anyhow::Result<Report> {
    history::open(folder, history::DRIVER)?;
    let figures = Figures {
        seed,
        workers: arguments.workers,
        unproxied: arguments.python,
        length: arguments.length(),
        rate: arguments.faults_per_second,
        peer_timeout: arguments.peer_timeout(),
    };
    let (plan, left_out) = plan::make(&figures);
    let setup = Setup {
        seed,
        workers: arguments.workers,
        python: arguments.python,
        python_program: arguments.python_program.clone(),
        tls: arguments.tls,
        folder: folder.to_owned(),
        peer_timeout: arguments.peer_timeout(),
        operations_per_second: arguments.operations_per_second,
    };
    let progress = Progress::new(arguments.seconds, "chaos");
    progress.note(&format!("seed {seed}"));
    let began = Instant::now();
    // One thread, the main one: a worker dies with the thread that started it.
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .context("cannot start the runtime")?;
    let run = driver::run(setup, &plan, arguments.length(), &progress);
    let outcome = runtime.block_on(run);
    progress.finish();
    let outcome = outcome?;
    let checked = runtime.block_on(check_histories(folder, arguments.peer_timeout()));
    // Whoever still checks, though it was asked to end, is not waited for.
    runtime.shutdown_background();
    let (records, findings) = checked?;
    Ok(Report::new(
        arguments,
        seed,
        left_out,
        outcome,
        began.elapsed(),
        &records,
        findings,
    ))
}

/// What is in the histories, and what in them must not be. A signal ends that, and nothing else would: the driver listened to them.
async fn check_histories(
    folder: &Path,
    peer_timeout: Duration,
) -> anyhow::Result<(Vec<Record>, Findings)> {
    let mut interrupts = Interrupts::listen().context("cannot listen for signals")?;
    let folder = folder.to_owned();
    let checking = tokio::task::spawn_blocking(move || {
        let records = history::read_all(&folder)?;
        let findings = checker::check(&records, Times::new(peer_timeout));
        anyhow::Ok((records, findings))
    });
    tokio::select! {
        checked = checking => checked.context("the histories could not be checked")?,
        () = interrupts.next() => bail!("asked to end while it checked: nothing is known"),
    }
}

/// Where histories are. Removed when it is dropped, unless it is to be kept, or this program panics: then they say why.
struct Folder {
    path: PathBuf,
    is_kept: bool,
}

impl Folder {
    fn make(asked: Option<PathBuf>, seed: u64) -> anyhow::Result<Self> {
        let is_kept = asked.is_some();
        let (path, made) = match asked {
            Some(path) => {
                let made = std::fs::create_dir_all(&path);
                (path, made)
            }
            None => {
                let name = format!("farref-chaos-{seed}-{}", std::process::id());
                let path = std::env::temp_dir().join(name);
                // Where everybody may make folders, somebody else may have made this one, and what is written there is nobody's business.
                let made = DirBuilder::new().mode(0o700).create(&path);
                (path, made)
            }
        };
        made.with_context(|| {
            let path = path.display();
            format!("cannot make {path}: choose another folder with --histories")
        })?;
        let mut entries = std::fs::read_dir(&path)?;
        ensure!(
            entries.next().is_none(),
            "{} is not empty: choose another folder with --histories",
            path.display()
        );
        // Workers get it as it is, wherever they are.
        let path = path.canonicalize()?;
        Ok(Self { path, is_kept })
    }

    fn keep(mut self) -> PathBuf {
        self.is_kept = true;
        self.path.clone()
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("histories in {}", self.path.display());
        } else if !self.is_kept {
            let _ = std::fs::remove_dir_all(&self.path);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    #[test]
    fn a_folder_of_its_own_is_nobody_elses_and_was_not_there() -> anyhow::Result<()> {
        let seed = fastrand::u64(1 << 40..);
        let folder = Folder::make(None, seed)?;
        let mode = std::fs::metadata(&folder.path)?.permissions().mode();
        assert_eq!(mode & 0o777, 0o700);
        let path = folder.path.clone();
        assert!(Folder::make(None, seed).is_err(), "it is there");
        assert!(path.exists(), "another one's folder is left alone");
        drop(folder);
        assert!(!path.exists());
        Ok(())
    }

    #[test]
    fn a_panic_leaves_the_histories_where_they_are() -> anyhow::Result<()> {
        let folder = Folder::make(None, fastrand::u64(1 << 40..))?;
        let path = folder.path.clone();
        let ended = std::panic::catch_unwind(move || {
            let _folder = folder;
            panic!("for a test");
        });
        assert!(ended.is_err() && path.exists());
        std::fs::remove_dir(&path)?;
        Ok(())
    }
}
