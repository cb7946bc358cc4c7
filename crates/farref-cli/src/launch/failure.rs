//! How a rank ended, and how that is said.

use std::fmt;
use std::os::unix::process::ExitStatusExt as _;
use std::process::ExitStatus;
use std::time::Duration;

use super::signals;

/// How a process ended.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum Ending {
    Code(i32),
    Killed(i32),
    /// It never began.
    NotStarted(String),
}

impl Ending {
    pub(super) fn is_success(&self) -> bool {
        *self == Self::Code(0)
    }

    /// As a shell would say it.
    pub(super) fn exit_code(&self) -> u8 {
        match self {
            // The system has cut it down to eight bits already.
            Self::Code(code) => u8::try_from(*code).unwrap_or(1),
            Self::Killed(signal) => killed_by(*signal),
            Self::NotStarted(_) => 126,
        }
    }
}

/// The exit code that tells of a signal.
pub(super) fn killed_by(signal: i32) -> u8 {
    u8::try_from(signal).map_or(u8::MAX, |signal| signal.saturating_add(128))
}

impl From<ExitStatus> for Ending {
    fn from(status: ExitStatus) -> Self {
        match (status.code(), status.signal()) {
            (Some(code), _) => Self::Code(code),
            (None, Some(signal)) => Self::Killed(signal),
            (None, None) => Self::Code(1),
        }
    }
}

impl fmt::Display for Ending {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Code(code) => write!(f, "exit code {code}"),
            Self::Killed(signal) => write!(f, "killed by {}", signals::name_of(*signal)),
            Self::NotStarted(why) => write!(f, "cannot be started: {why}"),
        }
    }
}

/// A time as a person says it.
pub(super) struct Spoken(pub(super) Duration);

impl fmt::Display for Spoken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let seconds = self.0.as_secs();
        match seconds {
            0..60 => write!(f, "{:.1} s", self.0.as_secs_f64()),
            60..3600 => write!(f, "{} min {} s", seconds / 60, seconds % 60),
            _ => write!(f, "{} h {} min", seconds / 3600, seconds / 60 % 60),
        }
    }
}

/// The failure that ends a run.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Failure {
    pub(super) code: u8,
    /// "trainer1 (rank 2) failed first: killed by SIGKILL after 3.2 s; the others were stopped"
    pub(super) text: String,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_ending_is_said_as_a_shell_says_it() {
        for (ending, text, code) in [
            (Ending::Code(3), "exit code 3", 3),
            (Ending::Killed(9), "killed by SIGKILL", 137),
            (Ending::Killed(34), "killed by signal 34", 162),
        ] {
            assert_eq!(
                (ending.to_string().as_str(), ending.exit_code()),
                (text, code)
            );
        }
    }

    #[test]
    fn times_are_spoken() {
        for (milliseconds, text) in [
            (3_240, "3.2 s"),
            (61_000, "1 min 1 s"),
            (7_322_000, "2 h 2 min"),
        ] {
            assert_eq!(
                Spoken(Duration::from_millis(milliseconds)).to_string(),
                text
            );
        }
    }
}
