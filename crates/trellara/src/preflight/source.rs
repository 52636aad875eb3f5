//! The source: version, settings, rights, slot; and with [`published`] the tables.

use trellara_envelope::HaltCode;
use trellara_postgres::{ServerVersion, Session, quote};
use trellara_source::publication::TableName;
use trellara_source::slot;

use super::{Findings, copy, failover, published};
use crate::config::Config;
use crate::exit::Failure;

/// Oldest and newest PostgreSQL that the tests cover.
const OLDEST: u32 = 15;
const NEWEST: u32 = 18;

/// Examines the source; the tables that are or would be published. `set_up` says that the target
/// knows the flow.
pub(super) async fn examine(
    config: &Config,
    session: &Session,
    set_up: bool,
    findings: &mut Findings,
) -> Result<Vec<TableName>, Failure> {
    if !version(session.server_version(), "source", findings) {
        return Ok(Vec::new());
    }
    minor(session.server_version(), findings);
    settings(config, session, findings).await?;
    role(config, session, findings).await?;
    let slot_exists = slot_facts(config, session, findings).await?;
    failover::examine(config, session, findings).await?;
    let tables = published::tables(config, session, findings).await?;
    published::replica_identities(config, session, &tables, findings).await?;
    // Once the flow is set up, its copy says itself what stands in its way.
    if !set_up && config.backfill.copy {
        copy::source(config, session, (&tables, slot_exists), findings).await?;
    }
    Ok(tables)
}

/// The version of either server; false when nothing else can be asked of it.
pub(super) fn version(version: ServerVersion, about: &str, findings: &mut Findings) -> bool {
    if version.major() < OLDEST {
        findings.error(
            "POSTGRES_TOO_OLD",
            about,
            format!("the server is PostgreSQL {version}"),
            format!("PostgreSQL {OLDEST} to {NEWEST} is needed"),
        );
        return false;
    }
    if version.major() > NEWEST {
        findings.warning(
            "POSTGRES_UNTESTED",
            about,
            format!("the server is PostgreSQL {version}"),
            format!("this version of trellara was tested with {OLDEST} to {NEWEST}"),
        );
    }
    true
}

/// Before the releases of 21 November 2024 a slot's `restart_lsn` could go backwards at a restart,
/// below WAL that had been removed already; what the slot still owes can then not be read (B14).
fn minor(version: ServerVersion, findings: &mut Findings) {
    let mended = match version.major() {
        15 => 150_010,
        16 => 160_006,
        17 => 170_002,
        _ => return,
    };
    if version.num < mended {
        findings.warning(
            "SOURCE_RESTART_LSN",
            "source",
            format!(
                "PostgreSQL {version} may set a slot back below WAL that it has removed: the flow \
                 then stops with SLOT_LOST"
            ),
            format!("upgrade to {}", ServerVersion { num: mended }),
        );
    }
}

async fn settings(
    config: &Config,
    session: &Session,
    findings: &mut Findings,
) -> Result<(), Failure> {
    let row = session
        .client
        .query_one(
            "SELECT current_setting('wal_level'), pg_is_in_recovery(), \
                    current_setting('max_replication_slots')::bigint, \
                    (SELECT count(*) FROM pg_replication_slots), \
                    current_setting('max_wal_senders')::bigint, \
                    current_setting('synchronous_standby_names'), \
                    current_setting('max_slot_wal_keep_size'), \
                    current_setting('server_encoding'), \
                    EXISTS (SELECT FROM pg_replication_slots WHERE slot_name = $1), \
                    (SELECT count(*) FROM pg_stat_get_wal_senders()), \
                    EXISTS (SELECT FROM pg_replication_slots WHERE slot_name = $1 AND active)",
            &[&config.source.slot],
        )
        .await?;
    let wal_level: String = row.get(0);
    if wal_level != "logical" {
        let cure = "ALTER SYSTEM SET wal_level = logical; then restart the server";
        findings.error(
            "SOURCE_WAL_LEVEL",
            "source",
            format!("wal_level is {wal_level}"),
            cure,
        );
    }
    if row.get(1) {
        let cure =
            "name the primary in source.url (several hosts with target_session_attrs=read-write)";
        findings.error(
            "SOURCE_IN_RECOVERY",
            "source",
            "the server is a standby",
            cure,
        );
    }
    let (slots, used, senders): (i64, i64, i64) = (row.get(2), row.get(3), row.get(4));
    let exists: bool = row.get(8);
    if !exists && used >= slots {
        let cure = "raise max_replication_slots and restart, or drop a slot nobody reads";
        findings.error(
            "SOURCE_NO_FREE_SLOT",
            "source",
            format!("all {slots} replication slots are taken"),
            cure,
        );
    }
    let (streaming, ours_streams): (i64, bool) = (row.get(9), row.get(10));
    // A relay holds one, and a second while it takes over from a dead one.
    if senders < 2 || (streaming >= senders && !ours_streams) {
        let cure = "raise max_wal_senders and restart the server, or end a replica nobody needs";
        findings.error(
            "SOURCE_NO_WALSENDER",
            "source",
            format!("max_wal_senders is {senders}, {streaming} of them are taken"),
            cure,
        );
    }
    let standbys: String = row.get(5);
    let ours = format!("trellara-{}", config.flow);
    if !exists && (standbys.contains(&ours) || standbys.contains('*')) {
        findings.error(
            "SOURCE_SYNCHRONOUS_STANDBY",
            "source",
            format!("synchronous_standby_names ({standbys}) makes commits wait for a relay that does not run yet"),
            "take it out, set up and start the relay, then put it back",
        );
    }
    let keep: String = row.get(6);
    if keep == "-1" {
        findings.note(
            "SOURCE_WAL_UNLIMITED",
            "source",
            "max_slot_wal_keep_size is -1: while nothing reads the slot, WAL grows until the disk is full",
        );
    }
    let encoding: String = row.get(7);
    if encoding == "SQL_ASCII" {
        let cure = "bytes that are not UTF-8 will stop the flow; convert the database";
        findings.warning(
            "SOURCE_ENCODING",
            "source",
            "the database has no encoding (SQL_ASCII)",
            cure,
        );
    }
    Ok(())
}

/// Both whoever asks, who makes the slot, and the relay's role, who reads it.
async fn role(config: &Config, session: &Session, findings: &mut Findings) -> Result<(), Failure> {
    let rows = session
        .client
        .query(
            "SELECT rolname::text FROM pg_roles \
              WHERE rolname IN (current_user, $1) AND NOT (rolreplication OR rolsuper)",
            &[&config.source.role],
        )
        .await?;
    for row in rows {
        let name: String = row.get(0);
        let cure = format!("ALTER ROLE {} REPLICATION", quote::identifier(&name));
        findings.right(
            "SOURCE_NO_REPLICATION",
            "source",
            format!("role {name} may not replicate"),
            cure,
        );
    }
    Ok(())
}

/// Whether the slot exists.
async fn slot_facts(
    config: &Config,
    session: &Session,
    findings: &mut Findings,
) -> Result<bool, Failure> {
    let name = &config.source.slot;
    let Some(slot) = slot::read(session, name).await? else {
        return Ok(false);
    };
    let drop = format!(
        "SELECT pg_drop_replication_slot({}), or name another in source.slot",
        quote::literal(name)
    );
    let about = format!("slot {name}");
    if slot.plugin.as_deref() != Some("pgoutput") {
        let plugin = slot.plugin.as_deref().unwrap_or("none, it is physical");
        findings.error(
            "SLOT_PLUGIN",
            &about,
            format!("its plugin is {plugin}"),
            &drop,
        );
    } else if slot.database.as_deref() != Some(config.source.connect.database()) {
        let database = slot.database.as_deref().unwrap_or("none");
        findings.error(
            "SLOT_DATABASE",
            &about,
            format!("it belongs to database {database}"),
            &drop,
        );
    }
    if slot.two_phase {
        findings.error(
            "SLOT_TWO_PHASE",
            &about,
            "it decodes prepared transactions (two_phase)",
            &drop,
        );
    }
    if slot.temporary {
        findings.error("SLOT_TEMPORARY", &about, "it ends with its session", &drop);
    }
    if let Some(why) = slot.lost() {
        let cure = "transactions are missing: `trellara remove`, load the target anew, set up";
        let what = format!("it is lost: {why}");
        findings.halt(HaltCode::SlotLost, &about, what, cure);
    }
    Ok(true)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn b14_servers_whose_slots_may_go_backwards_are_named() {
        for (number, named) in [
            (150_009, true),
            (150_010, false),
            (160_005, true),
            (160_006, false),
            (170_001, true),
            (170_002, false),
            (180_000, false),
        ] {
            let mut findings = Findings::default();
            minor(ServerVersion { num: number }, &mut findings);
            let found = findings.0.iter().any(|f| f.id == "SOURCE_RESTART_LSN");
            assert_eq!(found, named, "{number}");
        }
    }

    #[test]
    fn old_servers_are_refused_and_new_ones_named() {
        for (number, goes_on, expected) in [
            (90_624, false, vec!["POSTGRES_TOO_OLD"]),
            (140_019, false, vec!["POSTGRES_TOO_OLD"]),
            (150_000, true, vec![]),
            (180_006, true, vec![]),
            (190_000, true, vec!["POSTGRES_UNTESTED"]),
        ] {
            let mut findings = Findings::default();
            let goes = version(ServerVersion { num: number }, "source", &mut findings);
            let found: Vec<&str> = findings.0.iter().map(|finding| finding.id).collect();
            assert_eq!((goes, found), (goes_on, expected), "{number}");
            assert!(findings.0.iter().all(|finding| !finding.cure.is_empty()));
        }
    }
}
