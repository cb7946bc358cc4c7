//! Bytes, counts, ages and rates, short enough for a column.

use std::time::Duration;

/// `512 B`, `1.5 KiB`, `64 MiB`.
pub(crate) fn bytes(count: f64) -> String {
    scaled(count, 1024.0, [" B", " KiB", " MiB", " GiB", " TiB"])
}

/// `7`, `1.2k`, `35M`.
pub(crate) fn count(count: f64) -> String {
    // The sum of no rates is less than nothing, as numbers go.
    let count = count + 0.0;
    match count < 10_000.0 && count.fract() == 0.0 {
        true => format!("{count}"),
        false => scaled(count, 1000.0, ["", "k", "M", "G", "T"]),
    }
}

fn scaled(mut value: f64, step: f64, units: [&str; 5]) -> String {
    let mut unit = 0;
    // What would be rounded up to the next unit is shown in it.
    while value >= step - 0.5 && unit + 1 < units.len() {
        value /= step;
        unit += 1;
    }
    match value < 9.95 && value.fract() != 0.0 {
        true => format!("{value:.1}{}", units[unit]),
        false => format!("{value:.0}{}", units[unit]),
    }
}

/// `350 ms`, `12 s`, `4m 05s`, `3h 20m`, `2d 04h`.
pub(crate) fn age(age: Duration) -> String {
    let seconds = age.as_secs();
    match seconds {
        0 => format!("{} ms", age.as_millis()),
        1..60 => format!("{seconds} s"),
        60..3600 => format!("{}m {:02}s", seconds / 60, seconds % 60),
        3600..86_400 => format!("{}h {:02}m", seconds / 3600, seconds / 60 % 60),
        _ => format!("{}d {:02}h", seconds / 86_400, seconds / 3600 % 24),
    }
}

/// `1 worker`, `2 workers`.
pub(crate) fn many(count: usize, what: &str) -> String {
    match count {
        1 => format!("1 {what}"),
        _ => format!("{count} {what}s"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantities_stay_short_whatever_their_size() {
        for (value, text) in [
            (0.0, "0 B"),
            (1023.0, "1023 B"),
            (1536.0, "1.5 KiB"),
            (64.0 * 1024.0 * 1024.0, "64 MiB"),
            (1024.0 * 1024.0 - 1.0, "1.0 MiB"),
        ] {
            assert_eq!(bytes(value), text);
        }
        for (value, text) in [
            (0.0, "0"),
            (9999.0, "9999"),
            (12_345.0, "12k"),
            (999_900.0, "1.0M"),
            (2.5, "2.5"),
        ] {
            assert_eq!(count(value), text);
        }
        for value in [0.04, 1e3, 1e6 - 1.0, 1e9, 1e15, u64::MAX as f64] {
            assert!(
                count(value).len() <= 9 && bytes(value).len() <= 12,
                "{value}"
            );
        }
    }

    #[test]
    fn ages_use_the_unit_that_matters() {
        for (seconds, text) in [
            (0.35, "350 ms"),
            (12.7, "12 s"),
            (245.0, "4m 05s"),
            (12_000.0, "3h 20m"),
            (187_200.0, "2d 04h"),
        ] {
            assert_eq!(age(Duration::from_secs_f64(seconds)), text);
        }
    }
}
