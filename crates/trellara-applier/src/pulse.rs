//! Signs of life for a standby to look at.
//!
//! An applier that was stopped, or whose machine is gone, keeps its sessions on the target until
//! the kernel or somebody else ends them, and its lane with them (C34). What its working session
//! does says nothing: it may be busy for minutes, or idle because nothing comes. So every applier
//! has one more session in which it does nothing but ask for nothing, once a second; the target
//! writes down when, by its own clock (`pg_stat_activity.state_change`), and a standby sees when
//! that stands still. Nothing is written: no dead row, no transaction.

use std::time::Duration;

use tokio::task::JoinHandle;
use trellara_envelope::FlowName;
use trellara_postgres::Session;

use crate::options::ApplierOptions;
use crate::trouble::Trouble;

/// Between two beats.
const BEAT: Duration = Duration::from_secs(1);

/// The application name of the session; the beginning of it, where `instance` is empty.
pub(crate) fn name(flow: &FlowName, instance: &str) -> String {
    let short = instance.get(..8).unwrap_or(instance);
    format!("trellara applier {flow} pulse {short}")
}

/// A beating pulse; it ends when it is dropped.
pub(crate) struct Pulse {
    beating: JoinHandle<Trouble>,
}

impl Pulse {
    /// Connects. `instance` is the number by which the lane's row knows us.
    pub(crate) async fn connect(options: &ApplierOptions, instance: &str) -> Result<Self, Trouble> {
        let name = name(&options.flow, instance);
        let target = options.target.clone().with_application_name(&name);
        let session = Session::connect(&target).await?;
        // A task of its own: whoever applies may compute for longer than a beat.
        let beating = tokio::spawn(async move {
            loop {
                if let Err(error) = session.client.batch_execute("").await {
                    return error.into();
                }
                tokio::time::sleep(BEAT).await;
            }
        });
        Ok(Self { beating })
    }

    /// Resolves when the session is lost. Without it a standby would take us for dead, so the lane
    /// is given up and taken anew.
    pub(crate) async fn lost(&mut self) -> Trouble {
        match (&mut self.beating).await {
            Ok(trouble) => trouble,
            Err(_) => Trouble::passing("the pulse has stopped"),
        }
    }
}

impl Drop for Pulse {
    fn drop(&mut self) {
        self.beating.abort();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_name_fits_what_the_server_keeps_and_begins_alike() {
        let flow: FlowName = "abcdefghijklmnopqrstuvw".parse().expect("the longest name");
        let whole = name(&flow, "01234567-89ab-4def-8123-456789abcdef");
        assert!(whole.len() < 64, "{whole}");
        assert_eq!(whole, format!("{}01234567", name(&flow, "")));
    }
}
