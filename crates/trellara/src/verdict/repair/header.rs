//! What the file says first: what it is, how it is used, and that this is the right database.

use trellara_postgres::quote;
use trellara_verify::report::{Mode, Report};

use super::{BATCH, tag};

/// What everything below stands on. Whose database it is, each table's recipe knows.
pub(super) fn header(report: &Report) -> String {
    let target = &report.target;
    let system = quote::literal(&target.system.to_string());
    let at = match report.mode {
        Mode::Exact | Mode::Quick => format!("at {} of", report.consistent_point),
        // Each piece had a position of its own.
        Mode::Rolling | Mode::Watch => "from".to_owned(),
    };
    let recipe = report.tables.iter().find_map(|table| table.recipe.as_ref());
    let same = recipe.map_or_else(String::new, |recipe| {
        let database = quote::literal(&recipe.database);
        let mut same = format!(
            "  IF current_database() <> {database} THEN\n    \
                 RAISE EXCEPTION 'this is not the database that was compared';\n  END IF;\n"
        );
        if let Some(id) = &recipe.target_id {
            same.push_str(&format!(
                "  IF NOT EXISTS (SELECT FROM trellara.state_version WHERE target_id::text = {}) THEN\n    \
                     RAISE EXCEPTION 'this database was set up anew since it was compared';\n  END IF;\n",
                quote::literal(id)
            ));
        }
        same
    });
    format!(
        "-- Written by `trellara verify`, run {run}, {at} cluster {source}, for cluster {system_id}.\n\
         -- Digests are of seed {seed}.\n\
         -- It holds rows of the source. Read it, then:\n\
         --   1. stop the applier, so that the target does not move on;\n\
         --   2. psql -v ON_ERROR_STOP=1 -f FILE, as a role that may write to these tables and\n\
         --      read trellara.state_version;\n\
         --   3. start the applier, and run `trellara verify` again.\n\
         -- Each statement demands exactly the rows that were compared. What has changed since ends the\n\
         -- file with an error, and its batch of at most {BATCH} rows is undone as a whole.\n\
         -- A row that is inserted is guarded by its absence alone: one that the source has deleted since\n\
         -- comes back, unless the applier was stopped where it had not applied that yet. So the last step\n\
         -- is no formality.\n\
         -- Triggers of the tables fire, unless session_replication_role says otherwise.\n\
         \\set ON_ERROR_STOP on\n\
         SET client_encoding = 'UTF8';\n\
         DO {tag}BEGIN\n\
         \x20 IF (SELECT system_identifier FROM pg_catalog.pg_control_system())::text <> {system} THEN\n\
         \x20   RAISE EXCEPTION 'this is not the cluster that was compared';\n\
         \x20 END IF;\n{same}\
         END{tag};\n",
        run = report.run,
        tag = tag(&report.run, &same),
        seed = report.seed,
        source = report.source.system,
        system_id = target.system,
    )
}
