//! What tests do to the broker behind the flow's back.

use anyhow::{Context, Result, ensure};
pub use async_nats::jetstream::stream::{Config, DiscardPolicy, StorageType};
use async_nats::jetstream::{self, Context as JetStream};
use bytes::Bytes;

/// One stored message.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Stored {
    /// Its place in the stream.
    pub sequence: u64,
    /// Its subject.
    pub subject: String,
    /// Its bytes.
    pub payload: Bytes,
}

async fn context(url: &str) -> Result<JetStream> {
    Ok(jetstream::new(async_nats::connect(url).await?))
}

/// Deletes a consumer as an administrator would.
pub async fn delete_consumer(url: &str, stream: &str, consumer: &str) -> Result<()> {
    context(url)
        .await?
        .get_stream(stream)
        .await?
        .delete_consumer(consumer)
        .await?;
    Ok(())
}

/// The stream's settings; `None` when there is no such stream.
pub async fn stream_settings(url: &str, stream: &str) -> Result<Option<Config>> {
    match context(url).await?.get_stream(stream).await {
        Ok(mut stream) => Ok(Some(stream.info().await?.config.clone())),
        Err(error) if error.to_string().contains("10059") => Ok(None),
        Err(error) => Err(error.into()),
    }
}

/// Creates a stream.
pub async fn create_stream(url: &str, settings: Config) -> Result<()> {
    context(url).await?.create_stream(settings).await?;
    Ok(())
}

/// Deletes a stream with all that is in it.
pub async fn delete_stream(url: &str, stream: &str) -> Result<()> {
    context(url).await?.delete_stream(stream).await?;
    Ok(())
}

/// Raises or lowers a stream's size limit.
pub async fn set_max_bytes(url: &str, stream: &str, max_bytes: i64) -> Result<()> {
    let mut settings = stream_settings(url, stream).await?.context("no stream")?;
    settings.max_bytes = max_bytes;
    context(url).await?.update_stream(settings).await?;
    Ok(())
}

/// Removes every message on subjects that match `filter` below `sequence`.
pub async fn purge_below(url: &str, stream: &str, filter: &str, sequence: u64) -> Result<()> {
    let stream = context(url).await?.get_stream(stream).await?;
    stream.purge().filter(filter).sequence(sequence).await?;
    Ok(())
}

/// Publishes a message and waits until it is stored; its sequence.
pub async fn publish(url: &str, subject: &str, payload: Bytes) -> Result<u64> {
    let context = context(url).await?;
    let stored = context.publish(subject.to_owned(), payload).await?;
    Ok(stored.await?.sequence)
}

/// Everything in a stream, in order; sequences that were removed are left out.
pub async fn messages(url: &str, stream: &str) -> Result<Vec<Stored>> {
    let mut stream = context(url).await?.get_stream(stream).await?;
    let state = stream.info().await?.state.clone();
    let mut messages = Vec::new();
    for sequence in state.first_sequence..=state.last_sequence {
        let Ok(message) = stream.get_raw_message(sequence).await else {
            continue;
        };
        messages.push(Stored {
            sequence,
            subject: message.subject.to_string(),
            payload: message.payload,
        });
    }
    ensure!(
        messages.len() as u64 == state.messages,
        "not every message could be read"
    );
    Ok(messages)
}

/// Puts a stream of the same settings in the place of this one, with `messages` in it: what a
/// damaged or wrongly restored store looks like to the daemons. They must not be running.
pub async fn rebuild(url: &str, stream: &str, messages: &[Stored]) -> Result<()> {
    let settings = stream_settings(url, stream).await?.context("no stream")?;
    let context = context(url).await?;
    context.delete_stream(stream).await?;
    context.create_stream(settings).await?;
    for message in messages {
        let payload = message.payload.clone();
        let stored = context.publish(message.subject.clone(), payload).await?;
        let sequence = stored.await?.sequence;
        ensure!(
            sequence == message.sequence,
            "message {} became {sequence}",
            message.sequence
        );
    }
    Ok(())
}
