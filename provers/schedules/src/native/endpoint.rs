//! In the place of `farref`'s module of this name: what the timer asks of it.

use std::time::Duration;

use farref_proto::Time;

use crate::support::clock::Instant;

/// Knows the time.
pub(crate) struct Endpoint {
    pub(crate) config: Config,
    pub(crate) epoch: Instant,
}

pub(crate) struct Config {
    pub(crate) peer_timeout: Duration,
}

impl Endpoint {
    pub(crate) fn now(&self) -> Time {
        Time(self.epoch.elapsed().as_nanos() as u64)
    }

    pub(crate) fn instant(&self, time: Time) -> Instant {
        self.epoch + Duration::from_nanos(time.0)
    }
}
