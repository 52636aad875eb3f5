//! What tests do to the broker behind the flow's back.

use anyhow::Result;

/// Deletes a consumer as an administrator would.
pub async fn delete_consumer(url: &str, stream: &str, consumer: &str) -> Result<()> {
    let client = async_nats::connect(url).await?;
    let jetstream = async_nats::jetstream::new(client);
    jetstream
        .get_stream(stream)
        .await?
        .delete_consumer(consumer)
        .await?;
    Ok(())
}
