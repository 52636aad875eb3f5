//! A fresh cluster in a fraction of `initdb`'s time.
//!
//! `initdb` runs once per version and account; each server starts from a copy. A copy has the
//! system identifier of its template, and Trellara tells histories apart by exactly that number,
//! so every copy is given a new one.

use std::fs::{self, DirBuilder, File};
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::LocalError;
use crate::account::Account;
use crate::binaries;
use crate::error::{io, run};

/// Superuser of every cluster made here.
pub(crate) const SUPERUSER: &str = "postgres";

/// Makes a new cluster in `data`, which does not exist yet.
pub(crate) fn new_cluster(
    account: Account,
    bin: &Path,
    version: u32,
    data: &Path,
) -> Result<(), LocalError> {
    let template = template(account, bin, version)?;
    run(Command::new("cp")
        .arg("-a")
        .arg("--reflink=auto")
        .arg(&template)
        .arg(data))?;
    renumber(data)?;
    // Rewrites the WAL to agree with the new number; without -f it refuses a damaged cluster.
    run(account
        .command(&bin.join("pg_resetwal"))
        .arg("-D")
        .arg(data)
        .current_dir(data))?;
    Ok(())
}

/// The template, made if it is not there.
fn template(account: Account, bin: &Path, version: u32) -> Result<PathBuf, LocalError> {
    let folder = templates_folder(account)?;
    let finished = folder.join(format!("postgres-{version}-{}", account.id()));
    let lock_path = folder.join("lock");
    let lock = File::create(&lock_path).map_err(|e| io("create", &lock_path, e))?;
    // Tests start in many processes at once; one makes the template, the others wait for it.
    lock.lock().map_err(|e| io("lock", &lock_path, e))?;
    if finished.is_dir() {
        return Ok(finished);
    }
    let fresh = tempfile::Builder::new()
        .prefix(".new-")
        .tempdir_in(&folder)
        .map_err(|e| io("create a folder in", &folder, e))?;
    account.own(fresh.path())?;
    let cluster = fresh.path().join("cluster");
    run(account
        .command(&bin.join("initdb"))
        .args([
            "--no-sync",
            "-A",
            "trust",
            "-U",
            SUPERUSER,
            "--no-locale",
            "-E",
            "UTF8",
            "-D",
        ])
        .arg(&cluster)
        .current_dir(fresh.path()))?;
    drop_segments(&cluster.join("pg_wal"))?;
    fs::rename(&cluster, &finished).map_err(|e| io("rename to", &finished, e))?;
    Ok(finished)
}

/// Deletes the template's WAL files: `pg_resetwal` writes each copy its own.
fn drop_segments(pg_wal: &Path) -> Result<(), LocalError> {
    let entries = fs::read_dir(pg_wal).map_err(|e| io("read", pg_wal, e))?;
    for entry in entries.flatten() {
        if entry.path().is_file() {
            fs::remove_file(entry.path()).map_err(|e| io("delete", &entry.path(), e))?;
        }
    }
    Ok(())
}

/// Beside the servers' programs where we may write there, else among the temporary files.
fn templates_folder(account: Account) -> Result<PathBuf, LocalError> {
    let beside = binaries::cache().map(|cache| cache.join("templates"));
    let among = account
        .temporary_folder()
        .join(format!("trellara-templates-{}", account.id()));
    for folder in beside.into_iter().chain([among.clone()]) {
        // Only the account's way in has to be open to others; its clusters are closed by initdb.
        let _ = DirBuilder::new().mode(0o755).create(&folder);
        if ours(&folder) && account.reaches(&folder) {
            return Ok(folder);
        }
    }
    Err(LocalError::Store(format!(
        "{} belongs to somebody else; delete it or set TMPDIR to a folder of your own",
        among.display()
    )))
}

/// A folder that another user made in a shared place is not to be trusted with our clusters.
fn ours(folder: &Path) -> bool {
    fs::metadata(folder)
        .is_ok_and(|meta| meta.is_dir() && meta.uid() == nix::unistd::Uid::effective().as_raw())
}

/// Gives the cluster a new system identifier: the first eight bytes of `pg_control`, which ends
/// in a CRC-32C over all that precedes it. Where it ends differs between versions, so the place
/// is found as the one where the checksum is right.
fn renumber(data: &Path) -> Result<(), LocalError> {
    let path = data.join("global/pg_control");
    let mut control = fs::read(&path).map_err(|e| io("read", &path, e))?;
    let end = checksum_offset(&control).ok_or_else(|| LocalError::Tool {
        program: "reading pg_control".to_owned(),
        status: "no checksum found".to_owned(),
        output: path.display().to_string(),
    })?;
    control[..8].copy_from_slice(&system_identifier().to_ne_bytes());
    let checksum = crc32c(&control[..end]);
    control[end..end + 4].copy_from_slice(&checksum.to_ne_bytes());
    fs::write(&path, &control).map_err(|e| io("write", &path, e))
}

/// Positive as a signed number, as initdb's are: seconds since 1970 above, chance below.
fn system_identifier() -> u64 {
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    let seconds = now.map_or(0, |elapsed| elapsed.as_secs()) & 0x7fff_ffff;
    (seconds << 32) | u64::from(rand::random::<u32>())
}

fn checksum_offset(control: &[u8]) -> Option<usize> {
    const SMALLEST: usize = 128;
    const LARGEST: usize = 504;
    (SMALLEST..=LARGEST.min(control.len().checked_sub(4)?))
        .step_by(4)
        .find(|&offset| {
            let stored: Option<[u8; 4]> = control[offset..offset + 4].try_into().ok();
            stored == Some(crc32c(&control[..offset]).to_ne_bytes())
        })
}

/// CRC-32C (Castagnoli), bit by bit: 300 bytes per cluster are not worth a table.
fn crc32c(bytes: &[u8]) -> u32 {
    const POLYNOMIAL_REFLECTED: u32 = 0x82f6_3b78;
    !bytes.iter().fold(!0_u32, |crc, &byte| {
        (0..8).fold(crc ^ u32::from(byte), |crc, _| {
            if crc & 1 == 1 {
                (crc >> 1) ^ POLYNOMIAL_REFLECTED
            } else {
                crc >> 1
            }
        })
    })
}

#[cfg(test)]
mod tests {
    use super::crc32c;

    /// The check value of the catalogue of parametrised CRC algorithms.
    #[test]
    fn checksum_is_castagnoli() {
        assert_eq!(crc32c(b"123456789"), 0xe306_9283);
    }
}
