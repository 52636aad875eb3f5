//! The run loop.

use std::sync::Arc;

use tokio_util::sync::CancellationToken;
use trellara_envelope::{Halt, HaltCode};
use trellara_jetstream::Broker;

use crate::{RelayOptions, RelayStatus};

/// Runs the relay until it is cancelled (`Ok`) or must halt.
pub async fn run(
    _options: RelayOptions,
    _broker: Broker,
    cancel: CancellationToken,
    _status: Arc<RelayStatus>,
) -> Result<(), Halt> {
    if cancel.is_cancelled() {
        return Ok(());
    }
    std::future::ready(()).await;
    Err(Halt::new(HaltCode::Config, "not available yet", ""))
}
