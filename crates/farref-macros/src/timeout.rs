//! Time limits as users write them: `250ms`, `5s`, `none`.

use std::time::Duration;

/// Reads a time limit. No limit is [`Duration::MAX`].
pub(crate) fn parse(text: &str) -> Result<Duration, &'static str> {
    if text == "none" {
        return Ok(Duration::MAX);
    }
    let digits = text.bytes().take_while(u8::is_ascii_digit).count();
    let (number, unit) = text.split_at(digits);
    let unit = match unit.trim_start() {
        "us" | "µs" => Duration::from_micros(1),
        "ms" => Duration::from_millis(1),
        "s" => Duration::from_secs(1),
        "m" => Duration::from_secs(60),
        "h" => Duration::from_secs(3600),
        _ => {
            return Err(
                "write a number and `us`, `ms`, `s`, `m` or `h`, such as \"250ms\", or \"none\" for no \
                 limit",
            );
        }
    };
    let number: u32 = match number.parse() {
        Ok(0) => return Err("no call is over in no time; write \"none\" for no limit"),
        Ok(number) => number,
        Err(_) if number.is_empty() => return Err("the number is missing, as in \"5s\""),
        Err(_) => return Err("the number is too large; write \"none\" for no limit"),
    };
    Ok(unit * number)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_time_limit_is_a_number_and_a_unit() {
        assert_eq!(parse("100us"), Ok(Duration::from_micros(100)));
        assert_eq!(parse("250ms"), Ok(Duration::from_millis(250)));
        assert_eq!(parse("5 s"), Ok(Duration::from_secs(5)));
        assert_eq!(parse("2m"), Ok(Duration::from_secs(120)));
        assert_eq!(parse("1h"), Ok(Duration::from_secs(3600)));
        assert_eq!(
            parse("4294967295h"),
            Ok(Duration::from_secs(4294967295 * 3600))
        );
    }

    #[test]
    fn no_limit_is_the_longest_duration() {
        assert_eq!(parse("none"), Ok(Duration::MAX));
    }

    #[test]
    fn anything_else_is_refused() {
        for text in [
            "",
            "5",
            "s",
            "1.5s",
            "-1s",
            "5 seconds",
            "0s",
            "99999999999s",
            "None",
        ] {
            assert!(parse(text).is_err(), "{text:?} was accepted");
        }
    }
}
