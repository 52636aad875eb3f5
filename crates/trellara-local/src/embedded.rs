//! The broker that `trellara run` brings along: one nats-server per store, on loopback, fsync
//! before every acknowledgement, restarted when it dies.
//!
//! The store's folder (0700) holds `broker.json` (0600) with port and password: the other commands
//! connect from it, and a restart keeps both, so that clients find their broker again. One process
//! supervises a store at a time, by a lock on the folder. A broker left over by a supervisor that
//! was killed is found by the process id in that file and ended before a new one starts: two
//! brokers on one store would destroy it.

mod access;
mod log;
mod program;
mod supervisor;

use std::path::PathBuf;
use std::time::Duration;

pub use access::Access;
pub use program::Search;

use crate::LocalError;
use supervisor::Supervisor;

/// What broker to run.
#[derive(Clone, Debug)]
pub struct EmbeddedOptions {
    /// The store's folder; made if it is not there, with mode 0700.
    pub store_dir: PathBuf,
    /// Where the program is.
    pub search: Search,
    /// Largest message, bytes.
    pub max_payload: usize,
    /// Longest wait for the first answer. A large store is read before the broker answers.
    pub start_limit: Duration,
}

impl EmbeddedOptions {
    /// 1 MiB messages (ours are at most 512 KiB) and five minutes to read the store.
    #[must_use]
    pub fn new(store_dir: PathBuf, search: Search) -> Self {
        Self {
            store_dir,
            search,
            max_payload: 1 << 20,
            start_limit: Duration::from_secs(300),
        }
    }
}

/// A supervised broker. Dropping it stops the broker in an orderly way.
#[derive(Debug)]
pub struct EmbeddedBroker {
    supervisor: Supervisor,
    access: Access,
}

impl EmbeddedBroker {
    /// Starts the broker of a store and returns when it answers; from then on a thread keeps it
    /// running. Fails when another process supervises this store ([`LocalError::StoreInUse`]).
    pub fn start(options: &EmbeddedOptions) -> Result<Self, LocalError> {
        let program = options.search.find()?;
        let (supervisor, access) = Supervisor::start(options, program)?;
        Ok(Self { supervisor, access })
    }

    /// How to connect. Stays as it is for the life of this broker, through its restarts.
    #[must_use]
    pub fn access(&self) -> &Access {
        &self.access
    }

    /// Whether this store was there before this start with the same password: it is then not
    /// thrown away with the container or the session (rule C28).
    #[must_use]
    pub fn store_survived_a_restart(&self) -> bool {
        self.access.starts() > 1
    }

    /// Process id, while it runs.
    #[must_use]
    pub fn pid(&self) -> Option<u32> {
        self.supervisor.pid()
    }

    /// How often it died and was started again.
    #[must_use]
    pub fn restarts(&self) -> u64 {
        self.supervisor.restarts()
    }

    /// Stops it in an orderly way (within 30 s, then by force).
    pub fn stop(mut self) -> Result<(), LocalError> {
        self.supervisor.stop()
    }
}
