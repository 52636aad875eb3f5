//! What the registered target wants, the newest word of it.

use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::sync::watch;
use trellara_envelope::{CopyOrder, FlowName, LaneEpoch};
use trellara_jetstream::{Broker, topology};

/// Orders come once a second; an older one says nothing about now.
const FRESH: Duration = Duration::from_secs(10);
/// A subscription that could not be had is asked for again after this long.
const PAUSE: Duration = Duration::from_secs(1);

/// An order, and when it came.
#[derive(Debug, Clone)]
pub(super) struct Heard {
    pub(super) order: Arc<CopyOrder>,
    at: Instant,
}

impl Heard {
    pub(super) fn is_fresh(&self) -> bool {
        self.at.elapsed() < FRESH
    }

    /// Whether nothing was heard for so long.
    pub(super) fn is_older(&self, than: Duration) -> bool {
        self.at.elapsed() > than
    }
}

/// Listens for ever.
pub(super) async fn listen(broker: Broker, flow: FlowName, say: watch::Sender<Option<Heard>>) {
    let subject = flow.copy_order_subject();
    let mut target = None;
    let mut epoch = LaneEpoch::default();
    loop {
        let mut subscription = match broker.subscribe_core(&subject).await {
            Ok(subscription) => subscription,
            Err(error) => {
                tracing::warn!(%error, "copy orders cannot be heard");
                tokio::time::sleep(PAUSE).await;
                continue;
            }
        };
        while let Some(message) = subscription.next().await {
            let Ok(order) = CopyOrder::decode(&message.payload) else {
                tracing::warn!("a message that is no copy order was left aside");
                continue;
            };
            if order.flow != flow {
                continue;
            }
            // The transaction stream says whose word counts (C24). It is asked whenever another
            // target speaks, for the registration may have changed.
            if target.as_deref() != Some(order.target.as_str()) {
                let facts = topology::facts(&broker, &flow.stream()).await;
                target = facts
                    .ok()
                    .and_then(|facts| facts.target().map(str::to_owned));
                epoch = LaneEpoch::default();
                if target.as_deref() != Some(order.target.as_str()) {
                    tracing::warn!(
                        target = order.target,
                        "a target that is not registered orders a copy"
                    );
                    continue;
                }
            }
            // Of two appliers of one target the one with the lower epoch is over. A target that was
            // restored has a lower one than before, and then nobody speaks under the higher.
            if order.epoch < epoch && say.borrow().as_ref().is_some_and(Heard::is_fresh) {
                continue;
            }
            epoch = order.epoch;
            say.send_replace(Some(Heard {
                order: Arc::new(order),
                at: Instant::now(),
            }));
        }
    }
}
