//! Files that are whole or not there.

use std::fs::Permissions;
use std::io::Write;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use tempfile::NamedTempFile;

use crate::exit::{Exit, Failure};

/// A file to be written at the end of long work; that it can be is known at the start.
pub(crate) struct Reserved {
    path: PathBuf,
    file: NamedTempFile,
}

impl Reserved {
    /// Makes a nameless neighbour of `path`, for the owner alone when data of rows goes into it.
    ///
    /// # Errors
    /// Nothing can be written there.
    pub(crate) fn at(path: &Path, private: bool) -> Result<Self, Failure> {
        let folder = match path.parent() {
            Some(folder) if !folder.as_os_str().is_empty() => folder,
            _ => Path::new("."),
        };
        // The process's mask takes away from it.
        let mode = if private { 0o600 } else { 0o666 };
        let file = tempfile::Builder::new()
            .prefix(".trellara-")
            .permissions(Permissions::from_mode(mode))
            .tempfile_in(folder);
        let path = path.to_owned();
        match file {
            Ok(file) if !path.is_dir() => Ok(Self { path, file }),
            Ok(_) => Err(cannot(&path, "it is a folder")),
            Err(error) => Err(cannot(&path, error)),
        }
    }

    /// Writes it and gives it its name, over whatever had that name.
    ///
    /// # Errors
    /// It could not be written; what had the name before still has it.
    pub(crate) fn write(mut self, content: &[u8]) -> Result<(), Failure> {
        let written = self.file.write_all(content);
        let synced = written.and_then(|()| self.file.as_file().sync_all());
        synced.map_err(|error| cannot(&self.path, error))?;
        let named = self.file.persist(&self.path);
        named.map_err(|error| cannot(&self.path, error.error))?;
        Ok(())
    }
}

fn cannot(path: &Path, why: impl std::fmt::Display) -> Failure {
    Failure::new(
        Exit::Unexpected,
        format!("{} cannot be written: {why}", path.display()),
        "name a file in a folder that this user can write to",
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_whole_or_what_it_was() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("report");
        std::fs::write(&path, "before").unwrap();
        let reserved = Reserved::at(&path, true).unwrap();
        assert_eq!(std::fs::read(&path).unwrap(), b"before");
        reserved.write(b"after").unwrap();
        assert_eq!(std::fs::read(&path).unwrap(), b"after");
        let mode = std::fs::metadata(&path).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
        drop(Reserved::at(&path, false).unwrap());
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 1);
    }

    #[test]
    fn what_cannot_be_written_is_known_at_the_start() {
        let folder = tempfile::tempdir().unwrap();
        assert!(Reserved::at(folder.path(), false).is_err());
        assert!(Reserved::at(&folder.path().join("none/report"), false).is_err());
    }
}
