//! Answers to requests and publishes, matched by reply subject.
//!
//! async-nats keeps the entry of an answer that never comes for ever and says nothing when the
//! connection breaks. Here every waiting request has an end: its answer, its deadline, or the
//! loss of the connection, which leaves all of them in doubt at once.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use async_nats::Message;
use tokio::sync::oneshot;
use tokio::time::Instant;

/// Why an answer did not come.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum NoAnswer {
    Timeout,
    Disconnected,
    /// The server refused the subject of the request, or of our answers.
    Denied {
        subject: String,
    },
}

enum Answer {
    Reply(Box<Message>),
    Denied { subject: String },
}

struct Pending {
    subject: String,
    answer: oneshot::Sender<Answer>,
}

/// Requests that wait for an answer.
pub(crate) struct Replies {
    waiting: Mutex<HashMap<u64, Pending>>,
    next: AtomicU64,
    inbox_denied: AtomicBool,
}

/// One request that waits.
pub(crate) struct Waiting {
    id: u64,
    replies: Arc<Replies>,
    answer: oneshot::Receiver<Answer>,
}

impl Replies {
    pub(crate) fn new() -> Arc<Self> {
        Arc::new(Replies {
            waiting: Mutex::new(HashMap::new()),
            next: AtomicU64::new(1),
            inbox_denied: AtomicBool::new(false),
        })
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, HashMap<u64, Pending>> {
        // Nothing below can panic half-way through a change of the map.
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Registers a request on `subject`; the number is the last token of its reply subject.
    pub(crate) fn register(self: &Arc<Self>, subject: &str) -> Waiting {
        let id = self.next.fetch_add(1, Ordering::Relaxed);
        let (sender, receiver) = oneshot::channel();
        let pending = Pending {
            subject: subject.to_owned(),
            answer: sender,
        };
        self.lock().insert(id, pending);
        Waiting {
            id,
            replies: Arc::clone(self),
            answer: receiver,
        }
    }

    /// Hands an arrived message to whoever waits for it.
    pub(crate) fn deliver(&self, message: Message) {
        let id = message.subject.rsplit('.').next().map(str::parse);
        let Some(Ok(id)) = id else { return };
        if let Some(pending) = self.lock().remove(&id) {
            // The other side may have gone; then nobody wants the answer.
            let _ = pending.answer.send(Answer::Reply(Box::new(message)));
        }
    }

    /// The connection is lost: nothing that was asked on it will be answered.
    pub(crate) fn connection_lost(&self) {
        self.lock().clear();
    }

    /// The server refused a publish on `subject`: whoever asked there gets no other answer.
    pub(crate) fn publish_denied(&self, subject: &str) {
        let mut waiting = self.lock();
        let ids: Vec<u64> = waiting
            .iter()
            .filter(|(_, pending)| pending.subject == subject)
            .map(|(id, _)| *id)
            .collect();
        for pending in ids.iter().filter_map(|id| waiting.remove(id)) {
            let subject = subject.to_owned();
            let _ = pending.answer.send(Answer::Denied { subject });
        }
    }

    /// The server refused our answers' subject: no request can ever be answered.
    pub(crate) fn inbox_denied(&self, subject: &str) {
        self.inbox_denied.store(true, Ordering::Release);
        for (_, pending) in self.lock().drain() {
            let subject = subject.to_owned();
            let _ = pending.answer.send(Answer::Denied { subject });
        }
    }

    pub(crate) fn is_inbox_denied(&self) -> bool {
        self.inbox_denied.load(Ordering::Acquire)
    }

    #[cfg(test)]
    pub(crate) fn len(&self) -> usize {
        self.lock().len()
    }
}

impl Waiting {
    pub(crate) fn id(&self) -> u64 {
        self.id
    }

    /// Waits for the answer until `deadline`.
    pub(crate) async fn until(mut self, deadline: Instant) -> Result<Message, NoAnswer> {
        match tokio::time::timeout_at(deadline, &mut self.answer).await {
            Ok(Ok(Answer::Reply(message))) => Ok(*message),
            Ok(Ok(Answer::Denied { subject })) => Err(NoAnswer::Denied { subject }),
            Ok(Err(_)) => Err(NoAnswer::Disconnected),
            Err(_) => Err(NoAnswer::Timeout),
        }
    }
}

impl Drop for Waiting {
    fn drop(&mut self) {
        self.replies.lock().remove(&self.id);
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[tokio::test]
    async fn a_lost_connection_ends_every_wait_at_once() {
        let replies = Replies::new();
        let waiting = replies.register("a");
        replies.connection_lost();
        let far = Instant::now() + Duration::from_secs(3600);
        assert_eq!(waiting.until(far).await.err(), Some(NoAnswer::Disconnected));
    }

    #[tokio::test]
    async fn a_refused_subject_ends_only_its_own_waits() {
        let replies = Replies::new();
        let (mine, other) = (replies.register("a"), replies.register("b"));
        replies.publish_denied("a");
        let now = Instant::now();
        let denied = NoAnswer::Denied {
            subject: "a".to_owned(),
        };
        assert_eq!(mine.until(now).await.err(), Some(denied));
        assert_eq!(other.until(now).await.err(), Some(NoAnswer::Timeout));
    }

    #[test]
    fn a_dropped_wait_leaves_nothing_behind() {
        let replies = Replies::new();
        drop(replies.register("a"));
        assert_eq!(replies.len(), 0);
    }
}
