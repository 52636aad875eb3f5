//! A stream much smaller than what flows through it.

use anyhow::Result;

use crate::scenario::{WITHIN, run, started};

/// The default history is as large as the largest default stream, and 16 times this one: it gives
/// way, and 200 MB pass through 64 MiB.
#[tokio::test]
async fn a_history_larger_than_the_stream_does_not_stop_the_flow() -> Result<()> {
    let schema = ["CREATE TABLE log (id bigint PRIMARY KEY, note text)"];
    let flow = started(18, "narrow", &schema, "nats.max_bytes: 64MiB").await?;
    // In transactions that are too small for chunks, whose subjects are purged whole.
    let load = "DO $$ BEGIN FOR i IN 0..999 LOOP \
                  INSERT INTO log SELECT i * 10 + g, repeat(md5(random()::text), 625) \
                    FROM generate_series(0, 9) g; \
                  COMMIT; \
                END LOOP; END $$";
    run(&flow.source_admin, &[load]).await?;
    flow.converges(WITHIN).await
}
