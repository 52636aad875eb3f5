//! Who holds a lane's lock, and waiting until nobody does.

use std::time::{Duration, Instant};

use tokio_postgres::Client;
use tokio_util::sync::CancellationToken;
use trellara_envelope::{FlowName, Halt, HaltCode, Lane};
use trellara_postgres::Silence;

use super::{Claimant, apply_lock, lane_number, lock_key};
use crate::options::Standby;
use crate::pulse;
use crate::status::{ApplierState, ApplierStatus};
use crate::trouble::Trouble;

/// How often a standby looks whether the lane is free.
const POLL: Duration = Duration::from_millis(500);
/// A holder that is our own earlier session is ended after this long: it can only be a backend
/// that has not noticed yet that its connection is gone.
const OWN_ZOMBIE_PATIENCE: Duration = Duration::from_secs(2);
/// A holder whose pulse has stood still for this long is gone: five beats.
const PULSE_LIMIT: Duration = Duration::from_secs(5);
/// A holder without a pulse, a command of the desk say, is gone when its session has done nothing
/// for this long.
const IDLE_LIMIT: Duration = Duration::from_secs(30);

/// Waits until the holder's lock is ours.
pub(super) async fn wait(
    client: &Client,
    who: Claimant<'_>,
    standby: Standby,
    cancel: &CancellationToken,
    status: &ApplierStatus,
) -> Result<(), Trouble> {
    let lock = lock_key(who.flow.as_str(), who.lane, "holder");
    let waiting_since = Instant::now();
    let mut silence = Silence::default();
    let mut said = String::new();
    loop {
        let taken: bool = client
            .query_one("SELECT pg_try_advisory_lock($1)", &[&lock])
            .await?
            .get(0);
        if taken {
            return Ok(());
        }
        let waited = waiting_since.elapsed();
        let holder = read(client, who, lock).await?;
        if holder.ours && waited > OWN_ZOMBIE_PATIENCE {
            tracing::warn!(
                pid = holder.pid,
                "ending our own earlier session on the target"
            );
            client
                .execute("SELECT pg_terminate_backend($1)", &[&holder.pid])
                .await?;
        }
        if standby == Standby::TakeOver {
            let silent = silence.observe(waited, holder.sign.clone());
            if holder.sign.is_gone_after(silent) {
                end(client, who, &holder, silent).await?;
                silence.forget();
                continue;
            }
        }
        if let Standby::GiveUpAfter(limit) = standby
            && !holder.ours
            && waited >= limit
        {
            return Err(Trouble::operator(Halt::new(
                HaltCode::Fenced,
                format!("another applier holds the lane: {}", holder.text),
                "stop it, or let this one wait as a standby",
            )));
        }
        if said != holder.text {
            let (flow, holder) = (who.flow, &holder.text);
            tracing::info!(%flow, holder, "waiting as a standby: another applier holds the lane");
            said.clone_from(holder);
        }
        status.set_state(ApplierState::Standby {
            holder: holder.text,
        });
        tokio::select! {
            () = cancel.cancelled() => return Err(Trouble::Cancelled),
            () = tokio::time::sleep(POLL) => {}
        }
    }
}

/// Ends a holder that is gone, and whoever still has an apply transaction of the lane open: it is
/// the holder's, and the epoch cannot be raised before it has ended.
async fn end(
    client: &Client,
    who: Claimant<'_>,
    holder: &Holder,
    silent: Duration,
) -> Result<(), Trouble> {
    let (flow, pid) = (who.flow, holder.pid);
    let silent_seconds = silent.as_secs_f64();
    tracing::warn!(
        %flow, pid, holder = holder.text, silent_seconds,
        "taking over: ending the sessions of an applier that has fallen silent"
    );
    client
        .execute(
            "SELECT pg_terminate_backend(k.pid) FROM pg_locks AS k \
              WHERE k.locktype = 'advisory' AND k.granted AND k.objsubid = 1 \
                AND k.database = (SELECT oid FROM pg_database WHERE datname = current_database()) \
                AND k.pid <> pg_backend_pid() \
                AND (k.classid::bigint << 32 | k.objid::bigint = $1 AND k.pid = $3 \
                     OR k.classid::bigint << 32 | k.objid::bigint = $2)",
            &[
                &lock_key(who.flow.as_str(), who.lane, "holder"),
                &apply_lock(who.flow.as_str(), who.lane),
                &holder.pid,
            ],
        )
        .await?;
    Ok(())
}

/// Who holds a lane now; `None` when nobody does.
///
/// # Errors
/// When the server refuses.
pub async fn holder(
    client: &Client,
    flow: &FlowName,
    lane: Lane,
) -> Result<Option<String>, tokio_postgres::Error> {
    let who = Claimant {
        flow,
        lane,
        instance: "",
        name: "",
    };
    let holder = find(client, who, lock_key(flow.as_str(), lane, "holder")).await?;
    Ok(holder.map(|holder| holder.text))
}

/// What a holder that lives changes.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Sign {
    /// When its pulse beat last, by the target's clock.
    Pulse(String),
    /// It has none; since when its session has been idle.
    Idle(String),
    /// It works, or belongs to a role that ours may not judge.
    Hidden,
}

impl Sign {
    fn is_gone_after(&self, silent: Duration) -> bool {
        match self {
            Sign::Pulse(_) => silent >= PULSE_LIMIT,
            Sign::Idle(_) => silent >= IDLE_LIMIT,
            Sign::Hidden => false,
        }
    }
}

struct Holder {
    pid: i32,
    ours: bool,
    text: String,
    sign: Sign,
}

async fn read(client: &Client, who: Claimant<'_>, lock: i64) -> Result<Holder, Trouble> {
    let holder = find(client, who, lock).await?;
    Ok(holder.unwrap_or_else(|| Holder {
        pid: 0,
        ours: false,
        text: "a session that has just ended".to_owned(),
        sign: Sign::Hidden,
    }))
}

/// The backend that has the lock, from the lock table; its name from the lane's row, when the two
/// agree; and what it shows of its life. Only sessions of our own role are looked into: others we
/// may not see, nor end.
const HOLDER: &str = "\
SELECT k.pid, coalesce(l.holder_name, ''), coalesce(l.holder_instance::text, ''), \
       coalesce(l.holder_started = s.backend_start, false), \
       CASE WHEN s.usename = current_user AND s.state LIKE 'idle%' THEN s.state_change::text END, \
       (SELECT max(p.state_change)::text FROM pg_stat_activity AS p \
         WHERE p.usename = current_user AND p.datname = current_database() \
           AND p.application_name = $4 || left(l.holder_instance::text, 8)) \
  FROM pg_locks AS k \
  LEFT JOIN trellara.lane AS l \
         ON l.flow = $1 AND l.lane = $2 AND l.holder_pid = k.pid \
  LEFT JOIN pg_stat_activity AS s ON s.pid = k.pid \
 WHERE k.locktype = 'advisory' AND k.granted AND k.objsubid = 1 \
   AND k.database = (SELECT oid FROM pg_database WHERE datname = current_database()) \
   AND k.classid = (($3::bigint >> 32) & 4294967295)::oid \
   AND k.objid = ($3::bigint & 4294967295)::oid";

async fn find(
    client: &Client,
    who: Claimant<'_>,
    lock: i64,
) -> Result<Option<Holder>, tokio_postgres::Error> {
    let pulse = pulse::name(who.flow, "");
    let row = client
        .query_opt(
            HOLDER,
            &[&who.flow.as_str(), &lane_number(who.lane), &lock, &pulse],
        )
        .await?;
    let Some(row) = row else {
        return Ok(None);
    };
    let (pid, name, instance): (i32, String, String) = (row.get(0), row.get(1), row.get(2));
    let same_backend: bool = row.get(3);
    let (idle, beat): (Option<String>, Option<String>) = (row.get(4), row.get(5));
    Ok(Some(Holder {
        pid,
        ours: same_backend && instance == who.instance,
        text: match name.as_str() {
            "" => format!("backend {pid}"),
            name => format!("{name} (backend {pid})"),
        },
        sign: match (beat, idle) {
            (Some(beat), _) if same_backend => Sign::Pulse(beat),
            (_, Some(idle)) => Sign::Idle(idle),
            (_, None) => Sign::Hidden,
        },
    }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_beats_no_more_is_gone_and_who_works_is_not() {
        let after = |sign: &Sign, seconds| sign.is_gone_after(Duration::from_secs(seconds));
        let pulse = Sign::Pulse("noon".to_owned());
        assert!(!after(&pulse, 4) && after(&pulse, 5));
        let idle = Sign::Idle("noon".to_owned());
        assert!(!after(&idle, 29) && after(&idle, 30));
        assert!(!after(&Sign::Hidden, 86_400));
    }
}
