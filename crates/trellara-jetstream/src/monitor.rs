//! What the server's HTTP monitor says about durability.

/// Reads `sync_always` from the body of `/varz`: true when every write is fsynced before it is
/// acknowledged, `None` when the body is not what a NATS server with JetStream answers.
pub fn sync_always(varz: &str) -> Option<bool> {
    let varz: serde_json::Value = serde_json::from_str(varz).ok()?;
    let config = varz.get("jetstream")?.get("config")?;
    Some(
        config
            .get("sync_always")
            .and_then(serde_json::Value::as_bool)
            .unwrap_or(false),
    )
}
