//! One run: a runtime whose time stands still while anything can run, a group in it, programs, faults, and the end.

use std::cell::RefCell;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Once};
use std::time::Duration;

use fastrand::Rng;
use tokio::runtime::{Builder, Handle};
use tokio::time::{sleep, timeout};

use crate::client::Client;
use crate::config::{Config, Faults};
use crate::faults::Group;
use crate::ledger::{self, Report, Violation};

/// So much virtual time a run has, beside what calls may take.
const PATIENCE: Duration = Duration::from_secs(600);
/// After so much virtual time everything is expected to be gone.
const SETTLING: Duration = Duration::from_secs(60);

/// Runs a seed, and says what it did or which rule did not hold.
pub fn run(seed: u64, config: &Config) -> Result<Report, Violation> {
    execute(seed, config, false).0
}

/// The same with a line for everything that happened.
pub fn run_traced(seed: u64, config: &Config) -> (Result<Report, Violation>, Vec<String>) {
    execute(seed, config, true)
}

fn execute(seed: u64, config: &Config, traced: bool) -> (Result<Report, Violation>, Vec<String>) {
    watch_panics();
    PANICS.set(Some(Vec::new()));
    farref::simulation::with_seed(seed, || {
        #[cfg(feature = "mutations")]
        let _mutated = farref::mutations::mutate(config.mutation);
        let mut builder = Builder::new_current_thread();
        builder.enable_time().start_paused(true);
        let runtime = match builder.build() {
            Ok(runtime) => runtime,
            Err(error) => return (Err(Violation(format!("no runtime: {error}"))), Vec::new()),
        };
        let ran = catch_unwind(AssertUnwindSafe(|| {
            runtime.block_on(async {
                ledger::begin(traced);
                whole(seed, config).await;
            });
        }));
        if ran.is_err() {
            ledger::violated("RR-5", "the run panicked");
        }
        drop(runtime);
        crate::program::clear_shelves(None);
        for panic in PANICS.take().unwrap_or_default() {
            ledger::violated("RR-5", &panic);
        }
        ledger::end()
    })
}

async fn whole(seed: u64, config: &Config) {
    let mut rng = Rng::with_seed(seed);
    let drawn = Faults::ALL[rng.usize(..Faults::ALL.len())];
    let faults = config.faults.unwrap_or(drawn);
    let size = rng.u32(2..5);
    ledger::note(|| format!("{size} workers, faults: {faults:?}"));
    match timeout(PATIENCE, live(rng, size, faults)).await {
        Ok(Ok(())) => {}
        Ok(Err(error)) => return ledger::violated("RR-4", &format!("{error:#}")),
        Err(_) => return ledger::violated("RR-4", "the run does not end"),
    }
    sleep(SETTLING).await;
    // RR-4
    for left in ledger::left_over() {
        ledger::violated("RR-4", &left);
    }
    let tasks = Handle::current().metrics().num_alive_tasks();
    if tasks > 0 {
        ledger::violated("RR-4", &format!("{tasks} tasks are left"));
    }
}

async fn live(mut rng: Rng, size: u32, faults: Faults) -> anyhow::Result<()> {
    let group = Group::start(size, faults, &mut rng).await?;
    ledger::note(|| "all have joined".to_owned());
    let trouble = farref::simulation::spawn(Arc::clone(&group).trouble(rng.fork()));
    let clients: Vec<_> = (0..2 * size as usize)
        .map(|number| {
            let client = Client {
                group: Arc::clone(&group),
                index: number % size as usize,
                rng: rng.fork(),
            };
            farref::simulation::spawn(client.run(12))
        })
        .collect();
    for client in clients {
        client.await?;
    }
    trouble.await?;
    ledger::note(|| "all programs have ended".to_owned());
    group.end().await;
    Ok(())
}

thread_local! {
    /// While a run goes on: what panicked, also where the runtime caught it.
    static PANICS: RefCell<Option<Vec<String>>> = const { RefCell::new(None) };
}

fn watch_panics() {
    static HOOK: Once = Once::new();
    HOOK.call_once(|| {
        let before = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |panic| {
            let noted = PANICS.try_with(|panics| match &mut *panics.borrow_mut() {
                Some(panics) => {
                    panics.push(panic.to_string());
                    true
                }
                None => false,
            });
            if !noted.unwrap_or_default() {
                before(panic);
            }
        }));
    });
}
