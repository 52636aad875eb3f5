//! Connection strings: passwords, users and databases with every character, in every spelling.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use anyhow::{Context, Result, ensure};
use trellara_local::PostgresServer;
use trellara_local::shared::CANARY;
use trellara_testkit::flow::{Flow, Places};
use trellara_testkit::ground::{Ground, GroundOptions};
use trellara_testkit::roles::{PASSWORD, percent_encoded};

use super::{SCHEMA, command, dead_port, questions, served};
use crate::scenario::{WITHIN, run};

const DATABASE: &str = "My-Db \"1\"";
const CAPTURE: &str = "Repl User \"x\"@y:z";
const APPLY: &str = "Apply/User's ü";

/// A server as one of the roles sees it.
struct Login<'a> {
    server: &'a PostgresServer,
    user: &'static str,
}

impl Login<'_> {
    fn uri(&self, password: Option<&str>, hosts: &str, rest: &str) -> String {
        let user = percent_encoded(self.user);
        let password = password.map_or(String::new(), |it| format!(":{}", percent_encoded(it)));
        let database = percent_encoded(DATABASE);
        format!("postgresql://{user}{password}@{hosts}/{database}{rest}")
    }

    fn here(&self) -> String {
        format!("127.0.0.1:{}", self.server.port())
    }

    fn key_value(&self) -> String {
        let quoted = |text: &str| text.replace('\\', "\\\\").replace('\'', "\\'");
        format!(
            "host=127.0.0.1 port={} user='{}' password = '{}' dbname='{}'",
            self.server.port(),
            quoted(self.user),
            quoted(PASSWORD),
            quoted(DATABASE)
        )
    }

    fn socket(&self) -> String {
        let folder = percent_encoded(&self.server.socket_dir().to_string_lossy());
        self.uri(
            Some(PASSWORD),
            &format!("{folder}:{}", self.server.port()),
            "",
        )
    }

    fn second_host(&self, dead: u16) -> String {
        let hosts = format!("127.0.0.1:{dead},{}", self.here());
        self.uri(Some(PASSWORD), &hosts, "?target_session_attrs=read-write")
    }
}

/// A flow between two databases with an odd name, set up, whose roles were renamed to odd ones.
async fn odd_flow(ground: &Ground) -> Result<Flow> {
    for server in [&ground.source, &ground.target] {
        server.psql("postgres", r#"CREATE DATABASE "My-Db ""1""""#)?;
        server.psql(&percent_encoded(DATABASE), SCHEMA)?;
    }
    let database = percent_encoded(DATABASE);
    let places = Places {
        source_url: ground.source.url(&database),
        target_url: ground.target.url(&database),
        nats_url: ground.nats.url(),
        nats_monitor_url: Some(ground.nats.monitor_url()),
    };
    let flow = Flow::new("odd", places, "")?;
    flow.setup().await?;
    for (server, from, to) in [
        (&ground.source, flow.roles.capture(), CAPTURE),
        (&ground.target, flow.roles.apply(), APPLY),
    ] {
        let to = to.replace('"', "\"\"");
        server.psql("postgres", &format!("ALTER ROLE {from} RENAME TO \"{to}\""))?;
    }
    Ok(flow)
}

fn private(path: &Path, text: &str) -> Result<String> {
    fs::write(path, text)?;
    fs::set_permissions(path, fs::Permissions::from_mode(0o600))?;
    Ok(path.to_str().context("a path in UTF-8")?.to_owned())
}

/// Restarts the daemons with the file as it is now; the first one named gets the endpoint.
async fn carries(flow: &mut Flow, id: usize) -> Result<()> {
    flow.write_config()?;
    let listen = format!("127.0.0.1:{}", dead_port()?);
    flow.environment
        .push(("TRELLARA__OPS__LISTEN", listen.clone()));
    let first = if id.is_multiple_of(2) {
        flow.start_relay()?
    } else {
        flow.start_applier()?
    };
    first.logged("serving /metrics", WITHIN).await?;
    if id.is_multiple_of(2) {
        flow.start_applier()?;
    } else {
        flow.start_relay()?;
    }
    let insert = format!("INSERT INTO t VALUES ({id}, 'x')");
    run(&flow.source_admin, &[&insert]).await?;
    flow.converges(WITHIN).await?;
    questions(flow).await?;
    for path in ["/metrics", "/status", "/livez", "/readyz"] {
        let answer = served(&listen, path)?;
        ensure!(answer.starts_with("HTTP/1."), "{path}: {answer}");
        ensure!(!answer.contains(CANARY), "{path} tells a password");
    }
    Ok(())
}

#[tokio::test]
async fn b128_every_spelling_of_odd_names_and_passwords() -> Result<()> {
    let ground = Ground::start(&GroundOptions::version(15))?;
    let mut flow = odd_flow(&ground).await?;
    let (source, target) = (
        Login {
            server: &ground.source,
            user: CAPTURE,
        },
        Login {
            server: &ground.target,
            user: APPLY,
        },
    );
    let escaped = |text: &str| text.replace('\\', "\\\\").replace(':', "\\:");
    let lines: String = [CAPTURE, APPLY]
        .iter()
        .map(|user| {
            format!(
                "127.0.0.1:*:{}:{}:{}\n",
                escaped(DATABASE),
                escaped(user),
                escaped(PASSWORD)
            )
        })
        .collect();
    let passfile = private(&flow.folder().join("pgpass"), &lines)?;
    let password = private(&flow.folder().join("password"), &format!("{PASSWORD}\n"))?;
    let dead = dead_port()?;
    let all = |form: &dyn Fn(&Login<'_>) -> String| (form(&source), form(&target));
    let without = |login: &Login<'_>| login.uri(None, &login.here(), "");
    let forms = [
        (
            all(&|login| login.uri(Some(PASSWORD), &login.here(), "")),
            vec![],
        ),
        (all(&|login| login.key_value()), vec![]),
        (all(&without), vec![("PGPASSFILE", passfile)]),
        (
            all(&without),
            vec![
                ("TRELLARA__SOURCE__PASSWORD_FILE", password.clone()),
                ("TRELLARA__TARGET__PASSWORD_FILE", password),
            ],
        ),
        (all(&|login| login.socket()), vec![]),
        (all(&|login| login.second_host(dead)), vec![]),
    ];
    for (id, ((source_url, target_url), environment)) in forms.into_iter().enumerate() {
        flow.places.source_url = source_url;
        flow.places.target_url = target_url;
        flow.environment = environment;
        carries(&mut flow, id)
            .await
            .with_context(|| format!("spelling {id}"))?;
    }
    Ok(())
}

/// Errors quote what was wrong, and never what was secret.
#[tokio::test]
async fn b128_a_refused_password_is_told_nowhere() -> Result<()> {
    let mut flow = crate::scenario::started(15, "wrongpw", &[SCHEMA], "").await?;
    (flow.relay, flow.applier) = (None, None);
    let right = flow.places.clone();
    let wrong = format!("wrong%20{CANARY}");
    let password = percent_encoded(PASSWORD);
    flow.places.source_url = right.source_url.replace(&password, &wrong);
    flow.places.target_url = right.target_url.replace(&password, &wrong);
    flow.places.nats_url = right.nats_url.replace("Canary7", "Canary7x");
    flow.write_config()?;
    for arguments in [
        &["check"] as &[&str],
        &["status"],
        &["setup", "--yes"],
        &["wait"],
    ] {
        let done = command(&flow, arguments).await?;
        ensure!(done.code != 0, "{arguments:?} was let in: {}", done.stdout);
    }
    flow.places.nats_url = right.nats_url.clone();
    flow.write_config()?;
    // A password is often changed on the server first: the daemons wait for it or halt, and say why.
    let reason = "password authentication failed";
    flow.start_relay()?.logged(reason, WITHIN).await?;
    flow.start_applier()?.logged(reason, WITHIN).await?;
    flow.tells_no_secret()?;
    // A string that cannot be read at all is not quoted either.
    flow.places.source_url = format!("postgresql://u:{wrong}@h:port/d?sslmode=never{CANARY}");
    flow.places.target_url = format!("host=h pasword='{CANARY}'");
    flow.write_config()?;
    let done = command(&flow, &["config", "check"]).await?;
    ensure!(done.code == 78, "{done:?}");
    Ok(())
}
