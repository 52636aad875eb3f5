//! Where each lane of a flow stands, as the ledger in the target says.

use trellara_envelope::{FlowName, Lane, Lsn, SystemId, Timeline};

/// The newest row of a lane.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Newest {
    /// The lane.
    pub(crate) lane: Lane,
    /// Up to where it is applied, and which source's position that is; `None` before its first row.
    pub(crate) at: Option<Position>,
}

/// A position of a source.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Position {
    pub(crate) end: Lsn,
    pub(crate) source: (SystemId, Timeline),
}

/// The newest row of each of the flow's lanes that are set up, as the session sees them; none when
/// there are none. One index look-up a lane, however long the ledger is.
pub(crate) async fn newest(
    client: &tokio_postgres::Client,
    flow: &FlowName,
) -> Result<Vec<Newest>, tokio_postgres::Error> {
    const EXISTS: &str = "SELECT to_regclass('trellara.lane') IS NOT NULL";
    const NEWEST: &str = "\
        SELECT l.lane, a.end_lsn::text, a.source_system, a.source_timeline \
          FROM trellara.lane AS l \
          LEFT JOIN LATERAL (SELECT * FROM trellara.applied AS a \
                              WHERE a.flow = l.flow AND a.lane = l.lane \
                              ORDER BY a.first_ordinal DESC LIMIT 1) AS a ON true \
         WHERE l.flow = $1 AND l.state = 'ready' ORDER BY l.lane";
    if !client.query_one(EXISTS, &[]).await?.get::<_, bool>(0) {
        return Ok(Vec::new());
    }
    let rows = client.query(NEWEST, &[&flow.as_str()]).await?;
    Ok(rows.iter().map(of_row).collect())
}

fn of_row(row: &tokio_postgres::Row) -> Newest {
    let end: Option<Lsn> = row
        .get::<_, Option<&str>>(1)
        .and_then(|text| text.parse().ok());
    let at = end.map(|end| Position {
        end,
        source: (
            // The bits of an unsigned number are kept in a signed one.
            SystemId(row.get::<_, i64>(2).cast_unsigned()),
            Timeline(u32::try_from(row.get::<_, i64>(3)).unwrap_or_default()),
        ),
    });
    Newest {
        lane: Lane(row.get::<_, i32>(0).cast_unsigned()),
        at,
    }
}
