//! Digests of a table's pieces: asked of the servers, or made here of every row's text.

use std::collections::BTreeMap;

use crate::digest::{Hash, Number, Piece, SideTable};
use crate::error::{Failure, VerifyError};
use crate::inventory::{Cells, only};
use crate::reader::Reader;
use crate::sum::Sum;

/// Counts and digests of rows; what two sides have of it is compared.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Digest {
    pub(crate) rows: u64,
    pub(crate) sum: Sum,
}

impl Digest {
    pub(crate) fn add(&mut self, other: Digest) {
        self.rows += other.rows;
        self.sum += other.sum;
    }
}

/// Of all rows of a piece.
pub(crate) async fn piece(
    reader: &Reader,
    table: &SideTable,
    piece: &Piece,
    hash: Hash,
) -> Result<Digest, Failure> {
    if let Some(key) = &hash.proof {
        let sql = table.texts(Some(piece), Number::None, hash);
        let mut all = made_here(reader, &sql, key).await?;
        return Ok(all.remove(&0).unwrap_or_default());
    }
    let rows = reader.rows(&table.digest(piece, hash)).await?;
    digest(&mut only(rows)?)
}

/// Of every one of so many buckets that has rows, or of these where they are named.
pub(crate) async fn buckets(
    reader: &Reader,
    table: &SideTable,
    (wanted, of): (Option<&Piece>, u32),
    hash: Hash,
) -> Result<BTreeMap<u32, Digest>, Failure> {
    match &hash.proof {
        Some(key) => {
            let sql = table.texts(wanted, Number::Bucket(of), hash);
            made_here(reader, &sql, key).await
        }
        None => asked(reader, &table.buckets(wanted, of, hash)).await,
    }
}

/// Of every sub-bucket of a piece that has rows.
pub(crate) async fn sub_buckets(
    reader: &Reader,
    table: &SideTable,
    piece: &Piece,
    hash: Hash,
) -> Result<BTreeMap<u32, Digest>, Failure> {
    match &hash.proof {
        Some(key) => {
            let sql = table.texts(Some(piece), Number::SubBucket, hash);
            made_here(reader, &sql, key).await
        }
        None => asked(reader, &table.sub_buckets(piece, hash)).await,
    }
}

/// A row's digest. Keyed, so that nobody can have made two rows for it.
pub(crate) fn digest_of(key: &[u8; 32], text: &[u8]) -> Sum {
    Sum::of_digest(blake3::keyed_hash(key, text).as_bytes())
}

/// Reads `(number, count, sum)`.
async fn asked(reader: &Reader, sql: &str) -> Result<BTreeMap<u32, Digest>, Failure> {
    let rows = reader.rows(sql).await?.into_iter();
    rows.map(|row| {
        let mut cells = Cells(row.into_iter());
        Ok((cells.number()? as u32, digest(&mut cells)?))
    })
    .collect()
}

/// Reads `count, sum`.
fn digest(cells: &mut Cells) -> Result<Digest, Failure> {
    let rows = cells.number()? as u64;
    let sum = cells.text()?.parse::<i128>();
    let sum = sum.map_err(|_| VerifyError::bug("a sum is no number"))?;
    Ok(Digest {
        rows,
        sum: sum.into(),
    })
}

/// Reads a binary copy of `(number, text)`, and keeps nothing of a row but its digest.
async fn made_here(
    reader: &Reader,
    sql: &str,
    key: &[u8; 32],
) -> Result<BTreeMap<u32, Digest>, Failure> {
    let mut all: BTreeMap<u32, Digest> = BTreeMap::new();
    let mut begun = false;
    let copied = reader.copy(sql, |mut bytes| {
        if !std::mem::replace(&mut begun, true) {
            header(&mut bytes).ok_or(VerifyError::bug(NO_COPY))?;
        }
        while let Some((number, text)) = row(&mut bytes)? {
            let digest = all.entry(number).or_default();
            digest.rows += 1;
            digest.sum += digest_of(key, text);
        }
        Ok(())
    });
    copied.await?;
    Ok(all)
}

const NO_COPY: &str = "a binary copy has another form";

/// The signature, flags, and an extension that nobody has made yet.
fn header(bytes: &mut &[u8]) -> Option<()> {
    *bytes = bytes.strip_prefix(b"PGCOPY\n\xff\r\n\0")?;
    take(bytes, 4)?;
    let extension = u32::from_be_bytes(take(bytes, 4)?.try_into().ok()?);
    take(bytes, extension as usize)?;
    Some(())
}

/// The next row, `None` behind the last one of what was received; the servers send whole rows.
fn row<'b>(bytes: &mut &'b [u8]) -> Result<Option<(u32, &'b [u8])>, VerifyError> {
    const END: &[u8] = &(-1i16).to_be_bytes();
    if bytes.is_empty() || *bytes == END {
        return Ok(None);
    }
    let mut fields = || {
        let count = take(bytes, 2)?;
        let number = field(bytes)?;
        let text = field(bytes)?;
        let number = u32::from_be_bytes(number.try_into().ok()?);
        (count == 2i16.to_be_bytes()).then_some((number, text))
    };
    fields().map(Some).ok_or_else(|| VerifyError::bug(NO_COPY))
}

/// NULL, which neither field can be, has a length that is never there.
fn field<'b>(bytes: &mut &'b [u8]) -> Option<&'b [u8]> {
    let length = u32::from_be_bytes(take(bytes, 4)?.try_into().ok()?);
    take(bytes, length as usize)
}

fn take<'b>(bytes: &mut &'b [u8], count: usize) -> Option<&'b [u8]> {
    let (taken, rest) = bytes.split_at_checked(count)?;
    *bytes = rest;
    Some(taken)
}

/// The numbers whose digests differ, with the larger count of rows.
pub(crate) fn differing(
    source: &BTreeMap<u32, Digest>,
    target: &BTreeMap<u32, Digest>,
) -> impl Iterator<Item = (u32, u64)> {
    let mut all: BTreeMap<u32, [Digest; 2]> = BTreeMap::new();
    for (side, digests) in [source, target].into_iter().enumerate() {
        for (number, digest) in digests {
            all.entry(*number).or_default()[side] = *digest;
        }
    }
    all.into_iter()
        .filter(|(_, [source, target])| source != target)
        .map(|(number, [source, target])| (number, source.rows.max(target.rows)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_copy_is_read_row_by_row_and_never_guessed_at() {
        let mut copy: &[u8] = b"PGCOPY\n\xff\r\n\0\0\0\0\0\0\0\0\x02??\
            \0\x02\0\0\0\x04\0\0\x01\0\0\0\0\x02()\
            \0\x02\0\0\0\x04\0\0\0\x07\0\0\0\0\xff\xff";
        header(&mut copy).unwrap();
        assert_eq!(row(&mut copy).unwrap(), Some((256, &b"()"[..])));
        assert_eq!(row(&mut copy).unwrap(), Some((7, &b""[..])));
        assert_eq!(row(&mut copy).unwrap(), None);
        let null: &[u8] = b"\0\x02\0\0\0\x04\0\0\x01\0\xff\xff\xff\xff";
        let three: &[u8] = b"\0\x03\0\0\0\x04\0\0\x01\0\0\0\0\0";
        for broken in [null, three, &null[..9], &three[..1]] {
            assert!(row(&mut &*broken).is_err(), "{broken:?}");
        }
        assert_eq!(header(&mut &b"PGCOPY\n\xff\r\n\0\0\0"[..]), None);
    }

    #[test]
    fn a_digest_depends_on_the_key_of_the_run() {
        let digest = |key: u8, text: &str| digest_of(&[key; 32], text.as_bytes());
        assert_eq!(digest(1, "(1,a)"), digest(1, "(1,a)"));
        assert_ne!(digest(1, "(1,a)"), digest(1, "(1,b)"));
        assert_ne!(digest(1, "(1,a)"), digest(2, "(1,a)"));
    }
}
