//! The replication connection, up to the moment the stream starts.

use bytes::BytesMut;
use postgres_protocol::message::backend::Message;
use postgres_protocol::message::frontend;
use trellara_envelope::{Lsn, SourceHistory, SystemId, Timeline};

use crate::connect::connect;
use crate::startup::Purpose;
use crate::wire::{Incoming, Wire};
use crate::{ConnectError, ConnectOptions, CopyBoth, Fault, QueryError, ServerVersion, quote};

/// One row of a simple query: values as text, NULL as `None`.
pub type Row = Vec<Option<String>>;

/// The answer of IDENTIFY_SYSTEM.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct IdentifySystem {
    /// The cluster.
    pub system: SystemId,
    /// The server's present timeline.
    pub timeline: Timeline,
    /// The server's flush position.
    pub xlogpos: Lsn,
    /// The database connected to.
    pub dbname: Option<String>,
}

/// What becomes of the snapshot of a new slot.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SnapshotAction {
    /// Exported: other sessions may import it while this connection does nothing else.
    Export,
    /// None is made.
    NoExport,
}

/// A slot that was just created.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CreatedSlot {
    /// Its name.
    pub name: String,
    /// Changes committed from here on come through it.
    pub consistent_point: Lsn,
    /// The exported snapshot, when [`SnapshotAction::Export`] was asked for.
    pub snapshot: Option<String>,
}

/// A connection with `replication=database`, which takes replication commands and SQL. Dropping it
/// ends the walsender and whatever it holds: a temporary slot, an exported snapshot.
pub struct ReplicationConnection {
    wire: Wire,
    pid: i32,
    version: ServerVersion,
}

impl ReplicationConnection {
    /// Connects, the same way and with the same settings as [`crate::Session::connect`].
    ///
    /// # Errors
    /// No session could be had; a role without REPLICATION is
    /// [`crate::ConnectErrorKind::Refused`].
    pub async fn connect(options: &ConnectOptions) -> Result<Self, ConnectError> {
        let connected = Box::pin(connect(options, Purpose::Replication)).await?;
        Ok(Self {
            wire: connected.established.wire,
            pid: connected.established.pid,
            version: connected.version,
        })
    }

    /// The walsender's process id.
    pub fn pid(&self) -> i32 {
        self.pid
    }

    /// The server's version.
    pub fn server_version(&self) -> ServerVersion {
        self.version
    }

    /// IDENTIFY_SYSTEM.
    ///
    /// # Errors
    /// A pooler that dropped `replication=database` is named.
    pub async fn identify_system(&mut self) -> Result<IdentifySystem, QueryError> {
        let rows = self
            .wire
            .query("IDENTIFY_SYSTEM")
            .await
            .map_err(not_a_walsender)?;
        let row = Columns::only("IDENTIFY_SYSTEM", rows)?;
        Ok(IdentifySystem {
            system: SystemId(row.parsed(0)?),
            timeline: Timeline(row.parsed(1)?),
            xlogpos: row.parsed(2)?,
            dbname: row.text(3),
        })
    }

    /// The timelines that led to the present one: IDENTIFY_SYSTEM, and TIMELINE_HISTORY above
    /// timeline 1.
    pub async fn history(&mut self) -> Result<SourceHistory, QueryError> {
        let identified = self.identify_system().await?;
        let mut switches = Vec::new();
        if identified.timeline > Timeline(1) {
            let command = format!("TIMELINE_HISTORY {}", identified.timeline);
            let row = Columns::only("TIMELINE_HISTORY", self.wire.query(&command).await?)?;
            switches = history_file(&row.text(1).unwrap_or_default())?;
        }
        Ok(SourceHistory {
            system: identified.system,
            timeline: identified.timeline,
            switches,
        })
    }

    /// A simple query; the rows of its last result.
    ///
    /// # Errors
    /// After [`QueryError::Server`] the connection can be used again, after the others it cannot.
    pub async fn simple_query(&mut self, sql: &str) -> Result<Vec<Row>, QueryError> {
        self.wire.query(sql).await
    }

    /// Creates a logical slot for pgoutput. Waits for the transactions that run now; the caller
    /// sets the limit (rule C10). `failover` needs PostgreSQL 17.
    pub async fn create_logical_slot(
        &mut self,
        name: &str,
        temporary: bool,
        snapshot: SnapshotAction,
        failover: bool,
    ) -> Result<CreatedSlot, QueryError> {
        let command = format!(
            "CREATE_REPLICATION_SLOT {} {}LOGICAL pgoutput (SNAPSHOT '{}'{})",
            quote::identifier(name),
            if temporary { "TEMPORARY " } else { "" },
            match snapshot {
                SnapshotAction::Export => "export",
                SnapshotAction::NoExport => "nothing",
            },
            if failover { ", FAILOVER true" } else { "" },
        );
        let row = Columns::only("CREATE_REPLICATION_SLOT", self.wire.query(&command).await?)?;
        Ok(CreatedSlot {
            name: row.text(0).unwrap_or_default(),
            consistent_point: row.parsed(1)?,
            snapshot: row.text(2),
        })
    }

    /// Starts streaming from a logical slot at `start` ([`Lsn::ZERO`]: where the slot stands).
    /// Names and values of options are quoted here; a list such as `publication_names` must
    /// already be a list of quoted identifiers.
    pub async fn start_replication(
        mut self,
        slot: &str,
        start: Lsn,
        options: &[(String, String)],
    ) -> Result<CopyBoth, QueryError> {
        let mut command = format!(
            "START_REPLICATION SLOT {} LOGICAL {start}",
            quote::identifier(slot)
        );
        if !options.is_empty() {
            let list: Vec<String> = options
                .iter()
                .map(|(name, value)| {
                    format!("{} {}", quote::identifier(name), plain_literal(value))
                })
                .collect();
            command.push_str(&format!(" ({})", list.join(", ")));
        }
        let mut request = BytesMut::new();
        frontend::query(&command, &mut request)
            .map_err(|_| QueryError::Protocol("an option holds a NUL character".into()))?;
        self.wire
            .send(&request)
            .await
            .map_err(QueryError::Connection)?;
        match self.wire.receive().await.map_err(QueryError::Connection)? {
            Incoming::CopyBoth => CopyBoth::from_wire(self.wire.transport, self.wire.unread)
                .map_err(QueryError::Connection),
            Incoming::Known(Message::ErrorResponse(body)) => Err(QueryError::Server(Box::new(
                Fault::from_fields(&mut body.fields()).map_err(QueryError::Connection)?,
            ))),
            Incoming::Known(_) => Err(QueryError::Protocol(
                "START_REPLICATION was answered by something else".into(),
            )),
        }
    }
}

/// The replication grammar knows no `E''` strings and no backslash escapes; only `''`.
fn plain_literal(text: &str) -> String {
    format!("'{}'", text.replace('\'', "''"))
}

/// An ordinary backend takes replication commands for bad SQL.
fn not_a_walsender(error: QueryError) -> QueryError {
    match error {
        QueryError::Server(fault) if fault.sqlstate == "42601" => QueryError::Protocol(
            "this is not a replication connection: a pooler such as pgbouncer in between dropped \
             replication=database; connect to PostgreSQL itself"
                .into(),
        ),
        other => other,
    }
}

/// A timeline history file: `timeline <tab> switch position <tab> reason` a line, oldest first.
fn history_file(text: &str) -> Result<Vec<(Timeline, Lsn)>, QueryError> {
    let wrong = || QueryError::Protocol("the timeline history cannot be read".into());
    text.lines()
        .map(str::trim)
        .filter(|line| !line.is_empty() && !line.starts_with('#'))
        .map(|line| {
            let mut words = line.split_whitespace();
            let timeline = words
                .next()
                .and_then(|w| w.parse().ok())
                .ok_or_else(wrong)?;
            let left_at = words
                .next()
                .and_then(|w| w.parse().ok())
                .ok_or_else(wrong)?;
            Ok((Timeline(timeline), left_at))
        })
        .collect()
}

/// The one row that a replication command answers with.
struct Columns {
    command: &'static str,
    row: Row,
}

impl Columns {
    fn only(command: &'static str, mut rows: Vec<Row>) -> Result<Self, QueryError> {
        match rows.pop() {
            Some(row) if rows.is_empty() => Ok(Self { command, row }),
            _ => Err(QueryError::Protocol(format!(
                "{command} did not answer with one row"
            ))),
        }
    }

    fn text(&self, i: usize) -> Option<String> {
        self.row.get(i).cloned().flatten()
    }

    fn parsed<T: std::str::FromStr>(&self, i: usize) -> Result<T, QueryError> {
        self.text(i)
            .and_then(|text| text.parse().ok())
            .ok_or_else(|| {
                QueryError::Protocol(format!(
                    "column {} of {} cannot be read",
                    i + 1,
                    self.command
                ))
            })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_history_file_lists_what_was_left_and_where() {
        let file = "1\t0/3007270\tno recovery target specified\n\n2\t16/B374D848\tbefore 2000\n";
        let expected = vec![
            (Timeline(1), Lsn(0x300_7270)),
            (Timeline(2), Lsn(0x16_B374_D848)),
        ];
        assert_eq!(history_file(file).expect("a history"), expected);
        assert!(history_file("1\n").is_err());
    }
}
