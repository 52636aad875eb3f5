//! Servers that do not answer, and roles that may not.

use anyhow::{Result, ensure};
use trellara_testkit::flow::Flow;
use trellara_testkit::fresh::fresh_flow;

use super::{TABLE, accepted, as_superuser, flow, refused};
use crate::scenario::{prepared, run};

/// The connection string with another user and a password.
pub(super) fn with_user(url: &str, user: &str) -> String {
    let (scheme, rest) = url.split_once("//").unwrap_or(("", url));
    let host = rest.rsplit_once('@').map_or(rest, |(_, host)| host);
    format!("{scheme}//{user}:secret@{host}")
}

#[tokio::test]
async fn all_three_servers_that_do_not_answer_are_named() -> Result<()> {
    let mut flow = flow(18, "deaf", "").await?;
    flow.places.source_url = "postgresql://postgres@127.0.0.1:1/shop".to_owned();
    flow.places.target_url = "postgresql://postgres@127.0.0.1:2/shop".to_owned();
    flow.places.nats_url = "nats://127.0.0.1:3".to_owned();
    flow.write_config()?;
    let expected = [
        "SOURCE_UNREACHABLE",
        "TARGET_UNREACHABLE",
        "BROKER_UNREACHABLE",
    ];
    refused(&flow, &expected, 1).await?;
    Ok(())
}

#[tokio::test]
async fn every_missing_right_is_named_in_one_run() -> Result<()> {
    let mut flow = flow(15, "rights", "").await?;
    let (capture, apply) = (format!("{}_c", flow.name), format!("{}_a", flow.name));
    let role = |name: &str| format!("CREATE ROLE {name} LOGIN PASSWORD 'secret'");
    run(&flow.source_admin, &[&role(&capture)]).await?;
    run(
        &flow.target_admin,
        &[
            &role(&apply),
            &format!("GRANT SELECT, UPDATE ON t TO {apply}"),
        ],
    )
    .await?;
    flow.places.source_url = with_user(&flow.source_admin, &capture);
    flow.places.target_url = with_user(&flow.target_admin, &apply);
    flow.write_config()?;
    let expected = [
        "SOURCE_NO_REPLICATION",
        "SOURCE_CREATE_RIGHT",
        "SOURCE_TABLE_OWNER",
        "SOURCE_TABLE_RIGHT",
        "TARGET_CREATE_RIGHT",
        "TARGET_TABLE_RIGHT",
    ];
    let found = refused(&flow, &expected, 77).await?;
    let lacks = found.iter().find(|e| e["id"] == "TARGET_TABLE_RIGHT");
    let cure = lacks.map(|e| e["cure"].to_string()).unwrap_or_default();
    ensure!(cure.contains("INSERT, DELETE, TRUNCATE"), "{cure}");
    // The cures, as they are printed, are enough.
    let database = &flow.name;
    run(
        &flow.source_admin,
        &[
            &format!("ALTER ROLE {capture} REPLICATION"),
            &format!("GRANT CREATE ON DATABASE {database} TO {capture}"),
            &format!("ALTER TABLE t OWNER TO {capture}"),
        ],
    )
    .await?;
    run(
        &flow.target_admin,
        &[
            &format!("GRANT CREATE ON DATABASE {database} TO {apply}"),
            &format!("GRANT INSERT, DELETE, TRUNCATE ON t TO {apply}"),
        ],
    )
    .await?;
    accepted(&flow).await
}

/// Tables in a schema that the applier's role may not even look into.
#[tokio::test]
async fn a_schema_without_usage_is_named_on_both_sides() -> Result<()> {
    let mut flow = as_superuser(fresh_flow(18, "usage", "source.tables: [\"closed.*\"]").await?)?;
    let table = "CREATE SCHEMA closed; CREATE TABLE closed.t (id int PRIMARY KEY)";
    run(&flow.source_admin, &[table]).await?;
    let apply = format!("{}_a", flow.name);
    run(
        &flow.target_admin,
        &[
            table,
            &format!("CREATE ROLE {apply} LOGIN PASSWORD 'secret'"),
            &format!("GRANT CREATE ON DATABASE {} TO {apply}", flow.name),
            &format!("GRANT ALL ON closed.t TO {apply}"),
        ],
    )
    .await?;
    flow.places.target_url = with_user(&flow.target_admin, &apply);
    flow.write_config()?;
    refused(&flow, &["TARGET_SCHEMA_RIGHT"], 77).await?;
    let grant = format!("GRANT USAGE ON SCHEMA closed TO {apply}");
    run(&flow.target_admin, &[&grant]).await?;
    accepted(&flow).await
}

/// The grants on Trellara's own records come after setup has made them (the second run of
/// `target.sql`); whoever forgets them is told which, before the applier is.
#[tokio::test]
async fn rights_on_our_own_records_are_named_with_their_grants() -> Result<()> {
    let flow = prepared(18, "state", &[TABLE], &[TABLE], "").await?;
    flow.grant().await?;
    let setup = flow.command(&["setup", "--yes"]).await?;
    ensure!(setup.code == 0, "{setup:?}");
    let apply = flow.roles.apply();
    // Setup may be repeated by its own role, and says what is still to be granted.
    let again = flow.command(&["setup", "--yes"]).await?;
    ensure!(again.code == 0, "{again:?}");
    ensure!(again.stderr.contains("TARGET_STATE_RIGHT"), "{again:?}");
    let cure = state_right(&flow).await?;
    for grant in [
        "GRANT USAGE ON SCHEMA trellara TO",
        "GRANT SELECT ON trellara.state_version TO",
        "GRANT SELECT, UPDATE ON trellara.lane TO",
        "GRANT SELECT, INSERT ON trellara.applied TO",
    ] {
        ensure!(cure.contains(grant), "{grant:?} is not in {cure:?}");
    }
    // Each right alone is missed too.
    for (revoked, expected) in [
        ("INSERT ON trellara.applied", "INSERT ON trellara.applied"),
        ("UPDATE ON trellara.lane", "UPDATE ON trellara.lane"),
        ("USAGE ON SCHEMA trellara", "USAGE ON SCHEMA trellara"),
    ] {
        flow.grant().await?;
        let revoke = format!("REVOKE {revoked} FROM {apply}");
        run(&flow.target_admin, &[&revoke]).await?;
        let cure = state_right(&flow).await?;
        ensure!(cure == format!("GRANT {expected} TO \"{apply}\""), "{cure}");
        // The cure, as it is printed, is enough.
        run(&flow.target_admin, &[&cure]).await?;
        let checked = super::run(&flow, &["check"]).await?;
        ensure!(checked.code == 0, "{checked:?}");
    }
    Ok(())
}

/// The cure of the one error that `check` finds.
async fn state_right(flow: &Flow) -> Result<String> {
    let found = refused(flow, &["TARGET_STATE_RIGHT"], 77).await?;
    ensure!(found.len() == 1, "{found:?}");
    Ok(found[0]["cure"].as_str().unwrap_or_default().to_owned())
}

/// A DBA ran what `setup --print-sql` printed, with the grants of a role that applies: to set the
/// flow up as that role takes two more.
#[tokio::test]
async fn setting_up_in_a_schema_that_a_dba_made_takes_two_more_rights() -> Result<()> {
    let mut flow = flow(15, "second", "").await?;
    let apply = format!("{}_a", flow.name);
    run(
        &flow.target_admin,
        &[
            &format!("CREATE ROLE {apply} LOGIN PASSWORD 'secret'"),
            &format!("GRANT ALL ON t TO {apply}"),
        ],
    )
    .await?;
    flow.places.target_url = with_user(&flow.target_admin, &apply);
    flow.write_config()?;
    let printed = super::run(&flow, &["setup", "--print-sql"]).await?;
    let target = printed
        .stdout
        .split_once("-- target: ")
        .unwrap_or_default()
        .1;
    let statements = target.split_once('\n').unwrap_or_default().1;
    run(&flow.target_admin, &[statements]).await?;
    let cure = state_right(&flow).await?;
    for right in [
        "GRANT INSERT ON trellara.lane",
        "GRANT DELETE ON trellara.backfill",
    ] {
        ensure!(cure.contains(right), "{cure}");
    }
    run(&flow.target_admin, &[&cure]).await?;
    accepted(&flow).await
}

/// What cannot be read cannot be copied: each table, and each schema, with its grant.
#[tokio::test]
async fn b133_tables_that_may_not_be_read_are_named() -> Result<()> {
    let mut flow = flow(15, "unread", "").await?;
    let capture = format!("{}_c", flow.name);
    run(
        &flow.source_admin,
        &[
            &format!("CREATE ROLE {capture} LOGIN REPLICATION PASSWORD 'secret'"),
            "CREATE SCHEMA hidden",
            "CREATE TABLE hidden.h (id int PRIMARY KEY)",
            &format!(
                "CREATE PUBLICATION trellara_{} FOR TABLE t, hidden.h",
                flow.name
            ),
        ],
    )
    .await?;
    let table = "CREATE SCHEMA hidden; CREATE TABLE hidden.h (id int PRIMARY KEY)";
    run(&flow.target_admin, &[table]).await?;
    flow.places.source_url = with_user(&flow.source_admin, &capture);
    flow.write_config()?;
    let found = refused(&flow, &["SOURCE_SCHEMA_RIGHT", "SOURCE_TABLE_RIGHT"], 77).await?;
    let cures = cures(&found);
    ensure!(cures.len() == 3, "{cures:?}");
    for cure in &cures {
        run(&flow.source_admin, &[cure]).await?;
    }
    accepted(&flow).await
}

/// Row security on a table would leave rows out of the copy, without a word from the server.
#[tokio::test]
async fn b60_row_security_that_would_hide_rows_is_named() -> Result<()> {
    let mut flow = flow(15, "hidden", "").await?;
    let capture = format!("{}_c", flow.name);
    run(
        &flow.source_admin,
        &[
            &format!("CREATE ROLE {capture} LOGIN REPLICATION PASSWORD 'secret'"),
            &format!("GRANT SELECT ON t TO {capture}"),
            "ALTER TABLE t ENABLE ROW LEVEL SECURITY",
            &format!("CREATE PUBLICATION trellara_{} FOR TABLE t", flow.name),
        ],
    )
    .await?;
    flow.places.source_url = with_user(&flow.source_admin, &capture);
    flow.write_config()?;
    let found = refused(&flow, &["SOURCE_ROW_SECURITY"], 77).await?;
    for cure in &cures(&found) {
        run(&flow.source_admin, &[cure]).await?;
    }
    accepted(&flow).await
}

fn cures(found: &[serde_json::Value]) -> Vec<String> {
    let cures = found.iter().filter_map(|finding| finding["cure"].as_str());
    cures.map(str::to_owned).collect()
}

/// Without SELECT nobody can see whether a table is empty; its size tells.
#[tokio::test]
async fn rows_of_the_target_are_found_without_the_right_to_read_them() -> Result<()> {
    let mut flow = flow(15, "unread", "").await?;
    let apply = format!("{}_a", flow.name);
    run(
        &flow.target_admin,
        &[
            &format!("CREATE ROLE {apply} LOGIN PASSWORD 'secret'"),
            &format!("GRANT CREATE ON DATABASE {} TO {apply}", flow.name),
            "INSERT INTO t VALUES (1, 'x')",
        ],
    )
    .await?;
    flow.places.target_url = with_user(&flow.target_admin, &apply);
    flow.write_config()?;
    refused(&flow, &["TARGET_TABLE_RIGHT", "TARGET_TABLE_HAS_ROWS"], 77).await?;
    Ok(())
}

#[tokio::test]
async fn a_database_that_may_not_be_entered_is_named() -> Result<()> {
    let mut flow = flow(18, "entry", "").await?;
    let role = format!("{}_x", flow.name);
    for admin in [&flow.source_admin, &flow.target_admin] {
        run(
            admin,
            &[
                &format!("CREATE ROLE {role} LOGIN REPLICATION PASSWORD 'secret'"),
                &format!("REVOKE CONNECT ON DATABASE {} FROM PUBLIC", flow.name),
            ],
        )
        .await?;
    }
    flow.places.source_url = with_user(&flow.source_admin, &role);
    flow.places.target_url = with_user(&flow.target_admin, &role);
    flow.write_config()?;
    refused(&flow, &["SOURCE_REFUSES", "TARGET_REFUSES"], 77).await?;
    Ok(())
}
