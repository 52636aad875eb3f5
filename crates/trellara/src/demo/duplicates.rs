//! Duplicates on purpose, on the demo's own broker.

use trellara_envelope::FlowName;
use trellara_jetstream::{Broker, NatsOptions};
use trellara_relay::rehearsal::{Repeated, publish_again as again};

use crate::exit::{Exit, Failure};

/// Bundles published again, at most.
const MOST_BUNDLES: usize = 25;

/// Publishes the last stored bundles again. The relay must be down: the stream has one writer.
pub(super) async fn publish_again(url: &str, flow: &FlowName) -> Result<Repeated, Failure> {
    let options = NatsOptions {
        url: url.to_owned(),
        client_name: "trellara demo".to_owned(),
        ..NatsOptions::default()
    };
    let broker = Broker::connect(&options).await?;
    let repeated = again(&broker, flow, MOST_BUNDLES)
        .await
        .map_err(|error| Failure::from_error(Exit::Unexpected, &error))?;
    broker.close().await;
    Ok(repeated)
}
