"""Runs the tests that the fault matrix names, and notes down what it saw in tests/it/matrix/run.txt.

With a file as its argument it runs nothing and reads what nextest printed there.
"""

import datetime
import pathlib
import platform
import re
import subprocess
import sys

HERE = pathlib.Path(__file__).parent
ROWS = HERE / "it/matrix/rows.rs"
RUN = HERE / "it/matrix/run.txt"
OUTCOME = re.compile(r"^\s*(PASS|FAIL|TIMEOUT|ABORT)\s+\[[^]]*\]\s+(?:\([^)]*\)\s+)?\S+ (\S+)")


def named():
    """The tests that the rows name."""
    text = ROWS.read_text().split("const ROWS", 1)[1]
    return set(re.findall(r"\"([a-z][a-z0-9]*(?:_[a-z0-9]+)+)\"", text))


def run(names):
    """What nextest prints about them."""
    expression = " + ".join(f"test(/(^|::){name}(_on_1[0-9])?(::on_postgres_1[0-9])?$/)" for name in sorted(names))
    command = ["cargo", "nextest", "run", "--locked", "--workspace", "--no-fail-fast"]
    done = subprocess.run(
        [*command, "-E", expression], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    print(done.stdout[-2000:])
    return done.stdout


def outcomes(text, names):
    """Of each named test, whether all that have its name passed."""
    seen = {}
    for line in re.sub(r"\x1b\[[0-9;]*m", "", text).splitlines():
        found = OUTCOME.match(line)
        if not found:
            continue
        name = re.sub(r"::on_postgres_1[0-9]$", "", found[2]).rsplit("::", 1)[-1]
        for known in (name, re.sub(r"_on_1[0-9]$", "", name)):
            if known in names:
                passed = found[1] == "PASS"
                seen[known] = seen.get(known, True) and passed
    return seen


def main():
    names = named()
    text = pathlib.Path(sys.argv[1]).read_text() if len(sys.argv) > 1 else run(names)
    seen = outcomes(text, names)
    commit = subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, cwd=HERE
    ).stdout.strip()
    day = datetime.date.today().isoformat()
    about = f"{day}, commit {commit}, {platform.system()} {platform.machine()}, PostgreSQL 15 and 18"
    lines = [f"{'PASS' if seen[name] else 'FAIL'} {name}" for name in sorted(seen)]
    RUN.write_text("\n".join([about, *lines]) + "\n")
    missing = sorted(names - seen.keys())
    print(f"{len(seen)} of {len(names)} tests were seen; not seen: {missing}")
    sys.exit(0 if not missing and all(seen.values()) else 1)


main()
