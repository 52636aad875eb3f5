//! Tables of a flow that runs: added, copied anew, taken out, and brought back.

use anyhow::{Context, Result, ensure};
use serde_json::Value;
use trellara_testkit::compare;
use trellara_testkit::flow::Flow;

use crate::scenario::{WITHIN, run, started, value};

const ORDERS: &str = "CREATE TABLE orders (id int PRIMARY KEY, v text)";
const LATE: &str = "CREATE TABLE late (id bigserial PRIMARY KEY, v text NOT NULL)";

/// A command as somebody who owns the publication.
async fn owner(flow: &mut Flow, arguments: &[&str]) -> Result<String> {
    let before = flow.environment.clone();
    let url = flow.source_admin.clone();
    flow.environment.push(("TRELLARA__SOURCE__URL", url));
    let done = flow.command(arguments).await;
    flow.environment = before;
    let done = done?;
    ensure!(done.code == 0, "{arguments:?}: {done:?}\n{}", flow.logs());
    Ok(done.stdout)
}

async fn state(flow: &Flow, table: &str) -> Result<String> {
    let listed = flow.command(&["table", "list", "--output", "json"]).await?;
    let listed: Value = serde_json::from_str(&listed.stdout)?;
    let listed = listed.as_array().context("a list")?.clone();
    let found = listed.iter().find(|one| one["id"] == table);
    let found = found.with_context(|| format!("{table} is not in {listed:?}"))?;
    Ok(found["state"].as_str().unwrap_or_default().to_owned())
}

/// Under writers: what is in the table before, during and after is there once.
#[tokio::test]
async fn a_table_joins_leaves_and_comes_back_while_it_is_written_to() -> Result<()> {
    for version in [15, 18] {
        let mut flow = started(version, "joins", &[ORDERS], "").await?;
        run(
            &flow.source_admin,
            &["INSERT INTO orders SELECT g, 'x' FROM generate_series(1, 50) g"],
        )
        .await?;
        for url in [&flow.source_admin, &flow.target_admin] {
            run(url, &[LATE]).await?;
        }
        flow.grant().await?;
        let filled =
            "INSERT INTO late (v) SELECT repeat('y', g % 100) FROM generate_series(1, 20000) g";
        run(&flow.source_admin, &[filled]).await?;
        let url = flow.source_admin.clone();
        let (stop, mut stopped) = tokio::sync::oneshot::channel::<()>();
        let writer = tokio::spawn(async move {
            let client = compare::connect(&url).await?;
            while stopped.try_recv().is_err() {
                let sql = "INSERT INTO public.late (v) VALUES ('during'); \
                           UPDATE public.late SET v = v || '+' WHERE id = (random() * 20000)::int; \
                           DELETE FROM public.late WHERE id = (random() * 20000)::int";
                client.batch_execute(sql).await?;
            }
            anyhow::Ok(())
        });
        owner(&mut flow, &["table", "add", "public.late"]).await?;
        ensure!(state(&flow, "public.late").await? == "done");
        let again = owner(&mut flow, &["table", "add", "public.late"]).await?;
        ensure!(again.is_empty(), "{again}");
        owner(&mut flow, &["table", "recopy", "public.late", "--yes"]).await?;
        let _ = stop.send(());
        writer.await??;
        flow.converges(WITHIN).await?;
        // Out of the flow nothing of it arrives, and nobody halts.
        owner(&mut flow, &["table", "remove", "public.late", "--yes"]).await?;
        run(
            &flow.source_admin,
            &[
                "INSERT INTO late (v) VALUES ('unseen')",
                "INSERT INTO orders VALUES (100, 'seen')",
            ],
        )
        .await?;
        flow.caught_up(WITHIN).await?;
        // A relay that begins anew finds that it left on purpose.
        flow.start_relay()?;
        run(
            &flow.source_admin,
            &["INSERT INTO orders VALUES (101, 'seen')"],
        )
        .await?;
        flow.caught_up(WITHIN).await?;
        let seen = "SELECT count(*) FROM orders WHERE v = 'seen'";
        ensure!(value(&flow.target_admin, seen).await? == "2");
        let unseen = "SELECT count(*) FROM late WHERE v = 'unseen'";
        ensure!(value(&flow.target_admin, unseen).await? == "0");
        ensure!(state(&flow, "public.late").await? == "removed");
        owner(&mut flow, &["table", "add", "public.late", "--truncate"]).await?;
        flow.converges(WITHIN).await?;
        ensure!(value(&flow.target_admin, unseen).await? == "1");
    }
    Ok(())
}
