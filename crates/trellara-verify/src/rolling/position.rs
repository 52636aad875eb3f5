//! Positions of the source, and when the target has come to one.

use std::time::Duration;

use futures_util::try_join;
use tokio::time::Instant;
use trellara_envelope::{Lsn, SystemId, Timeline};
use trellara_postgres::{fault, insert_position, quote};

use super::Rolling;
use crate::error::{Failure, Side, VerifyError};
use crate::inventory::{Cells, only};
use crate::ledger::{self, Newest};
use crate::reader::Reader;
use crate::report::ServerReport;
use crate::table::Ground;

/// How often the ledger is looked at.
const LOOK: Duration = Duration::from_millis(50);
/// How often the applier is asked to write its position down at once.
const REMIND: Duration = Duration::from_secs(1);

/// Everything that is visible on the source now lies at or below it (C09).
pub(super) async fn now(ground: &Ground<'_>) -> Result<Lsn, Failure> {
    let now = insert_position(ground.source_now.session()).await;
    now.map_err(refused(Side::Source))
}

fn refused(side: Side) -> impl Fn(tokio_postgres::Error) -> Failure {
    move |error| VerifyError::server(side, &fault(&error)).into()
}

/// Who both databases are.
pub(super) async fn servers(ground: &Ground<'_>) -> Result<(ServerReport, ServerReport), Failure> {
    // The course that is written now: the control file tells of a promotion only later.
    const SOURCE: &str = "SELECT (SELECT system_identifier FROM pg_control_system()), \
        ('x' || left(pg_walfile_name(pg_current_wal_insert_lsn()), 8))::bit(32)::int";
    const TARGET: &str = "SELECT (SELECT system_identifier FROM pg_control_system()), \
        (SELECT timeline_id FROM pg_control_checkpoint())";
    try_join!(
        server(&ground.source_now, SOURCE),
        server(&ground.target_now, TARGET)
    )
}

async fn server(reader: &Reader, sql: &str) -> Result<ServerReport, Failure> {
    let mut cells: Cells = only(reader.rows(sql).await?)?;
    let (system, timeline) = (cells.text()?, cells.text()?);
    let system = system.parse::<i64>().unwrap_or_default();
    Ok(ServerReport {
        system: SystemId(system.cast_unsigned()),
        timeline: Timeline(timeline.parse().unwrap_or_default()),
        version: reader.session().server_version().to_string(),
    })
}

impl Rolling<'_> {
    /// Waits until every lane has applied everything up to there; when that takes too long, or it
    /// shall stop, everything that is left is stopped.
    pub(super) async fn reached(&self, position: Lsn) -> Result<bool, Failure> {
        let flow = &self.options.freeze.flow;
        let client = &self.ground.target_now.session().client;
        let notify = format!(
            "NOTIFY {}, 'checkpoint'",
            quote::identifier(&format!("trellara_{flow}"))
        );
        let patience = self.options.freeze.patience;
        let deadline = Instant::now() + patience;
        let mut remind = tokio::time::interval(REMIND);
        let mut look = tokio::time::interval(LOOK);
        loop {
            tokio::select! {
                biased;
                () = self.stop.stopped() => return Ok(false),
                _ = remind.tick() => {
                    client.batch_execute(&notify).await.map_err(refused(Side::Target))?;
                }
                _ = look.tick() => {
                    let newest = ledger::newest(client, flow).await;
                    let newest = newest.map_err(refused(Side::Target))?;
                    match self.behind(&newest, position) {
                        Behind::Nobody => return Ok(true),
                        Behind::Unusable(reason, hint) => {
                            self.stop.now(reason, hint);
                            return Ok(false);
                        }
                        Behind::Lane(reason) if Instant::now() >= deadline => {
                            let hint = "is a relay and an applier running, and what does the flow \
                                        lag? trellara status shows it; --timeout waits longer";
                            self.stop.now(format!("{reason} within {patience:?}"), hint);
                            return Ok(false);
                        }
                        Behind::Lane(_) => {}
                    }
                }
            }
        }
    }

    fn behind(&self, lanes: &[Newest], position: Lsn) -> Behind {
        if lanes.is_empty() {
            let reason = "the flow is not set up in this target".to_owned();
            return Behind::Unusable(reason, "run trellara setup");
        }
        for Newest { lane, at } in lanes {
            let Some(at) = at else {
                return Behind::Lane(format!("lane {lane} has applied nothing"));
            };
            if at.source.0 != self.source.0 {
                let reason = "the target holds another source's transactions".to_owned();
                return Behind::Unusable(reason, "check source.url and target.url");
            }
            // The same number names another place on a course that was left.
            if at.source != self.source || at.end < position {
                let end = at.end;
                return Behind::Lane(format!(
                    "the applier of lane {lane} did not come from {end} to {position}"
                ));
            }
        }
        Behind::Nobody
    }
}

/// Who is not there yet.
enum Behind {
    Nobody,
    Lane(String),
    Unusable(String, &'static str),
}
