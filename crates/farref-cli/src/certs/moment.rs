//! Points in time, as they stand in certificates.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// The last second of the year 9999: certificates know no later one.
const LAST: i64 = 253_402_300_799;
const DAY: i64 = 24 * 60 * 60;

/// Now, in seconds since 1970.
pub(super) fn now() -> i64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    since.map_or(0, |since| i64::try_from(since.as_secs()).unwrap_or(LAST))
}

/// So many days after that.
pub(super) fn days_after(moment: i64, days: u32) -> i64 {
    moment.saturating_add(i64::from(days) * DAY).min(LAST)
}

/// As rcgen wants to have it. Its type has another crate's name, which need not be known here.
macro_rules! date {
    ($moment:expr) => {
        rcgen::date_time_ymd(1970, 1, 1) + $crate::certs::moment::since_1970($moment)
    };
}
pub(super) use date;

pub(super) fn since_1970(moment: i64) -> Duration {
    Duration::from_secs(moment.clamp(0, LAST).unsigned_abs())
}

/// For people.
pub(super) fn spoken(moment: i64) -> String {
    let date = date!(moment);
    format!(
        "{:04}-{:02}-{:02} {:02}:{:02} UTC",
        date.year(),
        u8::from(date.month()),
        date.day(),
        date.hour(),
        date.minute()
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn moments_are_said_as_people_say_them_whatever_they_are() {
        assert_eq!(spoken(0), "1970-01-01 00:00 UTC");
        assert_eq!(spoken(1_794_910_800), "2026-11-17 10:20 UTC");
        assert_eq!(spoken(i64::MAX), "9999-12-31 23:59 UTC");
        assert_eq!(spoken(i64::MIN), "1970-01-01 00:00 UTC");
        assert_eq!(days_after(LAST, 1), LAST);
        assert_eq!(days_after(0, 2), 172_800);
    }
}
