//! Where to look and how, from the command line.

use std::time::Duration;

use farref::observe::Observer;

/// How to look at workers.
#[derive(clap::Args)]
pub(crate) struct Looking {
    /// The group's token, if it has one. Better set FARREF_TOKEN: others on this machine can see
    /// command lines
    #[arg(long, value_name = "TOKEN", hide_default_value = true)]
    token: Option<String>,

    /// How many references of each worker to see, at most 100000 [default: 10000; for a page 1000]
    #[arg(long, value_name = "N")]
    limit: Option<usize>,

    /// How long to wait for each worker
    #[arg(long, value_name = "SECONDS", default_value = "5", value_parser = seconds)]
    timeout: Duration,
}

impl Looking {
    /// How to look, at so many references of each worker unless somebody wants to see more.
    pub(crate) fn observer(&self, limit: usize) -> Observer {
        let token = self
            .token
            .clone()
            .or_else(|| std::env::var("FARREF_TOKEN").ok());
        Observer::new()
            .token(token.unwrap_or_default())
            .references(self.limit.unwrap_or(limit).min(100_000))
            .patience(self.timeout)
    }
}

/// Reads a number of seconds.
pub(crate) fn seconds(text: &str) -> Result<Duration, String> {
    let number = text.parse::<f64>().ok();
    match number.filter(|number| (0.05..=3600.0).contains(number)) {
        Some(number) => Ok(Duration::from_secs_f64(number)),
        None => Err("expected a number of seconds from 0.05 to 3600".to_owned()),
    }
}
