//! Where to look and how, from the command line.

use std::time::Duration;

use farref::Tls;
use farref::observe::Observer;

use crate::group_tls;

/// How to look at workers.
#[derive(clap::Args)]
pub(crate) struct Looking {
    /// The group's token, if it has one that `farref launch` has not made. Better set FARREF_TOKEN: others on
    /// this machine can see command lines
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
    /// How to look at the group that is at an address, at so many references of each worker unless somebody wants to see
    /// more.
    pub(crate) fn observer(&self, address: &str, limit: usize) -> anyhow::Result<Observer> {
        let token = self.token.clone();
        let token = token
            .or_else(farref_group::token_from_environment)
            .or_else(|| farref_group::find_token(address));
        let observer = Observer::new()
            .token(token.unwrap_or_default())
            .references(self.limit.unwrap_or(limit).min(100_000))
            .patience(self.timeout);
        let tls = match (Tls::from_env()?, group_tls::find(address)) {
            (Some(tls), _) => Some(tls),
            (None, Some([certificate, key, authority])) => {
                Some(Tls::from_files(certificate, key, authority)?)
            }
            (None, None) => None,
        };
        Ok(match tls {
            Some(tls) => observer.tls(tls),
            None => observer,
        })
    }
}

/// How long it may be until the next look. Workers hang up on whoever asks nothing for a minute, and record calls for a
/// quarter of one after each look.
const LONGEST_INTERVAL: f64 = 10.0;

/// Reads how often to look.
pub(crate) fn interval(text: &str) -> Result<Duration, String> {
    let interval = seconds(text)?;
    match interval.as_secs_f64() <= LONGEST_INTERVAL {
        true => Ok(interval),
        false => Err(format!(
            "expected at most {LONGEST_INTERVAL}: who looks less often misses calls, and workers hang up; \
             for a look now and then use `farref inspect`"
        )),
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_would_look_too_seldom_is_told_why_not() {
        assert_eq!(interval("0.5"), Ok(Duration::from_millis(500)));
        assert_eq!(interval("10"), Ok(Duration::from_secs(10)));
        for bad in ["11", "3600"] {
            assert!(
                interval(bad).is_err_and(|why| why.contains("inspect")),
                "{bad}"
            );
        }
        for bad in ["0", "-1", "x", "inf", "NaN", "1e9"] {
            assert!(interval(bad).is_err(), "{bad}");
        }
        assert!(seconds("60").is_ok());
    }
}
