//! The sessions that parts are copied in, as many at once as the source mixes in the stream.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::sync::mpsc;
use tokio::task::JoinSet;
use trellara_envelope::CopyTable;

use super::books::CopyKey;
use super::load::PartKey;
use super::loader::analyze;
use super::session::LoadSession;
use super::worker::{self, Common, Part, PartEnd, Piece, WAITING_PIECES};
use crate::trouble::Trouble;

/// A piece that waits for its part's session.
pub(super) struct Pending {
    pub(super) key: PartKey,
    /// Whether its part begins with it.
    pub(super) first: bool,
    pub(super) piece: Piece,
}

struct Worker {
    pieces: Option<mpsc::Sender<Piece>>,
    /// Everything of its part was handed over.
    whole: bool,
}

/// What happened to the parts.
pub(super) enum Turn {
    Ended(Box<PartEnd>),
    /// The pending piece was handed over, or its part is over.
    Delivered,
}

enum Done {
    Part(Box<PartEnd>),
    Analyzed(Option<LoadSession>),
}

/// Sessions at work and at rest.
pub(super) struct Pool {
    limit: usize,
    working: JoinSet<Done>,
    parts: HashMap<PartKey, Worker>,
    idle: Vec<(LoadSession, Instant)>,
}

impl Pool {
    pub(super) fn new(limit: usize) -> Self {
        Self {
            limit: limit.max(1),
            working: JoinSet::new(),
            parts: HashMap::new(),
            idle: Vec::new(),
        }
    }

    pub(super) fn has(&self, key: &PartKey) -> bool {
        self.parts.contains_key(key)
    }

    /// Whether a part is worked on; of one table, or of any.
    pub(super) fn works_on(&self, table: Option<&CopyTable>) -> bool {
        let mut parts = self.parts.keys();
        parts.any(|key| table.is_none_or(|table| key.table == *table))
    }

    /// Whether one more part may begin. Beyond the limit one may when all others wait for chunks:
    /// those stand behind this one's in the stream.
    pub(super) fn may_start(&self) -> bool {
        self.parts.len() < self.limit || self.parts.values().all(|worker| !worker.whole)
    }

    pub(super) fn start(
        &mut self,
        common: &Arc<Common>,
        key: &PartKey,
        (copy, columns): (CopyKey, Vec<String>),
    ) {
        let (sender, pieces) = mpsc::channel(WAITING_PIECES);
        let part = Part {
            key: key.clone(),
            copy,
            columns: columns.into(),
            pieces,
        };
        let session = self.idle_session();
        let common = Arc::clone(common);
        self.working
            .spawn(async move { Done::Part(Box::new(worker::run(common, part, session).await)) });
        let worker = Worker {
            pieces: Some(sender),
            whole: false,
        };
        self.parts.insert(key.clone(), worker);
    }

    pub(super) fn analyze(&mut self, common: &Arc<Common>, table: &CopyTable) {
        let (common, table) = (Arc::clone(common), table.clone());
        let session = self.idle_session();
        self.working
            .spawn(async move { Done::Analyzed(analyze(common, table, session).await) });
    }

    /// What happens next: a part comes to its end, or the pending piece is taken by its part. Waits
    /// for ever while there is neither. Cancel safe.
    pub(super) async fn turn(&mut self, pending: &mut Option<Pending>) -> Result<Turn, Trouble> {
        let Self {
            working,
            parts,
            idle,
            ..
        } = self;
        tokio::select! {
            biased;
            ended = ended(working, idle) => {
                let ended = ended?;
                parts.remove(&ended.key);
                Ok(Turn::Ended(ended))
            }
            () = deliver(parts, pending) => Ok(Turn::Delivered),
        }
    }

    /// The next part that comes to its end. Cancel safe.
    pub(super) async fn ended(&mut self) -> Result<Box<PartEnd>, Trouble> {
        let ended = ended(&mut self.working, &mut self.idle).await?;
        self.parts.remove(&ended.key);
        Ok(ended)
    }

    /// The parts end without being whole; those that are go on.
    pub(super) fn drop_parts(&mut self, table: Option<&CopyTable>) {
        for (key, worker) in &mut self.parts {
            if table.is_none_or(|table| key.table == *table) {
                worker.pieces = None;
            }
        }
    }

    pub(super) fn take_back(&mut self, session: Option<LoadSession>) {
        if let Some(session) = session {
            self.idle.push((session, Instant::now()));
        }
    }

    pub(super) fn close_idle(&mut self) {
        self.idle.clear();
    }

    pub(super) fn close_idle_longer_than(&mut self, limit: Duration) {
        self.idle.retain(|(_, since)| since.elapsed() < limit);
    }

    fn idle_session(&mut self) -> Option<LoadSession> {
        loop {
            let (session, _) = self.idle.pop()?;
            if !session.is_closed() {
                return Some(session);
            }
        }
    }
}

/// Hands the pending piece over as soon as its part takes it.
async fn deliver(parts: &mut HashMap<PartKey, Worker>, pending: &mut Option<Pending>) {
    let waiting = pending.as_ref();
    let worker = waiting.and_then(|pending| parts.get_mut(&pending.key));
    let Some(worker) = worker else {
        return std::future::pending().await;
    };
    let Some(sender) = &worker.pieces else {
        return std::future::pending().await;
    };
    let permit = sender.reserve().await;
    let Some(Pending { piece, .. }) = pending.take() else {
        return;
    };
    worker.whole |= matches!(piece, Piece::Whole(_));
    // Otherwise the part is over, and says so by itself.
    if let Ok(permit) = permit {
        permit.send(piece);
    }
}

async fn ended(
    working: &mut JoinSet<Done>,
    idle: &mut Vec<(LoadSession, Instant)>,
) -> Result<Box<PartEnd>, Trouble> {
    loop {
        match working.join_next().await {
            None => return std::future::pending().await,
            Some(Ok(Done::Part(ended))) => return Ok(ended),
            Some(Ok(Done::Analyzed(session))) => {
                idle.extend(session.map(|session| (session, Instant::now())));
            }
            Some(Err(error)) => {
                return Err(Trouble::passing(format!("a part of the copy: {error}")));
            }
        }
    }
}
