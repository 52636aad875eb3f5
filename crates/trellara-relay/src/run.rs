//! For ever: one incarnation after another, with a pause that grows while nothing comes of it.

use std::sync::Arc;
use std::time::Duration;

use backon::{BackoffBuilder, ExponentialBuilder};
use tokio_util::sync::CancellationToken;
use trellara_envelope::{Halt, Incarnation};
use trellara_jetstream::Broker;
use trellara_source::stream::Streaming;

use crate::incarnation::{self, End};
use crate::metrics::Metrics;
use crate::{RelayOptions, RelayState, RelayStatus, copy, standby};

/// The pause before another attempt.
const PAUSE_MIN: Duration = Duration::from_millis(100);
/// Faults that last are probed this often.
const PAUSE_MAX: Duration = Duration::from_secs(5);

/// Runs the relay until it is cancelled (`Ok`) or must halt. Faults that pass are waited out for
/// ever and named in `status`.
///
/// # Errors
/// What only an operator, or a change outside, can end. Running again after that is safe: the
/// facts are read anew.
pub async fn run(
    options: RelayOptions,
    broker: Broker,
    cancel: CancellationToken,
    status: Arc<RelayStatus>,
) -> Result<(), Halt> {
    let metrics = Metrics::new(&options.flow);
    // It ends with this function, however that ends.
    let _copy = copy::spawn(
        options.clone(),
        broker.clone(),
        status.clone(),
        status.serving(),
    );
    let mut known = Incarnation(0);
    let mut streaming = Streaming::On;
    let mut pauses = pauses();
    loop {
        let attempt = incarnation::run(
            &options, &broker, known, streaming, &cancel, &status, &metrics,
        );
        let end = Box::pin(attempt).await;
        status.serve(None);
        let (reason, next) = match end {
            End::Cancelled => {
                status.update(|status| status.state = RelayState::Stopped);
                return Ok(());
            }
            End::Halt(halt) => {
                tracing::error!(
                    code = %halt.code, reason = %halt.reason, hint = %halt.hint, "the relay halted"
                );
                status.update(|status| {
                    status.state = RelayState::Halted;
                    status.waiting_for = String::new();
                    status.halt = Some(halt.clone());
                });
                metrics.halted(halt.code);
                return Err(halt);
            }
            End::Taken(_) if options.standby => {
                standby::wait(&options, &cancel, &status).await;
                pauses = self::pauses();
                // Not at once, should the slot be free and yet not to be had.
                tokio::time::sleep(PAUSE_MIN).await;
                continue;
            }
            End::Taken(reason) => (reason, None),
            End::Again {
                reason,
                began,
                streaming: next,
            } => {
                if let Some(began) = began {
                    known = began;
                    pauses = self::pauses();
                }
                (reason, next)
            }
        };
        // An attempt that came to nothing changes nothing: with streaming on again, open
        // transactions would only be sent up to their budget and given up once more.
        streaming = next.unwrap_or(streaming);
        let pause = pauses.next().unwrap_or(PAUSE_MAX);
        tracing::warn!(reason, ?pause, "the relay begins again");
        status.update(|status| {
            status.state = RelayState::Waiting;
            status.waiting_for.clone_from(&reason);
            status.last_error = reason;
            status.halt = None;
            status.restarts += 1;
        });
        metrics.restarted();
        tokio::select! {
            () = cancel.cancelled() => {}
            () = tokio::time::sleep(pause) => {}
        }
    }
}

fn pauses() -> impl Iterator<Item = Duration> {
    ExponentialBuilder::default()
        .with_min_delay(PAUSE_MIN)
        .with_max_delay(PAUSE_MAX)
        .with_jitter()
        .without_max_times()
        .build()
}
