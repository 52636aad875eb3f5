//! Readiness follows what the daemons say, and what they do not get done.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use trellara_envelope::{Halt, HaltCode};

use super::*;
use crate::daemon::endpoint;
use crate::http;
use crate::report::HaltReport;

/// No test waits longer for anything.
const PATIENCE: Duration = Duration::from_secs(20);

fn health(
    stall_timeout: Duration,
    report: impl Fn() -> DaemonReport + Send + Sync + 'static,
) -> Health {
    let component = Component {
        role: "relay",
        start: Box::new(|_| Box::pin(async { Ok(()) })),
        report: Box::new(report),
    };
    Health::new([component].into(), stall_timeout)
}

fn streaming(window_bytes: u64) -> DaemonReport {
    DaemonReport {
        role: "relay".to_owned(),
        flow: "shop".to_owned(),
        state: "streaming".to_owned(),
        ready: true,
        details: [("window_bytes".to_owned(), window_bytes.to_string())].into(),
        ..DaemonReport::default()
    }
}

/// Looks until the only daemon is as wanted.
fn look_until(health: &Health, ready: bool) -> DaemonReport {
    let began = Instant::now();
    loop {
        let report = health.reports().remove(0);
        if report.ready == ready {
            return report;
        }
        assert!(began.elapsed() < PATIENCE, "it stays {report:?}");
        std::thread::yield_now();
    }
}

#[test]
fn unacknowledged_frames_that_do_not_move_are_a_stall_until_they_do() {
    let sequence = std::sync::Arc::new(AtomicU64::new(1));
    let moved = sequence.clone();
    let health = health(Duration::from_millis(20), move || DaemonReport {
        stream_sequence: sequence.load(Relaxed),
        ..streaming(10)
    });
    let stalled = look_until(&health, false);
    let reason = stalled.reason.expect("a reason");
    assert!(reason.starts_with("no progress for"), "{reason}");
    moved.store(2, Relaxed);
    assert!(health.reports()[0].ready, "it moved");
}

#[test]
fn a_running_applier_whose_work_does_not_move_is_a_stall_that_says_what_holds_it_up() {
    let seconds = std::sync::Arc::new(AtomicU64::new(29));
    let still = seconds.clone();
    let health = health(Duration::from_secs(30), move || DaemonReport {
        role: "applier".to_owned(),
        state: "running".to_owned(),
        ready: true,
        reason: Some("applying 1 transaction; its session 7 waits".to_owned()),
        waiting_seconds: Some(still.load(Relaxed) as f64),
        ..DaemonReport::default()
    });
    assert!(health.reports()[0].ready, "not yet");
    seconds.store(31, Relaxed);
    let stalled = health.reports().remove(0);
    assert!(!stalled.ready);
    assert_eq!(
        stalled.reason.as_deref(),
        Some("no progress for 31 s: applying 1 transaction; its session 7 waits")
    );
    seconds.store(0, Relaxed);
    assert!(health.reports()[0].ready, "it moved");
}

#[test]
fn an_idle_daemon_is_no_stall() {
    let health = health(Duration::from_millis(1), || streaming(0));
    let began = Instant::now();
    while began.elapsed() < Duration::from_millis(50) {
        assert!(health.reports()[0].ready);
        std::thread::yield_now();
    }
}

#[tokio::test]
async fn readyz_is_red_on_a_halt_and_livez_does_not_care() {
    let halt = Halt::new(HaltCode::Gap, "frame 7 is missing", "look at it");
    let health = health(Duration::from_secs(30), move || DaemonReport {
        state: "halted".to_owned(),
        ready: false,
        halt: Some(HaltReport::from(&halt)),
        ..streaming(0)
    });
    let anywhere = "127.0.0.1:0".parse().expect("an address");
    let address = endpoint::start(anywhere, Arc::new(health)).await;
    let address = address.expect("a port is free").to_string();
    assert_ne!(address, "127.0.0.1:0", "the real port is told");
    let refused = http::get(&address, "/readyz").await.expect_err("red");
    assert!(refused.contains("503"), "{refused}");
    assert_eq!(
        http::get(&address, "/livez").await.as_deref(),
        Ok("alive\n")
    );
    let status = http::get(&address, "/status").await.expect("status");
    assert!(status.contains("frame 7 is missing"), "{status}");
    let metrics = http::get(&address, "/metrics").await.expect("metrics");
    for line in [
        "trellara_ready{flow=\"shop\",component=\"relay\"} 0",
        "trellara_halt_info{flow=\"shop\",component=\"relay\",code=\"GAP\"} 1",
        "trellara_flow_state{flow=\"shop\",component=\"relay\",state=\"halted\"} 1",
    ] {
        assert!(metrics.contains(line), "{line} is not in {metrics}");
    }
}
