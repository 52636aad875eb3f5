//! The copy of what is there already, and its hand-over to the stream.
//!
//! - `handover`: under sixteen writing sessions, killed and not, with streams that are too small.
//! - `resume`: what ends a copy half-way, each by its name, and how it goes on.
//! - `indexes`: what is put off until the rows are in, and made again.
//! - `found`: what is named before the start, or in the middle without hiding the rest.
//! - `cases`: cases from the field, each a test named after its number.
//! - `types`: odd values of every type.
//! - `tables`: of a flow that runs: added, copied anew, taken out.
//! - `steps`: the same, while somebody dies behind each step.
//! - `source_loss`: a slot's snapshot read too early loses rows of the source, and ours does not.

mod cases;
mod found;
mod handover;
mod indexes;
mod resume;
mod source_loss;
mod steps;
mod tables;
mod types;

use anyhow::{Result, ensure};
use trellara_testkit::flow::Flow;
use trellara_testkit::handover::Gate;

use crate::scenario::{WITHIN, prepared, run};

/// A flow over tables that hold rows already, copied.
async fn copied(
    version: u32,
    name: &str,
    source: &[&str],
    target: &[&str],
    rows: &[&str],
    extra: &str,
) -> Result<Flow> {
    let mut flow = prepared(version, name, source, target, extra).await?;
    run(&flow.source_admin, rows).await?;
    flow.start().await?;
    flow.copied(WITHIN).await?;
    Ok(flow)
}

/// Begins a prepared flow; its first part stands in front of the gate.
async fn stopped(flow: &mut Flow) -> Result<Gate> {
    flow.setup().await?;
    let gate = Gate::shut(&flow.target_admin).await?;
    flow.start_relay()?;
    flow.start_applier()?;
    ensure!(gate.waited_at(WITHIN).await?, "{}", flow.logs());
    Ok(gate)
}
