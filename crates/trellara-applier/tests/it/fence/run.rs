//! A verify run by hand: its half of the fence's protocol, in SQL.

use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};
use tokio_postgres::types::PgLsn;
use tokio_postgres::{AsyncMessage, Client, NoTls};
use trellara_applier::channel;
use trellara_applier::fence::{LOOK, answer_channel};
use trellara_envelope::Lsn;

use crate::flow::{Flow, PATIENCE};

/// Longer than any test.
pub(crate) const LONG: f64 = 100.0;

pub(crate) struct Run {
    pub(crate) client: Client,
    heard: UnboundedReceiver<String>,
    flow: String,
    notify: String,
    name: String,
}

/// What stands in the row.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Row {
    pub(crate) run: String,
    pub(crate) epoch: Option<i64>,
    pub(crate) armed_lsn: Option<Lsn>,
    pub(crate) reached: bool,
}

impl Run {
    pub(crate) async fn new(flow: &Flow, name: &str) -> Self {
        let (client, mut connection) = tokio_postgres::connect(&flow.target.url, NoTls)
            .await
            .unwrap();
        let (hear, heard) = unbounded_channel();
        tokio::spawn(async move {
            while let Some(Ok(message)) =
                std::future::poll_fn(|context| connection.poll_message(context)).await
            {
                if let AsyncMessage::Notification(one) = message {
                    let _ = hear.send(one.payload().to_owned());
                }
            }
        });
        client
            .batch_execute(&format!("LISTEN \"{}\"", answer_channel(&flow.name)))
            .await
            .unwrap();
        Self {
            client,
            heard,
            flow: flow.name.to_string(),
            notify: format!("SELECT pg_notify('{}', '{LOOK}')", channel(&flow.name)),
            name: name.to_owned(),
        }
    }

    async fn execute(&self, sql: &str, lsn: u64, seconds: f64) -> u64 {
        self.client
            .execute(sql, &[&self.flow, &self.name, &PgLsn::from(lsn), &seconds])
            .await
            .unwrap()
    }

    pub(crate) async fn notify(&self) {
        self.client.batch_execute(&self.notify).await.unwrap();
    }

    /// Inserts the row, or takes over one whose lease is over; returns whether it is ours.
    pub(crate) async fn claim(&self, cap: u64, seconds: f64) -> bool {
        let sql = "INSERT INTO trellara.fence AS f (flow, lane, run, cap, lease_until) \
             VALUES ($1, 0, $2, $3, clock_timestamp() + $4 * interval '1 s') \
             ON CONFLICT (flow, lane) DO UPDATE SET run = excluded.run, cap = excluded.cap, \
                 exact = false, lease_until = excluded.lease_until, epoch = NULL, \
                 armed_at = NULL, armed_lsn = NULL, reached_at = NULL \
             WHERE f.lease_until <= clock_timestamp()";
        self.execute(sql, cap, seconds).await == 1
    }

    /// Asks for the fence and waits until it is armed; returns where the lane stood.
    pub(crate) async fn arm(&mut self, cap: u64, seconds: f64) -> Lsn {
        assert!(self.claim(cap, seconds).await, "another run is there");
        self.notify().await;
        self.armed().await
    }

    pub(crate) async fn armed(&mut self) -> Lsn {
        self.until(|row| row.armed_lsn).await
    }

    /// Asks for the lane to stand at exactly `cap`.
    pub(crate) async fn want(&self, cap: u64) -> bool {
        let sql = "UPDATE trellara.fence SET cap = $3, exact = true, reached_at = NULL, \
                 lease_until = clock_timestamp() + $4 * interval '1 s' \
             WHERE flow = $1 AND lane = 0 AND run = $2 AND lease_until > clock_timestamp()";
        let updated = self.execute(sql, cap, LONG).await;
        self.notify().await;
        updated == 1
    }

    /// Waits until the lane stands there, and proves it in a snapshot.
    pub(crate) async fn reached(&mut self, cap: u64) {
        self.until(|row| row.reached.then_some(())).await;
        let row = self
            .client
            .query_one(
                "SELECT end_lsn FROM trellara.applied WHERE flow = $1 \
                  ORDER BY first_ordinal DESC LIMIT 1",
                &[&self.flow],
            )
            .await
            .unwrap();
        assert_eq!(u64::from(row.get::<_, PgLsn>(0)), cap);
    }

    pub(crate) async fn stand(&mut self, cap: u64) {
        assert!(self.want(cap).await, "the row is gone");
        self.reached(cap).await;
    }

    /// Waits, notification by notification, until the row is as wanted.
    async fn until<T>(&mut self, wanted: impl Fn(&Row) -> Option<T>) -> T {
        let wait = async {
            loop {
                if let Some(row) = self.row().await
                    && row.run == self.name
                    && let Some(found) = wanted(&row)
                {
                    return found;
                }
                // Whatever it says, and of whichever run: the row counts.
                self.heard.recv().await.expect("a connection");
            }
        };
        let waited = tokio::time::timeout(PATIENCE, wait).await;
        waited.unwrap_or_else(|_| panic!("run {} has no answer of the applier", self.name))
    }

    pub(crate) async fn row(&self) -> Option<Row> {
        let row = self
            .client
            .query_opt(
                "SELECT run, epoch, armed_lsn, reached_at IS NOT NULL FROM trellara.fence \
                  WHERE flow = $1 AND lane = 0",
                &[&self.flow],
            )
            .await
            .unwrap()?;
        Some(Row {
            run: row.get(0),
            epoch: row.get(1),
            armed_lsn: row
                .get::<_, Option<PgLsn>>(2)
                .map(|lsn| Lsn(u64::from(lsn))),
            reached: row.get(3),
        })
    }

    /// The snapshot is taken: the lane may go on.
    pub(crate) async fn release(&self) {
        let sql = "DELETE FROM trellara.fence WHERE flow = $1 AND lane = 0 AND run = $2 \
                    AND $3::pg_lsn IS NOT NULL AND $4::float8 IS NOT NULL";
        assert_eq!(self.execute(sql, 0, 0.0).await, 1);
        self.notify().await;
    }

    /// Waits until nobody's row is there.
    pub(crate) async fn gone(&self) {
        let wait = async {
            while self.row().await.is_some() {
                tokio::task::yield_now().await;
            }
        };
        let waited = tokio::time::timeout(PATIENCE, wait).await;
        waited.expect("the row goes");
    }
}
