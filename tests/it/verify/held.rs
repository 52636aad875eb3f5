//! Transactions in quarantine explain differences and hide none (C54).

use anyhow::{Context, Result, ensure};
use serde_json::Value;

use super::{SCHEMA, equal, table, verify};
use crate::scenario::{WITHIN, run, started};

async fn explained(flow: &trellara_testkit::flow::Flow, code: i32) -> Result<Value> {
    let (ended, document, stderr) = verify(flow, &[]).await?;
    let document = document.with_context(|| stderr.clone())?;
    ensure!(
        ended == code,
        "{ended} instead of {code}: {document} {stderr}"
    );
    let verdict = if code == 5 { "explained" } else { "different" };
    ensure!(document["verdict"] == verdict, "{document}");
    Ok(document)
}

#[tokio::test]
async fn what_is_held_explains_what_differs_and_is_never_equal() -> Result<()> {
    let flow = started(18, "held", &[SCHEMA], "").await?;
    run(
        &flow.source_admin,
        &[
            "INSERT INTO kept SELECT g, 'v', g FROM generate_series(1, 100) AS g",
            "INSERT INTO log SELECT g, 'n' FROM generate_series(1, 100) AS g",
        ],
    )
    .await?;
    flow.caught_up(WITHIN).await?;
    let held = format!(
        "INSERT INTO trellara.held (id, flow, lane, hash, source_system, source_timeline, commit_lsn, \
             end_lsn, source_xid, committed_at_us, reason, storage, chunked, stream, stream_created, \
             stream_sequence, incarnation, frame_digest, after_lsn, after_timeline, after_sequence, \
             after_incarnation, after_ordinal, after_digest, frames, bytes, changes) \
         OVERRIDING SYSTEM VALUE \
         SELECT n, '{}', 0, d, 1, 1, '0/1', '0/2', 700 + n, 0, 'poisoned', 'target', false, 's', \
                'then', 9, 1, d, '0/2', 1, 9, 1, 9, d, 1, 10, n \
           FROM generate_series(1, 3) AS n, \
                LATERAL (SELECT substr(sha256(n::text::bytea), 1, 16)) AS h (d)",
        flow.name
    );
    let keys = "INSERT INTO trellara.held_key VALUES \
                (1, 'public', 'kept', 'row', '{\"id\": \"7\"}'), \
                (1, 'public', 'kept', 'row', '{\"id\": 8}')";
    run(&flow.target_admin, &[&held, keys]).await?;
    // Rows are equal, and yet something is still to come.
    let document = explained(&flow, 5).await?;
    ensure!(
        document["held_transactions"] == 3 && document["differing"] == 0,
        "{document}"
    );

    run(&flow.target_admin, &["DELETE FROM kept WHERE id IN (7, 8)"]).await?;
    let document = explained(&flow, 5).await?;
    let kept = table(&document, "public.kept")?;
    ensure!(kept["missing"] == 2 && kept["explained"] == 2, "{kept}");
    ensure!(kept["differences"][0]["explained_by"] == "1", "{kept}");
    let (code, document, stderr) = verify(&flow, &["--mode", "rolling"]).await?;
    let document = document.with_context(|| stderr.clone())?;
    ensure!(
        code == 5 && document["explained"] == 2,
        "{code} {document} {stderr}"
    );
    let words = ["verify", "--mode", "rolling", "--output", "ndjson"];
    let told = flow.command(&words).await?.stdout;
    let events = told.lines().map(serde_json::from_str::<Value>);
    let events: Vec<Value> = events.collect::<Result<_, _>>()?;
    let differences = events.iter().filter(|e| e["event"] == "difference");
    let by: Vec<&Value> = differences.map(|e| &e["explained_by"]).collect();
    ensure!(by == ["1", "1"], "{told}");

    // One that nothing explains.
    run(
        &flow.target_admin,
        &["UPDATE kept SET v = 'x' WHERE id = 9"],
    )
    .await?;
    let document = explained(&flow, 3).await?;
    let kept = table(&document, "public.kept")?;
    ensure!(kept["explained"] == 2 && kept["differing"] == 3, "{kept}");
    run(
        &flow.target_admin,
        &["UPDATE kept SET v = 'v' WHERE id = 9"],
    )
    .await?;

    // Rows without a key are explained by what touches their whole table: two changes leave four
    // rows different and no fifth.
    run(&flow.target_admin, &["DELETE FROM log WHERE id < 4"]).await?;
    explained(&flow, 3).await?;
    let whole = "INSERT INTO trellara.held_key VALUES (2, 'public', 'log', 'keyless', NULL)";
    run(&flow.target_admin, &[whole]).await?;
    let document = explained(&flow, 5).await?;
    ensure!(
        table(&document, "public.log")?["explained"] == 3,
        "{document}"
    );
    let two = "INSERT INTO log VALUES (800, 'two'), (801, 'more')";
    run(&flow.target_admin, &[two]).await?;
    let document = explained(&flow, 3).await?;
    ensure!(
        table(&document, "public.log")?["explained"] == 0,
        "{document}"
    );
    let rolling = ["--mode", "rolling"];
    let (code, document, stderr) = verify(&flow, &rolling).await?;
    ensure!(code == 3, "{code} {document:?} {stderr}");
    run(&flow.target_admin, &["DELETE FROM log WHERE id >= 800"]).await?;

    // Discarded ones explain until they are overtaken; replayed ones, and those of a later position,
    // never do.
    run(
        &flow.target_admin,
        &["UPDATE trellara.held SET state = 'discarded', closed_at = now(), closed_reason = 'x'"],
    )
    .await?;
    let document = explained(&flow, 5).await?;
    ensure!(document["held_transactions"] == 0, "{document}");
    for nothing in [
        "UPDATE trellara.held SET overtaken_by = '1/1:0/9', overtaken_lsn = '0/9', \
             overtaken_at = now()",
        "UPDATE trellara.held SET state = 'replayed'",
        "UPDATE trellara.held SET state = 'held', closed_at = NULL, commit_lsn = 'F/0', end_lsn = 'F/1'",
        "UPDATE trellara.held SET flow = 'other', commit_lsn = '0/1', end_lsn = '0/2'",
    ] {
        run(&flow.target_admin, &[nothing]).await?;
        let document = explained(&flow, 3).await?;
        ensure!(document["explained"] == 0, "{nothing}: {document}");
    }
    // So does what a conflict rule skipped, with or without a key.
    let skipped = format!(
        "INSERT INTO trellara.skipped (flow, lane, hash, commit_lsn, end_lsn, source_xid, change, \
             verb, conflict, rule, schema, \"table\", key) \
         SELECT '{}', 0, substr(sha256(''), 1, 16), '0/1', '0/2', 700, n, 'insert', \
                'duplicate_key', 'skip', 'public', t, k::jsonb \
           FROM (VALUES (1, 'kept', '{{\"id\": \"7\"}}'), (2, 'kept', '{{\"id\": \"8\"}}'), \
                        (3, 'log', NULL), (4, 'log', NULL), (5, 'log', NULL)) AS s (n, t, k)",
        flow.name
    );
    run(&flow.target_admin, &[&skipped]).await?;
    let document = explained(&flow, 5).await?;
    ensure!(
        document["explained"] == 5 && document["held_transactions"] == 0,
        "{document}"
    );
    let kept = table(&document, "public.kept")?;
    let by = &kept["differences"][0]["explained_by"];
    ensure!(by == "conflict rule", "{kept}");
    let text = flow.command(&["verify"]).await?.stdout;
    ensure!(text.contains("explained by conflict rule"), "{text}");
    run(&flow.target_admin, &["DELETE FROM trellara.skipped"]).await?;
    // What cannot be read is not passed over.
    let role = format!("REVOKE ALL ON trellara.held FROM {}", flow.roles.apply());
    run(&flow.target_admin, &[&role]).await?;
    let (code, document, stderr) = verify(&flow, &[]).await?;
    ensure!(code == 4 && document.is_none(), "{code}: {stderr}");
    ensure!(
        stderr.contains("quarantine") && stderr.contains("GRANT"),
        "{stderr}"
    );
    let back = format!("GRANT SELECT ON trellara.held TO {}", flow.roles.apply());
    let mend = [
        back.as_str(),
        "INSERT INTO kept SELECT g, 'v', g FROM generate_series(7, 8) AS g",
        "INSERT INTO log SELECT g, 'n' FROM generate_series(1, 3) AS g",
    ];
    run(&flow.target_admin, &mend).await?;
    equal(&flow).await.map(drop)
}
