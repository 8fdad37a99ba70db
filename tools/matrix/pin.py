"""Writes debian.json anew: the files of the matrix' Debian servers, each by its hash.

`PYTHONPATH=tools python3 -m matrix.pin` on a Debian machine. Run it to move on to newer versions; the day of the pins
is where an archive of Debian (DEBIAN_SNAPSHOTS) has them once its mirrors have moved on.
"""

import datetime
import json
import re
import subprocess
import tempfile
from pathlib import Path

from harness import debian
from harness.fetch import PINNED

KEYRING = "/usr/share/keyrings/debian-archive-keyring.gpg"
SUITES = {"trixie": ("trixie",), "sid": ("sid",), "experimental": ("sid", "experimental")}
# Each: the suites; packages that are wanted with their libraries; packages that are wanted alone.
SERVERS = {
    "redis-8.0": ("trixie", ("redis-server", "redis-tools"), ()),
    "redis-8.2": ("trixie", ("redis-tools",), ()),
    "redis-8.6": ("experimental", ("redis-server=5:8.6*", "redis-tools=5:8.6*"), ()),
    "valkey-8.1": ("trixie", ("valkey-server", "valkey-tools"), ()),
    "valkey-9.1": ("sid", ("valkey-server", "valkey-tools"), ()),
    "postgres-17": ("trixie", ("postgresql-17", "postgresql-client-17", "locales-all"), ("postgresql-server-dev-17", "libicu-dev")),
    "postgres-19": (
        "experimental",
        ("postgresql-19", "postgresql-client-19", "libpq5=19*", "locales-all"),
        ("postgresql-server-dev-19", "libicu-dev"),
    ),
}
# The just-in-time compiler is off in throw-away servers; what stands in for a whole system is not needed.
LIBRARY = re.compile(r"lib(?!llvm|clang|z3|c-gconv|c-l10n|debconf|pam-|proc2|systemd-shared|gdbm|perl|.*-perl|.*-common)|zlib1g")


def main():
    """Resolve every server's packages and write the file."""
    pinned = {"day": datetime.date.today().strftime("%Y%m%d"), "servers": {}}
    for name, (suites, packages, alone) in SERVERS.items():
        with tempfile.TemporaryDirectory() as folder:
            apt = _Apt(Path(folder), SUITES[suites])
            files = {**apt.files("install", *packages), **apt.files("download", *alone)}
        wanted = {package.partition("=")[0] for package in (*packages, *alone)} - {"locales-all"}
        pinned["servers"][name] = {
            path: digest
            for path, digest in sorted(files.items())
            if _package(path) in wanted or LIBRARY.match(_package(path))
        }
    PINNED.write_text(json.dumps(pinned, indent=1) + "\n")


def _package(path):
    return path.rpartition("/")[2].partition("_")[0]


class _Apt:
    """apt for another suite, on a system that has nothing installed."""

    def __init__(self, folder, suites):
        for name in ("lists/partial", "cache/archives/partial"):
            (folder / name).mkdir(parents=True)
        sources = folder / "sources.list"
        sources.write_text("".join(f"deb [signed-by={KEYRING}] {debian.mirrors()[0]} {suite} main\n" for suite in suites))
        self._options = [
            *("-o", f"Dir::Etc::SourceList={sources}", "-o", "Dir::Etc::SourceParts=/dev/null"),
            *("-o", f"Dir::State={folder}", "-o", f"Dir::State::Lists={folder}/lists", "-o", f"Dir::Cache={folder}/cache"),
            *("-o", "Dir::State::status=/dev/null", "-o", "Debug::NoLocking=true", "-o", "APT::Sandbox::User="),
            *("-o", "Acquire::Languages=none", "-o", "Acquire::ForceHash=SHA256"),
        ]
        self._run("update")

    def files(self, command, *packages):
        """The files that the command would bring, as {path under pool/: SHA-256}."""
        if not packages:
            return {}
        said = self._run(command, "--yes", "--no-install-recommends", "--print-uris", *packages)
        found = re.findall(r"^'\S+?/(pool/\S+)' \S+ \d+ SHA256:([0-9a-f]{64})$", said, re.MULTILINE)
        return dict(found)

    def _run(self, *arguments):
        command = ["apt-get", *self._options, "-qq", *arguments]
        return subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout


if __name__ == "__main__":
    main()
