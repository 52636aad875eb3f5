//! A pair of databases, a broker, and the program with a file about them.

use std::path::PathBuf;
use std::process::{Command, Output};

use trellara_local::{NatsOptions, NatsServer, PostgresOptions, PostgresServer};

/// Servers of one test; dropping it ends them.
pub(crate) struct World {
    pub(crate) source: PostgresServer,
    pub(crate) target: PostgresServer,
    pub(crate) broker: NatsServer,
    folder: tempfile::TempDir,
}

impl World {
    /// Servers with an empty database `shop` on both sides.
    pub(crate) fn start(source: PostgresOptions) -> Self {
        let source = PostgresServer::start(&source).expect("the source starts");
        let target =
            PostgresServer::start(&PostgresOptions::version(18)).expect("the target starts");
        let broker = NatsServer::start(&NatsOptions {
            sync_always: true,
            ..NatsOptions::default()
        });
        for server in [&source, &target] {
            server
                .psql("postgres", "CREATE DATABASE shop")
                .expect("a database");
        }
        let folder = tempfile::tempdir().expect("a folder");
        Self {
            source,
            target,
            broker: broker.expect("the broker starts"),
            folder,
        }
    }

    pub(crate) fn source_sql(&self, sql: &str) -> String {
        self.source
            .psql("shop", sql)
            .expect("SQL on the source")
            .trim()
            .to_owned()
    }

    pub(crate) fn target_sql(&self, sql: &str) -> String {
        self.target
            .psql("shop", sql)
            .expect("SQL on the target")
            .trim()
            .to_owned()
    }

    /// Writes the flow's file, with lines of the test's own at its end.
    pub(crate) fn config(&self, more: &str) -> PathBuf {
        let text = format!(
            "flow: shop\nsource: {{url: {:?}, tables: [public.*]}}\ntarget: {{url: {:?}}}\n\
             nats: {{url: {:?}, max_bytes: 256MiB}}\nops: {{listen: off}}\n{more}\n",
            self.source.url("shop"),
            self.target.url("shop"),
            self.broker.url()
        );
        let path = self.folder.path().join("trellara.yml");
        std::fs::write(&path, text).expect("the file is written");
        path
    }

    /// The same without `nats.url`: the flow brings its own broker.
    pub(crate) fn config_with_own_broker(&self) {
        let path = self.config("");
        let text = std::fs::read_to_string(&path).expect("the file");
        let server =
            trellara_local::nats_server(&NatsOptions::default().version).expect("a nats-server");
        let named = format!("url: {:?}", self.broker.url());
        let own = format!(
            "server: {server:?}, store_dir: {:?}",
            self.folder.path().join("store")
        );
        std::fs::write(path, text.replace(&named, &own)).expect("the file is written");
    }

    /// The program with the file, not yet started.
    pub(crate) fn program(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_trellara"));
        command
            .arg("--config")
            .arg(self.folder.path().join("trellara.yml"))
            .args(arguments);
        command
    }

    pub(crate) fn run(&self, arguments: &[&str]) -> Ran {
        Ran::of(
            self.program(arguments)
                .output()
                .expect("the program starts"),
        )
    }
}

/// A command that ended.
#[derive(Debug)]
pub(crate) struct Ran {
    pub(crate) code: Option<i32>,
    pub(crate) stdout: String,
    pub(crate) stderr: String,
}

impl Ran {
    fn of(output: Output) -> Self {
        let text = |bytes: Vec<u8>| String::from_utf8(bytes).expect("UTF-8");
        Self {
            code: output.status.code(),
            stdout: text(output.stdout),
            stderr: text(output.stderr),
        }
    }

    #[track_caller]
    pub(crate) fn expect(self, code: i32) -> Self {
        assert_eq!(self.code, Some(code), "{self:?}");
        self
    }

    pub(crate) fn json(&self) -> serde_json::Value {
        serde_json::from_str(&self.stdout).expect("JSON on stdout")
    }
}
