//! The position that `wait` and fences wait for (rule C09).

use trellara_envelope::Lsn;

use crate::Session;

/// Every WAL page begins with a header of this many bytes …
const SHORT_HEADER_BYTES: u64 = 24;
/// … and the first page of a segment with a longer one.
const LONG_HEADER_BYTES: u64 = 40;

/// Everything committed and visible now lies at or below this position of the source, and a
/// heartbeat of an idle source reaches it: the insert position, lowered to the page start when it
/// points just behind a page header. (The walsender's end never passes a header with nothing
/// behind it; the flush position alone would miss visible asynchronous commits.)
///
/// # Errors
/// The server's, among them 55000 when it is in recovery.
pub async fn insert_position(session: &Session) -> Result<Lsn, tokio_postgres::Error> {
    const ASK: &str = "SELECT pg_catalog.pg_wal_lsn_diff(pg_catalog.pg_current_wal_insert_lsn(), '0/0')::bigint, \
        pg_catalog.pg_size_bytes(pg_catalog.current_setting('wal_segment_size')), \
        pg_catalog.current_setting('wal_block_size')::bigint";
    let row = session.client.query_one(ASK, &[]).await?;
    let unsigned = |i: usize| row.try_get::<_, i64>(i).map(i64::unsigned_abs);
    Ok(behind_headers(
        Lsn(unsigned(0)?),
        unsigned(1)?,
        unsigned(2)?,
    ))
}

fn behind_headers(insert: Lsn, segment_bytes: u64, page_bytes: u64) -> Lsn {
    let lowered = |unit: u64, header: u64| {
        let into = insert.0.checked_rem(unit)?;
        (into == header).then_some(Lsn(insert.0 - into))
    };
    let segment = lowered(segment_bytes, LONG_HEADER_BYTES);
    // 24 bytes into the first page of a segment is inside its header, where nothing ever ends; that
    // needs no case of its own.
    segment
        .or_else(|| lowered(page_bytes, SHORT_HEADER_BYTES))
        .unwrap_or(insert)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn c09_positions_just_behind_a_page_header_are_lowered() {
        let lowered = |lsn| behind_headers(Lsn(lsn), 16 << 20, 8 << 10);
        assert_eq!(lowered(0x200_0028), Lsn(0x200_0000), "after pg_switch_wal");
        assert_eq!(lowered(0x3_E018), Lsn(0x3_E000), "short header");
        assert_eq!(
            lowered(0x3_E028),
            Lsn(0x3_E028),
            "a record of 16 bytes behind the header"
        );
        assert_eq!(lowered(0x3_E000), Lsn(0x3_E000));
        let small = behind_headers(Lsn(0x10_0028), 1 << 20, 8 << 10);
        assert_eq!(small, Lsn(0x10_0000), "1 MiB segments");
        let large = behind_headers(Lsn(0x10_0028), 16 << 20, 8 << 10);
        assert_eq!(large, Lsn(0x10_0028), "not the start of a 16 MiB segment");
    }
}
