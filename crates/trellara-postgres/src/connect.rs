//! The one way to a server: hosts in order, sslmode's fall-backs, session attributes.

use std::collections::HashMap;
use std::hash::{BuildHasher, RandomState};
use std::time::Duration;

use crate::options::TargetSession;
use crate::socket::{Endpoint, Socket, endpoints};
use crate::startup::{Attempt, Encryption, Established, Purpose};
use crate::tls::SslMode;
use crate::{ConnectError, ConnectErrorKind, ConnectOptions, Host, QueryError, ServerVersion};

/// A connection whose settings have been checked.
pub(crate) struct Connected {
    pub(crate) established: Established,
    pub(crate) version: ServerVersion,
    /// Where it leads; a cancel request goes the same way.
    pub(crate) host: Host,
    pub(crate) endpoint: Endpoint,
    pub(crate) encryption: Encryption,
}

/// Connects to the first host that will do.
pub(crate) async fn connect(
    options: &ConnectOptions,
    purpose: Purpose,
) -> Result<Connected, ConnectError> {
    let mut hosts: Vec<&Host> = options.hosts.iter().collect();
    if options.shuffle_hosts {
        shuffle(&mut hosts);
    }
    let passes: &[TargetSession] = match options.target_session {
        TargetSession::PreferStandby => &[TargetSession::Standby, TargetSession::Any],
        ref other => std::slice::from_ref(other),
    };
    let mut failures: Vec<ConnectError> = Vec::new();
    for target in passes {
        failures.clear();
        for host in &hosts {
            let attempt = Attempt {
                options,
                host,
                purpose,
            };
            match try_host(&attempt, *target).await {
                Ok(connected) => return Ok(connected),
                // libpq's rule: another host may help against being away, starting or of the wrong
                // kind, never against a wrong password or certificate.
                Err(error)
                    if matches!(
                        error.kind,
                        ConnectErrorKind::Unreachable
                            | ConnectErrorKind::ServerStarting
                            | ConnectErrorKind::TooManyConnections
                            | ConnectErrorKind::NoSuitableServer
                    ) =>
                {
                    failures.push(error);
                }
                Err(error) => return Err(error),
            }
        }
    }
    Err(summary(failures))
}

/// The last failure, with the others told in its reason.
fn summary(mut failures: Vec<ConnectError>) -> ConnectError {
    let last = failures.pop();
    let mut last = last.unwrap_or_else(|| ConnectError {
        kind: ConnectErrorKind::Unreachable,
        host: String::new(),
        reason: "no host to connect to".into(),
        hint: String::new(),
        fault: None,
    });
    for earlier in failures {
        last.reason.push_str(&format!("; before that, {earlier}"));
    }
    last
}

/// Tries the addresses of one host.
async fn try_host(attempt: &Attempt<'_>, target: TargetSession) -> Result<Connected, ConnectError> {
    let looked_up = limited(attempt, endpoints(attempt.host)).await?;
    let mut endpoints = looked_up.map_err(|error| {
        attempt.error(
            ConnectErrorKind::Unreachable,
            format!("the name cannot be resolved: {error}"),
            "check the host name and DNS",
        )
    })?;
    if attempt.options.shuffle_hosts {
        shuffle(&mut endpoints);
    }
    let mut last = attempt.error(
        ConnectErrorKind::Unreachable,
        "the name has no address",
        "check DNS",
    );
    for endpoint in endpoints {
        match limited(attempt, try_endpoint(attempt, &endpoint, target)).await? {
            Ok(connected) => return Ok(connected),
            Err(error) if error.kind == ConnectErrorKind::Unreachable => last = error,
            Err(error) => return Err(error),
        }
    }
    Err(last)
}

/// Runs a step under `connect_timeout`.
pub(crate) async fn limited<T>(
    attempt: &Attempt<'_>,
    step: impl Future<Output = T>,
) -> Result<T, ConnectError> {
    let Some(limit) = attempt.options.connect_timeout else {
        return Ok(step.await);
    };
    tokio::time::timeout(limit, step)
        .await
        .map_err(|_| timed_out(attempt, limit))
}

fn timed_out(attempt: &Attempt<'_>, limit: Duration) -> ConnectError {
    attempt.error(
        ConnectErrorKind::Unreachable,
        format!("no connection within {} s", limit.as_secs()),
        "check host, port and firewalls, or raise connect_timeout",
    )
}

/// Tries one address, with the second way that `allow` and `prefer` have.
async fn try_endpoint(
    attempt: &Attempt<'_>,
    endpoint: &Endpoint,
    target: TargetSession,
) -> Result<Connected, ConnectError> {
    // As in libpq, TLS is not used on Unix-domain sockets, whatever sslmode says.
    let ways: &[Encryption] = match (endpoint, attempt.options.tls.mode) {
        (Endpoint::Unix(_), _) | (_, SslMode::Disable) => &[Encryption::Never],
        (_, SslMode::Allow) => &[Encryption::Never, Encryption::Always],
        (_, SslMode::Prefer) => &[Encryption::IfOffered, Encryption::Never],
        (_, SslMode::Require | SslMode::VerifyCa | SslMode::VerifyFull) => &[Encryption::Always],
    };
    let mut earlier: Option<ConnectError> = None;
    for (i, way) in ways.iter().enumerate() {
        let (mut error, encrypted) = match try_way(attempt, endpoint, *way, target).await {
            Ok(connected) => return Ok(connected),
            Err(failed) => failed,
        };
        let other_way_may_help = match error.kind {
            ConnectErrorKind::Tls => true,
            // A line of pg_hba.conf may be for the other way; `prefer` may have been that already.
            ConnectErrorKind::Refused if refused_by_hba(&error) => {
                encrypted || *way == Encryption::Never
            }
            _ => false,
        };
        if let Some(earlier) = &earlier {
            let way = if encrypted { "without" } else { "with" };
            error
                .reason
                .push_str(&format!("; {way} TLS: {}", earlier.reason));
        }
        if !other_way_may_help || i + 1 == ways.len() {
            return Err(error);
        }
        earlier = Some(error);
    }
    Err(attempt.error(ConnectErrorKind::Unreachable, "no way to connect", ""))
}

/// Whether authentication failed on the server's side, before anything else was looked at.
fn refused_by_hba(error: &ConnectError) -> bool {
    let fault = error.fault.as_ref();
    fault.is_some_and(|fault| fault.sqlstate.starts_with("28"))
}

/// One way to one address; an error says whether the connection was encrypted.
async fn try_way(
    attempt: &Attempt<'_>,
    endpoint: &Endpoint,
    encryption: Encryption,
    target: TargetSession,
) -> Result<Connected, (ConnectError, bool)> {
    let socket = Socket::connect(endpoint, &attempt.options.tcp)
        .await
        .map_err(|error| (attempt.io(&error), false))?;
    let (transport, encrypted) = attempt
        .encrypt(socket, encryption)
        .await
        .map_err(|error| (error, encryption != Encryption::Never))?;
    let finish = async {
        let mut established = attempt.start(transport).await?;
        let version = check_settings(attempt, &established.wire.parameters)?;
        check_target(attempt, &mut established, target).await?;
        if version.major() >= 17 {
            set_transaction_timeout(attempt, &mut established).await?;
        }
        Ok(Connected {
            established,
            version,
            host: attempt.host.clone(),
            endpoint: endpoint.clone(),
            encryption: if encrypted {
                Encryption::Always
            } else {
                Encryption::Never
            },
        })
    };
    finish.await.map_err(|error| (error, encrypted))
}

/// Whether the server took our settings: a pooler that drops them would change what values look
/// like (B69, B131).
fn check_settings(
    attempt: &Attempt<'_>,
    reported: &HashMap<String, String>,
) -> Result<ServerVersion, ConnectError> {
    let value = |name: &str| reported.get(name).map_or("", String::as_str);
    let wrong = |what: String| {
        attempt.error(
            ConnectErrorKind::Protocol,
            what,
            "is a pooler such as pgbouncer in between? connect to PostgreSQL itself",
        )
    };
    let expected = [
        ("client_encoding", "UTF8"),
        ("DateStyle", "ISO"),
        ("IntervalStyle", "postgres"),
        ("TimeZone", "UTC"),
    ];
    for (name, start) in expected {
        let replaced = attempt
            .options
            .parameters
            .iter()
            .any(|(own, _)| own.eq_ignore_ascii_case(name));
        if !replaced && !value(name).starts_with(start) {
            let got = value(name);
            return Err(wrong(format!(
                "the server did not take {name}={start} but says {got:?}"
            )));
        }
    }
    ServerVersion::parse(value("server_version"))
        .ok_or_else(|| wrong("the server does not say its version".into()))
}

/// Whether the server is of the kind asked for.
async fn check_target(
    attempt: &Attempt<'_>,
    established: &mut Established,
    target: TargetSession,
) -> Result<(), ConnectError> {
    if target == TargetSession::Any {
        return Ok(());
    }
    let reported = |name: &str| established.wire.parameters.get(name).map(|v| v == "on");
    let pair = (
        reported("in_hot_standby"),
        reported("default_transaction_read_only"),
    );
    let (standby, read_only) = match pair {
        (Some(standby), Some(read_only)) => (standby, read_only || standby),
        // A pooler may report neither.
        _ => {
            const ASK: &str = "SELECT pg_catalog.pg_is_in_recovery(), pg_catalog.current_setting('transaction_read_only')";
            let rows = established
                .wire
                .query(ASK)
                .await
                .map_err(|error| lost(attempt, error))?;
            let at = |i: usize| rows.first().and_then(|row| row.get(i)?.clone());
            (
                at(0).as_deref() == Some("t"),
                at(1).as_deref() == Some("on"),
            )
        }
    };
    let (fits, wanted) = match target {
        TargetSession::Any | TargetSession::PreferStandby => (true, ""),
        TargetSession::ReadWrite => (!read_only, "read-write"),
        TargetSession::ReadOnly => (read_only, "read-only"),
        TargetSession::Primary => (!standby, "primary"),
        TargetSession::Standby => (standby, "standby"),
    };
    if fits {
        return Ok(());
    }
    let is = match (standby, read_only) {
        (true, _) => "a standby",
        (false, true) => "read-only",
        (false, false) => "a primary that takes writes",
    };
    Err(attempt.error(
        ConnectErrorKind::NoSuitableServer,
        format!("target_session_attrs={wanted}, and the server is {is}"),
        "name the right host, or wait for the fail-over",
    ))
}

/// 15 and 16 would refuse the setting in the startup packet.
async fn set_transaction_timeout(
    attempt: &Attempt<'_>,
    established: &mut Established,
) -> Result<(), ConnectError> {
    established
        .wire
        .query("SET transaction_timeout = 0")
        .await
        .map(|_| ())
        .map_err(|error| lost(attempt, error))
}

fn lost(attempt: &Attempt<'_>, error: QueryError) -> ConnectError {
    match error {
        QueryError::Connection(error) => attempt.io(&error),
        QueryError::Server(fault) => ConnectError {
            fault: Some(fault.clone()),
            ..attempt.error(ConnectErrorKind::Server, fault.to_string(), "")
        },
        QueryError::Protocol(reason) => attempt.error(ConnectErrorKind::Protocol, reason, ""),
    }
}

/// Puts the list into a random order. The seed is the standard library's for hash maps: enough to
/// spread clients, and no secret depends on it.
fn shuffle<T>(list: &mut [T]) {
    let seed = RandomState::new();
    for i in (1..list.len()).rev() {
        let random = seed.hash_one(i) % (i as u64 + 1);
        list.swap(i, usize::try_from(random).unwrap_or(0));
    }
}
