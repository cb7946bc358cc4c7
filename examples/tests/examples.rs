//! Runs every example: it has to end well, and to print what its first lines say it prints.

use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};

use anyhow::{Context as _, Result, ensure};
use farref_testkit::{Process, Requirement};
use libtest_mimic::{Arguments, Failed, Trial};

/// An example is to be read in one go.
const MAX_LINES: usize = 150;

fn main() -> Result<ExitCode> {
    let mut arguments = Arguments::from_args();
    // Each has several processes; side by side they would only be slower.
    arguments.test_threads.get_or_insert(1);
    let directory = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut sources = Vec::new();
    for entry in std::fs::read_dir(directory)? {
        let path = entry?.path();
        if path.extension().is_some_and(|extension| extension == "rs") {
            sources.push(path);
        }
    }
    sources.sort();
    if !cfg!(feature = "cuda") {
        sources.retain(|path| !path.ends_with("shared_model.rs"));
        eprintln!("LEFT OUT: shared_model needs a GPU, and the feature `cuda`");
    }
    let failed = |error| Failed::from(format!("{error:?}"));
    let trials = sources.into_iter().map(|source| {
        let name = source.file_stem().unwrap_or_default().to_string_lossy();
        Trial::test(name.into_owned(), move || run(&source).map_err(failed))
    });
    let mut trials: Vec<_> = trials.collect();
    if has_torch()? {
        let train = move || train_with_torch().map_err(failed);
        trials.push(Trial::test("torch_parameter_server", train));
    }
    Ok(libtest_mimic::run(&arguments, trials).exit_code())
}

/// Whether there is a Python with torch.
fn has_torch() -> Result<bool> {
    let python = std::env::var_os("FARREF_TORCH_PYTHON").unwrap_or_else(|| "python3".into());
    let asked = Command::new(&python)
        .args(["-c", "import torch.distributed.rpc"])
        .stderr(Stdio::null())
        .status();
    let missing = match asked.is_ok_and(|status| status.success()) {
        true => None,
        false => Some(format!("{} cannot import it", python.display())),
    };
    let torch = Requirement {
        needed: "torch (for torch_parameter_server)",
        variable: "FARREF_REQUIRE_TORCH",
    };
    torch.is_met(missing.as_deref())
}

/// PyTorch trains, and a Rust program has the parameters. The trainers' lines come in any order.
fn train_with_torch() -> Result<()> {
    let printed = output_of(&built_next_to_this()?.join("torch_parameter_server"))?;
    let learned = printed
        .lines()
        .filter(|line| line.contains("the loss fell from"));
    ensure!(
        learned.count() == 2,
        "not both trainers learned:\n{printed}"
    );
    let last = printed.lines().last();
    ensure!(
        last == Some("the server has shut down with them"),
        "it did not end well:\n{printed}"
    );
    Ok(())
}

fn run(source: &Path) -> Result<()> {
    let text = std::fs::read_to_string(source)?;
    let lines = text.lines().count();
    ensure!(
        lines <= MAX_LINES,
        "it has {lines} lines, more than {MAX_LINES}"
    );
    let name = source.file_stem().context("a file without a name")?;
    let program = built_next_to_this()?.join(name);
    ensure!(
        program.exists(),
        "it has not been built: is there an `[[example]]` for it in Cargo.toml? \
         (`cargo test -p farref-examples` builds them; `--test examples` does not)"
    );
    let printed = output_of(&program)?;
    let expected = expected_output(&text)?;
    let mut matching = expected.iter().zip(printed.lines());
    ensure!(
        expected.len() == printed.lines().count()
            && matching.all(|(expected, line)| fits(expected, line)),
        "it printed\n\n{printed}\nand not\n\n{}",
        expected.join("\n")
    );
    Ok(())
}

/// This program is in `target/debug/deps`, the examples are in `target/debug/examples`.
fn built_next_to_this() -> Result<PathBuf> {
    let this = std::env::current_exe()?;
    let target = this.ancestors().nth(2).context("no target directory")?;
    Ok(target.join("examples"))
}

fn output_of(program: &Path) -> Result<String> {
    let mut command = Command::new(program);
    command.stdout(Stdio::piped()).stderr(Stdio::piped());
    // Its workers end with it.
    let ended = Process::start(&program.display().to_string(), &mut command)?.ended_blocking()?;
    ensure!(
        ended.status.success(),
        "{}\n{}\n{}",
        ended.status,
        ended.stdout,
        ended.stderr
    );
    Ok(ended.stdout)
}

/// The first block of text in the file's documentation.
fn expected_output(source: &str) -> Result<Vec<&str>> {
    let documentation = source.lines().map_while(|line| line.strip_prefix("//!"));
    let lines = documentation.map(|line| line.strip_prefix(' ').unwrap_or(line));
    let block = lines.skip_while(|line| *line != "```text").skip(1);
    let block: Vec<_> = block.take_while(|line| *line != "```").collect();
    ensure!(
        !block.is_empty(),
        "its first lines do not say what it prints"
    );
    Ok(block)
}

/// Whether a line is as expected, where `..` stands for anything.
fn fits(expected: &str, line: &str) -> bool {
    match expected.split_once("..") {
        Some((start, end)) => {
            let rest = line.strip_prefix(start);
            rest.is_some_and(|rest| rest.ends_with(end))
        }
        None => expected == line,
    }
}
