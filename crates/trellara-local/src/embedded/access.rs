//! The file from which other commands connect to an embedded broker.

use std::path::{Path, PathBuf};

use rand::Rng;
use rand::distr::Alphanumeric;
use serde_json::{Value, json};

use crate::error::{LocalError, io};
use crate::probe::write_private;

const FILE: &str = "broker.json";
const USER: &str = "trellara";
/// 190 bits: nobody guesses it, and it needs no quoting anywhere.
const PASSWORD_LENGTH: usize = 32;

/// How to reach an embedded broker.
#[derive(Clone, PartialEq, Eq)]
pub struct Access {
    pub(super) port: u16,
    pub(super) monitor_port: u16,
    pub(super) password: String,
    pub(super) pid: Option<u32>,
    pub(super) starts: u64,
}

impl std::fmt::Debug for Access {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Access")
            .field("port", &self.port)
            .finish_non_exhaustive()
    }
}

impl Access {
    /// What the file of a store says; `None` when there is no such store yet. The broker may be
    /// down all the same: connecting tells.
    pub fn read(store_dir: &Path) -> Result<Option<Self>, LocalError> {
        let path = Self::path(store_dir);
        match std::fs::read_to_string(&path) {
            Ok(text) => match parse(&text) {
                Some(access) => Ok(Some(access)),
                None => Err(LocalError::Store(format!(
                    "{} is damaged; stop the broker and delete that file: a new one is made",
                    path.display()
                ))),
            },
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(io("read", &path, error)),
        }
    }

    /// `nats://127.0.0.1:port`, without user and password.
    #[must_use]
    pub fn url(&self) -> String {
        format!("nats://127.0.0.1:{}", self.port)
    }

    /// `http://127.0.0.1:port` of the monitoring endpoint.
    #[must_use]
    pub fn monitor_url(&self) -> String {
        format!("http://127.0.0.1:{}", self.monitor_port)
    }

    /// The user to connect as.
    #[must_use]
    pub fn user(&self) -> &'static str {
        USER
    }

    /// The user's password: letters and digits.
    #[must_use]
    pub fn password(&self) -> &str {
        &self.password
    }

    /// How often a broker was started on this store under supervision.
    #[must_use]
    pub fn starts(&self) -> u64 {
        self.starts
    }

    /// For a store that has no file yet.
    pub(super) fn invent() -> Self {
        let random = rand::rng().sample_iter(&Alphanumeric);
        let password = random.take(PASSWORD_LENGTH).map(char::from).collect();
        Self {
            port: 0,
            monitor_port: 0,
            password,
            pid: None,
            starts: 0,
        }
    }

    pub(super) fn write(&self, store_dir: &Path) -> Result<(), LocalError> {
        let value = json!({
            "port": self.port,
            "monitor_port": self.monitor_port,
            "user": USER,
            "password": self.password,
            "pid": self.pid,
            "starts": self.starts,
        });
        write_private(&Self::path(store_dir), &format!("{value:#}\n"))
    }

    fn path(store_dir: &Path) -> PathBuf {
        store_dir.join(FILE)
    }
}

fn parse(text: &str) -> Option<Access> {
    let value: Value = serde_json::from_str(text).ok()?;
    let port = |name: &str| {
        value[name]
            .as_u64()
            .and_then(|port| u16::try_from(port).ok())
    };
    let password = value["password"].as_str()?;
    // It goes into a configuration file between quotes.
    if password.is_empty() || !password.bytes().all(|byte| byte.is_ascii_alphanumeric()) {
        return None;
    }
    Some(Access {
        port: port("port")?,
        monitor_port: port("monitor_port")?,
        password: password.to_owned(),
        pid: value["pid"]
            .as_u64()
            .and_then(|pid| u32::try_from(pid).ok()),
        starts: value["starts"].as_u64()?,
    })
}
