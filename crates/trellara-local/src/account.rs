//! Which account a PostgreSQL server runs under.
//!
//! PostgreSQL refuses to run as root, on purpose. Root in a container is the usual case in CI, so
//! as root we start it as `postgres`, or `nobody` where there is no such account; everybody else
//! starts it as themselves.

use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use nix::unistd::{Gid, Uid, User};

use crate::error::{LocalError, io};

/// The account that owns a PostgreSQL server's files and processes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Account {
    uid: Uid,
    gid: Gid,
    /// We are root and have to become it.
    switch: bool,
}

impl Account {
    /// The account for PostgreSQL on this machine.
    pub(crate) fn for_postgres() -> Result<Self, LocalError> {
        let (uid, gid) = (Uid::effective(), Gid::effective());
        if !uid.is_root() {
            return Ok(Self {
                uid,
                gid,
                switch: false,
            });
        }
        let user = ["postgres", "nobody"]
            .into_iter()
            .find_map(|name| User::from_name(name).ok().flatten())
            .filter(|user| !user.uid.is_root());
        match user {
            Some(user) => Ok(Self {
                uid: user.uid,
                gid: user.gid,
                switch: true,
            }),
            None => Err(LocalError::Missing {
                program: "an account for PostgreSQL".to_owned(),
                looked: "postgres, nobody".to_owned(),
                hint: "run as an ordinary user, or add the account `postgres`".to_owned(),
            }),
        }
    }

    /// A short name that tells accounts apart in file names.
    pub(crate) fn id(self) -> u32 {
        self.uid.as_raw()
    }

    /// A command that will run as this account.
    pub(crate) fn command(self, program: &Path) -> Command {
        let mut command = Command::new(program);
        if self.switch {
            // The standard library also drops root's supplementary groups here.
            command.uid(self.uid.as_raw()).gid(self.gid.as_raw());
        }
        command
    }

    /// Makes the account the owner of a file or folder that we made.
    pub(crate) fn own(self, path: &Path) -> Result<(), LocalError> {
        if self.switch {
            nix::unistd::chown(path, Some(self.uid), Some(self.gid))
                .map_err(|errno| io("give away", path, errno.into()))?;
        }
        Ok(())
    }

    /// Whether the account can walk down to `folder`: root's own folders are often closed.
    pub(crate) fn reaches(self, folder: &Path) -> bool {
        folder.ancestors().all(|ancestor| {
            std::fs::metadata(ancestor).is_ok_and(|meta| {
                let mode = meta.permissions().mode();
                let bit = if meta.uid() == self.uid.as_raw() {
                    0o100
                } else if meta.gid() == self.gid.as_raw() {
                    0o010
                } else {
                    0o001
                };
                mode & bit != 0
            })
        })
    }

    /// A folder for temporary data that the account can reach.
    pub(crate) fn temporary_folder(self) -> PathBuf {
        let preferred = std::env::temp_dir();
        std::iter::once(preferred.clone())
            .chain(["/tmp", "/var/tmp", "/dev/shm"].map(PathBuf::from))
            .find(|folder| folder.is_dir() && self.reaches(folder))
            .unwrap_or(preferred)
    }
}
