//! What the server's HTTP monitor says about durability and room.

use crate::ServerVersion;

/// Reads `sync_always` from the body of `/varz`: true when every write is fsynced before it is
/// acknowledged, `None` when the body is not what a NATS server with JetStream answers.
///
/// `sync_interval` beside it keeps saying two minutes even then, and `sync_always` is absent when
/// it is off.
pub fn sync_always(varz: &str) -> Option<bool> {
    let varz: serde_json::Value = serde_json::from_str(varz).ok()?;
    let config = varz.get("jetstream")?.get("config")?;
    let always = config
        .get("sync_always")
        .and_then(serde_json::Value::as_bool);
    Some(always.unwrap_or(false))
}

/// Reads the server's version from the body of `/varz`; `None` when it does not say one.
pub fn version(varz: &str) -> Option<ServerVersion> {
    let varz: serde_json::Value = serde_json::from_str(varz).ok()?;
    varz.get("version")?.as_str().map(ServerVersion::parse)
}

/// What a server's files may take up.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ServerStorage {
    /// Most that the streams on it may promise, in bytes.
    pub limit: u64,
    /// What they promise.
    pub promised: u64,
}

/// Reads the room for files from the body of `/jsz`; `None` when it does not say one.
pub fn storage(jsz: &str) -> Option<ServerStorage> {
    let jsz: serde_json::Value = serde_json::from_str(jsz).ok()?;
    Some(ServerStorage {
        limit: jsz.get("config")?.get("max_storage")?.as_u64()?,
        promised: jsz.get("reserved_storage")?.as_u64()?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn absent_means_off_and_no_jetstream_means_unknown() {
        let on = r#"{"jetstream":{"config":{"sync_interval":120000000000,"sync_always":true}}}"#;
        let off = r#"{"jetstream":{"config":{"sync_interval":120000000000}}}"#;
        assert_eq!(sync_always(on), Some(true));
        assert_eq!(sync_always(off), Some(false));
        assert_eq!(sync_always(r#"{"jetstream":{}}"#), None);
        assert_eq!(sync_always("<html>"), None);
    }

    #[test]
    fn the_version_is_read_where_it_is_said() {
        assert_eq!(
            version(r#"{"version":"2.10.26"}"#),
            Some(ServerVersion::new(2, 10, 26))
        );
        assert_eq!(version("{}"), None);
        assert_eq!(version("<html>"), None);
    }

    #[test]
    fn room_is_read_where_it_is_said() {
        let jsz = r#"{"config":{"max_storage":100},"storage":1,"reserved_storage":40}"#;
        let (limit, promised) = (100, 40);
        assert_eq!(storage(jsz), Some(ServerStorage { limit, promised }));
        assert_eq!(storage(r#"{"config":{}}"#), None);
        assert_eq!(storage("<html>"), None);
    }
}
