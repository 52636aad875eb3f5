//! Password files, in libpq's format: `host:port:database:user:password`.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use secrecy::SecretString;
use zeroize::Zeroizing;

/// What looking into a password file gave.
pub(crate) enum Lookup {
    /// The password of the first line that fits.
    Found(SecretString),
    /// No line fits, or there is no file.
    Absent,
    /// The file is there and was not used, for this reason.
    Ignored(String),
}

/// Looks for a password. The file is read at every connect, so a changed password needs no restart.
pub(crate) fn look_up(path: &Path, host: &str, port: u16, database: &str, user: &str) -> Lookup {
    let Ok(metadata) = fs::metadata(path) else {
        return Lookup::Absent;
    };
    let shown = path.display();
    if !metadata.is_file() {
        return Lookup::Ignored(format!("the password file {shown} is not a plain file"));
    }
    // libpq's rule: a file that others can read is not used at all.
    if metadata.mode() & 0o077 != 0 {
        let mode = metadata.mode() & 0o777;
        return Lookup::Ignored(format!(
            "the password file {shown} was not used because others may read it (mode {mode:04o}); \
             chmod 0600 {shown}"
        ));
    }
    let text = match fs::read(path) {
        Ok(bytes) => Zeroizing::new(bytes),
        Err(error) => {
            return Lookup::Ignored(format!("the password file {shown} cannot be read: {error}"));
        }
    };
    let port = port.to_string();
    text.split(|byte| *byte == b'\n')
        .map(|line| line.strip_suffix(b"\r").unwrap_or(line))
        .filter(|line| !line.is_empty() && !line.starts_with(b"#"))
        .find_map(|line| password_of(line, &[host, &port, database, user]))
        .map_or(Lookup::Absent, Lookup::Found)
}

/// The password of a line whose four fields fit.
fn password_of(line: &[u8], wanted: &[&str; 4]) -> Option<SecretString> {
    let mut rest = line;
    for want in wanted {
        let (field, wildcard, after) = field(rest)?;
        if !wildcard && field.as_slice() != want.as_bytes() {
            return None;
        }
        rest = after;
    }
    let mut password = Zeroizing::new(Vec::with_capacity(rest.len()));
    let mut bytes = rest.iter().copied();
    while let Some(byte) = bytes.next() {
        // A backslash stands for the byte behind it; a lone one at the end for itself.
        password.push(if byte == b'\\' {
            bytes.next().unwrap_or(byte)
        } else {
            byte
        });
    }
    let text = String::from_utf8_lossy(&password).into_owned();
    Some(SecretString::from(text))
}

/// The next field, unescaped, whether it is `*` alone, and what follows its colon.
fn field(line: &[u8]) -> Option<(Vec<u8>, bool, &[u8])> {
    let mut out = Vec::new();
    let mut i = 0;
    loop {
        match *line.get(i)? {
            b':' => break,
            b'\\' if i + 1 < line.len() => {
                out.push(line[i + 1]);
                i += 2;
            }
            byte => {
                out.push(byte);
                i += 1;
            }
        }
    }
    Some((out, &line[..i] == b"*", &line[i + 1..]))
}

#[cfg(test)]
mod tests {
    use secrecy::ExposeSecret;

    use super::*;

    fn found(line: &str, wanted: &[&str; 4]) -> Option<String> {
        password_of(line.as_bytes(), wanted).map(|p| p.expose_secret().to_owned())
    }

    #[test]
    fn fields_unescape_and_stars_match_all() {
        let wanted = &["::1", "5432", "My:Db", "Repl User"];
        let line = r"\:\:1:*:My\:Db:Repl User:a\:b\\c:d";
        assert_eq!(found(line, wanted).as_deref(), Some(r"a:b\c:d"));
        assert_eq!(
            found(r"\*:5432:My\:Db:Repl User:x", wanted),
            None,
            "an escaped star"
        );
        assert_eq!(found("*:*:*:*:", wanted).as_deref(), Some(""));
        assert_eq!(found("*:*:*", wanted), None, "too few fields");
    }
}
