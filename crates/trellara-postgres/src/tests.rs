//! What connection strings mean, in every spelling.

use std::fmt::Write as _;
use std::time::Duration;

use proptest::prelude::*;
use secrecy::ExposeSecret;

use crate::options::{AuthMethod, ChannelBinding, TargetSession};
use crate::tls::{Roots, SslMode};
use crate::{ConnectOptions, ConnectStringError, Environment, Host};

const HOSTILE: &str = "a@b:c/d?e#f[g]%h\\i{j} k'l\"mü ";

fn environment(pairs: &[(&str, &str)]) -> Environment {
    Environment::from_map(
        pairs
            .iter()
            .map(|(k, v)| ((*k).to_owned(), (*v).to_owned())),
    )
}

fn parse(text: &str) -> ConnectOptions {
    let options =
        ConnectOptions::parse(text, &environment(&[("USER", "os"), ("HOME", "/home/os")]));
    options.unwrap_or_else(|error| panic!("{text}: {error} ({})", error.hint))
}

fn refused(text: &str) -> ConnectStringError {
    match ConnectOptions::parse(text, &environment(&[("USER", "os")])) {
        Ok(options) => panic!("{text} was taken: {options:?}"),
        Err(error) => error,
    }
}

fn hosts(text: &str) -> Vec<String> {
    parse(text).hosts().iter().map(Host::to_string).collect()
}

fn percent(text: &str) -> String {
    text.bytes().fold(String::new(), |mut out, byte| {
        let _ = write!(out, "%{byte:02x}");
        out
    })
}

fn quoted(text: &str) -> String {
    format!("'{}'", text.replace('\\', "\\\\").replace('\'', "\\'"))
}

fn password(options: &ConnectOptions) -> Option<&str> {
    options
        .password
        .as_ref()
        .map(|password| password.expose_secret())
}

#[test]
fn b128_hostile_passwords_in_both_spellings() {
    let (user, database) = ("Repl User", "My-Db-1");
    let uri = parse(&format!(
        "postgresql://{}:{}@db1/{}",
        percent(user),
        percent(HOSTILE),
        percent(database)
    ));
    let pairs = parse(&format!(
        "host=db1 user={} password={} dbname={database}",
        quoted(user),
        quoted(HOSTILE)
    ));
    for options in [uri, pairs] {
        assert_eq!(password(&options), Some(HOSTILE));
        assert_eq!((options.user(), options.database()), (user, database));
        for shown in [options.redacted(), format!("{options:?}")] {
            assert!(!shown.contains("b:c/d"), "{shown}");
        }
    }
    let unescaped = parse("postgres://u:p?w#&=;!@h/d");
    assert_eq!(
        password(&unescaped),
        Some("p?w#&=;!"),
        "what libpq takes without escapes"
    );
    assert_eq!(
        password(&parse("host=h user=u password=''")),
        None,
        "empty is none, as in libpq"
    );
}

#[test]
fn b128_errors_never_show_a_value() {
    // Each has its password, or a part of it, in a place where it does not belong.
    let strings = [
        "postgres://u:top@sesame@h/d",
        "postgres://u:top/sesame@h/d",
        "postgres://u:5432/sesame@h/d",
        "postgres://u:top%sesame@h/d",
        "postgres://u:top@h:sesame/d",
        "host=h password=two sesame words",
        "host=h password='sesame",
        "host=h password=x sslmode=sesame",
        "host=h port=sesame",
        "postgres://h/d?password=x=sesame",
    ];
    for text in strings {
        let error = refused(text);
        let shown = format!("{error} {} {error:?}", error.hint);
        assert!(!shown.contains("sesame"), "{text}: {shown}");
        assert!(!error.hint.is_empty(), "{text}");
    }
}

#[test]
fn b128_hosts_in_every_form() {
    assert_eq!(hosts("postgres://h1,h2:5433/db"), ["h1:5432", "h2:5433"]);
    assert_eq!(
        hosts("postgresql://[::1]:5433,[fe80::1]/db"),
        ["[::1]:5433", "[fe80::1]:5432"]
    );
    assert_eq!(hosts("postgresql://%2Frun%2Fpg:5433/db"), ["/run/pg:5433"]);
    assert_eq!(hosts("postgresql:///db?host=/run/pg&port=1"), ["/run/pg:1"]);
    assert_eq!(hosts("postgresql://%40trellara/db"), ["@trellara:5432"]);
    assert_eq!(hosts("host=h1,h2 port=1,2"), ["h1:1", "h2:2"]);
    assert_eq!(hosts("host=h1,h2,h3 port=7"), ["h1:7", "h2:7", "h3:7"]);
    assert_eq!(hosts("host=h1,h2 port=,9"), ["h1:5432", "h2:9"]);
    let both = parse("host=db.example hostaddr=10.0.0.1");
    assert_eq!(both.hosts()[0].name, "db.example");
    assert_eq!(both.hosts()[0].address, Some([10, 0, 0, 1].into()));
    assert!(
        parse("dbname=x").hosts()[0].is_socket(),
        "no host is the local socket"
    );
    for wrong in [
        "host=h1,h2 port=1,2,3",
        "host=h1 hostaddr=1.1.1.1,2.2.2.2",
        "hostaddr=name",
        "host=h port=0",
        "host=h port=65536",
        "postgres://[::1/db",
        "postgres://[]/db",
        "postgres://[::1]x/db",
    ] {
        refused(wrong);
    }
}

#[test]
fn defaults_are_libpqs_where_they_are_safe() {
    let options = parse("postgresql://h");
    assert_eq!((options.user(), options.database()), ("os", "os"));
    assert_eq!(options.tls.mode, SslMode::Prefer);
    assert_eq!(
        options.tls.roots,
        Roots::Default(Some("/home/os/.postgresql/root.crt".into()))
    );
    assert_eq!(options.passfile, Some("/home/os/.pgpass".into()));
    assert_eq!(options.channel_binding, ChannelBinding::Prefer);
    assert_eq!(options.target_session, TargetSession::Any);
    assert_eq!(options.connect_timeout, Some(Duration::from_secs(30)));
    assert_eq!(parse("host=h connect_timeout=0").connect_timeout, None);
    assert_eq!(
        parse("host=h connect_timeout=1").connect_timeout,
        Some(Duration::from_secs(2))
    );
    assert!(options.tcp.keepalives && !parse("host=h keepalives=0").tcp.keepalives);
    assert_eq!(parse("host=h tcp_user_timeout=0").tcp.user_timeout, None);
}

#[test]
fn b129_every_sslmode_and_its_company() {
    for mode in [
        "disable",
        "allow",
        "prefer",
        "require",
        "verify-ca",
        "verify-full",
    ] {
        let options = parse(&format!("postgres://h/d?sslmode={mode}"));
        assert_eq!(options.tls.mode.as_str(), mode);
        assert!(options.redacted().ends_with(&format!("sslmode={mode}")));
    }
    assert_eq!(parse("postgres://h/d?ssl=true").tls.mode, SslMode::Require);
    let system = parse("host=h sslrootcert=system");
    assert_eq!(
        (system.tls.mode, system.tls.roots),
        (SslMode::VerifyFull, Roots::System)
    );
    refused("host=h sslrootcert=system sslmode=require");
    refused("host=h sslnegotiation=direct");
    assert!(
        parse("host=h sslnegotiation=direct sslmode=require")
            .tls
            .direct
    );
    assert!(refused("host=h sslmode=on").hint.contains("verify-full"));
    refused("host=h sslpassword=x");
    refused("host=h gssencmode=require");
    refused("host=h ssl_max_protocol_version=TLSv1.1");
}

#[test]
fn unknown_options_are_named_and_the_likely_one_is_offered() {
    let error = refused("postgres://h/d?sslmod=require");
    assert!(
        error.reason.contains("sslmod") && error.hint.contains("sslmode"),
        "{error:?}"
    );
    assert!(
        refused("host=h SSLMODE=require")
            .hint
            .contains("\"sslmode\"")
    );
    assert!(
        refused("host=h replication=database")
            .reason
            .contains("replication")
    );
    assert!(refused("h1").hint.contains("postgresql://"));
    refused("host=h client_encoding=latin1");
}

#[test]
fn the_environment_fills_gaps_and_the_string_wins() {
    let variables = [
        ("PGHOST", "env-host"),
        ("PGPORT", "6000"),
        ("PGUSER", "env-user"),
        ("PGPASSWORD", "env-secret"),
        ("PGSSLMODE", "verify-full"),
        ("PGOPTIONS", "-c geqo=off"),
        ("PGAPPNAME", "env-app"),
    ];
    let environment = environment(&variables);
    let options = ConnectOptions::parse("host=h dbname=d", &environment).expect("parse");
    assert_eq!(options.hosts()[0].to_string(), "h:6000");
    assert_eq!(options.user(), "env-user");
    assert_eq!(password(&options), Some("env-secret"));
    assert_eq!(options.tls.mode, SslMode::VerifyFull);
    assert_eq!(options.application_name(), Some("env-app"));
    assert!(
        options
            .startup_parameters()
            .contains(&("options", "-c geqo=off"))
    );
    assert!(!format!("{environment:?}").contains("env-secret"));
}

#[test]
fn service_files_stand_behind_the_string_and_before_the_environment() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("services.conf");
    let file =
        "# ours\n[other]\nhost=wrong\n\n[shop]\nhost=db1\nport=5433\nuser=svc\nsslmode=require\n";
    std::fs::write(&path, file).expect("write");
    let path = path.to_str().expect("a path");
    let environment = environment(&[("PGSERVICEFILE", path), ("PGPORT", "1"), ("USER", "os")]);
    let options = ConnectOptions::parse("service=shop user=me", &environment).expect("parse");
    assert_eq!(options.hosts()[0].to_string(), "db1:5433");
    assert_eq!(options.user(), "me");
    assert_eq!(options.tls.mode, SslMode::Require);
    let missing = ConnectOptions::parse("service=nope", &environment).expect_err("no such service");
    assert!(missing.hint.contains("services.conf"));
}

#[test]
fn require_auth_and_friends() {
    use AuthMethod::{Cleartext, Md5, None as Nothing, Scram};
    assert_eq!(
        parse("host=h require_auth=scram-sha-256").allowed_auth,
        [Scram]
    );
    assert_eq!(
        parse("host=h require_auth=!password,!md5").allowed_auth,
        [Scram, Nothing]
    );
    assert_eq!(
        parse("host=h").allowed_auth,
        [Cleartext, Md5, Scram, Nothing]
    );
    refused("host=h require_auth=!password,md5");
    refused("host=h require_auth=magic");
    for attrs in [
        "any",
        "read-write",
        "read-only",
        "primary",
        "standby",
        "prefer-standby",
    ] {
        parse(&format!("host=h target_session_attrs={attrs}"));
    }
    assert!(parse("host=h load_balance_hosts=random").shuffle_hosts);
}

#[test]
fn b69_a_parameter_replaces_ours_whatever_its_case() {
    let options = parse("host=h")
        .with_parameter("STATEMENT_TIMEOUT", "5s")
        .with_application_name("trellara shop relay")
        .with_dead_client_detection();
    let parameters = options.startup_parameters();
    let named = |name: &str| {
        let found = parameters
            .iter()
            .filter(|(n, _)| n.eq_ignore_ascii_case(name));
        found.map(|(_, value)| *value).collect::<Vec<_>>()
    };
    assert_eq!(named("statement_timeout"), ["5s"]);
    assert_eq!(named("DateStyle"), ["ISO"]);
    assert_eq!(named("application_name"), ["trellara shop relay"]);
    assert_eq!(named("tcp_user_timeout"), ["30000"]);
}

proptest! {
    #[test]
    fn whatever_is_escaped_comes_back(
        user in "[^\0]{1,20}",
        secret in "[^\0]{1,40}",
        database in "[^\0]{1,20}",
    ) {
        let uri = parse(&format!(
            "postgresql://{}:{}@h/{}", percent(&user), percent(&secret), percent(&database)
        ));
        let pairs = parse(&format!(
            "host=h user={} password={} dbname={}", quoted(&user), quoted(&secret), quoted(&database)
        ));
        for options in [uri, pairs] {
            prop_assert_eq!(options.user(), user.as_str());
            prop_assert_eq!(password(&options), Some(secret.as_str()));
            prop_assert_eq!(options.database(), database.as_str());
        }
    }

    #[test]
    fn no_text_makes_the_parser_fail_otherwise_than_by_an_error(
        text in "(postgres(ql)?://)?[ -~é]{0,80}",
    ) {
        if let Err(error) = ConnectOptions::parse(&text, &Environment::empty()) {
            prop_assert!(!error.reason.is_empty());
        }
    }
}
