//! Where a flow stands, as source, stream, target and the reachable daemons say it themselves.
//!
//! Each part is asked on its own: one that does not answer is named, and the others still count.

use serde::Serialize;
use trellara_applier::{blockers, pause};
use trellara_envelope::{Body, CommitTime, Frame, Lane, Lsn, StreamSequence};
use trellara_jetstream::{Broker, BrokerErrorKind, read::Reader, topology};
use trellara_postgres::{Session, insert_position};
use trellara_source::slot;

use crate::config::Config;
use crate::daemon_reports;
use crate::exit::Failure;
use crate::forecast::{self, Forecast};
use crate::held::HeldFacts;
use crate::report::DaemonReport;
use crate::{broker, link};

/// Everything known at one moment.
#[derive(Debug, Serialize)]
pub(crate) struct Survey {
    pub(crate) id: String,
    pub(crate) source: Part<SourceFacts>,
    pub(crate) stream: Part<StreamFacts>,
    pub(crate) target: Part<TargetFacts>,
    pub(crate) daemons: Vec<DaemonReport>,
    /// From the head of the WAL down to what is applied.
    pub(crate) ladder: Vec<Rung>,
    /// How long a paused flow may stay so; absent while nothing is paused.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) forecast: Option<Forecast>,
    /// Age of the oldest commit that is stored and not applied, by the source's clock.
    pub(crate) lag_seconds: Option<f64>,
    /// What keeps the flow from moving, most important first.
    pub(crate) blocked_by: Vec<String>,
}

/// A part that answered, or why it did not.
#[derive(Debug, Serialize)]
#[serde(untagged)]
pub(crate) enum Part<T> {
    Known(T),
    Unknown { error: String },
}

#[derive(Debug, Serialize)]
pub(crate) struct SourceFacts {
    pub(crate) lsn_head: String,
    pub(crate) slot: Option<SlotReport>,
    #[serde(skip)]
    head: Lsn,
    #[serde(skip)]
    confirmed: Option<Lsn>,
    #[serde(skip)]
    now: CommitTime,
}

impl SourceFacts {
    /// Where the next WAL record goes.
    pub(crate) fn head(&self) -> Lsn {
        self.head
    }
}

#[derive(Debug, Serialize)]
pub(crate) struct SlotReport {
    pub(crate) name: String,
    pub(crate) active_pid: Option<i32>,
    pub(crate) confirmed_flush: Option<String>,
    /// WAL that the source keeps for this slot, bytes.
    pub(crate) retained_bytes: Option<u64>,
    /// WAL that may still be written before the slot is lost; absent without a limit.
    pub(crate) safe_bytes: Option<i64>,
    pub(crate) wal_status: Option<String>,
    pub(crate) lost: Option<String>,
    /// `max_slot_wal_keep_size`; absent without a limit.
    pub(crate) limit_bytes: Option<u64>,
}

#[derive(Debug, Serialize)]
pub(crate) struct StreamFacts {
    pub(crate) name: String,
    pub(crate) messages: u64,
    pub(crate) bytes: u64,
    pub(crate) max_bytes: Option<u64>,
    pub(crate) first_sequence: u64,
    pub(crate) last_sequence: u64,
    pub(crate) lsn_published: Option<String>,
    pub(crate) incarnation: Option<u64>,
    pub(crate) target: Option<String>,
    #[serde(skip)]
    published: Option<Lsn>,
}

#[derive(Debug, Serialize)]
pub(crate) struct TargetFacts {
    pub(crate) lsn_applied: Option<String>,
    pub(crate) stream_sequence: Option<u64>,
    pub(crate) holder: Option<String>,
    /// Sessions with a lock that the holder waits for.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) waits_for: Option<String>,
    pub(crate) epoch: i64,
    /// The newest verify run of the flow that has a verdict.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) verified: Option<Verified>,
    /// While somebody wants the lane to stand still.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) paused: Option<PausedFacts>,
    /// What is held; absent where the target keeps no quarantine.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) quarantine: Option<HeldFacts>,
    #[serde(skip)]
    applied: Option<Lsn>,
}

/// A pause.
#[derive(Debug, Serialize)]
pub(crate) struct PausedFacts {
    pub(crate) reason: String,
    pub(crate) operator: String,
    pub(crate) host: String,
    pub(crate) since: String,
    pub(crate) seconds: f64,
    /// Whether the present applier has said that it stands still.
    pub(crate) stands: bool,
}

/// What `trellara verify` said last.
#[derive(Debug, Serialize)]
pub(crate) struct Verified {
    pub(crate) id: String,
    pub(crate) mode: String,
    pub(crate) verdict: String,
    pub(crate) consistent_point: Option<String>,
    /// By the target's clock.
    pub(crate) seconds_ago: f64,
}

/// One position of the ladder.
#[derive(Debug, Serialize)]
pub(crate) struct Rung {
    pub(crate) id: &'static str,
    pub(crate) lsn: Option<String>,
    /// Bytes of WAL behind the head.
    pub(crate) behind_bytes: Option<u64>,
}

impl<T> Part<T> {
    pub(crate) fn known(&self) -> Option<&T> {
        match self {
            Part::Known(facts) => Some(facts),
            Part::Unknown { .. } => None,
        }
    }

    fn of(answer: Result<T, Failure>) -> Self {
        match answer {
            Ok(facts) => Part::Known(facts),
            Err(failure) => {
                let hints = failure.hints.iter().map(|hint| format!("; hint: {hint}"));
                Part::Unknown {
                    error: failure.causes.join(": ") + &hints.collect::<String>(),
                }
            }
        }
    }
}

/// Asks all parts at once.
pub(crate) async fn take(config: &Config) -> Survey {
    let (source, stream, target, daemons) = tokio::join!(
        ask_source(config),
        ask_stream(config),
        ask_target(config),
        daemon_reports::reachable(config),
    );
    let broker = stream.as_ref().ok().map(|(broker, _)| broker.clone());
    let source = Part::of(source);
    let stream = Part::of(stream.map(|(_, facts)| facts));
    let target = Part::of(target);
    let forecast = match target.known().and_then(|target| target.paused.as_ref()) {
        Some(_) => forecast::take(config).await.ok(),
        None => None,
    };
    let lag_seconds = match (&source, &target, broker) {
        (Part::Known(source), Part::Known(target), Some(broker)) => {
            oldest_unapplied(config, &broker, target)
                .await
                .map(|commit| {
                    let age = source.now.0.saturating_sub(commit.0).max(0);
                    age as f64 / 1_000_000.0
                })
        }
        _ => None,
    };
    let ladder = ladder(&source, &stream, &target, &daemons);
    let blocked_by = blocks(&source, &stream, &target, &daemons);
    Survey {
        id: config.flow.to_string(),
        source,
        stream,
        target,
        daemons,
        ladder,
        forecast,
        lag_seconds,
        blocked_by,
    }
}

/// Source and stream alone, or why one of them does not answer.
pub(crate) async fn origins(config: &Config) -> Result<(SourceFacts, StreamFacts), String> {
    let (source, stream) = tokio::join!(ask_source(config), ask_stream(config));
    let why = |failure: Failure| failure.causes.join(": ");
    let (_, stream) = stream.map_err(why)?;
    Ok((source.map_err(why)?, stream))
}

async fn ask_source(config: &Config) -> Result<SourceFacts, Failure> {
    let session = link::source(config).await?;
    let head = insert_position(&session).await?;
    let slot = slot::read(&session, &config.source.slot).await?;
    let microseconds = "SELECT (extract(epoch FROM clock_timestamp()) * 1000000)::bigint";
    // In megabytes; -1 is no limit.
    let limit = "SELECT setting::bigint FROM pg_settings WHERE name = 'max_slot_wal_keep_size'";
    let limit: i64 = session.client.query_one(limit, &[]).await?.get(0);
    let unix: i64 = session.client.query_one(microseconds, &[]).await?.get(0);
    Ok(SourceFacts {
        lsn_head: head.to_string(),
        confirmed: slot.as_ref().and_then(|slot| slot.confirmed_flush),
        slot: slot.map(|slot| SlotReport {
            name: config.source.slot.clone(),
            active_pid: slot.active_pid,
            confirmed_flush: slot.confirmed_flush.map(|lsn| lsn.to_string()),
            retained_bytes: slot.restart_lsn.map(|lsn| head.bytes_since(lsn)),
            safe_bytes: slot.safe_wal_size,
            lost: slot.lost(),
            limit_bytes: u64::try_from(limit).ok().map(|megabytes| megabytes << 20),
            wal_status: slot.wal_status,
        }),
        head,
        now: CommitTime(unix - CommitTime::UNIX_OFFSET_US),
    })
}

async fn ask_stream(config: &Config) -> Result<(Broker, StreamFacts), Failure> {
    let broker = broker::connect(config, broker::Role::Status).await?;
    let name = config.flow.stream();
    let facts = topology::facts(&broker, &name)
        .await
        .map_err(|error| match error.kind() {
            BrokerErrorKind::Missing => Failure::new(
                crate::exit::Exit::Unexpected,
                format!("there is no stream {name}"),
                "",
            ),
            _ => Failure::from(error),
        })?;
    let tail = Reader::new(&broker, &name).tail().await?;
    let header = tail
        .and_then(|tail| Frame::decode(&tail.payload).ok())
        .map(|frame| frame.header);
    let published = header.as_ref().map(|header| header.position);
    let report = StreamFacts {
        messages: facts.messages,
        bytes: facts.bytes,
        max_bytes: facts.max_bytes,
        first_sequence: facts.first_sequence.0,
        last_sequence: facts.last_sequence.0,
        lsn_published: published.map(|lsn| lsn.to_string()),
        incarnation: header.map(|header| header.incarnation.0),
        target: facts.target().map(str::to_owned),
        name,
        published,
    };
    Ok((broker, report))
}

async fn ask_target(config: &Config) -> Result<TargetFacts, Failure> {
    let session = link::target(config).await?;
    let checkpoint = link::checkpoint(config, &session).await?;
    let holder = session
        .client
        .query_opt(
            &format!(
                "SELECT l.epoch, CASE WHEN s.pid IS NOT NULL THEN l.holder_name END, b.who \
                   FROM trellara.lane AS l \
                   LEFT JOIN pg_stat_activity AS s \
                          ON s.pid = l.holder_pid AND s.backend_start = l.holder_started, \
                        {} AS b \
                  WHERE l.flow = $1 AND l.lane = 0",
                blockers("s.pid")
            ),
            &[&config.flow.as_str()],
        )
        .await?;
    Ok(TargetFacts {
        verified: verified(&session, config).await?,
        paused: paused(&session, config).await?,
        quarantine: HeldFacts::of_target(&session, config).await?,
        lsn_applied: checkpoint
            .as_ref()
            .map(|checkpoint| checkpoint.end_lsn.to_string()),
        stream_sequence: checkpoint
            .as_ref()
            .map(|checkpoint| checkpoint.transport.sequence.0),
        epoch: holder.as_ref().map_or(0, |row| row.get(0)),
        waits_for: holder
            .as_ref()
            .map(|row| row.get::<_, String>(2))
            .filter(|who| !who.is_empty()),
        holder: holder.and_then(|row| row.get(1)),
        applied: checkpoint.map(|checkpoint| checkpoint.end_lsn),
    })
}

/// Why the lane stands still; nothing where the target knows no pauses, or they are not ours to read.
pub(crate) async fn paused(
    session: &Session,
    config: &Config,
) -> Result<Option<PausedFacts>, Failure> {
    let readable = "SELECT coalesce(has_table_privilege(to_regclass('trellara.pause')::oid, \
                    'SELECT'), false)";
    let readable = session.client.query_one(readable, &[]).await?;
    if !readable.get::<_, bool>(0) {
        return Ok(None);
    }
    let pause = pause::read(&session.client, &config.flow, Lane(0)).await?;
    Ok(pause.map(|pause| PausedFacts {
        reason: pause.reason,
        operator: pause.operator,
        host: pause.host,
        since: pause.since,
        seconds: pause.seconds,
        stands: pause.stands.is_some(),
    }))
}

/// Nothing where no run was kept, or its records are not ours to read.
async fn verified(session: &Session, config: &Config) -> Result<Option<Verified>, Failure> {
    let readable = "SELECT coalesce(has_table_privilege(to_regclass('trellara.verify_run')::oid, \
                    'SELECT'), false)";
    let newest = "SELECT run, mode, verdict, consistent_point::text, \
                         extract(epoch FROM clock_timestamp() - finished_at)::float8 \
                    FROM trellara.verify_run WHERE flow = $1 AND state = 'finished' \
                   ORDER BY finished_at DESC LIMIT 1";
    if !session
        .client
        .query_one(readable, &[])
        .await?
        .get::<_, bool>(0)
    {
        return Ok(None);
    }
    let flow = config.flow.as_str();
    let row = session.client.query_opt(newest, &[&flow]).await?;
    Ok(row.map(|row| Verified {
        id: row.get(0),
        mode: row.get(1),
        verdict: row.get(2),
        consistent_point: row.get(3),
        seconds_ago: row.get(4),
    }))
}

/// The commit time of the first transaction behind the checkpoint.
async fn oldest_unapplied(
    config: &Config,
    broker: &Broker,
    target: &TargetFacts,
) -> Option<CommitTime> {
    let behind = StreamSequence(target.stream_sequence? + 1);
    let subject = config.flow.transactions_subject(Lane(0));
    let reader = Reader::new(broker, &config.flow.stream());
    let next = reader.next_on(&subject, behind).await.ok()??;
    let applied = target.applied?;
    match Frame::decode(&next.payload).ok()?.body {
        Body::Bundle(entries) => entries
            .iter()
            .find(|entry| entry.end_lsn > applied)
            .map(|entry| entry.commit_time),
        Body::Manifest(manifest) => (manifest.end_lsn > applied).then_some(manifest.commit_time),
        _ => None,
    }
}

impl PausedFacts {
    /// For people; what others wrote is not escaped yet.
    pub(crate) fn text(&self) -> String {
        let Self {
            reason,
            operator,
            host,
            since,
            ..
        } = self;
        format!("the flow is paused since {since} by {operator}@{host}: {reason}")
    }
}

fn ladder(
    source: &Part<SourceFacts>,
    stream: &Part<StreamFacts>,
    target: &Part<TargetFacts>,
    daemons: &[DaemonReport],
) -> Vec<Rung> {
    let head = source.known().map(|source| source.head);
    let relay = daemons.iter().find(|daemon| daemon.role == "relay");
    let received = relay.and_then(|relay| relay.lsn_received.as_deref()?.parse().ok());
    let published = stream.known().and_then(|stream| stream.published);
    let confirmed = source.known().and_then(|source| source.confirmed);
    let applied = target.known().and_then(|target| target.applied);
    let rung = |id, lsn: Option<Lsn>| Rung {
        id,
        lsn: lsn.map(|lsn| lsn.to_string()),
        behind_bytes: head.zip(lsn).map(|(head, lsn)| head.bytes_since(lsn)),
    };
    vec![
        rung("head", head),
        rung("received", received),
        rung("published", published),
        rung("confirmed", confirmed),
        rung("applied", applied),
    ]
}

fn blocks(
    source: &Part<SourceFacts>,
    stream: &Part<StreamFacts>,
    target: &Part<TargetFacts>,
    daemons: &[DaemonReport],
) -> Vec<String> {
    let mut blocks = Vec::new();
    for daemon in daemons.iter().filter(|daemon| !daemon.ready) {
        let halt = daemon
            .halt
            .as_ref()
            .map(|halt| format!("{}: {}", halt.code, halt.reason));
        let why = halt
            .or_else(|| daemon.reason.clone())
            .unwrap_or_else(|| daemon.state.clone());
        // A stall says for how long by itself.
        let lasting = match daemon.waiting_seconds {
            Some(seconds) if daemon.state == "waiting" => format!(" for {seconds:.0} s"),
            _ => String::new(),
        };
        blocks.push(format!(
            "the {} is {}{lasting}: {why}",
            daemon.role, daemon.state
        ));
    }
    match source {
        Part::Unknown { error } => blocks.push(error.clone()),
        Part::Known(SourceFacts { slot: None, .. }) => {
            blocks.push("the slot does not exist".to_owned())
        }
        Part::Known(SourceFacts {
            slot: Some(slot), ..
        }) => {
            blocks.extend(
                slot.lost
                    .as_ref()
                    .map(|why| format!("the slot is lost: {why}")),
            );
            if slot.active_pid.is_none() {
                blocks.push("no relay is reading the slot".to_owned());
            }
        }
    }
    match stream {
        Part::Unknown { error } => blocks.push(error.clone()),
        Part::Known(stream) => {
            if stream
                .max_bytes
                .is_some_and(|max| stream.bytes >= max - max / 20)
            {
                blocks.push("the stream is full: it is trimmed as the target applies".to_owned());
            }
        }
    }
    match target {
        Part::Unknown { error } => blocks.push(error.clone()),
        Part::Known(target) => {
            blocks.extend(target.paused.as_ref().map(PausedFacts::text));
            blocks.extend(target.quarantine.iter().flat_map(HeldFacts::blocks));
            if target.applied.is_none() {
                blocks.push("the flow is not set up in the target".to_owned());
            } else if target.holder.is_none() {
                blocks.push("no applier is connected to the target".to_owned());
            }
            if let Some(who) = &target.waits_for {
                blocks.push(format!(
                    "the applier waits for a lock on the target, held by {who}"
                ));
            }
        }
    }
    blocks
}
