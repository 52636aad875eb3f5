//! A target whose schema an older build made: nothing is applied to it before `setup` has brought it
//! up to date, and then it is what a new one would be, with all that was in it.

use tokio_postgres::Client;
use trellara_applier::schema::{self, SCHEMA_VERSION, SchemaError};
use trellara_envelope::HaltCode;

use crate::flow::{Flow, Target, connect, nats_url};

const VERSION_1: &str = include_str!("upgrade/version_1.sql");

/// What a database's schema of ours is made of, a line each.
const SHAPE: &str = "
    WITH ours AS (SELECT c.oid, c.relname, c.relkind FROM pg_class c
                   WHERE c.relnamespace = 'trellara'::regnamespace)
    SELECT format('%s.%s %s %s %s %s %s', o.relname, a.attname, a.attnum,
                  format_type(a.atttypid, a.atttypmod), a.attnotnull, a.attidentity::text || a.attstorage::text,
                  pg_get_expr(d.adbin, d.adrelid))
      FROM ours o JOIN pg_attribute a ON a.attrelid = o.oid AND a.attnum > 0 AND NOT a.attisdropped
      LEFT JOIN pg_attrdef d ON d.adrelid = o.oid AND d.adnum = a.attnum
     WHERE o.relkind IN ('r', 'S')
    UNION ALL SELECT format('%s %s %s', o.relname, k.conname, pg_get_constraintdef(k.oid))
      FROM ours o JOIN pg_constraint k ON k.conrelid = o.oid
    UNION ALL SELECT pg_get_indexdef(o.oid) FROM ours o WHERE o.relkind = 'i'
    UNION ALL SELECT pg_get_functiondef(p.oid) || p.proacl::text FROM pg_proc p
               WHERE p.pronamespace = 'trellara'::regnamespace
    ORDER BY 1";

async fn shape(client: &Client) -> Vec<String> {
    let rows = client.query(SHAPE, &[]).await.unwrap();
    rows.iter().map(|row| row.get(0)).collect()
}

/// Every row of the tables that a schema of version 1 writes to.
async fn kept(client: &Client) -> Vec<String> {
    let mut kept = Vec::new();
    for table in [
        "lane",
        "applied",
        "watermark",
        "fence",
        "verify_run",
        "verify_table",
    ] {
        let sql = format!("SELECT format('{table} %s', t) FROM trellara.{table} AS t ORDER BY 1");
        let rows = client.query(&sql, &[]).await.unwrap();
        kept.extend(rows.iter().map(|row| row.get::<_, String>(0)));
    }
    kept
}

async fn a_target_of_version_1(version: u32) {
    let target = Target::bare(version).await;
    target.client.batch_execute(VERSION_1).await.unwrap();
    let target_id = "SELECT target_id::text FROM trellara.state_version";
    let id: String = target
        .client
        .query_one(target_id, &[])
        .await
        .unwrap()
        .get(0);
    let mut flow = Flow::on(target, nats_url()).await;
    flow.marker().await;
    flow.bundle(&[&[1]]).await;
    let fence = format!(
        "INSERT INTO trellara.fence (flow, lane, run, cap, lease_until) \
         VALUES ('{}', 0, 'over', '0/1', '2026-01-01')",
        flow.name
    );
    flow.run(&fence).await;

    let halt = flow.start().halt().await;
    assert_eq!(halt.code, HaltCode::Config, "{halt}");
    assert!(halt.reason.contains("has version 1"), "{halt}");
    assert!(halt.hint.contains("trellara setup"), "{halt}");
    let client = &flow.target.client;
    let older = schema::identity(client).await;
    assert_eq!(older, Err(SchemaError::Older { found: 1 }));
    let before = kept(client).await;
    assert_eq!(before.len(), 3, "{before:?}");

    let mut session = connect(&flow.target.url).await;
    let identity = schema::install(&mut session).await.unwrap();
    assert_eq!(
        (identity.version, &identity.target_id),
        (SCHEMA_VERSION, &id)
    );
    assert_eq!(kept(client).await, before);
    let new = Target::new(version).await;
    assert_eq!(shape(client).await, shape(&new.client).await);
    // A second setup finds nothing to do.
    assert_eq!(schema::install(&mut session).await.unwrap(), identity);

    let applier = flow.start();
    flow.caught_up().await;
    applier.stop().await;
    assert_eq!(flow.target.rows().await, "1:1");
}

#[tokio::test]
async fn a_target_of_version_1_is_refused_until_setup_has_carried_it_on_15() {
    a_target_of_version_1(15).await;
}

#[tokio::test]
async fn a_target_of_version_1_is_refused_until_setup_has_carried_it_on_18() {
    a_target_of_version_1(18).await;
}
