//! Questions to broker and source that the machine, or the clock, asks; each has a time limit and
//! is answered by an event.

use std::collections::BTreeSet;
use std::future::Future;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use trellara_envelope::{
    AbortedRange, AbortedSet, Frame, Halt, Marker, Oid, PositionReport, StreamSequence, Xid,
};
use trellara_jetstream::read::Reader;
use trellara_jetstream::topology::StreamFacts;
use trellara_jetstream::{Broker, BrokerErrorKind, topology, trim};
use trellara_postgres::{ConnectErrorKind, Session};
use trellara_source::publication::PublicationFacts;
use trellara_source::subtransactions::Unknown;
use trellara_source::{slot, subtransactions};

use crate::RelayOptions;
use crate::ending::{self, Ending};
use crate::facts;
use crate::machine::{FootingAnswer, ProbeAnswer, TailAnswer};
use crate::resume::compare_members;

/// A question to the source is given up after this long.
const TIMEOUT: Duration = Duration::from_secs(20);

/// What is asked.
pub(crate) enum Question {
    /// The stream's last frame.
    Tail,
    /// The frame below the marker.
    Footing(StreamSequence),
    /// Whether a report's frame is what it says.
    Report(PositionReport),
    /// The stream's size and registered target.
    Stream,
    /// Whether the source takes connections.
    Probe,
    /// Whether the publication still has the marker's members (C06).
    Membership,
    /// Whether commits wait for us (C05).
    Synchronous,
    /// Which subtransactions of a transaction were rolled back.
    Subtransactions { xid: Xid, asked: Vec<AbortedRange> },
    /// Remove what is garbage.
    Purge {
        subject: String,
        below: StreamSequence,
    },
}

/// A target that has anything to say of a copy says it once a second.
pub(crate) const ORDER_GRACE: Duration = Duration::from_secs(3);

/// What is answered.
pub(crate) enum Answer {
    Tail(TailAnswer),
    Footing(FootingAnswer),
    Report(PositionReport, bool),
    /// `None` when nothing was answered.
    Stream(Option<StreamFacts>),
    Probed(ProbeAnswer),
    /// When it passed: whether members have left on an operator's word.
    Membership(Result<bool, Failed>),
    /// `None` when nothing was answered.
    Synchronous(Option<bool>),
    Subtransactions(Result<AbortedSet, String>),
    Done,
}

/// Why a check did not pass.
pub(crate) enum Failed {
    Halt(Halt),
    NoAnswer(String),
}

/// Asks.
pub(crate) struct Asker {
    shared: Arc<Shared>,
}

struct Shared {
    options: RelayOptions,
    broker: Broker,
    reader: Reader,
    /// Replaced when it is lost.
    session: Mutex<Arc<Session>>,
    /// The session did not answer in time.
    unheard: AtomicBool,
    marker: Marker,
    publication: PublicationFacts,
    /// Tables that left on an operator's word, as the target says.
    removed: Mutex<BTreeSet<Oid>>,
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Asker {
    /// `marker` is the incarnation's own, `publication` what it was made from.
    pub(crate) fn new(
        options: RelayOptions,
        broker: Broker,
        session: Arc<Session>,
        marker: Marker,
        publication: PublicationFacts,
    ) -> Self {
        let reader = Reader::new(&broker, &options.flow.stream());
        Self {
            shared: Arc::new(Shared {
                options,
                broker,
                reader,
                session: Mutex::new(session),
                unheard: AtomicBool::new(false),
                marker,
                publication,
                removed: Mutex::default(),
            }),
        }
    }

    /// The target says which tables left on an operator's word; whether one of them is a member
    /// still, as far as is known here.
    pub(crate) fn removed(&self, oids: &[Oid]) -> bool {
        let shared = &self.shared;
        let mut removed = lock(&shared.removed);
        removed.clear();
        removed.extend(oids);
        let mut members = shared.publication.members.iter();
        members.any(|member| removed.contains(&member.ids.relation))
    }

    /// Asks at once; the answer comes through the future.
    pub(crate) fn ask(&self, question: Question) -> Pin<Box<dyn Future<Output = Answer> + Send>> {
        let shared = self.shared.clone();
        Box::pin(async move {
            match question {
                Question::Tail => Answer::Tail(shared.tail().await),
                Question::Footing(at) => Answer::Footing(shared.footing(at).await),
                Question::Report(report) => {
                    let fits = shared.fits(&report).await;
                    Answer::Report(report, fits)
                }
                Question::Stream => {
                    let stream = shared.options.flow.stream();
                    Answer::Stream(topology::facts(&shared.broker, &stream).await.ok())
                }
                Question::Probe => Answer::Probed(shared.probe().await),
                Question::Membership => Answer::Membership(shared.membership().await),
                Question::Synchronous => Answer::Synchronous(shared.synchronous().await),
                Question::Subtransactions { xid, asked } => {
                    Answer::Subtransactions(shared.subtransactions(xid, &asked).await)
                }
                Question::Purge { subject, below } => {
                    shared.purge(&subject, below).await;
                    Answer::Done
                }
            }
        })
    }
}

impl Shared {
    async fn tail(&self) -> TailAnswer {
        match self.reader.end().await {
            Ok(end) => match ending::stream_end(&end, &self.options.flow) {
                Ending::Empty => TailAnswer::Gone,
                Ending::Foreign(reason) => TailAnswer::Foreign(reason),
                Ending::At(last) if last.at < last.tail.sequence => {
                    TailAnswer::Before(last.tail, last.at)
                }
                Ending::At(last) => TailAnswer::Frame(last.tail),
            },
            Err(error) if *error.kind() == BrokerErrorKind::Missing => TailAnswer::Gone,
            Err(error) => TailAnswer::Failed(error.to_string()),
        }
    }

    async fn footing(&self, at: StreamSequence) -> FootingAnswer {
        match self.reader.get(at).await {
            Ok(Some(stored)) => FootingAnswer::Frame(Frame::digest_of(&stored.payload)),
            Ok(None) => FootingAnswer::Missing,
            Err(error) => FootingAnswer::Failed(error.to_string()),
        }
    }

    async fn fits(&self, report: &PositionReport) -> bool {
        let Ok(Some(stored)) = self.reader.get(report.sequence).await else {
            return false;
        };
        facts::tail_of(&stored, &self.options.flow).is_ok_and(|(frame, _)| {
            frame.ordinal == report.ordinal && frame.digest == report.digest
        })
    }

    async fn probe(&self) -> ProbeAnswer {
        match tokio::time::timeout(TIMEOUT, self.options.source.session()).await {
            Ok(Err(error)) if error.kind == ConnectErrorKind::ServerStarting => {
                ProbeAnswer::ShuttingDown
            }
            _ => ProbeAnswer::Other,
        }
    }

    async fn membership(&self) -> Result<bool, Failed> {
        let check = async {
            let session = self.session().await?;
            facts::members(&session, &self.options.source, Some(&self.marker))
                .await
                .map_err(|fault| fault.message)
        };
        let (publication, mut existing) = match tokio::time::timeout(TIMEOUT, check).await {
            Ok(Ok(read)) => read,
            Ok(Err(reason)) => return Err(Failed::NoAnswer(reason)),
            Err(_) => {
                // It may be dead without anybody having said so: the next check gets another.
                self.unheard.store(true, Ordering::Relaxed);
                return Err(Failed::NoAnswer("no answer in time".to_owned()));
            }
        };
        let Some(publication) = publication else {
            return Err(Failed::Halt(crate::resume::no_publication()));
        };
        // Beyond what the marker frame can carry, memory still has all members.
        let known = Marker {
            members: self.publication.member_ids(),
            ..self.marker.clone()
        };
        let unexplained = |existing: &mut BTreeSet<Oid>| {
            let removed = lock(&self.removed);
            let before = existing.len();
            existing.retain(|oid| !removed.contains(oid));
            (existing.len() < before, !existing.is_empty())
        };
        let (mut left, unexplained_yet) = unexplained(&mut existing);
        if unexplained_yet {
            // The operator's word may still be on its way.
            tokio::time::sleep(ORDER_GRACE).await;
            left |= unexplained(&mut existing).0;
        }
        compare_members(&known, &publication, &existing).map_err(Failed::Halt)?;
        Ok(left)
    }

    async fn synchronous(&self) -> Option<bool> {
        let check = async {
            let session = self.session().await.ok()?;
            let name = &self.options.source.slot;
            slot::is_synchronous_standby(&session, name).await.ok()
        };
        tokio::time::timeout(TIMEOUT, check).await.ok().flatten()
    }

    async fn subtransactions(
        &self,
        xid: Xid,
        asked: &[AbortedRange],
    ) -> Result<AbortedSet, String> {
        let slot = &self.options.source.slot;
        let ask = async {
            // A session that was lost unnoticed is replaced once.
            for again in [true, false] {
                let session = self.session().await?;
                match subtransactions::rolled_back(&session, slot, xid, asked).await {
                    Err(Unknown::Failed(_)) if again => {}
                    answer => return answer.map_err(|unknown| unknown.to_string()),
                }
            }
            Err("the session was lost twice".to_owned())
        };
        let answer = tokio::time::timeout(TIMEOUT, ask).await;
        answer.unwrap_or_else(|_| {
            self.unheard.store(true, Ordering::Relaxed);
            Err("no answer in time".to_owned())
        })
    }

    async fn purge(&self, subject: &str, below: StreamSequence) {
        let stream = self.options.flow.stream();
        // What is not removed now is garbage all the same: the applier removes it with the
        // incarnation.
        if let Err(error) = trim::purge_to(&self.broker, &stream, subject, below).await {
            tracing::warn!(%error, subject, "chunks of an aborted transaction were not removed");
        }
    }

    /// The session, or a new one when it was lost.
    async fn session(&self) -> Result<Arc<Session>, String> {
        let session = self.lock().clone();
        if !session.is_closed() && !self.unheard.load(Ordering::Relaxed) {
            return Ok(session);
        }
        let session = self.options.source.session().await;
        let session = Arc::new(session.map_err(|error| error.to_string())?);
        *self.lock() = session.clone();
        self.unheard.store(false, Ordering::Relaxed);
        Ok(session)
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Arc<Session>> {
        lock(&self.session)
    }
}
