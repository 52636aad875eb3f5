//! From keys and values to [`ConnectOptions`]: defaults, environment, and checks that need no server.

use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use secrecy::SecretString;

use crate::conninfo::{self, Settings};
use crate::options::{AuthMethod, ChannelBinding, TargetSession, TcpOptions};
use crate::service;
use crate::tls::{Roots, SslMode, TlsOptions};
use crate::{ConnectOptions, ConnectStringError, Environment, Host};

/// libpq waits for ever; an unattended program must not, and half a minute is long for one host.
const CONNECT_TIMEOUT_DEFAULT: Duration = Duration::from_secs(30);
/// The kernel's default of two hours would keep a dead peer's place for two hours.
const KEEPALIVE_IDLE_DEFAULT: Duration = Duration::from_secs(15);
const KEEPALIVE_INTERVAL_DEFAULT: Duration = Duration::from_secs(5);
const KEEPALIVE_COUNT_DEFAULT: u32 = 3;
/// How long sent bytes may stay unacknowledged; agrees with the keepalives above.
const TCP_USER_TIMEOUT_DEFAULT: Duration = Duration::from_secs(30);
const PORT_DEFAULT: u16 = 5432;

/// Adds service and environment, and reads the values.
pub(crate) fn resolve(
    mut settings: Settings,
    environment: &Environment,
) -> Result<ConnectOptions, ConnectStringError> {
    fill(&mut settings, environment)?;
    let reader = Reader {
        settings,
        environment,
    };
    reader.check_unused()?;
    let user = match reader.text("user").or_else(|| environment.get("USER")) {
        Some(user) => user,
        None => environment.get("LOGNAME").ok_or_else(|| {
            ConnectStringError::new(
                "no user name in the connection string",
                "write postgresql://user@host/database",
            )
        })?,
    };
    let mut options = ConnectOptions {
        hosts: reader.hosts()?,
        shuffle_hosts: reader.choice(
            "load_balance_hosts",
            &[("disable", false), ("random", true)],
        )?,
        user: user.to_owned(),
        database: reader.text("dbname").unwrap_or(user).to_owned(),
        password: reader.text("password").map(SecretString::from),
        passfile: reader
            .path("passfile")
            .or_else(|| reader.at_home(".pgpass")),
        parameters: Vec::new(),
        tls: reader.tls()?,
        channel_binding: reader.channel_binding()?,
        allowed_auth: reader.allowed_auth()?,
        target_session: reader.target_session()?,
        connect_timeout: reader.connect_timeout()?,
        tcp: reader.tcp()?,
    };
    let name = reader
        .text("application_name")
        .or_else(|| reader.text("fallback_application_name"));
    for (key, value) in [
        ("options", reader.text("options")),
        ("application_name", name),
    ] {
        if let Some(value) = value {
            options = options.with_parameter(key, value);
        }
    }
    Ok(options)
}

/// Adds what the string leaves open: first the service's options, then the environment's.
fn fill(settings: &mut Settings, environment: &Environment) -> Result<(), ConnectStringError> {
    service::apply(settings, environment)?;
    for (key, variable) in conninfo::variables() {
        if let Some(value) = environment.get(variable) {
            settings.entry(key).or_insert_with(|| value.to_owned());
        }
    }
    if environment
        .get("PGREQUIRESSL")
        .is_some_and(|v| v.starts_with('1'))
    {
        settings
            .entry("sslmode")
            .or_insert_with(|| "require".into());
    }
    Ok(())
}

/// Typed access to the settings; an empty value counts as unset, as in libpq.
struct Reader<'a> {
    settings: Settings,
    environment: &'a Environment,
}

impl Reader<'_> {
    fn text(&self, key: &str) -> Option<&str> {
        self.settings
            .get(key)
            .map(String::as_str)
            .filter(|value| !value.is_empty())
    }

    fn path(&self, key: &str) -> Option<PathBuf> {
        self.text(key).map(PathBuf::from)
    }

    fn at_home(&self, name: &str) -> Option<PathBuf> {
        Some(Path::new(self.environment.get("HOME")?).join(name))
    }

    /// The first choice is the default.
    fn choice<T: Copy>(&self, key: &str, choices: &[(&str, T)]) -> Result<T, ConnectStringError> {
        let Some(text) = self.text(key) else {
            return Ok(choices[0].1);
        };
        if let Some((_, value)) = choices.iter().find(|(name, _)| *name == text) {
            return Ok(*value);
        }
        let names: Vec<&str> = choices.iter().map(|(name, _)| *name).collect();
        Err(malformed(key, &format!("use one of: {}", names.join(", "))))
    }

    fn number(&self, key: &str) -> Result<Option<i64>, ConnectStringError> {
        self.text(key)
            .map(|text| {
                text.trim()
                    .parse()
                    .map_err(|_| malformed(key, "use a whole number"))
            })
            .transpose()
    }

    /// Positive seconds (or milliseconds); zero or less counts as unset, as in libpq.
    fn duration(
        &self,
        key: &str,
        unit: fn(u64) -> Duration,
    ) -> Result<Option<Duration>, ConnectStringError> {
        let number = self.number(key)?;
        Ok(number
            .and_then(|n| u64::try_from(n).ok())
            .filter(|n| *n > 0)
            .map(unit))
    }

    fn channel_binding(&self) -> Result<ChannelBinding, ConnectStringError> {
        self.choice(
            "channel_binding",
            &[
                ("prefer", ChannelBinding::Prefer),
                ("require", ChannelBinding::Require),
                ("disable", ChannelBinding::Disable),
            ],
        )
    }

    fn target_session(&self) -> Result<TargetSession, ConnectStringError> {
        self.choice(
            "target_session_attrs",
            &[
                ("any", TargetSession::Any),
                ("read-write", TargetSession::ReadWrite),
                ("read-only", TargetSession::ReadOnly),
                ("primary", TargetSession::Primary),
                ("standby", TargetSession::Standby),
                ("prefer-standby", TargetSession::PreferStandby),
            ],
        )
    }

    fn connect_timeout(&self) -> Result<Option<Duration>, ConnectStringError> {
        Ok(match self.number("connect_timeout")? {
            None => Some(CONNECT_TIMEOUT_DEFAULT),
            Some(..=0) => None,
            // As in libpq: one second may round down to nothing.
            Some(seconds) => Some(Duration::from_secs(seconds.max(2).unsigned_abs())),
        })
    }

    fn tcp(&self) -> Result<TcpOptions, ConnectStringError> {
        let count = self.number("keepalives_count")?;
        let user_timeout = match self.number("tcp_user_timeout")? {
            None => Some(TCP_USER_TIMEOUT_DEFAULT),
            Some(_) => self.duration("tcp_user_timeout", Duration::from_millis)?,
        };
        Ok(TcpOptions {
            keepalives: self.number("keepalives")? != Some(0),
            idle: self
                .duration("keepalives_idle", Duration::from_secs)?
                .unwrap_or(KEEPALIVE_IDLE_DEFAULT),
            interval: self
                .duration("keepalives_interval", Duration::from_secs)?
                .unwrap_or(KEEPALIVE_INTERVAL_DEFAULT),
            count: count
                .and_then(|n| u32::try_from(n).ok())
                .filter(|n| *n > 0)
                .unwrap_or(KEEPALIVE_COUNT_DEFAULT),
            user_timeout,
        })
    }

    fn hosts(&self) -> Result<Vec<Host>, ConnectStringError> {
        let list = |key| {
            self.text(key)
                .map(|text| text.split(',').map(str::trim).collect::<Vec<_>>())
        };
        let (names, addresses) = (list("host"), list("hostaddr"));
        let count = addresses.as_ref().or(names.as_ref()).map_or(1, Vec::len);
        if names.as_ref().is_some_and(|names| names.len() != count) {
            return Err(malformed("hostaddr", "give as many addresses as hosts"));
        }
        let ports = list("port").unwrap_or_default();
        if ports.len() > 1 && ports.len() != count {
            return Err(malformed(
                "port",
                "give one port, or as many ports as hosts",
            ));
        }
        let mut hosts = Vec::with_capacity(count);
        for i in 0..count {
            let name = names.as_ref().map_or("", |names| names[i]);
            let address = match addresses.as_ref().map_or("", |addresses| addresses[i]) {
                "" => None,
                text => Some(text.parse::<IpAddr>().map_err(|_| {
                    malformed("hostaddr", "give numeric addresses; names belong into host")
                })?),
            };
            let port = match ports
                .get(if ports.len() == 1 { 0 } else { i })
                .copied()
                .unwrap_or("")
            {
                "" => PORT_DEFAULT,
                text => text
                    .parse()
                    .ok()
                    .filter(|port| *port != 0)
                    .ok_or_else(|| malformed("port", "use a number from 1 to 65535"))?,
            };
            let name = match (name, address) {
                ("", Some(address)) => address.to_string(),
                ("", None) => default_socket_folder().to_owned(),
                (name, _) => name.to_owned(),
            };
            hosts.push(Host {
                name,
                address,
                port,
            });
        }
        Ok(hosts)
    }

    fn tls(&self) -> Result<TlsOptions, ConnectStringError> {
        let system = self.text("sslrootcert") == Some("system");
        let modes = SslMode::ALL.map(|mode| (mode.as_str(), mode));
        let mode = match self.text("sslmode") {
            // libpq's rule: whoever trusts every public authority must at least check the name.
            None if system => SslMode::VerifyFull,
            None => SslMode::Prefer,
            Some(_) => self.choice("sslmode", &modes)?,
        };
        if system && mode != SslMode::VerifyFull {
            return Err(ConnectStringError::new(
                format!(
                    "sslmode={} is too weak for sslrootcert=system",
                    mode.as_str()
                ),
                "any public authority could vouch for any server; use sslmode=verify-full",
            ));
        }
        let direct = self.choice("sslnegotiation", &[("postgres", false), ("direct", true)])?;
        if direct && mode < SslMode::Require {
            return Err(ConnectStringError::new(
                format!(
                    "sslmode={} is too weak for sslnegotiation=direct",
                    mode.as_str()
                ),
                "use sslmode=require, verify-ca or verify-full",
            ));
        }
        let roots = match self.text("sslrootcert") {
            Some("system") => Roots::System,
            Some(path) => Roots::File(path.into()),
            None => Roots::Default(self.at_home(".postgresql/root.crt")),
        };
        let no_certificate = self.choice("sslcertmode", &[("allow", false), ("disable", true)])?;
        let versions = [("TLSv1", 0), ("TLSv1.1", 1), ("TLSv1.2", 2), ("TLSv1.3", 3)];
        let version = |key, default| match self.text(key) {
            None => Ok(default),
            Some(_) => self.choice(key, &versions),
        };
        let (least, most) = (
            version("ssl_min_protocol_version", 2)?,
            version("ssl_max_protocol_version", 3)?,
        );
        if most < 2 || least > most {
            return Err(malformed(
                "ssl_max_protocol_version",
                "TLSv1.2 and TLSv1.3 are spoken",
            ));
        }
        Ok(TlsOptions {
            mode,
            direct,
            roots,
            certificate: self.path("sslcert"),
            key: self.path("sslkey"),
            default_certificate: self.at_home(".postgresql/postgresql.crt"),
            default_key: self.at_home(".postgresql/postgresql.key"),
            no_certificate,
            revoked: self.path("sslcrl"),
            revoked_folder: self.path("sslcrldir"),
            default_revoked: self.at_home(".postgresql/root.crl"),
            send_name: self.choice("sslsni", &[("1", true), ("0", false)])?,
            tls12: least <= 2,
            tls13: most >= 3,
        })
    }

    /// `require_auth`: a list of methods, all of them wanted or all of them unwanted (`!`).
    fn allowed_auth(&self) -> Result<Vec<AuthMethod>, ConnectStringError> {
        const ALL: [(&str, Option<AuthMethod>); 7] = [
            ("password", Some(AuthMethod::Cleartext)),
            ("md5", Some(AuthMethod::Md5)),
            ("scram-sha-256", Some(AuthMethod::Scram)),
            ("none", Some(AuthMethod::None)),
            ("gss", None),
            ("sspi", None),
            ("oauth", None),
        ];
        let every = ALL.iter().filter_map(|(_, method)| *method);
        let Some(text) = self.text("require_auth") else {
            return Ok(every.collect());
        };
        let (mut wanted, mut unwanted) = (Vec::new(), Vec::new());
        for word in text.split(',').map(str::trim) {
            let (list, name) = match word.strip_prefix('!') {
                Some(name) => (&mut unwanted, name),
                None => (&mut wanted, word),
            };
            let known = ALL.iter().find(|(known, _)| *known == name);
            list.push(
                known
                    .ok_or_else(|| malformed("require_auth", "unknown method"))?
                    .1,
            );
        }
        match (wanted.is_empty(), unwanted.is_empty()) {
            (false, true) => Ok(every.filter(|m| wanted.contains(&Some(*m))).collect()),
            (true, false) => Ok(every.filter(|m| !unwanted.contains(&Some(*m))).collect()),
            _ => Err(malformed(
                "require_auth",
                "methods with and without ! cannot be mixed",
            )),
        }
    }

    /// Options that are read for nothing but this check.
    fn check_unused(&self) -> Result<(), ConnectStringError> {
        self.choice("gssencmode", &[("prefer", ()), ("disable", ())])?;
        self.choice("sslcompression", &[("0", ()), ("1", ())])?;
        match self
            .text("client_encoding")
            .map(str::to_ascii_lowercase)
            .as_deref()
        {
            None | Some("utf8" | "utf-8" | "unicode") => Ok(()),
            Some(_) => Err(malformed("client_encoding", "sessions always use UTF8")),
        }
    }
}

/// Never shows the value: it may be a password in the wrong place.
fn malformed(key: &str, hint: &str) -> ConnectStringError {
    ConnectStringError::new(
        format!("the value of the connection option {key:?} is not usable"),
        hint,
    )
}

/// Debian's place when it is there, else upstream's.
fn default_socket_folder() -> &'static str {
    const DEBIAN: &str = "/var/run/postgresql";
    if Path::new(DEBIAN).is_dir() {
        DEBIAN
    } else {
        "/tmp"
    }
}
