//! A disk that is full: a tablespace on a file system of a few megabytes.

use std::io::{BufRead, BufReader};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use anyhow::{Context, Result, ensure};
use tempfile::TempDir;
use trellara_testkit::ground::{Ground, GroundOptions};

use super::{halted, went_on};
use crate::scenario::{run, value};

const MEGABYTES: u32 = 4;

/// A tmpfs of a test's own. Root mounts it; anybody else has it in a name space of a child process,
/// where mounting is everybody's right, and comes to it through that process's folder.
pub(crate) struct SmallDisk {
    folder: TempDir,
    holder: Option<Child>,
}

impl SmallDisk {
    fn mount(owner: &Path) -> Result<Self> {
        Self::mount_of(MEGABYTES, owner)
    }

    /// Of that many megabytes, for whoever owns `owner`.
    pub(crate) fn mount_of(megabytes: u32, owner: &Path) -> Result<Self> {
        let owner = std::fs::metadata(owner)?;
        let folder = tempfile::Builder::new()
            .prefix("trellara-small-")
            .tempdir()?;
        let path = folder.path().to_str().context("a plain path")?.to_owned();
        let options = |uid, gid| format!("size={megabytes}m,mode=0700,uid={uid},gid={gid}");
        if nix::unistd::Uid::effective().is_root() {
            let done = Command::new("mount")
                .args([
                    "-t",
                    "tmpfs",
                    "-o",
                    &options(owner.uid(), owner.gid()),
                    "none",
                    &path,
                ])
                .output()?;
            ensure!(done.status.success(), "mounting a tmpfs: {done:?}");
            return Ok(Self {
                folder,
                holder: None,
            });
        }
        let script = format!(
            "mount -t tmpfs -o {} none {path} && echo mounted && exec sleep 3600",
            options(0, 0)
        );
        let mut holder = Command::new("unshare")
            .args(["--user", "--map-root-user", "--mount", "sh", "-c", &script])
            .stdout(Stdio::piped())
            .spawn()?;
        let said = holder.stdout.take().context("its output")?;
        let mut line = String::new();
        BufReader::new(said).read_line(&mut line)?;
        ensure!(
            line.trim() == "mounted",
            "a tmpfs in a name space of its own"
        );
        Ok(Self {
            folder,
            holder: Some(holder),
        })
    }

    /// Makes room.
    pub(crate) fn grow(&self, megabytes: u32) -> Result<()> {
        let size = format!("remount,size={megabytes}m");
        let path = self
            .folder
            .path()
            .to_str()
            .context("a plain path")?
            .to_owned();
        let mut command = match &self.holder {
            None => Command::new("mount"),
            Some(holder) => {
                let mut inside = Command::new("nsenter");
                let pid = holder.id().to_string();
                inside.args([
                    "--target",
                    &pid,
                    "--user",
                    "--mount",
                    "--preserve-credentials",
                    "mount",
                ]);
                inside
            }
        };
        let done = command.args(["-o", &size, &path]).output()?;
        ensure!(done.status.success(), "growing a tmpfs: {done:?}");
        Ok(())
    }

    /// Where the server finds it.
    pub(crate) fn path(&self) -> PathBuf {
        let Some(holder) = &self.holder else {
            return self.folder.path().to_owned();
        };
        let root = PathBuf::from(format!("/proc/{}/root", holder.id()));
        root.join(self.folder.path().strip_prefix("/").expect("absolute"))
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        match &mut self.holder {
            Some(holder) => {
                _ = holder.kill();
                _ = holder.wait();
            }
            None => {
                _ = Command::new("umount")
                    .arg("-l")
                    .arg(self.folder.path())
                    .output();
            }
        }
    }
}

#[tokio::test]
async fn f103_a_full_disk_is_waited_for_until_there_is_room() -> Result<()> {
    let ground = Ground::start(&GroundOptions::version(18))?;
    let disk = SmallDisk::mount(&ground.target.data_dir())?;
    run(
        &ground.target.url("postgres"),
        &[&format!(
            "CREATE TABLESPACE small LOCATION '{}'",
            disk.path().display()
        )],
    )
    .await?;
    let table = "CREATE TABLE t (id int PRIMARY KEY, v text)";
    let small = "CREATE TABLE t (id int PRIMARY KEY, v text) TABLESPACE small; \
                 ALTER TABLE t ALTER v SET STORAGE PLAIN; \
                 CREATE TABLE ballast (v text) TABLESPACE small; ALTER TABLE ballast ALTER v SET STORAGE PLAIN; \
                 INSERT INTO ballast SELECT repeat('x', 7000) FROM generate_series(1, 350)";
    let extra = "quarantine: {policy: hold_dependents}";
    let mut flow = ground.flow("full_disk", table, small, extra).await?;
    flow.start().await?;
    run(&flow.source_admin, &["INSERT INTO t VALUES (0, 'before')"]).await?;
    flow.caught_up(super::PATIENCE).await?;
    let more = "INSERT INTO t SELECT g, repeat('x', 7000) FROM generate_series(1, 300) g";
    run(
        &flow.source_admin,
        &[more, "INSERT INTO t VALUES (1000, 'behind')"],
    )
    .await?;
    let halt = halted(&flow, "CONFIG").await?;
    let reason = halt["reason"].as_str().unwrap_or_default();
    ensure!(reason.contains("No space left on device"), "{halt}");
    ensure!(value(&flow.target_admin, "SELECT count(*) FROM t").await? == "1");
    run(&flow.target_admin, &["DROP TABLE ballast"]).await?;
    went_on(&flow).await?;
    drop(flow);
    drop(ground);
    drop(disk);
    Ok(())
}
