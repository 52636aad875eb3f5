//! The two spellings of a connection string, taken apart as libpq takes them apart.
//!
//! Only the text is looked at here: what a value means, and what the environment adds, is
//! [`crate::resolve`]'s. Errors name keys and places, never values: any value may be a password
//! that slipped.

use std::collections::BTreeMap;

use crate::ConnectStringError;

/// Keys with their values, as written.
pub(crate) type Settings = BTreeMap<&'static str, String>;

/// A key we know, with the environment variable that stands in for it.
const KEYS: &[(&str, &str)] = &[
    ("application_name", "PGAPPNAME"),
    ("channel_binding", "PGCHANNELBINDING"),
    ("client_encoding", ""),
    ("connect_timeout", "PGCONNECT_TIMEOUT"),
    ("dbname", "PGDATABASE"),
    ("fallback_application_name", ""),
    ("gssencmode", "PGGSSENCMODE"),
    ("host", "PGHOST"),
    ("hostaddr", "PGHOSTADDR"),
    ("keepalives", ""),
    ("keepalives_count", ""),
    ("keepalives_idle", ""),
    ("keepalives_interval", ""),
    ("load_balance_hosts", "PGLOADBALANCEHOSTS"),
    ("options", "PGOPTIONS"),
    ("passfile", "PGPASSFILE"),
    ("password", "PGPASSWORD"),
    ("port", "PGPORT"),
    ("require_auth", "PGREQUIREAUTH"),
    ("service", "PGSERVICE"),
    ("servicefile", "PGSERVICEFILE"),
    ("ssl_max_protocol_version", "PGSSLMAXPROTOCOLVERSION"),
    ("ssl_min_protocol_version", "PGSSLMINPROTOCOLVERSION"),
    ("sslcert", "PGSSLCERT"),
    ("sslcertmode", "PGSSLCERTMODE"),
    ("sslcompression", "PGSSLCOMPRESSION"),
    ("sslcrl", "PGSSLCRL"),
    ("sslcrldir", "PGSSLCRLDIR"),
    ("sslkey", "PGSSLKEY"),
    ("sslmode", "PGSSLMODE"),
    ("sslnegotiation", "PGSSLNEGOTIATION"),
    ("sslrootcert", "PGSSLROOTCERT"),
    ("sslsni", "PGSSLSNI"),
    ("target_session_attrs", "PGTARGETSESSIONATTRS"),
    ("tcp_user_timeout", ""),
    ("user", "PGUSER"),
];

/// Keys that libpq knows and we refuse: ignoring them silently could weaken what they ask for.
const REFUSED: &[(&str, &str)] = &[
    ("gssdelegation", "GSSAPI is not supported"),
    ("gsslib", "GSSAPI is not supported"),
    ("krbsrvname", "GSSAPI is not supported"),
    (
        "max_protocol_version",
        "protocol 3.0 is spoken, which every server accepts",
    ),
    (
        "min_protocol_version",
        "protocol 3.0 is spoken, which every server accepts",
    ),
    ("oauth_client_id", "OAuth is not supported"),
    ("oauth_client_secret", "OAuth is not supported"),
    ("oauth_issuer", "OAuth is not supported"),
    ("oauth_scope", "OAuth is not supported"),
    (
        "replication",
        "whether a connection replicates is chosen by what it is for",
    ),
    (
        "requirepeer",
        "the owner of a socket cannot be checked; use a socket folder that only the server may write",
    ),
    ("scram_client_key", "give the password instead"),
    ("scram_server_key", "give the password instead"),
    ("sslkeylogfile", "session keys are never written out"),
    (
        "sslpassword",
        "encrypted private keys are not supported; store the key unencrypted with mode 0600",
    ),
];

/// The key as a constant, or why it cannot be used.
pub(crate) fn known_key(name: &str) -> Result<&'static str, ConnectStringError> {
    if let Some((key, _)) = KEYS.iter().find(|(key, _)| *key == name) {
        return Ok(key);
    }
    if let Some((key, why)) = REFUSED.iter().find(|(key, _)| *key == name) {
        return Err(ConnectStringError::new(
            format!("the connection option {key:?} cannot be used"),
            *why,
        ));
    }
    let shown: String = name.chars().take(40).collect();
    let nearest = KEYS
        .iter()
        .map(|(key, _)| (distance(&name.to_lowercase(), key), key))
        .min()
        .filter(|(distance, _)| *distance <= 2);
    let hint = match nearest {
        Some((_, key)) => format!("did you mean {key:?}?"),
        None => "options are those of libpq; a password with & or = in it must be percent-encoded"
            .to_owned(),
    };
    Err(ConnectStringError::new(
        format!("unknown connection option {shown:?}"),
        hint,
    ))
}

/// Every key with its environment variable.
pub(crate) fn variables() -> impl Iterator<Item = (&'static str, &'static str)> {
    KEYS.iter()
        .copied()
        .filter(|(_, variable)| !variable.is_empty())
}

/// Takes a connection string apart.
pub(crate) fn split(text: &str) -> Result<Settings, ConnectStringError> {
    let uri = ["postgresql://", "postgres://"]
        .iter()
        .find_map(|scheme| text.strip_prefix(scheme));
    match uri {
        Some(rest) => split_uri(rest),
        None if !text.contains('=') && !text.trim().is_empty() => Err(ConnectStringError::new(
            "not a connection string",
            "write postgresql://user@host/database, or host=… user=… dbname=…",
        )),
        None => split_pairs(text),
    }
}

fn split_uri(text: &str) -> Result<Settings, ConnectStringError> {
    let mut settings = Settings::new();
    let mut rest = text;
    // As in libpq: credentials are there when an @ comes before the first slash. So a password
    // with / or @ in it must be percent-encoded, while one with ? or # need not be.
    if let Some(at) = rest
        .find(['@', '/'])
        .filter(|i| rest[*i..].starts_with('@'))
    {
        let (credentials, after) = (&rest[..at], &rest[at + 1..]);
        let (user, password) = match credentials.split_once(':') {
            Some((user, password)) => (user, Some(password)),
            None => (credentials, None),
        };
        if !user.is_empty() {
            settings.insert("user", decode(user, "the user name")?);
        }
        if let Some(password) = password {
            settings.insert("password", decode(password, "the password")?);
        }
        rest = after;
    }
    // libpq would take what stands before a further @ for a host or a database; it is far likelier
    // the rest of a password, and would then be shown in every message.
    if rest[..rest.find('?').unwrap_or(rest.len())].contains('@') {
        return Err(ConnectStringError::new(
            "an @ of the connection URI is in a place where none can be",
            "percent-encode the password: @ as %40, / as %2F, : as %3A; write @ in a database name \
             as %40 too",
        ));
    }
    rest = split_hosts(rest, &mut settings)?;
    if let Some(path) = rest.strip_prefix('/') {
        let end = path.find('?').unwrap_or(path.len());
        if end > 0 {
            settings.insert("dbname", decode(&path[..end], "the database name")?);
        }
        rest = &path[end..];
    }
    if let Some(query) = rest.strip_prefix('?') {
        split_query(query, &mut settings)?;
    }
    Ok(settings)
}

/// Reads `host[:port][,host[:port]]…`; returns what follows.
fn split_hosts<'a>(text: &'a str, settings: &mut Settings) -> Result<&'a str, ConnectStringError> {
    let (mut hosts, mut ports) = (Vec::new(), Vec::new());
    let mut rest = text;
    loop {
        let (host, after) = match rest.strip_prefix('[') {
            Some(inner) => match inner.split_once(']') {
                Some((host, after)) if !host.is_empty() => (host, after),
                _ => {
                    return Err(ConnectStringError::new(
                        "an IPv6 address in the connection URI lacks its closing bracket",
                        "write it as [::1]",
                    ));
                }
            },
            None => rest.split_at(rest.find([':', '/', '?', ',']).unwrap_or(rest.len())),
        };
        rest = after;
        let mut port = "";
        if let Some(after) = rest.strip_prefix(':') {
            (port, rest) = after.split_at(after.find(['/', '?', ',']).unwrap_or(after.len()));
        }
        hosts.push(host);
        ports.push(port);
        match rest.strip_prefix(',') {
            Some(after) => rest = after,
            None => break,
        }
    }
    if !(rest.is_empty() || rest.starts_with(['/', '?'])) {
        return Err(ConnectStringError::new(
            "unexpected character after a host in the connection URI",
            "a host may be followed by :port, another host behind a comma, / or ?; a password \
             with @, : or / in it must be percent-encoded",
        ));
    }
    if hosts.iter().any(|host| !host.is_empty()) {
        settings.insert("host", decode(&hosts.join(","), "the host")?);
    } else if hosts.len() > 1 {
        settings.insert("host", ",".repeat(hosts.len() - 1));
    }
    if ports.iter().any(|port| !port.is_empty()) {
        settings.insert("port", decode(&ports.join(","), "the port")?);
    }
    Ok(rest)
}

fn split_query(query: &str, settings: &mut Settings) -> Result<(), ConnectStringError> {
    for parameter in query.split('&').filter(|p| !p.is_empty()) {
        let separators = parameter.matches('=').count();
        let (name, value) = match parameter.split_once('=') {
            Some(pair) if separators == 1 => pair,
            _ => {
                return Err(ConnectStringError::new(
                    "a query parameter of the connection URI is not of the form key=value",
                    "write & between parameters, and percent-encode & as %26, = as %3D",
                ));
            }
        };
        let name = decode(name, "a query parameter")?;
        let value = decode(value, &name)?;
        // JDBC's spelling, which libpq also accepts.
        if name == "ssl" && value == "true" {
            settings.insert("sslmode", "require".into());
            continue;
        }
        settings.insert(known_key(&name)?, value);
    }
    Ok(())
}

fn split_pairs(text: &str) -> Result<Settings, ConnectStringError> {
    let mut settings = Settings::new();
    let mut chars = text.chars().peekable();
    let space = |c: &char| c.is_ascii_whitespace();
    loop {
        while chars.next_if(space).is_some() {}
        if chars.peek().is_none() {
            return Ok(settings);
        }
        let mut name = String::new();
        while let Some(c) = chars.next_if(|c| *c != '=' && !c.is_ascii_whitespace()) {
            name.push(c);
        }
        while chars.next_if(space).is_some() {}
        if chars.next_if_eq(&'=').is_none() {
            // The word may be the second half of an unquoted password, so it is not shown.
            return Err(ConnectStringError::new(
                "missing \"=\" after a word of the connection string",
                "enclose values with spaces in single quotes: password='two words'",
            ));
        }
        let key = known_key(&name)?;
        while chars.next_if(space).is_some() {}
        let quoted = chars.next_if_eq(&'\'').is_some();
        let mut value = String::new();
        loop {
            match chars.next_if(|c| quoted || !c.is_ascii_whitespace()) {
                Some('\\') => value.extend(chars.next()),
                Some('\'') if quoted => break,
                Some(c) => value.push(c),
                None if quoted => {
                    return Err(ConnectStringError::new(
                        format!("the quoted value of {key:?} has no end"),
                        "inside single quotes, write \\' for ' and \\\\ for \\",
                    ));
                }
                None => break,
            }
        }
        settings.insert(key, value);
    }
}

/// Percent-decoding as in libpq: `+` stays `+`, NUL is forbidden.
fn decode(text: &str, what: &str) -> Result<String, ConnectStringError> {
    let wrong = |why: &str| {
        ConnectStringError::new(
            format!("{what} in the connection URI is not correctly percent-encoded: {why}"),
            "write % itself as %25",
        )
    };
    let mut out = Vec::with_capacity(text.len());
    let mut bytes = text.bytes();
    while let Some(byte) = bytes.next() {
        if byte != b'%' {
            out.push(byte);
            continue;
        }
        let mut digit = || {
            bytes
                .next()
                .and_then(|b| char::from(b).to_digit(16))
                .ok_or_else(|| wrong("% is not followed by two hexadecimal digits"))
        };
        let value = digit()? * 16 + digit()?;
        if value == 0 {
            return Err(wrong("%00 is forbidden"));
        }
        out.push(value.to_le_bytes()[0]);
    }
    String::from_utf8(out).map_err(|_| wrong("it does not decode to UTF-8"))
}

/// Levenshtein's distance, for "did you mean".
fn distance(a: &str, b: &str) -> usize {
    let b: Vec<char> = b.chars().collect();
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (i, x) in a.chars().take(64).enumerate() {
        let mut diagonal = row[0];
        row[0] = i + 1;
        for (j, y) in b.iter().enumerate() {
            let replaced = diagonal + usize::from(x != *y);
            diagonal = row[j + 1];
            row[j + 1] = replaced.min(row[j] + 1).min(row[j + 1] + 1);
        }
    }
    row[b.len()]
}
