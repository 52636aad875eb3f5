//! Duplicates on purpose, on the demo's own broker, in the two ways that happen by themselves: the
//! broker delivers again, and a relay that lost its memory publishes again.

use trellara_envelope::{Body, FlowName, Frame, Lane, StreamSequence};
use trellara_jetstream::consume::move_back;
use trellara_jetstream::read::Reader;
use trellara_jetstream::{Broker, NatsOptions};
use trellara_relay::rehearsal::{Repeated, publish_again as again};

use crate::exit::{Exit, Failure};

/// Bundles published again, at most.
const MOST_BUNDLES: usize = 25;
/// Stream sequences by which the consumer is moved back.
const BACK: u64 = 50;
/// The applier's consumer.
const CONSUMER: &str = "applier";

async fn connect(url: &str) -> Result<Broker, Failure> {
    let options = NatsOptions {
        url: url.to_owned(),
        client_name: "trellara demo".to_owned(),
        ..NatsOptions::default()
    };
    Ok(Broker::connect(&options).await?)
}

/// Publishes the last stored bundles again. The relay must be down: the stream has one writer.
pub(super) async fn publish_again(url: &str, flow: &FlowName) -> Result<Repeated, Failure> {
    let broker = connect(url).await?;
    let repeated = again(&broker, flow, MOST_BUNDLES)
        .await
        .map_err(|error| Failure::from_error(Exit::Unexpected, &error))?;
    broker.close().await;
    Ok(repeated)
}

/// Moves the running applier's consumer back from `at`, where the applier stands; how many
/// transactions it will be given again.
pub(super) async fn deliver_again(
    url: &str,
    flow: &FlowName,
    at: StreamSequence,
) -> Result<u64, Failure> {
    let broker = connect(url).await?;
    let to = StreamSequence(at.0.saturating_sub(BACK).max(1));
    let subject = flow.transactions_subject(Lane(0));
    let reader = Reader::new(&broker, &flow.stream());
    let mut transactions = 0;
    let mut from = to;
    while let Some(message) = reader.next_on(&subject, from).await? {
        if message.sequence > at {
            break;
        }
        let frame = Frame::decode(&message.payload)
            .map_err(|error| Failure::from_error(Exit::Bug, &error))?;
        transactions += match frame.body {
            Body::Bundle(entries) => entries.len() as u64,
            Body::Manifest(_) => 1,
            _ => 0,
        };
        from = message.sequence.next();
    }
    move_back(&broker, &flow.stream(), CONSUMER, to).await?;
    broker.close().await;
    Ok(transactions)
}
