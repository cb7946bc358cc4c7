//! `farref-bench`: what calls, values and references cost between processes, beside what bounds them in the same run.
//!
//! A number alone says more about the machine than about farref, so every measurement has a limit from the same run:
//! the bare socket for calls and bytes, memory for bytes, the empty call for references.
//!
//! | part | job |
//! | --- | --- |
//! | `arguments`, `plan` | the command line; how much is measured |
//! | `parts` | what can be measured |
//! | `gpu` | whether there is a GPU to measure on |
//! | `bare` | what bare sockets and memory do |
//! | `transport`, `group`, `functions` | workers, what they talk through, what they are called for |
//! | `role`, `peer` | the other processes |
//! | `samples`, `spent`, `allocations` | times; CPU time, memory; counting allocations |
//! | `report` | the results |

#![deny(unsafe_code)]

#[allow(unsafe_code)]
mod allocations;
mod arguments;
mod bare;
mod bare_stream;
mod form;
mod functions;
mod gpu;
mod group;
mod part;
mod parts;
mod peer;
mod plan;
mod report;
mod role;
mod samples;
mod spent;
mod transport;

use std::io::Write as _;
use std::path::Path;
use std::process::ExitCode;

use anyhow::{Context as _, bail};
use clap::Parser as _;
use farref_progress::{Progress, check_writable};

use arguments::Arguments;
use part::Part;
use plan::Plan;
use report::{Recorder, Report};

/// Does what the command line of this process says.
pub fn main() -> ExitCode {
    run(Arguments::parse()).unwrap_or_else(|error| {
        eprintln!("farref-bench: {error:#}");
        ExitCode::FAILURE
    })
}

fn run(arguments: Arguments) -> anyhow::Result<ExitCode> {
    // Two threads, as a small program of farref would have.
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .context("cannot start")?;
    if let Some(role) = arguments.peer {
        runtime.block_on(role.play())?;
        return Ok(ExitCode::SUCCESS);
    }
    if arguments.html.is_some() && arguments.html == arguments.json {
        bail!("--json and --html name the same file: choose another one for one of them");
    }
    if arguments.html.as_deref() == Some(Path::new("-")) {
        bail!("a page is not printed: name a file with --html");
    }
    let printed = arguments.json.as_deref() == Some(Path::new("-"));
    let json = arguments.json.as_deref().filter(|_| !printed);
    for (file, option) in [(json, "--json"), (arguments.html.as_deref(), "--html")] {
        if let Some(file) = file {
            check_writable(file, option)?;
        }
    }

    let plan = Plan::new(&arguments);
    if plan.parts.contains(&Part::Cuda) {
        gpu::check()?;
    }
    // On a task, as a program's calls are.
    let (report, ended) = runtime.block_on(async { tokio::spawn(measure(plan)).await })?;

    // What has been measured is worth having, whatever became of the rest.
    let as_json = serde_json::to_string_pretty(&report)? + "\n";
    let text = if printed { &as_json } else { &report.table() };
    let shown = std::io::stdout().write_all(text.as_bytes());
    let shown = shown.context("cannot print the results");
    let write = |file: Option<&Path>, text: &str| match file {
        Some(file) => {
            std::fs::write(file, text).with_context(|| format!("cannot write {}", file.display()))
        }
        None => Ok(()),
    };
    let as_json = write(json, &as_json);
    let page = write(arguments.html.as_deref(), &report.page());
    ended.and(shown).and(as_json).and(page)?;
    Ok(ExitCode::SUCCESS)
}

/// What was measured, and why it was not all.
async fn measure(plan: Plan) -> (Report, anyhow::Result<()>) {
    let mut report = Report::new(&plan);
    let ended = measure_parts(&plan, &mut report).await;
    (report, ended)
}

async fn measure_parts(plan: &Plan, report: &mut Report) -> anyhow::Result<()> {
    let steps = plan.parts.iter().map(|part| plan.transports(*part).len());
    let steps: usize = steps.sum();
    let progress = Progress::new(steps as u64, "bench");
    if report.is_development_build() {
        progress.note("this is a development build: a release build is faster");
    }
    for &part in &plan.parts {
        for transport in plan.transports(part) {
            let mut recorder = Recorder {
                part,
                transport,
                report,
                progress: &progress,
            };
            let measured = parts::measure(part, transport, plan, &mut recorder).await;
            measured.with_context(|| format!("{} over {}", part.name(), transport.name()))?;
            progress.step(&format!("{} over {}", part.name(), transport.name()));
        }
    }
    progress.finish();
    Ok(())
}
