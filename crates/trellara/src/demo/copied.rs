//! How far the first copy is, by what the target itself remembers.

use trellara_postgres::Session;

use super::place::session;
use crate::exit::Failure;

/// Looks at a flow's copy.
pub(super) struct Copied {
    session: Session,
    flow: &'static str,
}

impl Copied {
    pub(super) async fn of(target_url: &str, flow: &'static str) -> Result<Self, Failure> {
        let session = session(target_url).await?;
        Ok(Self { session, flow })
    }

    /// Rows that a copy has brought so far.
    pub(super) async fn rows(&self) -> Result<u64, Failure> {
        let sql = "SELECT coalesce(sum(rows), 0)::bigint FROM trellara.backfill WHERE flow = $1";
        let row = self.session.client.query_one(sql, &[&self.flow]).await?;
        Ok(row.get::<_, i64>(0).cast_unsigned())
    }
}
