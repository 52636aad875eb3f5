//! How a table is divided. Pure.

use crate::inventory::{Column, Index};
use crate::key::border_type;

/// Buckets of a table divided by hash. One scan a side yields a digest of each, whatever their
/// number; the fewer rows a bucket has, the less is read again when it differs.
const BUCKETS_MIN: u64 = 1 << 12;
const BUCKETS_MAX: u64 = 1 << 16;
const BUCKET_ROWS: u64 = 1000;

/// The division.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Plan {
    /// By ranges of the key; each column's borders are written as this type.
    Range(Vec<&'static str>),
    /// By a hash of the key, or of the whole row; how many buckets, a power of two.
    Bucket(u32),
}

/// What the choice depends on.
pub(crate) struct Grounds<'a> {
    /// The key's columns on the source and on the target, in the index's order.
    pub(crate) key: Vec<(&'a Column, &'a Column)>,
    /// The source's index of the key.
    pub(crate) source: Option<&'a Index>,
    pub(crate) target: &'a [Index],
    pub(crate) same_encoding: bool,
    pub(crate) estimate: u64,
}

impl Grounds<'_> {
    /// Ranges where the key has the same order on both sides, no NULL on either, and an index on
    /// both (without one every range would read the whole table); else buckets.
    pub(crate) fn choose(&self) -> Plan {
        let casts: Option<Vec<_>> = self
            .key
            .iter()
            .map(|(source, target)| {
                let filled = source.not_null && target.not_null;
                border_type(source, target, self.same_encoding).filter(|_| filled)
            })
            .collect();
        let served = self.source.is_some_and(|index| index.plain)
            && self.target.iter().any(|index| self.serves(index));
        match casts {
            Some(casts) if served && !casts.is_empty() => Plan::Range(casts),
            _ => Plan::Bucket(buckets(self.estimate)),
        }
    }

    fn serves(&self, index: &Index) -> bool {
        let wanted = self.key.iter().map(|(_, target)| &target.name);
        index.plain
            && index.columns.len() >= self.key.len()
            && wanted.eq(index.columns.iter().take(self.key.len()))
    }
}

fn buckets(rows: u64) -> u32 {
    let wanted = (rows / BUCKET_ROWS).clamp(BUCKETS_MIN, BUCKETS_MAX);
    wanted.next_power_of_two() as u32
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn column(base: &str) -> Column {
        Column {
            name: "k".into(),
            declared: base.into(),
            base: base.into(),
            builtin: true,
            not_null: true,
            bytewise: true,
            under: None,
            extension: None,
        }
    }

    fn index(columns: &[&str]) -> Index {
        Index {
            primary: true,
            identity: false,
            columns: columns.iter().map(|c| (*c).to_owned()).collect(),
            plain: true,
        }
    }

    fn plan(source: &Column, target: &Column, indexes: &[Index]) -> Plan {
        Grounds {
            key: vec![(source, target)],
            source: Some(&index(&["k"])),
            target: indexes,
            same_encoding: true,
            estimate: 0,
        }
        .choose()
    }

    #[test]
    fn ranges_are_for_keys_of_one_order() {
        let served = [index(&["k", "other"])];
        for base in [
            "int2",
            "int4",
            "int8",
            "uuid",
            "timestamp",
            "timestamptz",
            "date",
            "numeric",
            "bytea",
            "text",
            "varchar",
        ] {
            let same = column(base);
            let got = plan(&same, &same, &served);
            assert!(matches!(got, Plan::Range(_)), "{base}: {got:?}");
        }
        let range = |cast| Plan::Range(vec![cast]);
        let wider = plan(&column("int4"), &column("int8"), &served);
        assert_eq!(wider, range("bigint"));
        assert_eq!(
            plan(&column("varchar"), &column("text"), &served),
            range("text")
        );
        for base in ["float8", "bpchar", "jsonb", "interval", "bool"] {
            let same = column(base);
            assert_eq!(plan(&same, &same, &served), Plan::Bucket(4096), "{base}");
        }
    }

    #[test]
    fn whatever_could_lose_a_row_makes_buckets() {
        let served = [index(&["k"])];
        let int = column("int4");
        let spoil = |change: fn(&mut Column)| {
            let mut column = column("text");
            change(&mut column);
            column
        };
        let text = column("text");
        let collated = spoil(|c| c.bytewise = false);
        let nullable = spoil(|c| c.not_null = false);
        let foreign = spoil(|c| c.builtin = false);
        for (source, target, indexes) in [
            (&text, &collated, &served[..]),
            (&collated, &text, &served[..]),
            (&text, &nullable, &served[..]),
            (&text, &foreign, &served[..]),
            (&text, &int, &served[..]),
            (&int, &int, &[]),
            (&int, &int, &[index(&["other", "k"])][..]),
        ] {
            assert_eq!(plan(source, target, indexes), Plan::Bucket(4096));
        }
        let mut rounded = column("numeric");
        rounded.declared = "numeric(10,2)".into();
        let rounds = plan(&column("numeric"), &rounded, &served);
        assert_eq!(rounds, Plan::Bucket(4096));
        let backwards = Index {
            plain: false,
            ..index(&["k"])
        };
        assert_eq!(plan(&int, &int, &[backwards]), Plan::Bucket(4096));
    }

    proptest! {
        #[test]
        fn buckets_are_a_power_of_two_within_bounds(rows: u64) {
            let got = buckets(rows);
            prop_assert!(got.is_power_of_two() && (4096..=65536).contains(&got));
        }
    }
}
