//! What tests do to the broker behind the flow's back.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
pub use async_nats::jetstream::stream::{Config, DiscardPolicy, StorageType};
use async_nats::jetstream::{self, Context as JetStream};
use bytes::Bytes;
use futures_util::StreamExt;
use serde_json::{Value, json};

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

/// Asks JetStream's API as an administrator's tool would.
async fn api(url: &str, endpoint: &str, body: Value) -> Result<Value> {
    let client = async_nats::connect(url).await?;
    let subject = format!("$JS.API.{endpoint}");
    let answer = client.request(subject, body.to_string().into()).await?;
    let answer: Value = serde_json::from_slice(&answer.payload)?;
    let error = &answer["error"];
    ensure!(error.is_null(), "{endpoint}: {error}");
    Ok(answer)
}

/// Makes the server send again what a consumer has not acknowledged for this long.
pub async fn set_ack_wait(url: &str, stream: &str, consumer: &str, wait: Duration) -> Result<()> {
    let info = api(
        url,
        &format!("CONSUMER.INFO.{stream}.{consumer}"),
        json!({}),
    )
    .await?;
    let mut config = info["config"].clone();
    config["ack_wait"] = json!(wait.as_nanos() as u64);
    let body = json!({"stream_name": stream, "config": config, "action": "update"});
    let endpoint = format!("CONSUMER.CREATE.{stream}.{consumer}");
    let updated = api(url, &endpoint, body).await?;
    let is = &updated["config"]["ack_wait"];
    ensure!(*is == config["ack_wait"], "ack_wait is {is}");
    Ok(())
}

/// How many messages that a consumer has not acknowledged were sent to it more than once.
pub async fn redelivered(url: &str, stream: &str, consumer: &str) -> Result<u64> {
    let info = api(
        url,
        &format!("CONSUMER.INFO.{stream}.{consumer}"),
        json!({}),
    )
    .await?;
    info["num_redelivered"].as_u64().context("a number")
}

/// Sequence up to which a consumer has acknowledged everything.
pub async fn acknowledged(url: &str, stream: &str, consumer: &str) -> Result<u64> {
    let info = api(
        url,
        &format!("CONSUMER.INFO.{stream}.{consumer}"),
        json!({}),
    )
    .await?;
    info["ack_floor"]["stream_seq"].as_u64().context("a number")
}

/// Sequence of the first message on a subject; `None` when there is none.
pub async fn first_on(url: &str, stream: &str, subject: &str) -> Result<Option<u64>> {
    let body = json!({"seq": 1, "next_by_subj": subject});
    match api(url, &format!("STREAM.MSG.GET.{stream}"), body).await {
        Ok(found) => Ok(found["message"]["seq"].as_u64()),
        Err(error) if error.to_string().contains("10037") => Ok(None),
        Err(error) => Err(error),
    }
}

/// Sequence of the last message in a stream.
pub async fn last_sequence(url: &str, stream: &str) -> Result<u64> {
    let info = api(url, &format!("STREAM.INFO.{stream}"), json!({})).await?;
    info["state"]["last_seq"].as_u64().context("a number")
}

/// The subjects that match a filter and have messages.
pub async fn subjects(url: &str, stream: &str, filter: &str) -> Result<Vec<String>> {
    let body = json!({"subjects_filter": filter});
    let info = api(url, &format!("STREAM.INFO.{stream}"), body).await?;
    let subjects = info["state"]["subjects"].as_object();
    Ok(subjects.map_or_else(Vec::new, |subjects| subjects.keys().cloned().collect()))
}

/// Sets how long the broker remembers message ids.
pub async fn set_duplicate_window(url: &str, stream: &str, window: Duration) -> Result<()> {
    let mut settings = stream_settings(url, stream).await?.context("no stream")?;
    settings.duplicate_window = window;
    context(url).await?.update_stream(settings).await?;
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

/// Changes a stream's settings.
pub async fn update_stream(url: &str, settings: Config) -> Result<()> {
    context(url).await?.update_stream(settings).await?;
    Ok(())
}

/// The name of the server that leads a stream of several copies; `None` while there is no leader.
pub async fn leader(url: &str, stream: &str) -> Result<Option<String>> {
    let info = api(url, &format!("STREAM.INFO.{stream}"), json!({})).await?;
    Ok(info["cluster"]["leader"].as_str().map(str::to_owned))
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

/// The next `count` messages on a subject that no stream captures, within half a minute.
pub async fn listen(url: &str, subject: &str, count: usize) -> Result<Vec<Bytes>> {
    let client = async_nats::connect(url).await?;
    let messages = client.subscribe(subject.to_owned()).await?.take(count);
    let payloads = messages.map(|message| message.payload).collect();
    let limit = Duration::from_secs(30);
    let payloads: Vec<Bytes> = tokio::time::timeout(limit, payloads).await?;
    ensure!(payloads.len() == count, "the connection ended");
    Ok(payloads)
}

/// Everything in a stream, in order; sequences that were removed are left out. Read again while
/// daemons remove messages in the meantime.
pub async fn messages(url: &str, stream: &str) -> Result<Vec<Stored>> {
    const TRIES: u32 = 50;
    let mut stream = context(url).await?.get_stream(stream).await?;
    for _ in 0..TRIES {
        let before = stream.info().await?.state.clone();
        let mut messages = Vec::new();
        for sequence in before.first_sequence..=before.last_sequence {
            let Ok(message) = stream.get_raw_message(sequence).await else {
                continue;
            };
            messages.push(Stored {
                sequence,
                subject: message.subject.to_string(),
                payload: message.payload,
            });
        }
        if messages.len() as u64 == before.messages {
            return Ok(messages);
        }
        let after = &stream.info().await?.state;
        let added = after.last_sequence - before.last_sequence;
        ensure!(
            after.messages < before.messages + added,
            "not every message could be read"
        );
    }
    anyhow::bail!("messages were removed all the time while they were read")
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
