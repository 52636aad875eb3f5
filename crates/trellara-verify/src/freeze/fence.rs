//! The fence: a row for each lane in the target by which the applier is asked to stand still at one
//! source position for a moment (C53).
//!
//! The judge writes `cap` and a lease; the applier answers in `armed_at` that nothing whose commit
//! LSN is at or beyond `cap` is applied from then on. Only then is the slot made, because on a busy
//! flow the applier is otherwise beyond its consistent point before anybody knows it. When the cap
//! is that point (`exact`), the applier goes on to it, stands there and says so in `reached_at`.
//! Each side wakes the other by NOTIFY; nobody trusts a message, only the rows. A judge that dies
//! leaves a lease that ends by itself, by the target's clock.

use std::future::Future;
use std::time::Duration;

use tokio::sync::mpsc;
use tokio::time::{Instant, MissedTickBehavior, interval, sleep_until};
use tokio_util::sync::CancellationToken;
use trellara_envelope::{FlowName, Lane, Lsn};
use trellara_postgres::{Notification, Session, quote};

use super::STEP;
use super::error::{FreezeError, failed};
use crate::error::Side;

/// How long the applier stands still for a judge that says nothing any more.
const LEASE_SECONDS: f64 = 5.0;
/// How often the lease is renewed.
const RENEW: Duration = Duration::from_secs(1);
/// How often the rows are looked at without a notification: one may be lost with a session.
const LOOK: Duration = Duration::from_millis(200);

/// The fence of one run.
pub(super) struct Fence<'a> {
    session: &'a Session,
    heard: mpsc::Receiver<Notification>,
    cancel: CancellationToken,
    flow: FlowName,
    run: String,
    lanes: Vec<Lane>,
}

/// What a lane still owes.
enum Missing {
    Armed,
    Reached(Lsn),
}

impl<'a> Fence<'a> {
    /// Asks every lane of the flow to apply nothing from `cap` on. The session's notifications must
    /// not have been taken.
    pub(super) async fn ask(
        session: &'a mut Session,
        (flow, lanes): (&FlowName, Vec<Lane>),
        run: &str,
        cap: Lsn,
        cancel: &CancellationToken,
    ) -> Result<Fence<'a>, FreezeError> {
        let heard = session
            .take_notifications()
            .ok_or_else(|| FreezeError::bug("the session gave no notifications"))?;
        let session = &*session;
        let listen = format!("LISTEN {}", quote::identifier(&answers(flow)));
        session
            .client
            .batch_execute(&listen)
            .await
            .map_err(failed(Side::Target))?;
        let fence = Fence {
            session,
            heard,
            cancel: cancel.clone(),
            flow: flow.clone(),
            run: run.to_owned(),
            lanes,
        };
        fence.write(cap).await?;
        Ok(fence)
    }

    /// Who was asked.
    pub(super) fn lanes(&self) -> &[Lane] {
        &self.lanes
    }

    /// The applier is told in the same statement: of a row that a judge left who was killed before
    /// he told of it, nobody would ever hear.
    async fn write(&self, cap: Lsn) -> Result<(), FreezeError> {
        const INSERT: &str = "\
            WITH written AS ( \
                INSERT INTO trellara.fence AS f (flow, lane, run, cap, lease_until) \
                VALUES ($1, $2, $3, $4::text::pg_lsn, \
                        clock_timestamp() + make_interval(secs => $5)) \
                ON CONFLICT (flow, lane) DO UPDATE \
                   SET run = excluded.run, cap = excluded.cap, exact = false, \
                       lease_until = excluded.lease_until, epoch = NULL, armed_at = NULL, \
                       armed_lsn = NULL, reached_at = NULL \
                 WHERE f.lease_until NOT BETWEEN clock_timestamp() \
                                             AND clock_timestamp() + interval '2 min' \
                RETURNING 1 \
            ) SELECT pg_notify($6, 'fence') FROM written";
        let channel = asks(&self.flow);
        for lane in &self.lanes {
            let number = lane_number(*lane)?;
            let cap = cap.to_string();
            let written = self
                .session
                .client
                .execute(
                    INSERT,
                    &[
                        &self.flow.as_str(),
                        &number,
                        &self.run,
                        &cap,
                        &LEASE_SECONDS,
                        &channel,
                    ],
                )
                .await
                .map_err(failed(Side::Target))?;
            if written == 0 {
                self.release().await?;
                return Err(FreezeError::Busy);
            }
        }
        Ok(())
    }

    /// Waits until every lane has said that it applies nothing from the cap on.
    pub(super) async fn armed(&mut self, limit: Duration) -> Result<(), FreezeError> {
        self.answered(&Missing::Armed, limit).await
    }

    /// Sets the cap to the consistent point, where every lane shall stand.
    pub(super) async fn stand_at(&self, point: Lsn) -> Result<(), FreezeError> {
        const UPDATE: &str = "\
            WITH moved AS ( \
                UPDATE trellara.fence \
                   SET cap = $3::text::pg_lsn, exact = true, reached_at = NULL, \
                       lease_until = clock_timestamp() + make_interval(secs => $4) \
                 WHERE flow = $1 AND run = $2 AND lease_until > clock_timestamp() \
                   AND armed_at IS NOT NULL \
                RETURNING 1 \
            ) SELECT pg_notify($5, 'fence') FROM moved";
        let (point, channel) = (point.to_string(), asks(&self.flow));
        let updated = self
            .session
            .client
            .execute(
                UPDATE,
                &[
                    &self.flow.as_str(),
                    &self.run,
                    &point,
                    &LEASE_SECONDS,
                    &channel,
                ],
            )
            .await
            .map_err(failed(Side::Target))?;
        self.all(updated)
    }

    /// Waits until every lane stands at the consistent point.
    pub(super) async fn reached(&mut self, point: Lsn, limit: Duration) -> Result<(), FreezeError> {
        self.answered(&Missing::Reached(point), limit).await
    }

    /// Lets the applier go on.
    pub(super) async fn release(&self) -> Result<(), FreezeError> {
        const DELETE: &str = "\
            WITH gone AS (DELETE FROM trellara.fence WHERE flow = $1 AND run = $2 RETURNING 1) \
            SELECT pg_notify($3, 'fence') FROM gone";
        let channel = asks(&self.flow);
        self.session
            .client
            .execute(DELETE, &[&self.flow.as_str(), &self.run, &channel])
            .await
            .map(drop)
            .map_err(failed(Side::Target))
    }

    /// Runs something else, and keeps the lease meanwhile, for so long as `limit` at most: who is
    /// alive and gets nowhere must not hold the applier.
    ///
    /// # Errors
    /// [`FreezeError::Lost`] when the lease ended all the same, [`FreezeError::Slow`],
    /// [`FreezeError::Cancelled`].
    pub(super) async fn during<T>(
        &self,
        work: impl Future<Output = Result<T, FreezeError>>,
        limit: Duration,
    ) -> Result<T, FreezeError> {
        let deadline = Instant::now() + limit;
        let mut work = std::pin::pin!(work);
        let mut renew = interval(RENEW);
        renew.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            tokio::select! {
                biased;
                () = self.cancel.cancelled() => return Err(FreezeError::Cancelled),
                () = sleep_until(deadline) => return Err(FreezeError::Slow { limit }),
                _ = renew.tick() => self.renew().await?,
                done = &mut work => return done,
            }
        }
    }

    async fn renew(&self) -> Result<(), FreezeError> {
        const UPDATE: &str = "\
            UPDATE trellara.fence \
               SET lease_until = clock_timestamp() + make_interval(secs => $3) \
             WHERE flow = $1 AND run = $2 AND lease_until > clock_timestamp()";
        let renewed = self
            .session
            .client
            .execute(UPDATE, &[&self.flow.as_str(), &self.run, &LEASE_SECONDS])
            .await
            .map_err(failed(Side::Target))?;
        self.all(renewed)
    }

    /// A row that is gone, or whose lease is over, means that the applier may have gone on.
    fn all(&self, rows: u64) -> Result<(), FreezeError> {
        if rows == self.lanes.len() as u64 {
            Ok(())
        } else {
            Err(FreezeError::Lost)
        }
    }

    async fn answered(&mut self, missing: &Missing, limit: Duration) -> Result<(), FreezeError> {
        // Taken out, so that it can be listened to while the lease is kept.
        let (_, nobody) = mpsc::channel(1);
        let mut heard = std::mem::replace(&mut self.heard, nobody);
        let listening = self.listen(&mut heard, missing, limit);
        let answered = self.during(listening, limit + STEP).await;
        self.heard = heard;
        answered
    }

    async fn listen(
        &self,
        heard: &mut mpsc::Receiver<Notification>,
        missing: &Missing,
        limit: Duration,
    ) -> Result<(), FreezeError> {
        let deadline = Instant::now() + limit;
        let mut look = interval(LOOK);
        look.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            tokio::select! {
                biased;
                heard = heard.recv() => match heard {
                    Some(heard) if heard.payload == self.run => {}
                    Some(_) => continue,
                    None => return Err(FreezeError::connection_lost(Side::Target)),
                },
                _ = look.tick() => {}
                () = sleep_until(deadline) => return Err(self.overdue(missing, limit).await?),
            }
            let waiting = self.waiting_for(missing).await?;
            if waiting.is_empty() {
                return Ok(());
            }
            if let Missing::Reached(point) = missing
                && waiting
                    .iter()
                    .any(|(_, at)| at.is_some_and(|at| at > *point))
            {
                // It will never stand there.
                return Err(self.overdue(missing, limit).await?);
            }
        }
    }

    /// The lanes that have not answered, and where each stands.
    async fn waiting_for(
        &self,
        missing: &Missing,
    ) -> Result<Vec<(Lane, Option<Lsn>)>, FreezeError> {
        const SELECT: &str = "\
            SELECT f.lane, f.armed_at IS NOT NULL, f.reached_at IS NOT NULL, \
                   (SELECT a.end_lsn::text FROM trellara.applied AS a \
                     WHERE a.flow = f.flow AND a.lane = f.lane \
                     ORDER BY a.first_ordinal DESC LIMIT 1) \
              FROM trellara.fence AS f \
             WHERE f.flow = $1 AND f.run = $2 ORDER BY f.lane";
        let rows = self
            .session
            .client
            .query(SELECT, &[&self.flow.as_str(), &self.run])
            .await
            .map_err(failed(Side::Target))?;
        self.all(rows.len() as u64)?;
        let answered = match missing {
            Missing::Armed => 1,
            Missing::Reached(_) => 2,
        };
        let waiting = rows.iter().filter(|row| !row.get::<_, bool>(answered));
        let lane = |row: &tokio_postgres::Row| {
            let lane = row.get::<_, i32>(0).cast_unsigned();
            let at = row
                .get::<_, Option<&str>>(3)
                .and_then(|text| text.parse().ok());
            (Lane(lane), at)
        };
        Ok(waiting.map(lane).collect())
    }

    async fn overdue(
        &self,
        missing: &Missing,
        limit: Duration,
    ) -> Result<FreezeError, FreezeError> {
        let waiting = self.waiting_for(missing).await?;
        let (lane, at) = waiting.first().copied().unwrap_or((Lane(0), None));
        Ok(match missing {
            Missing::Armed => FreezeError::NotArmed {
                lane,
                waited: limit,
            },
            Missing::Reached(_) => FreezeError::NotReached {
                lane,
                at,
                waited: limit,
            },
        })
    }
}

/// The channel on which the applier is told to look.
fn asks(flow: &FlowName) -> String {
    format!("trellara_{flow}")
}

/// The channel on which the applier says that it has answered; the payload is the run.
fn answers(flow: &FlowName) -> String {
    format!("trellara_{flow}_fence")
}

fn lane_number(lane: Lane) -> Result<i32, FreezeError> {
    i32::try_from(lane.0).map_err(|_| FreezeError::bug("a lane's number is out of range"))
}
