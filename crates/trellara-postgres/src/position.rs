//! The position that `wait` and fences wait for (rule C09).

use trellara_envelope::Lsn;

use crate::Session;

/// The insert position, lowered to the page start when it points just behind a page header.
pub async fn insert_position(session: &Session) -> Result<Lsn, tokio_postgres::Error> {
    let row = session
        .client
        .query_one("SELECT pg_current_wal_insert_lsn()::text", &[])
        .await?;
    Ok(row.get::<_, String>(0).parse().unwrap_or(Lsn::ZERO))
}
