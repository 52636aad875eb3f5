//! What the relay is told about the target (C27).

use bytes::Bytes;
use trellara_envelope::{Lane, LaneEpoch, PositionReport};
use trellara_jetstream::Broker;

use crate::checkpoint::Checkpoint;
use crate::options::ApplierOptions;

/// Sends reports of one lane's durable position on the flow's core subject. A report that is lost
/// is replaced by the next one a second later, so that failures are only logged.
#[derive(Debug, Clone)]
pub(crate) struct Reporter {
    broker: Broker,
    subject: String,
    template: Template,
}

#[derive(Debug, Clone)]
struct Template {
    flow: trellara_envelope::FlowName,
    lane: Lane,
    target: String,
    epoch: LaneEpoch,
}

impl Reporter {
    pub(crate) fn new(
        broker: &Broker,
        options: &ApplierOptions,
        registration: &str,
        epoch: LaneEpoch,
    ) -> Self {
        Self {
            broker: broker.clone(),
            subject: options.flow.position_subject(),
            template: Template {
                flow: options.flow.clone(),
                lane: options.lane,
                target: registration.to_owned(),
                epoch,
            },
        }
    }

    /// Reports a position whose commit is durable.
    pub(crate) async fn send(&self, durable: &Checkpoint) {
        let report = report(&self.template, durable).encode();
        if let Err(error) = self
            .broker
            .publish_core(&self.subject, Bytes::from(report))
            .await
        {
            tracing::debug!(%error, "a position report was not sent");
        }
    }
}

fn report(template: &Template, durable: &Checkpoint) -> PositionReport {
    let transport = &durable.transport;
    PositionReport {
        flow: template.flow.clone(),
        lane: template.lane,
        source: durable.source,
        target: template.target.clone(),
        epoch: template.epoch,
        incarnation: transport.incarnation,
        sequence: transport.sequence,
        ordinal: transport.ordinal,
        digest: transport.digest,
        end_lsn: durable.end_lsn,
        mac: Vec::new(),
    }
}
