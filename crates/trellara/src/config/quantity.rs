//! Sizes and durations with their units written out.

use std::time::Duration;

/// Bytes from `64MiB`, `1.5GiB`, `10GB` or `512B`. A bare number is refused: nobody can tell what
/// it meant.
pub(crate) fn bytes(text: &str) -> Result<u64, String> {
    const UNITS: [(&str, u64); 9] = [
        ("KiB", 1 << 10),
        ("MiB", 1 << 20),
        ("GiB", 1 << 30),
        ("TiB", 1 << 40),
        ("kB", 1_000),
        ("MB", 1_000_000),
        ("GB", 1_000_000_000),
        ("TB", 1_000_000_000_000),
        ("B", 1),
    ];
    let text = text.trim();
    let (number, factor) = UNITS
        .iter()
        .find_map(|(unit, factor)| text.strip_suffix(unit).map(|number| (number, *factor)))
        .ok_or_else(|| format!("not a size with its unit (such as 64MiB): {text:?}"))?;
    scaled(number, factor).ok_or_else(|| format!("not a size: {text:?}"))
}

/// The text that [`bytes`] reads as this: in the largest unit that leaves no rest.
pub(crate) fn size(bytes: u64) -> String {
    const UNITS: [(&str, u64); 4] = [
        ("TiB", 1 << 40),
        ("GiB", 1 << 30),
        ("MiB", 1 << 20),
        ("KiB", 1 << 10),
    ];
    let whole = |factor: u64| bytes > 0 && bytes.is_multiple_of(factor);
    match UNITS.iter().find(|(_, factor)| whole(*factor)) {
        Some((unit, factor)) => format!("{}{unit}", bytes / factor),
        None => format!("{bytes}B"),
    }
}

/// A duration from `30s`, `500ms`, `1h` or `1h30m`.
pub(crate) fn duration(text: &str) -> Result<Duration, String> {
    const UNITS: [(&str, u64); 5] = [
        ("ms", 1),
        ("s", 1_000),
        ("m", 60_000),
        ("h", 3_600_000),
        ("d", 86_400_000),
    ];
    let invalid = || format!("not a duration with its unit (such as 30s, 500ms, 1h): {text:?}");
    let mut rest = text.trim();
    let mut total = 0u64;
    if rest.is_empty() {
        return Err(invalid());
    }
    while !rest.is_empty() {
        let digits = rest
            .find(|c: char| c.is_ascii_alphabetic())
            .ok_or_else(invalid)?;
        let (number, tail) = rest.split_at(digits);
        let letters = tail
            .find(|c: char| !c.is_ascii_alphabetic())
            .unwrap_or(tail.len());
        let (unit, next) = tail.split_at(letters);
        let (_, factor) = UNITS
            .iter()
            .find(|(name, _)| *name == unit)
            .ok_or_else(invalid)?;
        let part = scaled(number, *factor).ok_or_else(invalid)?;
        total = total.checked_add(part).ok_or_else(invalid)?;
        rest = next;
    }
    Ok(Duration::from_millis(total))
}

/// `number × factor`, the number with at most three decimals so that no float is needed.
fn scaled(number: &str, factor: u64) -> Option<u64> {
    let (whole, decimals) = number.trim().split_once('.').unwrap_or((number.trim(), ""));
    let only_digits = |text: &str| text.bytes().all(|b| b.is_ascii_digit());
    if whole.is_empty() || !only_digits(whole) || !only_digits(decimals) || decimals.len() > 3 {
        return None;
    }
    let thousandths: u64 = format!("{decimals:0<3}").parse().ok()?;
    let whole = whole.parse::<u64>().ok()?.checked_mul(factor)?;
    whole.checked_add(thousandths.checked_mul(factor)? / 1000)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_carry_their_unit() {
        assert_eq!(bytes("64MiB"), Ok(64 << 20));
        assert_eq!(bytes("1.5 GiB"), Ok(3 << 29));
        assert_eq!(bytes("10GB"), Ok(10_000_000_000));
        for wrong in [
            "64",
            "MiB",
            "-1MiB",
            "1.2345MiB",
            "64 MB MB",
            "99999999TiB",
            "",
        ] {
            assert!(bytes(wrong).is_err(), "{wrong:?}");
        }
    }

    #[test]
    fn a_size_that_is_printed_can_be_written() {
        for text in [
            "0B", "1B", "1023B", "1KiB", "1025B", "64MiB", "65KiB", "10GiB", "2TiB",
        ] {
            assert_eq!(bytes(text).map(size).as_deref(), Ok(text));
        }
    }

    #[test]
    fn durations_carry_their_unit_and_add_up() {
        assert_eq!(duration("30s"), Ok(Duration::from_secs(30)));
        assert_eq!(duration("1h30m"), Ok(Duration::from_secs(5400)));
        assert_eq!(duration("0.5s"), Ok(Duration::from_millis(500)));
        for wrong in ["30", "s", "1h30", "-1s", "1 fortnight", ""] {
            assert!(duration(wrong).is_err(), "{wrong:?}");
        }
    }
}
