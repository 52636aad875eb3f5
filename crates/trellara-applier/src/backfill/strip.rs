//! Takes columns out of rows in COPY's text format, wherever the pieces of them are cut. Pure.
//!
//! A column that the target computes by itself may be an ordinary one on the source, or be sent
//! although it is computed there too: the stream's changes leave it out, and COPY cannot. In the text
//! format a tab always ends a value and a line feed always ends a row; those in values are escaped.

use bytes::{Bytes, BytesMut};

/// Which values are kept, and where in a row the last piece ended.
#[derive(Debug)]
pub(super) struct Strip {
    keep: Vec<bool>,
    column: usize,
    /// Whether a value of this row was kept already.
    begun: bool,
}

impl Strip {
    /// Keeps the columns at these places.
    pub(super) fn new(keep: Vec<bool>) -> Self {
        Self {
            keep,
            column: 0,
            begun: false,
        }
    }

    /// The next piece without what is not kept.
    pub(super) fn piece(&mut self, piece: &Bytes) -> Bytes {
        let mut out = BytesMut::with_capacity(piece.len());
        let mut rest: &[u8] = piece;
        while let Some(end) = rest.iter().position(|byte| matches!(byte, b'\t' | b'\n')) {
            self.value(&rest[..end], &mut out);
            if rest[end] == b'\n' {
                out.extend_from_slice(b"\n");
                (self.column, self.begun) = (0, false);
            } else {
                self.begun |= self.keeps();
                self.column += 1;
                if self.begun && self.keeps() {
                    out.extend_from_slice(b"\t");
                }
            }
            rest = &rest[end + 1..];
        }
        self.value(rest, &mut out);
        out.freeze()
    }

    fn value(&self, bytes: &[u8], out: &mut BytesMut) {
        if self.keeps() {
            out.extend_from_slice(bytes);
        }
    }

    fn keeps(&self) -> bool {
        // Of a row with more values than columns everything is kept, for the server to refuse.
        self.keep.get(self.column).copied().unwrap_or(true)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn stripped(keep: &[bool], text: &[u8], cuts: &[usize]) -> Vec<u8> {
        let mut strip = Strip::new(keep.to_vec());
        let (mut out, mut rest) = (Vec::new(), text);
        for cut in cuts.iter().chain([&usize::MAX]) {
            let (piece, behind) = rest.split_at((*cut).min(rest.len()));
            out.extend_from_slice(&strip.piece(&Bytes::copy_from_slice(piece)));
            rest = behind;
        }
        out
    }

    #[test]
    fn values_are_taken_out_and_the_rest_is_as_it_was() {
        let rows = b"1\ta\\tb\tx\n2\t\\N\t\n";
        assert_eq!(stripped(&[true, false, true], rows, &[]), b"1\tx\n2\t\n");
        assert_eq!(
            stripped(&[false, true, true], rows, &[]),
            b"a\\tb\tx\n\\N\t\n"
        );
        assert_eq!(
            stripped(&[true, true, false], rows, &[]),
            b"1\ta\\tb\n2\t\\N\n"
        );
        assert_eq!(stripped(&[false, false, true], rows, &[]), b"x\n\n");
    }

    proptest! {
        #[test]
        fn it_does_not_matter_where_the_pieces_are_cut(
            rows in proptest::collection::vec(proptest::collection::vec("[a-c\\\\]{0,4}", 3), 0..6),
            keep in proptest::collection::vec(any::<bool>(), 3),
            cuts in proptest::collection::vec(0usize..5, 0..30),
        ) {
            let join = |values: Vec<&str>| values.join("\t") + "\n";
            let all: String = rows.iter().map(|row| join(row.iter().map(String::as_str).collect())).collect();
            let kept = |row: &Vec<String>| {
                let kept = row.iter().zip(&keep).filter(|(_, keep)| **keep);
                join(kept.map(|(value, _)| value.as_str()).collect())
            };
            let expected: String = rows.iter().map(kept).collect();
            prop_assert_eq!(stripped(&keep, all.as_bytes(), &cuts), expected.into_bytes());
        }
    }
}
