//! What a server held at an earlier time, put in the place of what it holds now: a restored backup, a
//! storage snapshot, a broker's store.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Result, ensure};
use tempfile::TempDir;
use trellara_local::{NatsServer, PostgresServer, StopMode};

/// A whole folder, with owners and rights.
fn copy(from: &Path, to: &Path) -> Result<()> {
    let done = Command::new("cp").arg("-a").args([from, to]).status()?;
    ensure!(done.success(), "cp ended with {done}");
    Ok(())
}

/// The data folder of a PostgreSQL server.
#[derive(Debug)]
pub struct KeptData {
    data: PathBuf,
    kept: PathBuf,
}

impl KeptData {
    /// Stops the server in order, copies its data folder, and starts it again.
    pub fn of(server: &mut PostgresServer) -> Result<Self> {
        let data = server.data_dir();
        let kept = data.with_extension("kept");
        server.stop(StopMode::Fast)?;
        copy(&data, &kept)?;
        server.start_again()?;
        Ok(Self { data, kept })
    }

    /// The server is what it was.
    pub fn put_back(self, server: &mut PostgresServer) -> Result<()> {
        server.stop(StopMode::Fast)?;
        std::fs::remove_dir_all(&self.data)?;
        std::fs::rename(&self.kept, &self.data)?;
        server.start_again()?;
        Ok(())
    }
}

/// The store of a broker.
#[derive(Debug)]
pub struct KeptStore {
    folder: TempDir,
}

impl KeptStore {
    /// Copies the store while the server stands still.
    pub fn of(server: &NatsServer) -> Result<Self> {
        let folder = tempfile::tempdir()?;
        server.pause()?;
        let copied = copy(server.store_dir(), &folder.path().join("store"));
        server.resume()?;
        copied?;
        Ok(Self { folder })
    }

    /// Where the copy is.
    pub fn path(&self) -> PathBuf {
        self.folder.path().join("store")
    }

    /// Kills the server, puts the copy in the place of its store, or of the part of it at `within`,
    /// and starts it.
    pub fn put_back(&self, server: &mut NatsServer, within: &Path) -> Result<()> {
        server.kill()?;
        let store = server.store_dir().join(within);
        std::fs::remove_dir_all(&store)?;
        copy(&self.path().join(within), &store)?;
        server.start_again()?;
        Ok(())
    }
}
