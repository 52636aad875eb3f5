//! Keys as digests of what they print.

use xxhash_rust::xxh3::Xxh3;

/// Of the values of a key, in the order of its columns' names.
pub(super) type Digest = [u8; 16];

/// Digests values; NULL is a value like another.
pub(super) fn digest<'v>(values: impl Iterator<Item = Option<&'v [u8]>>) -> Digest {
    let mut hash = Xxh3::new();
    for value in values {
        let value = value.map(plainest);
        let length = value.map_or(u64::MAX, |text| text.len() as u64);
        hash.update(&length.to_be_bytes());
        hash.update(value.unwrap_or_default());
    }
    hash.digest128().to_be_bytes()
}

/// Takes off what may differ between texts of equal values: blanks that pad, zeros behind the
/// decimal point, the sign of zero. Of other types it may make one value of two.
fn plainest(text: &[u8]) -> &[u8] {
    let blanks = text.iter().rev().take_while(|byte| **byte == b' ').count();
    let text = &text[..text.len() - blanks];
    let text = match text.iter().position(|byte| *byte == b'.') {
        Some(point) if is_decimal(text, point) => {
            let zeros = text.iter().rev().take_while(|byte| **byte == b'0').count();
            let end = (text.len() - zeros).max(point);
            &text[..if end == point + 1 { point } else { end }]
        }
        _ => text,
    };
    if text == b"-0" { &text[1..] } else { text }
}

fn is_decimal(text: &[u8], point: usize) -> bool {
    let whole = text[..point].strip_prefix(b"-").unwrap_or(&text[..point]);
    let digits = |part: &[u8]| !part.is_empty() && part.iter().all(u8::is_ascii_digit);
    digits(whole) && digits(&text[point + 1..])
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(values: &[Option<&str>]) -> Digest {
        digest(values.iter().map(|value| value.map(str::as_bytes)))
    }

    #[test]
    fn equal_values_that_print_differently_are_one() {
        for (one, other) in [
            ("1.0", "1.00"),
            ("1", "1.000"),
            ("-0", "0"),
            ("-0.0", "0"),
            ("10.50", "10.5"),
            ("a", "a  "),
            ("", "   "),
        ] {
            assert_eq!(of(&[Some(one)]), of(&[Some(other)]), "{one} and {other}");
        }
    }

    #[test]
    fn different_values_are_two() {
        let texts = [
            "1", "10", "100", "0", "0.1", "-1", "a", " a", "1.0.0", "1.", ".0", "1.5", "1.05",
            "1e+20", "1.5e+20", "NaN", "",
        ];
        for (n, one) in texts.iter().enumerate() {
            for other in &texts[n + 1..] {
                assert_ne!(of(&[Some(one)]), of(&[Some(other)]), "{one} and {other}");
            }
        }
        assert_ne!(of(&[None]), of(&[Some("")]));
        assert_ne!(of(&[Some("ab"), Some("c")]), of(&[Some("a"), Some("bc")]));
    }
}
