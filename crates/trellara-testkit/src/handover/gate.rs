//! A gate in the target that lets the parts of a copy in one after the other, so that somebody can
//! stand at the boundary between two of them.

use std::time::Duration;

use anyhow::Result;
use tokio_postgres::Client;

use crate::compare;

/// Guards the ledger of the copy. One at a time: the next counts the one before. The trigger fires
/// in the sessions of the copy too, which are replicas.
const SHUT: &str = "
    CREATE SCHEMA gate;
    CREATE TABLE gate.allowed (parts bigint NOT NULL);
    INSERT INTO gate.allowed VALUES (0);
    CREATE FUNCTION gate.wait() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER AS $$
      BEGIN
        PERFORM pg_catalog.pg_advisory_xact_lock(4712);
        WHILE (SELECT count(*) FROM trellara.backfill_part) >= (SELECT parts FROM gate.allowed) LOOP
          PERFORM pg_catalog.pg_sleep(0.005);
        END LOOP;
        RETURN NEW;
      END $$;
    CREATE TRIGGER gate BEFORE INSERT ON trellara.backfill_part
      FOR EACH ROW EXECUTE FUNCTION gate.wait();
    ALTER TABLE trellara.backfill_part ENABLE ALWAYS TRIGGER gate";

const OPEN: &str = "
    UPDATE gate.allowed SET parts = 9000000000;
    DROP TRIGGER gate ON trellara.backfill_part;
    DROP SCHEMA gate CASCADE";

/// Parts whose rows are written, and which wait to be written down.
const WAITING: &str = "
    SELECT count(*) > 0 FROM pg_catalog.pg_locks
     WHERE locktype = 'advisory' AND objid = 4712 AND granted
       AND database = (SELECT oid FROM pg_catalog.pg_database WHERE datname = current_database())";

/// Between two looks at whether a part has come.
const LOOK_EVERY: Duration = Duration::from_millis(5);

/// Stands between the copy's parts and the target.
#[derive(Debug)]
pub struct Gate {
    target: Client,
}

impl Gate {
    /// Lets nothing in; the flow is set up, and `target` is a superuser's connection string.
    pub async fn shut(target: &str) -> Result<Self> {
        let target = compare::connect(target).await?;
        target.batch_execute(SHUT).await?;
        Ok(Self { target })
    }

    /// Lets parts in for as long as fewer than this many are.
    pub async fn allow(&self, parts: i64) -> Result<()> {
        let sql = "UPDATE gate.allowed SET parts = $1";
        self.target.execute(sql, &[&parts]).await?;
        Ok(())
    }

    /// Waits until a part stands in front of it, and at most this long.
    pub async fn waited_at(&self, within: Duration) -> Result<bool> {
        let looking = async {
            while !self.target.query_one(WAITING, &[]).await?.get::<_, bool>(0) {
                tokio::time::sleep(LOOK_EVERY).await;
            }
            Ok::<_, anyhow::Error>(())
        };
        match tokio::time::timeout(within, looking).await {
            Ok(looked) => looked.map(|()| true),
            Err(_) => Ok(false),
        }
    }

    /// Lets everything in, and is gone.
    pub async fn open(self) -> Result<()> {
        // Apart from each other: the trigger's table is free once those who wait have gone through.
        for statement in OPEN.split(';') {
            self.target.batch_execute(statement).await?;
        }
        Ok(())
    }
}
