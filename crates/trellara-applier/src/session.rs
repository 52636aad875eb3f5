//! A session on the target that may apply: connected, set up, and sure of what it talks to.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::mpsc;
use tokio_postgres::Client;
use trellara_envelope::{FlowName, Halt, HaltCode};
use trellara_postgres::sqlstate::ErrorClass;
use trellara_postgres::{Notification, Session, fault, quote};

use crate::execute::APPLY_SETTINGS;
use crate::options::{ApplierOptions, RoleReplica};
use crate::schema::{self, TargetIdentity};
use crate::trouble::Trouble;
use crate::watch::{Backend, Watch};

/// For the statements that make a new session fit: none of them waits for anybody, and no watch is
/// over it yet.
pub(crate) const FITTING: Duration = Duration::from_secs(30);

/// Time limits of other people end our transactions in the middle: off. A dead peer is found by
/// the kernel's keepalive within about half a minute instead of two hours (C34). Names that this
/// server's version does not know are left out.
const LIMITS: &str = "\
SELECT set_config(s.name, v.value, false) \
  FROM (VALUES ('statement_timeout', '0'), ('lock_timeout', '0'), ('transaction_timeout', '0'), \
               ('idle_session_timeout', '0'), \
               ('idle_in_transaction_session_timeout', '10min'), \
               ('tcp_keepalives_idle', '10'), ('tcp_keepalives_interval', '5'), \
               ('tcp_keepalives_count', '3'), ('tcp_user_timeout', '30s'), \
               ('default_transaction_isolation', 'read committed'), \
               ('default_transaction_deferrable', 'off')) AS v (name, value) \
  JOIN pg_catalog.pg_settings AS s ON s.name = v.name";

/// Commits of ours are durable when they are answered, whatever the role's default says (A2).
const DURABLE: &str = "\
SELECT set_config('synchronous_commit', 'on', false) \
 WHERE current_setting('synchronous_commit') IN ('off', 'local')";

/// A session that may apply.
pub(crate) struct TargetSession {
    pub(crate) session: Arc<Session>,
    pub(crate) identity: TargetIdentity,
    /// Whether it runs under the replica role.
    pub(crate) replica: bool,
    pub(crate) notifications: mpsc::Receiver<Notification>,
}

impl TargetSession {
    pub(crate) fn client(&self) -> &Client {
        &self.session.client
    }

    /// Connects and makes the session fit for applying; the lane is not taken yet. Nothing may wait
    /// for the session without its watch.
    pub(crate) async fn connect(options: &ApplierOptions) -> Result<(Self, Watch), Trouble> {
        let target = options
            .target
            .clone()
            .with_application_name(&format!("trellara applier {}", options.flow));
        let mut session = Session::connect(&target).await?;
        let notifications = session
            .take_notifications()
            .ok_or_else(|| Trouble::passing("the session gave no notifications"))?;
        let session = Arc::new(session);
        let fitting = async {
            let fitted = fit(&session.client, options).await?;
            let channel = quote::identifier(&channel(&options.flow));
            let listen = format!("LISTEN {channel}");
            session.client.batch_execute(&listen).await?;
            Ok::<_, Trouble>(fitted)
        };
        let Ok(fitted) = tokio::time::timeout(FITTING, fitting).await else {
            session.abandon();
            return Err(Trouble::passing(
                "the target took our session and fell silent",
            ));
        };
        let (backend, identity, replica) = fitted?;
        let watch = Watch::new(Arc::clone(&session), backend, options);
        let fitted = Self {
            session,
            identity,
            replica,
            notifications,
        };
        Ok((fitted, watch))
    }
}

/// Makes a new session fit for applying; says which backend it has, what the target is, and whether
/// it runs under the replica role.
pub(crate) async fn fit(
    client: &Client,
    options: &ApplierOptions,
) -> Result<(Backend, TargetIdentity, bool), Trouble> {
    let backend = Backend::of(client).await?;
    for (name, value) in APPLY_SETTINGS {
        client
            .execute("SELECT set_config($1, $2, false)", &[name, value])
            .await?;
    }
    client.batch_execute(LIMITS).await?;
    client.batch_execute(DURABLE).await?;
    let identity = schema::identity(client).await?;
    let replica = take_replica_role(client, options.role_replica).await?;
    Ok((backend, identity, replica))
}

/// The channel on which a waiter asks for the position to be written down at once: payload
/// [`CHECKPOINT_NOW`].
pub fn channel(flow: &FlowName) -> String {
    format!("trellara_{flow}")
}

/// Payload of a notification on [`channel`]: write down pending progress at once instead of
/// within ten seconds. Asked for again every few seconds by whoever still waits.
pub const CHECKPOINT_NOW: &str = "checkpoint";

async fn take_replica_role(client: &Client, wanted: RoleReplica) -> Result<bool, Trouble> {
    if wanted == RoleReplica::Off {
        return Ok(false);
    }
    let set = client
        .batch_execute("SET session_replication_role = replica")
        .await;
    let Err(error) = set else {
        return Ok(true);
    };
    let fault = fault(&error);
    if fault.class != ErrorClass::Configuration {
        return Err(fault.into());
    }
    if wanted == RoleReplica::Require {
        return Err(Trouble::probe(Halt::new(
            HaltCode::Rights,
            "the role may not set session_replication_role".to_owned(),
            "GRANT SET ON PARAMETER session_replication_role TO the apply role",
        )));
    }
    Ok(false)
}
