//! The command `farref-schedules`.

use std::time::Instant;

use anyhow::ensure;

use crate::SCENARIOS;

/// Tries interleavings of the parts of farref's runtime that threads share.
///
/// A scenario that fails prints the schedule to give to `--replay`.
#[derive(clap::Args, Debug)]
pub struct Arguments {
    /// How many schedules to try of each scenario: half of them at random, half with few preemptions
    #[arg(long, default_value_t = 10_000)]
    schedules: usize,

    /// Only scenarios whose names contain this
    #[arg(long, default_value = "")]
    scenario: String,

    /// Follow this schedule, of the one scenario that is named
    #[arg(long, value_name = "SCHEDULE")]
    replay: Option<String>,
}

/// Does what the command line says. Panics with a schedule if a scenario fails.
pub fn run(arguments: &Arguments) -> anyhow::Result<()> {
    let wanted = |name: &str| name.contains(&arguments.scenario);
    let scenarios: Vec<_> = SCENARIOS.iter().filter(|it| wanted(it.name)).collect();
    ensure!(!scenarios.is_empty(), "there is no scenario of that name");
    if let Some(schedule) = &arguments.replay {
        ensure!(
            scenarios.len() == 1,
            "--replay needs one scenario: --scenario NAME"
        );
        scenarios[0].replay(schedule);
        return Ok(());
    }
    for scenario in scenarios {
        let began = Instant::now();
        scenario.check(arguments.schedules);
        let took = began.elapsed().as_secs_f64();
        println!(
            "{}: {} schedules in {took:.1} s",
            scenario.name, arguments.schedules
        );
    }
    Ok(())
}
