//! Why a round ends before it is through.

use std::sync::{Mutex, PoisonError};

use tokio_util::sync::CancellationToken;

/// Ends a round: what was not looked at yet is not comparable, for the reason given.
#[derive(Debug, Default)]
pub struct Stop {
    token: CancellationToken,
    why: Mutex<Option<(String, String)>>,
}

impl Stop {
    /// Stops, for this reason and with this hint; the first one counts.
    pub fn now(&self, reason: impl Into<String>, hint: impl Into<String>) {
        let mut why = self.why.lock().unwrap_or_else(PoisonError::into_inner);
        why.get_or_insert_with(|| (reason.into(), hint.into()));
        self.token.cancel();
    }

    /// Whether it was stopped.
    pub fn is_stopped(&self) -> bool {
        self.token.is_cancelled()
    }

    /// Resolves when it is stopped.
    pub async fn stopped(&self) {
        self.token.cancelled().await;
    }

    pub(super) fn token(&self) -> &CancellationToken {
        &self.token
    }

    /// Why, and what to do about it.
    pub fn reason(&self) -> (String, String) {
        let why = self.why.lock().unwrap_or_else(PoisonError::into_inner);
        why.clone()
            .unwrap_or_else(|| ("it was not looked at".to_owned(), String::new()))
    }
}
