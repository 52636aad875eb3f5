//! A database as it was at one moment.

use trellara_postgres::ConnectOptions;

/// One side, frozen: sessions made with these options that import this snapshot all see the same
/// rows, for as long as the session that exported it keeps its transaction open.
#[derive(Debug, Clone)]
pub struct Frozen {
    /// How to get there.
    pub connect: ConnectOptions,
    /// What `pg_export_snapshot()` returned.
    pub snapshot: String,
}
