//! Whether the flow would carry back what another flow brought: changes would go round for ever
//! (B122).

use trellara_postgres::{Session, fault, sqlstate::ErrorClass};

use super::Findings;
use crate::config::Config;
use crate::exit::Failure;

/// Flows that apply in the source's database, as setup wrote them down there.
const APPLIED_HERE: &str = "\
SELECT l.flow, l.slot FROM trellara.lane AS l \
 WHERE l.state <> 'removing' AND l.source_system = $1";
/// Those of their slots that are in the target's database.
const READ_THERE: &str = "\
SELECT slot_name::text FROM pg_catalog.pg_replication_slots \
 WHERE database = current_database() AND slot_name::text = ANY ($1)";

pub(super) async fn examine(
    config: &Config,
    (source, target): (&Session, &Session),
    findings: &mut Findings,
) -> Result<(), Failure> {
    let there = "SELECT EXISTS (SELECT FROM pg_catalog.pg_class AS c \
                   JOIN pg_catalog.pg_namespace AS n ON n.oid = c.relnamespace \
                  WHERE n.nspname = 'trellara' AND c.relname = 'lane')";
    if !source.client.query_one(there, &[]).await?.get::<_, bool>(0) {
        return Ok(());
    }
    let identifier = "SELECT system_identifier FROM pg_catalog.pg_control_system()";
    let system: i64 = target.client.query_one(identifier, &[]).await?.get(0);
    let rows = match source.client.query(APPLIED_HERE, &[&system]).await {
        Ok(rows) => rows,
        Err(error) if fault(&error).class == ErrorClass::Configuration => {
            return unknown(target, findings).await;
        }
        Err(error) => return Err(error.into()),
    };
    let flows: Vec<(String, String)> = rows.iter().map(|row| (row.get(0), row.get(1))).collect();
    let slots: Vec<&String> = flows.iter().map(|(_, slot)| slot).collect();
    let rows = target.client.query(READ_THERE, &[&slots]).await?;
    let read: Vec<String> = rows.iter().map(|row| row.get(0)).collect();
    for (flow, slot) in flows {
        if flow != config.flow.as_str() && read.contains(&slot) {
            findings.error(
                "FLOW_LOOP",
                format!("flow {flow}"),
                "it carries the target's database into the source's: every change would come back, \
                 and go round for ever",
                format!(
                    "remove flow {flow} first (`trellara cutover` says when its target is complete)"
                ),
            );
        }
    }
    Ok(())
}

/// Other flows end in the source's database, and this role may not read which.
async fn unknown(target: &Session, findings: &mut Findings) -> Result<(), Failure> {
    let reads = "SELECT EXISTS (SELECT FROM pg_catalog.pg_replication_slots \
                  WHERE database = current_database() AND plugin = 'pgoutput')";
    if target.client.query_one(reads, &[]).await?.get(0) {
        findings.warning(
            "FLOW_LOOP_UNKNOWN",
            "source",
            "flows end in the source's database and others begin in the target's; this role may not \
             read whether they are the same, and then every change would go round for ever",
            "GRANT USAGE ON SCHEMA trellara, SELECT ON trellara.lane to whoever runs setup, and \
             check again",
        );
    }
    Ok(())
}
