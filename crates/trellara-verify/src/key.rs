//! Keys: what kind of order they have, and how their texts are put in order for a list.

use std::cmp::Ordering;

use crate::inventory::Column;

/// The type that borders of a key column are written as, when the column's order is the same on
/// both sides and the types hold the same values; else `None`.
pub(crate) fn border_type(
    source: &Column,
    target: &Column,
    same_encoding: bool,
) -> Option<&'static str> {
    let both = |names: &[&str]| {
        let has = |column: &Column| column.builtin && names.contains(&column.base.as_str());
        has(source) && has(target)
    };
    if both(&["int2", "int4", "int8"]) {
        return Some("bigint");
    }
    if both(&["text", "varchar"]) {
        // Bytes of another encoding have another order.
        let ordered = source.bytewise && target.bytewise && same_encoding;
        return ordered.then_some("text");
    }
    // With another modifier the target rounds, and a row may round across a border.
    if source.declared != target.declared {
        return None;
    }
    [
        ("uuid", "uuid"),
        ("timestamp", "timestamp"),
        ("timestamptz", "timestamptz"),
        ("date", "date"),
        ("numeric", "numeric"),
        ("bytea", "bytea"),
    ]
    .into_iter()
    .find_map(|(base, cast)| both(&[base]).then_some(cast))
}

/// Puts keys into the order people expect: numbers by value, all else by bytes, NULL last.
pub(crate) fn compare(a: &[(String, Option<String>)], b: &[(String, Option<String>)]) -> Ordering {
    let cells = |key: &[(String, Option<String>)]| -> Vec<Option<String>> {
        key.iter().map(|(_, value)| value.clone()).collect()
    };
    let (a, b) = (cells(a), cells(b));
    let pairs = a.iter().zip(&b);
    pairs
        .map(|(a, b)| match (a, b) {
            (Some(a), Some(b)) => texts(a, b),
            (a, b) => a.is_none().cmp(&b.is_none()),
        })
        .find(|order| order.is_ne())
        .unwrap_or(Ordering::Equal)
}

/// Numbers by value and before everything else, which is ordered by bytes: a total order also where
/// a column holds both.
fn texts(a: &str, b: &str) -> Ordering {
    match (Decimal::parse(a), Decimal::parse(b)) {
        (Some(x), Some(y)) => x.compare(&y).then_with(|| a.cmp(b)),
        (x, y) => x.is_none().cmp(&y.is_none()).then_with(|| a.cmp(b)),
    }
}

/// `-12.50` taken apart; leading and trailing zeros are left out.
struct Decimal<'a> {
    negative: bool,
    whole: &'a str,
    fraction: &'a str,
}

impl<'a> Decimal<'a> {
    fn parse(text: &'a str) -> Option<Self> {
        let (negative, digits) = match text.strip_prefix('-') {
            Some(rest) => (true, rest),
            None => (false, text),
        };
        let (whole, fraction) = digits.split_once('.').unwrap_or((digits, ""));
        let all_digits = |part: &str| part.bytes().all(|b| b.is_ascii_digit());
        if whole.is_empty() || !all_digits(whole) || !all_digits(fraction) {
            return None;
        }
        let (whole, fraction) = (
            whole.trim_start_matches('0'),
            fraction.trim_end_matches('0'),
        );
        Some(Self {
            negative: negative && !(whole.is_empty() && fraction.is_empty()),
            whole,
            fraction,
        })
    }

    fn compare(&self, other: &Self) -> Ordering {
        match (self.negative, other.negative) {
            (false, false) => self.magnitude(other),
            (true, true) => other.magnitude(self),
            (true, false) => Ordering::Less,
            (false, true) => Ordering::Greater,
        }
    }

    fn magnitude(&self, other: &Self) -> Ordering {
        let length = self.whole.len().cmp(&other.whole.len());
        length
            .then_with(|| self.whole.cmp(other.whole))
            .then_with(|| self.fraction.cmp(other.fraction))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn key(texts: &[Option<&str>]) -> Vec<(String, Option<String>)> {
        let cell = |t: &Option<&str>| ("k".to_owned(), t.map(str::to_owned));
        texts.iter().map(cell).collect()
    }

    #[test]
    fn keys_are_listed_in_the_order_people_expect() {
        let mut keys = [
            key(&[None]),
            key(&[Some("10")]),
            key(&[Some("9")]),
            key(&[Some("-2")]),
            key(&[Some("-10.5")]),
            key(&[Some("9.05")]),
            key(&[Some("9.5")]),
        ];
        keys.sort_by(|a, b| compare(a, b));
        let shown: Vec<_> = keys
            .iter()
            .map(|k| k[0].1.as_deref().unwrap_or("NULL"))
            .collect();
        assert_eq!(shown, ["-10.5", "-2", "9", "9.05", "9.5", "10", "NULL"]);
        let (short, long) = (key(&[Some("a"), Some("2")]), key(&[Some("a"), Some("10")]));
        assert_eq!(compare(&short, &long), Ordering::Less);
    }

    proptest! {
        #[test]
        fn whole_numbers_are_ordered_by_value(a: i64, b: i64) {
            prop_assert_eq!(texts(&a.to_string(), &b.to_string()), a.cmp(&b));
        }

        #[test]
        fn fractions_are_ordered_by_value(a in -100_000i32..100_000, b in -100_000i32..100_000) {
            let show = |n: i32| {
                let sign = if n < 0 { "-" } else { "" };
                format!("{sign}{}.{:02}", n.abs() / 100, n.abs() % 100)
            };
            prop_assert_eq!(texts(&show(a), &show(b)), a.cmp(&b));
        }

        #[test]
        fn the_order_of_any_texts_is_total(
            a in "[0-9a.-]{0,3}", b in "[0-9a.-]{0,3}", c in "[0-9a.-]{0,3}"
        ) {
            prop_assert_eq!(texts(&a, &b), texts(&b, &a).reverse());
            prop_assert_eq!(texts(&a, &b).is_eq(), a == b);
            if texts(&a, &b).is_lt() && texts(&b, &c).is_lt() {
                prop_assert!(texts(&a, &c).is_lt());
            }
        }
    }
}
