//! Which tables, and which of their pieces, are looked at. Pure.

use std::fmt;
use std::str::FromStr;

use wildmatch::WildMatch;
use xxhash_rust::xxh3::xxh3_64;

use crate::report::TableName;

/// Tables by name: `public.order*`, or without a dot `order*` in every schema. `*` stands for any
/// characters, `?` for one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TablePattern {
    text: String,
}

impl FromStr for TablePattern {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        if text.is_empty() {
            return Err("an empty pattern matches no table");
        }
        Ok(Self { text: text.into() })
    }
}

impl fmt::Display for TablePattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl TablePattern {
    /// Whether the table is meant.
    pub fn matches(&self, table: &TableName) -> bool {
        let pattern = WildMatch::new(&self.text);
        if self.text.contains('.') {
            pattern.matches(&table.to_string())
        } else {
            pattern.matches(&table.name)
        }
    }
}

/// Which pieces of one table are in the run's sample: those whose hash with the run's name falls
/// below the fraction, so that runs of other names look at other pieces.
#[derive(Debug, Clone)]
pub(crate) struct Sample {
    of: String,
    /// `None`: all.
    below: Option<u64>,
}

impl Sample {
    pub(crate) fn new(run: &str, table: &TableName, fraction: Option<f64>) -> Self {
        // The cast saturates, and a fraction of one is everything.
        let below = fraction
            .filter(|fraction| *fraction < 1.0)
            .map(|fraction| (fraction.max(0.0) * u64::MAX as f64) as u64);
        Self {
            of: format!("{run}\0{}\0{}", table.schema, table.name),
            below,
        }
    }

    /// Whether every piece is in it.
    pub(crate) fn is_whole(&self) -> bool {
        self.below.is_none()
    }

    /// Where the piece of this number stands: the lower, the smaller the samples that it is in.
    pub(crate) fn rank(&self, piece: u32) -> u64 {
        xxh3_64(format!("{}\0{piece}", self.of).as_bytes())
    }

    /// Whether the piece is in it.
    pub(crate) fn takes(&self, piece: u32) -> bool {
        self.below.is_none_or(|below| self.rank(piece) < below)
    }

    /// The numbers below `of` that are in it, at least one.
    pub(crate) fn of(&self, of: u32) -> Vec<u32> {
        let taken: Vec<u32> = (0..of).filter(|piece| self.takes(*piece)).collect();
        if taken.is_empty() {
            return (0..of)
                .min_by_key(|piece| self.rank(*piece))
                .into_iter()
                .collect();
        }
        taken
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn table(schema: &str, name: &str) -> TableName {
        TableName {
            schema: schema.into(),
            name: name.into(),
        }
    }

    #[test]
    fn patterns_name_tables_with_and_without_a_schema() {
        let matches = |pattern: &str, schema: &str, name: &str| {
            let pattern: TablePattern = pattern.parse().unwrap();
            pattern.matches(&table(schema, name))
        };
        assert!(matches("orders", "shop", "orders"));
        assert!(!matches("orders", "shop", "orders_old"));
        assert!(matches("order*", "shop", "orders_old"));
        assert!(matches("shop.*", "shop", "orders"));
        assert!(!matches("shop.*", "shopping", "orders"));
        assert!(matches("s?op.orders", "shop", "orders"));
        assert!(!matches("ORDERS", "shop", "orders"));
        assert!("".parse::<TablePattern>().is_err());
    }

    #[test]
    fn a_sample_is_about_as_large_as_asked_for_and_another_in_each_run() {
        let of = |run: &str, fraction| Sample::new(run, &table("s", "t"), Some(fraction));
        let tenth = of("a", 0.1).of(65_536);
        assert!((6000..7100).contains(&tenth.len()), "{}", tenth.len());
        assert_ne!(tenth, of("b", 0.1).of(65_536));
        assert_eq!(of("a", 1.0).of(100).len(), 100);
        assert!(of("a", 1.0).is_whole() && !of("a", 0.999).is_whole());
        assert_eq!(of("a", 0.0).of(4096).len(), 1, "never nothing");
    }

    proptest! {
        #[test]
        fn a_larger_sample_holds_the_smaller_one(run in "[a-f]{4}", small in 0.0f64..0.5, more in 0.0f64..0.5) {
            let table = table("s", "t");
            let few = Sample::new(&run, &table, Some(small));
            let many = Sample::new(&run, &table, Some(small + more));
            prop_assert!((0..500).all(|piece| !few.takes(piece) || many.takes(piece)));
        }
    }
}
