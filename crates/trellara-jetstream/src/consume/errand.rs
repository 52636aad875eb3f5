//! What the consumer has to find out before it can go on, kept while nobody waits for it.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::{Mutex, PoisonError};

use trellara_envelope::StreamSequence;

use super::{ConsumerOptions, position};
use crate::pull::Puller;
use crate::read::Reader;
use crate::topology;
use crate::{Broker, BrokerError};

type Running<T> = Pin<Box<dyn Future<Output = Result<T, BrokerError>> + Send>>;

/// Requests to the broker that outlive the call that began them.
///
/// The applier drops the wait for the next message every second, and an errand is several round
/// trips: begun anew with each call, it would never end over a slow connection.
pub(super) struct Errand<T> {
    /// The lock is never held across an await and never contended; it lets the consumer be shared
    /// between threads although a boxed future cannot.
    running: Mutex<Option<Running<T>>>,
}

impl<T> Errand<T> {
    pub(super) fn is_running(&mut self) -> bool {
        self.running().is_some()
    }

    pub(super) fn begin(
        &mut self,
        errand: impl Future<Output = Result<T, BrokerError>> + Send + 'static,
    ) {
        *self.running() = Some(Box::pin(errand));
    }

    pub(super) fn give_up(&mut self) {
        *self.running() = None;
    }

    /// Waits for the errand that is running, which must have been begun. Cancel safe.
    pub(super) async fn done(&mut self) -> Result<T, BrokerError> {
        let running = self.running();
        let errand = running.as_mut().expect("an errand that was begun");
        let done = errand.await;
        *running = None;
        done
    }

    fn running(&mut self) -> &mut Option<Running<T>> {
        let running = self.running.get_mut();
        running.unwrap_or_else(PoisonError::into_inner)
    }
}

impl<T> Default for Errand<T> {
    fn default() -> Self {
        Self {
            running: Mutex::new(None),
        }
    }
}

impl<T> fmt::Debug for Errand<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Errand")
    }
}

/// Where the consumer stands: all that its errands need to know.
#[derive(Debug, Clone)]
pub(super) struct Place {
    pub(super) broker: Broker,
    pub(super) options: ConsumerOptions,
    /// Sequence of the last message handed out.
    pub(super) last: StreamSequence,
}

impl Place {
    /// Moves the durable behind `last` and pulls from it over a fresh inbox, so that nothing of
    /// an older pull can come in between.
    pub(super) async fn take_up(self) -> Result<Puller, BrokerError> {
        let start = StreamSequence(self.last.0 + 1);
        self.prove_not_rewound().await?;
        position::position(&self.broker, &self.options, start).await?;
        let ConsumerOptions {
            stream,
            name,
            buffer_bytes,
            ..
        } = &self.options;
        Puller::open(&self.broker, stream, name, *buffer_bytes).await
    }

    /// A consumer placed beyond the stream's end waits there, and what is written meanwhile never
    /// comes.
    async fn prove_not_rewound(&self) -> Result<(), BrokerError> {
        let ConsumerOptions { stream, name, .. } = &self.options;
        let facts = topology::facts(&self.broker, stream).await?;
        if facts.last_sequence >= self.last {
            return Ok(());
        }
        let doing = format!("read stream {stream} as {name}");
        Err(BrokerError::rewound(
            doing,
            self.last.0,
            facts.last_sequence.0,
        ))
    }

    /// Asks the stream, not the consumer, whether something behind `last` matches the filters.
    pub(super) async fn something_waits(self) -> Result<bool, BrokerError> {
        let reader = Reader::new(&self.broker, &self.options.stream);
        let checked = async {
            self.prove_not_rewound().await?;
            let from = StreamSequence(self.last.0 + 1);
            for filter in &self.options.filters {
                if reader.next_on(filter, from).await?.is_some() {
                    return Ok(true);
                }
            }
            Ok::<bool, BrokerError>(false)
        };
        match checked.await {
            // Could not be asked: the pulls have heartbeats of their own.
            Err(error) if error.is_passing() && !error.is_rewound() => Ok(false),
            other => other,
        }
    }
}
