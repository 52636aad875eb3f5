//! The loop that acts: connects, proves its position, applies, acknowledges, trims; and takes
//! everything up anew after a fault.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use tokio_util::sync::CancellationToken;
use trellara_envelope::Halt;
use trellara_jetstream::Broker;

use crate::attempt::Attempt;
use crate::backfill::Restorer;
use crate::cache::SharedCache;
use crate::metric;
use crate::options::{ApplierOptions, HaltPolicy};
use crate::pulse::Pulse;
use crate::session::TargetSession;
use crate::status::{ApplierState, ApplierStatus};
use crate::trouble::{Cure, Trouble};

/// First wait after a passing fault; doubled each time up to [`RETRY_MAX`].
const RETRY_MIN: Duration = Duration::from_millis(100);
/// Longest wait after a passing fault.
const RETRY_MAX: Duration = Duration::from_secs(5);
/// First and longest wait before a halt is probed again.
const PROBE: (Duration, Duration) = (Duration::from_secs(2), Duration::from_secs(30));
/// The same where the target takes no writes. The jitter halves it at most: 5 to 30 seconds.
const PROBE_SLOWLY: (Duration, Duration) = (Duration::from_secs(10), Duration::from_secs(30));

/// Applies a lane until `cancel` is triggered.
///
/// Passing faults are taken up anew for ever. A halt is shown in `status`; under
/// [`HaltPolicy::Stay`] those that a change outside can cure are probed with back-off and the
/// others wait for `cancel`, under [`HaltPolicy::Exit`] the halt is returned.
///
/// # Errors
/// The halt, under [`HaltPolicy::Exit`], and always when the lane is held by another applier and
/// waiting was not wanted.
pub async fn run(
    options: ApplierOptions,
    broker: Broker,
    cancel: CancellationToken,
    status: Arc<ApplierStatus>,
) -> Result<(), Halt> {
    let instance = random_uuid();
    let cache = SharedCache::new(options.dedup_memory, options.dedup_window);
    let mut backoff = Backoff::new(RETRY_MIN, RETRY_MAX);
    let mut probe = Backoff::new(PROBE.0, PROBE.1);
    let mut slowly = Backoff::new(PROBE_SLOWLY.0, PROBE_SLOWLY.1);
    let tried = AtomicBool::new(false);
    let restorer = Arc::new(Restorer::start(options.clone(), Arc::clone(&status)));
    loop {
        let before = status.progress();
        let ended = attempt(
            &options,
            &broker,
            &cancel,
            &status,
            (&instance, cache.clone(), &tried),
            &restorer,
        )
        .await;
        if status.progress() != before {
            backoff.reset();
            probe.reset();
            slowly.reset();
        }
        let wait = match ended {
            Trouble::Cancelled => {
                status.set_state(ApplierState::Stopped);
                return Ok(());
            }
            Trouble::Passing(reason) => {
                tracing::warn!(flow = %options.flow, error = %reason, "retrying");
                status.count_retry(&options.flow);
                status.set_state(ApplierState::Retrying { reason });
                backoff.next()
            }
            Trouble::Disturbed { reason, sqlstate } => {
                tracing::error!(
                    flow = %options.flow, error = %reason, sqlstate,
                    "somebody ends our work on the target; retrying"
                );
                status.count_retry(&options.flow);
                metric::disturbed(&options.flow, &sqlstate);
                status.set_state(ApplierState::Retrying { reason });
                backoff.next()
            }
            Trouble::Halted { halt, cure } => {
                announce(&options, &status, &halt, cure);
                let must_leave = halt.code == trellara_envelope::HaltCode::Fenced;
                if options.halt == HaltPolicy::Exit || must_leave {
                    return Err(halt);
                }
                match cure {
                    Cure::Probe => probe.next(),
                    Cure::ProbeSlowly => slowly.next(),
                    // The next attempt stands still in front of it, and serves whoever decides.
                    Cure::Desk => backoff.next(),
                    Cure::Operator => {
                        cancel.cancelled().await;
                        continue;
                    }
                }
            }
        };
        tokio::select! {
            () = cancel.cancelled() => {}
            () = tokio::time::sleep(wait) => {}
        }
    }
}

/// One attempt. A shutdown lets the target transaction in flight end, within its limit.
async fn attempt(
    options: &ApplierOptions,
    broker: &Broker,
    cancel: &CancellationToken,
    status: &Arc<ApplierStatus>,
    who: (&str, SharedCache, &AtomicBool),
    restorer: &Arc<Restorer>,
) -> Trouble {
    if cancel.is_cancelled() {
        return Trouble::Cancelled;
    }
    let work = async {
        let (target, watch) = TargetSession::connect(options).await?;
        let mut pulse = Pulse::connect(options, who.0).await?;
        status.set_target_session(&target.session);
        let watched = async {
            let beginning = Attempt::begin(target, options, broker, cancel, status, who, restorer);
            // Nothing of it has to end well, and filling the cache may take a while.
            let mut attempt = tokio::select! {
                begun = Box::pin(beginning) => begun?,
                () = cancel.cancelled() => return Err(Trouble::Cancelled),
            };
            Box::pin(attempt.work()).await
        };
        tokio::select! {
            ended = watched => ended,
            lost = watch.lost(status) => Err(lost),
            lost = pulse.lost() => Err(lost),
        }
    };
    let overdue = async {
        cancel.cancelled().await;
        tokio::time::sleep(options.shutdown_timeout).await;
    };
    tokio::select! {
        ended = work => match ended {
            Err(trouble) => trouble,
            Ok(never) => match never {},
        },
        () = overdue => Trouble::Cancelled,
    }
}

fn announce(options: &ApplierOptions, status: &ApplierStatus, halt: &Halt, cure: Cure) {
    let probes = match cure {
        Cure::Probe | Cure::ProbeSlowly => true,
        Cure::Desk | Cure::Operator => false,
    };
    let probing = probes && options.halt == HaltPolicy::Stay;
    let known = matches!(
        status.snapshot().last_error,
        Some(error) if error == halt.to_string()
    );
    if !known {
        tracing::error!(
            flow = %options.flow, code = %halt.code, error = %halt.reason, hint = %halt.hint,
            "halted"
        );
    }
    status.halted(&options.flow, halt.clone(), probing);
}

/// Doubling waits with jitter.
struct Backoff {
    min: Duration,
    max: Duration,
    next: Duration,
}

impl Backoff {
    fn new(min: Duration, max: Duration) -> Self {
        Self {
            min,
            max,
            next: min,
        }
    }

    fn reset(&mut self) {
        self.next = self.min;
    }

    fn next(&mut self) -> Duration {
        let wait = self.next;
        self.next = (wait * 2).min(self.max);
        wait.mul_f64(rand::random_range(0.5..1.0))
    }
}

/// A random UUID (version 4) in its text form.
pub(crate) fn random_uuid() -> String {
    let mut bytes: [u8; 16] = rand::random();
    bytes[6] = (bytes[6] & 0x0f) | 0x40;
    bytes[8] = (bytes[8] & 0x3f) | 0x80;
    let hex: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
    format!(
        "{}-{}-{}-{}-{}",
        &hex[..8],
        &hex[8..12],
        &hex[12..16],
        &hex[16..20],
        &hex[20..]
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn back_off_doubles_up_to_its_limit_and_never_waits_longer() {
        let mut backoff = Backoff::new(Duration::from_millis(100), Duration::from_secs(5));
        let waits: Vec<Duration> = (0..10).map(|_| backoff.next()).collect();
        assert!(waits[0] <= Duration::from_millis(100));
        assert!(waits[0] >= Duration::from_millis(50));
        assert!(waits[9] >= Duration::from_millis(2500));
        assert!(waits.iter().all(|wait| *wait <= Duration::from_secs(5)));
        backoff.reset();
        assert!(backoff.next() <= Duration::from_millis(100));
    }

    #[test]
    fn an_instance_has_a_uuid_of_version_four() {
        let uuid = random_uuid();
        assert_eq!(uuid.len(), 36);
        assert_eq!(uuid.as_bytes()[14], b'4');
        assert_ne!(uuid, random_uuid());
    }
}
