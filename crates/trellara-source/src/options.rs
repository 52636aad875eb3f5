//! What a relay knows about its source.

use trellara_envelope::FlowName;
use trellara_postgres::{ConnectError, ConnectOptions, Session};

/// Where the source is and what of it belongs to the flow.
#[derive(Debug, Clone)]
pub struct SourceOptions {
    /// How to connect, for ordinary and replication connections alike.
    pub connect: ConnectOptions,
    /// The slot's name.
    pub slot: String,
    /// The publication's name.
    pub publication: String,
    /// Whether logical messages (`pg_logical_emit_message`) are asked for; nothing depends on
    /// them (C61).
    pub messages: bool,
    /// Whether values are asked for in PostgreSQL's binary form.
    pub binary: bool,
}

impl SourceOptions {
    /// Options with the flow's default names, connections named `trellara-<flow>`, and
    /// `synchronous_commit=local` for all of our own sessions (C10).
    pub fn new(flow: &FlowName, connect: ConnectOptions) -> Self {
        Self {
            connect: connect
                .with_application_name(&format!("trellara-{flow}"))
                .with_parameter("synchronous_commit", "local"),
            slot: flow.slot(),
            publication: flow.slot(),
            messages: false,
            binary: false,
        }
    }

    /// An ordinary session on the source.
    pub async fn session(&self) -> Result<Session, ConnectError> {
        Session::connect(&self.connect).await
    }
}
