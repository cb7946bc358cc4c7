//! Many seeds, some at a time, with progress: a bar on a terminal, a line now and then elsewhere.

use std::io::IsTerminal;
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

use crate::{Config, Faults, Report, run};

/// How often there is a line where there is no bar.
const EVERY: Duration = Duration::from_secs(30);
/// After so long a run is said to take long: if it never ends, its seed is known.
const LONG: Duration = Duration::from_secs(120);
/// How often it is looked whether there is something to say.
const LOOK: Duration = Duration::from_millis(200);

/// Runs all seeds of a range, `jobs` at a time, and says what became of them. Returns how many broke a rule.
pub(crate) fn run_many(seeds: Range<u64>, jobs: usize, config: &Config) -> anyhow::Result<u64> {
    let count = seeds.end.saturating_sub(seeds.start);
    println!("seeds {}..{}, {jobs} at a time", seeds.start, seeds.end);
    let work = Work {
        config,
        next: AtomicU64::new(seeds.start),
        seeds,
        bar: progress_bar(count)?,
        began: Instant::now(),
        tally: Mutex::default(),
        running: Mutex::new(vec![None; jobs]),
    };
    std::thread::scope(|scope| {
        let threads: Vec<_> = (0..jobs)
            .map(|job| {
                let work = &work;
                scope.spawn(move || work.run(job))
            })
            .collect();
        let mut said = Instant::now();
        while !threads.iter().all(|thread| thread.is_finished()) {
            std::thread::sleep(LOOK);
            work.say_who_takes_long();
            if work.bar.is_hidden() && said.elapsed() >= EVERY {
                said = Instant::now();
                println!("{}", work.progress());
            }
        }
    });
    work.bar.finish_and_clear();
    let Tally { report, violations } = *hold(&work.tally);
    println!(
        "{count} seeds in {:.1} s: {} calls ({} failed as they may), {} values, {} faults, {} s of virtual time; {violations} violations",
        work.began.elapsed().as_secs_f64(),
        report.calls,
        report.failed,
        report.values,
        report.faults,
        report.millis / 1000,
    );
    Ok(violations)
}

struct Work<'a> {
    config: &'a Config,
    seeds: Range<u64>,
    next: AtomicU64,
    bar: ProgressBar,
    began: Instant,
    tally: Mutex<Tally>,
    /// What each job runs, unless it was said that it takes long.
    running: Mutex<Vec<Option<(u64, Instant)>>>,
}

#[derive(Clone, Copy, Default)]
struct Tally {
    report: Report,
    violations: u64,
}

impl Work<'_> {
    fn run(&self, job: usize) {
        loop {
            let seed = self.next.fetch_add(1, Ordering::Relaxed);
            if !self.seeds.contains(&seed) {
                return;
            }
            self.note(job, Some((seed, Instant::now())));
            let outcome = run(seed, self.config);
            self.note(job, None);
            match outcome {
                Ok(report) => add(&mut hold(&self.tally).report, &report),
                Err(violation) => {
                    hold(&self.tally).violations += 1;
                    let replay = replay(seed, self.config.faults);
                    self.bar
                        .suspend(|| println!("seed {seed}: {violation}\n  {replay}"));
                }
            }
            self.bar.inc(1);
        }
    }

    fn note(&self, job: usize, run: Option<(u64, Instant)>) {
        if let Some(place) = hold(&self.running).get_mut(job) {
            *place = run;
        }
    }

    /// Once for each.
    fn say_who_takes_long(&self) {
        let mut running = hold(&self.running);
        for run in running.iter_mut() {
            if let Some((seed, _)) = run.take_if(|(_, began)| began.elapsed() > LONG) {
                let replay = replay(seed, self.config.faults);
                let long = LONG.as_secs();
                self.bar
                    .suspend(|| println!("seed {seed} takes over {long} s\n  {replay}"));
            }
        }
    }

    fn progress(&self) -> String {
        let (done, time) = (self.bar.position(), self.began.elapsed().as_secs_f64());
        let (each, violations) = (done as f64 / time, hold(&self.tally).violations);
        let count = self.seeds.end.saturating_sub(self.seeds.start);
        format!(
            "{done} of {count} seeds in {time:.0} s, {each:.1} per second, {violations} violations"
        )
    }
}

/// The command that runs a seed again.
fn replay(seed: u64, faults: Option<Faults>) -> String {
    let faults = faults.map(|faults| format!(" --faults {faults:?}").to_lowercase());
    format!(
        "(cd provers && cargo run --release -p farref-runtime-sim -- --replay {seed}{})",
        faults.unwrap_or_default()
    )
}

fn add(total: &mut Report, report: &Report) {
    total.calls += report.calls;
    total.failed += report.failed;
    total.values += report.values;
    total.faults += report.faults;
    total.millis += report.millis;
}

/// What a thread did that panicked is whole: nothing panics while it holds these.
fn hold<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn progress_bar(seeds: u64) -> anyhow::Result<ProgressBar> {
    let target = match std::io::stderr().is_terminal() {
        true => ProgressDrawTarget::stderr(),
        false => ProgressDrawTarget::hidden(),
    };
    let style = "{bar:40} {pos}/{len} seeds, {per_sec}, {eta} left";
    Ok(ProgressBar::with_draw_target(Some(seeds), target)
        .with_style(ProgressStyle::with_template(style)?))
}
