//! The statements that make digests. Pure.
//!
//! A row's digest is a hash of 64 bits over [`Parts`]: columns whose type is hashed without loss
//! by themselves, all others as their text in `ROW(…)::text`, which tells NULL from the empty
//! string and one column from the next. Digests are added, never XORed: equal rows do not cancel,
//! and the order of reading does not matter.

use trellara_postgres::quote;

use crate::apart::Parts;

/// Sub-buckets of a differing range.
pub(crate) const SUB_BUCKETS: u32 = 1024;
/// Buckets take the hash's low bits, sub-buckets those above the most that buckets can take.
const SUB_SHIFT: u32 = 20;

/// What the second seed of a run differs by from the first.
const OUTER: i64 = 0x5851_F42D_4C95_7F2D;
/// Keeps the planner from working each hash out twice. A literal of the very type: anything that
/// has to be cast counts as an offset when it decides whether the scan may be a parallel one.
const ONCE: &str = "OFFSET '0'::bigint";

/// How rows are hashed in this run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Hash {
    /// Drawn for the run.
    pub(crate) seed: i64,
    /// The databases have different encodings, so the bytes of UTF-8 are hashed instead of theirs.
    pub(crate) as_utf8: bool,
    /// The key of the rows' digests when they are made here, of their text; the servers' hashes
    /// divide and name rows all the same.
    pub(crate) proof: Option<[u8; 32]>,
}

impl Hash {
    fn of(self, text: &str) -> String {
        let seed = self.seed;
        if self.as_utf8 {
            let bytes = format!("encode(convert_to({text}, 'UTF8'), 'hex')");
            return format!("hashtextextended({bytes} COLLATE \"C\", '{seed}'::bigint)");
        }
        format!("hashtextextended({text} COLLATE \"C\", '{seed}'::bigint)")
    }

    /// `hash_record_extended` works out 31·a + b of its columns' hashes: values that trade places
    /// between two rows would cancel in a sum of them. So it is hashed once more, as bytes: the
    /// hash of an int8 folds it into 32 bits.
    fn of_parts(self, parts: &Parts) -> String {
        let text = format!("ROW({})::text", parts.as_text.join(", "));
        if parts.apart.is_empty() {
            return self.of(&text);
        }
        let mut columns = parts.apart.join(", ");
        if !parts.as_text.is_empty() {
            columns += &format!(", {text} COLLATE \"C\"");
        }
        let (seed, other) = (self.seed, self.seed.rotate_left(32) ^ OUTER);
        format!(
            "hash_record_extended(ROW(int8send(hash_record_extended(ROW({columns}), \
             '{seed}'::bigint))), '{other}'::bigint)"
        )
    }

    /// NULL stays NULL.
    fn of_value(self, value: &str) -> String {
        let hash = self.of(&format!("format('%s', {value})"));
        format!("CASE WHEN num_nulls({value}) = 0 THEN {hash} END")
    }
}

/// The texts of a border's key columns.
pub(crate) type Border = Vec<String>;

/// A part of a table, the same on both sides.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Piece {
    /// `[from, to)` of the key; open where there is no border.
    Range {
        from: Option<Border>,
        to: Option<Border>,
        /// The type each border column is written as.
        casts: Vec<&'static str>,
    },
    /// These of so many buckets.
    Buckets { numbers: Vec<u32>, of: u32 },
}

/// What the rows of a copy are counted by.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Number {
    /// All together.
    None,
    /// Their bucket of so many.
    Bucket(u32),
    /// Their sub-bucket.
    SubBucket,
}

/// One side of a table, as SQL.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct SideTable {
    /// What stands behind FROM.
    pub(crate) from: String,
    /// The row filter; the target has none, it should hold only what passes.
    pub(crate) filter: Option<String>,
    /// The compared form of each column.
    pub(crate) values: Vec<String>,
    /// The identifying form of each key column; none for a table without key.
    pub(crate) keys: Vec<String>,
    /// The key columns themselves, for ranges.
    pub(crate) key_columns: Vec<String>,
    /// What is hashed of a row.
    pub(crate) row: Parts,
    /// What is hashed of its key.
    pub(crate) key: Parts,
}

impl SideTable {
    fn row_hash(&self, hash: Hash) -> String {
        hash.of_parts(&self.row)
    }

    /// What a row's reported digest was computed by; `None` when that was not done in SQL.
    pub(crate) fn guard(&self, hash: Hash) -> Option<String> {
        hash.proof.is_none().then(|| self.row_hash(hash))
    }

    /// What rows are divided and merged by: the hash of the key, or of the whole row.
    fn place(&self, hash: Hash) -> String {
        if self.keys.is_empty() {
            return self.row_hash(hash);
        }
        hash.of_parts(&self.key)
    }

    /// ` WHERE …` of the filter, the piece and more.
    fn filtered(&self, piece: Option<&Piece>, more: Option<String>, hash: Hash) -> String {
        let filter = self.filter.as_ref().map(|filter| format!("({filter})"));
        let piece = piece.and_then(|piece| self.within(piece, hash));
        let all: Vec<String> = [filter, piece, more].into_iter().flatten().collect();
        if all.is_empty() {
            return String::new();
        }
        format!(" WHERE {}", all.join(" AND "))
    }

    fn within(&self, piece: &Piece, hash: Hash) -> Option<String> {
        match piece {
            Piece::Range { from, to, casts } => self.between((from.as_ref(), to.as_ref()), casts),
            Piece::Buckets { numbers, of } => {
                let place = self.place(hash);
                Some(format!(
                    "({place} & {}) = ANY ({})",
                    of - 1,
                    array(numbers, "bigint")
                ))
            }
        }
    }

    fn between(
        &self,
        (from, to): (Option<&Border>, Option<&Border>),
        casts: &[&str],
    ) -> Option<String> {
        let parts: Vec<String> = [(">=", from), ("<", to)]
            .into_iter()
            .filter_map(|(op, border)| Some(self.beyond(op, border?, casts)))
            .collect();
        (!parts.is_empty()).then(|| parts.join(" AND "))
    }

    fn beyond(&self, operator: &str, border: &Border, casts: &[&str]) -> String {
        let literals: Vec<String> = border
            .iter()
            .zip(casts)
            .map(|(text, cast)| format!("{}::{cast}", quote::literal(text)))
            .collect();
        if let ([column], [literal]) = (self.key_columns.as_slice(), literals.as_slice()) {
            return format!("{column} {operator} {literal}");
        }
        // The planner guesses nothing from a comparison of rows; the first column alone says how
        // much of the index is wanted.
        let wide = if operator == "<" { "<=" } else { operator };
        let first = match (self.key_columns.first(), literals.first()) {
            (Some(column), Some(literal)) => format!("{column} {wide} {literal} AND "),
            _ => String::new(),
        };
        let columns = self.key_columns.join(", ");
        format!("{first}({columns}) {operator} ({})", literals.join(", "))
    }

    /// The first key behind the first `rows` rows of `[from, to)`.
    pub(crate) fn next_border(
        &self,
        (from, to): (Option<&Border>, Option<&Border>),
        casts: &[&'static str],
        rows: u64,
    ) -> String {
        let within = self.between((from, to), casts);
        let within = within.map_or(String::new(), |within| format!(" WHERE {within}"));
        let columns = self.key_columns.join(", ");
        format!(
            "SELECT {columns} FROM {}{within} ORDER BY {columns} OFFSET {rows} LIMIT 1",
            self.from
        )
    }

    /// `(count, sum)` of a piece.
    pub(crate) fn digest(&self, piece: &Piece, hash: Hash) -> String {
        format!(
            "SELECT count(*), coalesce(sum({}), 0) FROM {}{}",
            self.row_hash(hash),
            self.from,
            self.filtered(Some(piece), None, hash)
        )
    }

    /// A copy of `(number, text)` of the rows of a piece, for digests that are made here.
    pub(crate) fn texts(&self, piece: Option<&Piece>, number: Number, hash: Hash) -> String {
        let number = match number {
            Number::None => "0".to_owned(),
            Number::Bucket(of) => format!("{} & {}", self.place(hash), of - 1),
            Number::SubBucket => self.sub_bucket(hash),
        };
        format!(
            "COPY (SELECT ({number})::integer, {} FROM {}{}) TO STDOUT (FORMAT binary)",
            self.text(),
            self.from,
            self.filtered(piece, None, hash)
        )
    }

    /// All of a row as text.
    fn text(&self) -> String {
        format!("ROW({})::text COLLATE \"C\"", self.values.join(", "))
    }

    /// The count of all rows.
    pub(crate) fn count(&self) -> String {
        let filter = self.filter.as_ref();
        let filter = filter.map_or(String::new(), |filter| format!(" WHERE ({filter})"));
        format!("SELECT count(*) FROM {}{filter}", self.from)
    }

    /// `(bucket, count, sum)` of every bucket (of these, where they are named) that has rows.
    pub(crate) fn buckets(&self, wanted: Option<&Piece>, of: u32, hash: Hash) -> String {
        let (row, mask) = (self.row_hash(hash), of - 1);
        let rows = format!("{}{}", self.from, self.filtered(wanted, None, hash));
        if self.keys.is_empty() {
            return format!(
                "SELECT h & {mask}, count(*), sum(h) FROM (SELECT {row} FROM {rows} {ONCE}) \
                 AS hashed(h) GROUP BY 1"
            );
        }
        let place = self.place(hash);
        format!(
            "SELECT p & {mask}, count(*), sum(h) FROM (SELECT {place}, {row} FROM {rows} {ONCE}) \
             AS hashed(p, h) GROUP BY 1"
        )
    }

    /// `(sub-bucket, count, sum)` of every sub-bucket of a piece that has rows.
    pub(crate) fn sub_buckets(&self, piece: &Piece, hash: Hash) -> String {
        format!(
            "SELECT {}, count(*), sum({}) FROM {}{} GROUP BY 1",
            self.sub_bucket(hash),
            self.row_hash(hash),
            self.from,
            self.filtered(Some(piece), None, hash)
        )
    }

    fn sub_bucket(&self, hash: Hash) -> String {
        let (place, mask) = (self.place(hash), SUB_BUCKETS - 1);
        format!("({place} >> {SUB_SHIFT}) & {mask}")
    }

    /// `(place, row digest, how many, key…)` in order of the place: one line a row where there is
    /// a key, one a distinct row where there is none. Instead of the digest there is the row's
    /// text when it is made here.
    pub(crate) fn merge(&self, piece: &Piece, subs: Option<&[u32]>, hash: Hash) -> String {
        let subs = subs.map(|subs| {
            let array = array(subs, "bigint");
            format!("({}) = ANY ({array})", self.sub_bucket(hash))
        });
        let filtered = self.filtered(Some(piece), subs, hash);
        let (place, from) = (self.place(hash), &self.from);
        if self.keys.is_empty() {
            let (row, group) = match hash.proof {
                Some(_) => (self.text(), "1, 2"),
                None => ("NULL".to_owned(), "1"),
            };
            return format!(
                "SELECT {place}, {row}, count(*) FROM {from}{filtered} GROUP BY {group} ORDER BY 1"
            );
        }
        let row = match hash.proof {
            Some(_) => self.text(),
            None => self.row_hash(hash),
        };
        let keys = self.keys.join(", ");
        format!("SELECT {place}, {row}, 1, {keys} FROM {from}{filtered} ORDER BY 1")
    }

    /// `(place, key…, cell…)` of the rows at these places; a cell is the value, or its digest.
    pub(crate) fn cells(&self, piece: &Piece, places: &[i64], values: bool, hash: Hash) -> String {
        let place = self.place(hash);
        let cells = self.values.iter().map(|value| match values {
            true => value.clone(),
            false => hash.of_value(value),
        });
        let columns: Vec<String> = [place.clone()]
            .into_iter()
            .chain(self.keys.iter().cloned())
            .chain(cells)
            .collect();
        let wanted = format!("{place} = ANY ({})", array(places, "bigint"));
        format!(
            "SELECT {} FROM {}{}",
            columns.join(", "),
            self.from,
            self.filtered(Some(piece), Some(wanted), hash)
        )
    }
}

fn array<T: ToString>(numbers: &[T], of: &str) -> String {
    let numbers: Vec<String> = numbers.iter().map(T::to_string).collect();
    format!("'{{{}}}'::{of}[]", numbers.join(","))
}

#[cfg(test)]
mod tests {
    use super::*;

    const HASH: Hash = Hash {
        seed: -7,
        as_utf8: false,
        proof: None,
    };

    fn table(keys: &[&str]) -> SideTable {
        SideTable {
            from: r#"ONLY "s"."t""#.into(),
            filter: Some("v > 1 OR v IS NULL".into()),
            values: vec![r#""a""#.into(), r#""v""#.into()],
            keys: keys.iter().map(|k| (*k).to_owned()).collect(),
            key_columns: keys.iter().map(|k| (*k).to_owned()).collect(),
            row: Parts {
                apart: vec![r#""a""#.into()],
                as_text: vec![r#""v""#.into()],
            },
            key: Parts {
                apart: keys.iter().map(|k| (*k).to_owned()).collect(),
                as_text: Vec::new(),
            },
        }
    }

    fn range(from: Option<&[&str]>, to: Option<&[&str]>) -> Piece {
        let border = |b: &[&str]| b.iter().map(|t| (*t).to_owned()).collect();
        Piece::Range {
            from: from.map(border),
            to: to.map(border),
            casts: vec!["bigint", "text"],
        }
    }

    #[test]
    fn a_digest_is_a_count_and_a_sum_of_what_passes_the_filter() {
        let sql = table(&[r#""a""#]).digest(&range(None, None), HASH);
        let expected = concat!(
            r#"SELECT count(*), coalesce(sum(hash_record_extended(ROW(int8send("#,
            r#"hash_record_extended(ROW("a", ROW("v")::text COLLATE "C"), '-7'::bigint))), "#,
            r#"'-6364136215256858414'::bigint)), 0) FROM ONLY "s"."t" WHERE (v > 1 OR v IS NULL)"#
        );
        assert_eq!(sql, expected);
    }

    #[test]
    fn ranges_are_half_open_and_open_at_both_ends() {
        let one = table(&[r#""a""#]);
        let sql = one
            .within(&range(Some(&["1"]), Some(&["9"])), HASH)
            .unwrap();
        assert_eq!(sql, r#""a" >= '1'::bigint AND "a" < '9'::bigint"#);
        assert_eq!(one.within(&range(None, None), HASH), None);
        let two = table(&[r#""a""#, r#""b""#]);
        let sql = two
            .within(&range(None, Some(&["9", "it's"])), HASH)
            .unwrap();
        assert_eq!(
            sql,
            r#""a" <= '9'::bigint AND ("a", "b") < ('9'::bigint, 'it''s'::text)"#
        );
        let sql = two.next_border(
            (Some(&vec!["9".into(), "x".into()]), None),
            &["bigint", "text"],
            5,
        );
        assert!(
            sql.contains(r#"("a", "b") >= ('9'::bigint, 'x'::text)"#),
            "{sql}"
        );
        assert!(
            sql.ends_with(r#"ORDER BY "a", "b" OFFSET 5 LIMIT 1"#),
            "{sql}"
        );
    }

    #[test]
    fn nothing_is_ever_xored() {
        let piece = Piece::Buckets {
            numbers: vec![1, 2],
            of: 4096,
        };
        for table in [table(&[]), table(&[r#""a""#])] {
            for sql in [
                table.buckets(Some(&piece), 4096, HASH),
                table.digest(&piece, HASH),
                table.sub_buckets(&piece, HASH),
                table.merge(&piece, Some(&[3]), HASH),
                table.cells(&piece, &[-5], true, HASH),
            ] {
                assert!(!sql.contains('#') && !sql.contains("xor"), "{sql}");
            }
        }
    }
}
