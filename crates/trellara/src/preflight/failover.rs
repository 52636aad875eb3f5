//! What becomes of the flow when the source fails over to a standby (rules C11).
//!
//! Only the primary is asked. Whether a standby synchronises the slot is known to the standby alone;
//! the note says what to ask it.

use trellara_postgres::Session;
use trellara_source::slot;

use super::Findings;
use crate::config::Config;
use crate::exit::Failure;

/// Failover slots exist from here on.
const FAILOVER_SLOTS: u32 = 17;

pub(super) async fn examine(
    config: &Config,
    session: &Session,
    findings: &mut Findings,
) -> Result<(), Failure> {
    let standbys: Vec<(String, bool)> = session
        .client
        .query(
            "SELECT slot_name::text, active FROM pg_replication_slots \
              WHERE slot_type = 'physical' ORDER BY 1",
            &[],
        )
        .await?
        .iter()
        .map(|row| (row.get(0), row.get(1)))
        .collect();
    let major = session.server_version().major();
    if major < FAILOVER_SLOTS {
        if !standbys.is_empty() {
            findings.warning(
                "SOURCE_FAILOVER_COPIES",
                "source",
                format!(
                    "PostgreSQL {major} does not carry replication slots over to a standby: after a \
                     failover the flow stops with SLOT_LOST"
                ),
                "expect to copy the tables again then, or upgrade the source to 17 or newer",
            );
        }
        return Ok(());
    }
    let row = session
        .client
        .query_one("SELECT current_setting('synchronized_standby_slots')", &[])
        .await?;
    let setting: String = row.get(0);
    let waited_for = names(&setting);
    missing(&waited_for, &standbys, findings);
    if !standbys.is_empty() {
        with_standbys(config, session, (&waited_for, &standbys), findings).await?;
    }
    Ok(())
}

/// Slots that commits of the flow wait for, and that nobody reads: the relay stands still.
fn missing(waited_for: &[String], standbys: &[(String, bool)], findings: &mut Findings) {
    for name in waited_for {
        let state = match standbys.iter().find(|(standby, _)| standby == name) {
            None => "does not exist",
            Some((_, false)) => "is not read by any standby",
            Some((_, true)) => continue,
        };
        findings.warning(
            "SOURCE_STANDBY_ABSENT",
            "source",
            format!(
                "synchronized_standby_slots names {name}, which {state}: the source sends the flow \
                 nothing until that standby has received it"
            ),
            "start the standby, or take its slot out of synchronized_standby_slots",
        );
    }
}

async fn with_standbys(
    config: &Config,
    session: &Session,
    (waited_for, standbys): (&[String], &[(String, bool)]),
    findings: &mut Findings,
) -> Result<(), Failure> {
    let name = &config.source.slot;
    let slot = slot::read(session, name).await?;
    if slot.is_some_and(|slot| !slot.failover) {
        findings.warning(
            "SLOT_NO_FAILOVER",
            format!("slot {name}"),
            "it is no failover slot: a promoted standby does not have it",
            "while the relay is stopped, on a replication connection: ALTER_REPLICATION_SLOT … \
             (FAILOVER true)",
        );
    }
    if waited_for.is_empty() {
        let names: Vec<&str> = standbys.iter().map(|(name, _)| name.as_str()).collect();
        findings.warning(
            "SOURCE_STANDBY_BEHIND",
            "source",
            "the flow carries transactions that no standby has yet: after a failover that loses \
             them, the target has what the source never had (DIVERGED)",
            format!(
                "ALTER SYSTEM SET synchronized_standby_slots = '{}'; SELECT pg_reload_conf()",
                names.join(", ")
            ),
        );
    }
    findings.note(
        "SOURCE_STANDBY_SLOT",
        "source",
        format!(
            "ask each standby that may take over: SELECT synced AND NOT temporary FROM \
             pg_replication_slots WHERE slot_name = '{name}' must say true (it needs \
             sync_replication_slots and hot_standby_feedback, and dbname in primary_conninfo)"
        ),
    );
    Ok(())
}

/// The names in a list of slots.
fn names(setting: &str) -> Vec<String> {
    setting
        .split(',')
        .map(|name| name.trim().trim_matches('"').to_owned())
        .filter(|name| !name.is_empty())
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_list_of_slots_is_read_as_the_server_reads_it() {
        assert_eq!(names(""), Vec::<String>::new());
        assert_eq!(names("one"), ["one"]);
        assert_eq!(names(" one, \"two\" ,three"), ["one", "two", "three"]);
    }

    #[test]
    fn a_standby_that_is_waited_for_and_not_there_is_named() {
        let mut findings = Findings::default();
        let standbys = [("here".to_owned(), true), ("away".to_owned(), false)];
        let waited: Vec<String> = ["here", "away", "gone"].map(str::to_owned).to_vec();
        missing(&waited, &standbys, &mut findings);
        let said: Vec<&str> = findings.0.iter().map(|f| f.reason.as_str()).collect();
        assert_eq!(said.len(), 2, "{said:?}");
        assert!(said[0].contains("away, which is not read"), "{said:?}");
        assert!(said[1].contains("gone, which does not exist"), "{said:?}");
    }
}
