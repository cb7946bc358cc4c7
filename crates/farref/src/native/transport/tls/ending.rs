//! Until when a certificate counts. rustls looks at that itself, and tells nobody before it is too late.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use rustls::pki_types::CertificateDer;

const SEQUENCE: u8 = 0x30;
const INTEGER: u8 = 0x02;
const VERSION: u8 = 0xa0;
/// With two digits for the year, and with four.
const TIMES: [(u8, usize); 2] = [(0x17, 2), (0x18, 4)];

/// When the first of them ends, as far as they can be read.
pub(super) fn earliest(chain: &[CertificateDer<'_>]) -> Option<SystemTime> {
    chain.iter().filter_map(|one| end_of(one)).min()
}

fn end_of(certificate: &[u8]) -> Option<SystemTime> {
    let (certificate, _) = inside(certificate, SEQUENCE)?;
    let (mut fields, _) = inside(certificate, SEQUENCE)?;
    if let Some((_, rest)) = inside(fields, VERSION) {
        fields = rest;
    }
    // Number, algorithm and issuer come first.
    for tag in [INTEGER, SEQUENCE, SEQUENCE] {
        fields = inside(fields, tag)?.1;
    }
    let (validity, _) = inside(fields, SEQUENCE)?;
    let time = |bytes| {
        let mut forms = TIMES.into_iter();
        forms.find_map(|(tag, digits)| inside(bytes, tag).map(|found| (found, digits)))
    };
    let ((_, rest), _) = time(validity)?;
    let ((text, _), digits) = time(rest)?;
    moment(text, digits)
}

/// The contents of the element at the beginning, if it is of this kind, and what follows it.
fn inside(bytes: &[u8], tag: u8) -> Option<(&[u8], &[u8])> {
    let (&first, rest) = bytes.split_first()?;
    let (&length, rest) = rest.split_first()?;
    let (length, rest) = match length {
        0..=0x7f => (usize::from(length), rest),
        0x81..=0x84 => {
            let (length, rest) = rest.split_at_checked(usize::from(length & 0x7f))?;
            let length = length
                .iter()
                .fold(0, |sum, &byte| (sum << 8) | usize::from(byte));
            (length, rest)
        }
        _ => return None,
    };
    let found = rest.split_at_checked(length)?;
    (first == tag).then_some(found)
}

/// What `YYMMDDhhmmssZ` or `YYYYMMDDhhmmssZ` means.
fn moment(text: &[u8], digits: usize) -> Option<SystemTime> {
    let text = std::str::from_utf8(text).ok()?.strip_suffix('Z')?;
    let number = |from: usize, digits: usize| text.get(from..from + digits)?.parse::<u64>().ok();
    let year = match (number(0, digits)?, digits) {
        (year @ 0..50, 2) => 2000 + year,
        (year, 2) => 1900 + year,
        (year, _) => year,
    };
    let [month, day, hour, minute, second] = [0, 2, 4, 6, 8].map(|at| number(digits + at, 2));
    let (month, day) = (month?, day?);
    if text.len() != digits + 10 || year < 1970 || !(1..=12).contains(&month) || day == 0 {
        return None;
    }
    // Years that begin in March have their odd day at the end.
    let (year, month) = match month {
        1 | 2 => (year - 1, month + 9),
        _ => (year, month - 3),
    };
    let days = 365 * year + year / 4 - year / 100 + year / 400 + (153 * month + 2) / 5 + day - 1;
    // 1970 began so many days after March of the year 0.
    let days = days.checked_sub(719_468)?;
    let seconds = ((days * 24 + hour?) * 60 + minute?) * 60 + second?;
    UNIX_EPOCH.checked_add(Duration::from_secs(seconds))
}

#[cfg(test)]
mod tests {
    use rcgen::{CertificateParams, KeyPair, date_time_ymd};

    use super::*;

    fn until(year: i32, month: u8, day: u8) -> CertificateDer<'static> {
        let mut params = CertificateParams::default();
        params.not_before = date_time_ymd(1975, 1, 1);
        params.not_after = date_time_ymd(year, month, day);
        let key = KeyPair::generate().expect("a key");
        params
            .self_signed(&key)
            .expect("a certificate")
            .der()
            .clone()
    }

    fn seconds(moment: Option<SystemTime>) -> Option<u64> {
        let since = moment?.duration_since(UNIX_EPOCH).ok()?;
        Some(since.as_secs())
    }

    #[test]
    fn the_end_of_a_certificate_is_found_in_either_form() {
        for (year, month, day, expected) in [
            (1976, 2, 29, 194_400_000),
            (2024, 3, 1, 1_709_251_200),
            (2026, 11, 17, 1_794_873_600),
            (2049, 12, 31, 2_524_521_600),
            (4000, 1, 1, 64_060_588_800),
        ] {
            let certificate = until(year, month, day);
            assert_eq!(seconds(end_of(&certificate)), Some(expected), "{year}");
        }
        let chain = [until(2100, 1, 1), until(2030, 1, 1)];
        assert_eq!(seconds(earliest(&chain)), Some(1_893_456_000));
    }

    #[test]
    fn what_is_no_certificate_has_no_end_and_does_no_harm() {
        let whole = until(2030, 1, 1);
        for length in 0..whole.len() {
            // Cut off anywhere, as it comes.
            let _ = end_of(&whole[..length]);
        }
        assert_eq!(end_of(&[]), None);
        assert_eq!(end_of(&[0x30, 0x84, 0xff, 0xff, 0xff, 0xff]), None);
        for text in [
            "",
            "Z",
            "990101000000",
            "20300001000000Z",
            "203013010000\u{e4}Z",
        ] {
            assert_eq!(moment(text.as_bytes(), 4), None, "{text}");
        }
    }
}
