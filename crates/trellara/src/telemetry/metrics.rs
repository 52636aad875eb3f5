//! The metrics of the process in Prometheus' text form.
//!
//! The libraries count as they go; what is a state rather than an event (positions, lag, halts)
//! is taken from the daemons' status at the moment of the scrape, so that it can never be stale.
//! Positions appear as differences: a float holds no LSN above 2^53.

use metrics::{describe_gauge, gauge};
use metrics_exporter_prometheus::{PrometheusBuilder, PrometheusHandle};

use crate::report::DaemonReport;

/// 1, with the version as a label.
const BUILD_INFO: &str = "trellara_build_info";
/// 1 while the daemon does its job.
const READY: &str = "trellara_ready";
/// 1 with the present state as a label.
const STATE: &str = "trellara_flow_state";
/// 1 with the code as a label while halted.
const HALT_INFO: &str = "trellara_halt_info";
/// Bytes of WAL between what was received and a later stage.
const LAG_BYTES: &str = "trellara_lag_bytes";

/// The recorder of this process.
#[derive(Clone)]
pub(crate) struct Metrics {
    handle: PrometheusHandle,
}

impl Metrics {
    /// Installs the recorder; `None` when another one is there already.
    pub(crate) fn start() -> Option<Self> {
        let handle = PrometheusBuilder::new().install_recorder().ok()?;
        describe_gauge!(BUILD_INFO, "1, with the version as a label");
        describe_gauge!(READY, "1 while the daemon does its job, else 0");
        describe_gauge!(
            STATE,
            "1 for the state the daemon is in, 0 for those it was in"
        );
        describe_gauge!(HALT_INFO, "1 while the daemon is halted with this code");
        describe_gauge!(LAG_BYTES, "bytes of WAL received and not yet at this stage");
        gauge!(BUILD_INFO, "version" => env!("CARGO_PKG_VERSION")).set(1.0);
        Some(Self { handle })
    }

    /// The text, with states as they are now.
    pub(crate) fn render(&self, reports: &[DaemonReport], states: &mut States) -> String {
        for report in reports {
            states.set(report);
        }
        self.handle.run_upkeep();
        self.handle.render()
    }
}

/// Which label values were shown, so that a state that ended is shown as 0 and not as still true.
#[derive(Default)]
pub(crate) struct States {
    shown: Vec<(String, String, &'static str)>,
}

impl States {
    fn set(&mut self, report: &DaemonReport) {
        let role = report.role.clone();
        let flow = report.flow.clone();
        gauge!(READY, "flow" => flow.clone(), "component" => role.clone())
            .set(f64::from(u8::from(report.ready)));
        let halt = report.halt.as_ref().map(|halt| halt.code.clone());
        let now = [
            (STATE, "state", Some(report.state.clone())),
            (HALT_INFO, "code", halt),
        ];
        for (metric, label, value) in now {
            for (known_role, known, of) in &self.shown {
                if *of == metric && *known_role == role {
                    let off = [
                        ("flow", flow.clone()),
                        ("component", role.clone()),
                        (label, known.clone()),
                    ];
                    gauge!(metric, &off).set(0.0);
                }
            }
            let Some(value) = value else { continue };
            let on = [
                ("flow", flow.clone()),
                ("component", role.clone()),
                (label, value.clone()),
            ];
            gauge!(metric, &on).set(1.0);
            let entry = (role.clone(), value, metric);
            if !self.shown.contains(&entry) {
                self.shown.push(entry);
            }
        }
        for (stage, bytes) in report.lag_bytes() {
            gauge!(LAG_BYTES, "flow" => flow.clone(), "stage" => stage).set(bytes as f64);
        }
    }
}
