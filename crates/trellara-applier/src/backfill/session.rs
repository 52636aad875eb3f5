//! A session of the loader's own on the target: for one part at a time, or for the books.

use std::sync::Arc;
use std::time::Duration;

use tokio_postgres::Client;
use trellara_postgres::Session;

use crate::options::ApplierOptions;
use crate::session::{FITTING, fit};
use crate::status::ApplierStatus;
use crate::trouble::Trouble;
use crate::watch::Watch;

/// A backend that waits for a lock notices that its client is gone: a part whose process died
/// otherwise keeps the next one from the lane for as long as the lock lasts. Not every system can
/// watch a connection so.
const NOTICE: &str = "SET client_connection_check_interval = '5s'";

/// A session set up like the one that applies.
pub(super) struct LoadSession {
    session: Arc<Session>,
    watch: Box<Watch>,
    /// Nothing is open on it: it may end in peace.
    at_rest: bool,
}

impl LoadSession {
    pub(super) async fn connect(options: &ApplierOptions) -> Result<Self, Trouble> {
        let name = format!("trellara applier {} copy", options.flow);
        let target = options.target.clone().with_application_name(&name);
        let session = Arc::new(Session::connect(&target).await?);
        let fitting = async {
            let fitted = fit(&session.client, options).await?;
            // Refused where the system cannot: then only the kernel's keepalive is left.
            let noticed = session.client.batch_execute(NOTICE).await;
            if let Err(error) = noticed {
                tracing::debug!(error = %trellara_postgres::fault(&error), "clients are not checked");
            }
            Ok::<_, Trouble>(fitted)
        };
        let Ok(fitted) = tokio::time::timeout(FITTING, fitting).await else {
            session.abandon();
            return Err(Trouble::passing(
                "the target took a session of the copy and fell silent",
            ));
        };
        let (backend, ..) = fitted?;
        let watch = Box::new(Watch::new(Arc::clone(&session), backend, options));
        Ok(Self {
            session,
            watch,
            at_rest: true,
        })
    }

    pub(super) fn is_closed(&self) -> bool {
        self.session.is_closed()
    }

    pub(super) fn client(&self) -> &Client {
        &self.session.client
    }

    /// Works on it, and is not left alone with a session that has fallen silent.
    pub(super) async fn watched<T, E>(
        &self,
        status: &ApplierStatus,
        work: impl Future<Output = Result<T, E>>,
    ) -> Result<Result<T, E>, Trouble> {
        tokio::select! {
            biased;
            done = work => Ok(done),
            lost = self.watch.lost(status) => Err(lost),
        }
    }

    /// Something is open on it now, or no more.
    pub(super) fn rests(&mut self, at_rest: bool) {
        self.at_rest = at_rest;
    }
}

impl Drop for LoadSession {
    fn drop(&mut self) {
        if !self.at_rest {
            // Its backend may wait for a lock, and we for its answer.
            self.session.abandon();
        }
    }
}

/// Idle sessions are closed after this long.
pub(super) const IDLE: Duration = Duration::from_secs(30);
