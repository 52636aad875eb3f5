//! Pauses between attempts to mend a reading that broke.

use std::time::Duration;

use crate::Broker;

/// Attempts in a row after which the failure is shown to the caller.
const ATTEMPTS: u32 = 5;
/// Pause before the second attempt; doubles with each further one.
const FIRST_PAUSE: Duration = Duration::from_millis(100);
/// Longest pause.
const MAX_PAUSE: Duration = Duration::from_secs(5);

/// Counts attempts since something last went well, so that mending never spins.
#[derive(Debug, Default)]
pub(crate) struct Mending {
    attempts: u32,
}

impl Mending {
    /// Something went well.
    pub(crate) fn worked(&mut self) {
        self.attempts = 0;
    }

    /// Waits for a connection, and for longer the more attempts were in vain.
    pub(crate) async fn pause(&mut self, broker: &Broker) {
        if self.attempts > 0 {
            let pause = FIRST_PAUSE * 2_u32.pow((self.attempts - 1).min(6));
            tokio::time::sleep(pause.min(MAX_PAUSE)).await;
        }
        self.attempts = self.attempts.saturating_add(1);
        broker.connected().await;
    }

    /// True when the caller should hear of the next failure.
    pub(crate) fn exhausted(&self) -> bool {
        self.attempts >= ATTEMPTS
    }
}
