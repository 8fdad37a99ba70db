"""The clients whose use is tested, and what each needs: `python3 -m clients.roster build|install`.

`build` makes ready what the runtimes of this machine can run: npm's packages, the Rust and the Go program, all under
target/clients/. `install` gets the missing runtimes from Debian's packages. Standard library only.
"""

import fcntl
import functools
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from harness import places

HERE = Path(__file__).resolve().parent
BUILT = places.TARGET / "clients"
NODE = BUILT / "node"
RUST = BUILT / "rust" / "debug" / "fencelock-client"
GO = BUILT / "go" / "redigo_pgx"

GO_SOURCES = Path("/usr/share/gocode")
JARS = Path("/usr/share/java")
JDBC = JARS / "postgresql.jar"
# Debian's Hibernate is an old one, of the 3.6 line: the only one that can be had without Maven.
HIBERNATE_JARS = [
    JARS / f"{name}.jar"
    for name in (
        "hibernate-core",
        "hibernate-commons-annotations",
        "geronimo-jpa_2.0_spec",
        "geronimo-jta-1.2-spec",
        "antlr",
        "commons-collections3",
        "dom4j",
        "slf4j-api",
        "slf4j-nop",
        "postgresql",
    )
]


@dataclass(frozen=True)
class Client:
    """One program, and how to run it.

    resends: the Redis client sends a call again by itself when the connection drops before the reply.
    """

    name: str
    command: tuple
    runtime: "Runtime"
    resends: bool = False


@dataclass(frozen=True)
class Caller:
    """A program that makes calls with parameters, as one driver sends them, and how to run it.

    asks_for_types: the driver asks the server for the types of parameters. casts_json: it says that a text is one.
    """

    name: str
    command: tuple
    runtime: "Runtime"
    asks_for_types: bool = False
    casts_json: bool = False


@dataclass(frozen=True)
class Runtime:
    """What a program runs on. `there` says whether it is on this machine, with its two clients."""

    name: str
    there: Callable[[], bool]
    packages: str = ""
    build: Callable[[], None] = lambda: None


def _runs(*command):
    """Whether a program is there and ends well."""
    found = shutil.which(command[0])
    return found is not None and subprocess.run(command, capture_output=True, check=False).returncode == 0


def _jdk():
    """The version of the JDK, from the file that each has; starting it would take a second."""
    javac = shutil.which("javac")
    release = Path(javac).resolve().parents[1] / "release" if javac else None
    if release is None or not release.exists():
        return 0
    return int(re.search(r'^JAVA_VERSION="(\d+)', release.read_text(), re.MULTILINE)[1])


def _build_node():
    NODE.mkdir(parents=True, exist_ok=True)
    for name in ("package.json", "package-lock.json"):
        shutil.copyfile(HERE / "node" / name, NODE / name)
    # npm writes this copy of the lockfile as the last step.
    done = NODE / "installed"
    wanted = (HERE / "node" / "package-lock.json").read_text()
    if not done.exists() or done.read_text() != wanted:
        _run("npm", "ci", "--no-audit", "--no-fund", "--ignore-scripts", "--loglevel=error", cwd=NODE)
        done.write_text(wanted)
    # A module is looked for beside the program that imports it.
    for program in (HERE / "node").glob("*.js"):
        shutil.copyfile(program, NODE / program.name)


def _build_rust():
    environment = {**os.environ, "CARGO_TARGET_DIR": str(BUILT / "rust")}
    _run("cargo", "build", "--quiet", "--locked", cwd=HERE / "rust", env=environment)


def _build_go():
    """With the libraries' sources as Debian has them: not as modules, from the network."""
    source = HERE / "go" / "redigo_pgx.go"
    if GO.exists() and GO.stat().st_mtime > source.stat().st_mtime:
        return
    paths = {"GO111MODULE": "off", "GOPATH": str(GO_SOURCES), "GOCACHE": str(GO.parent / "cache")}
    _run("go", "build", "-o", GO, source, env={**os.environ, **paths})


PYTHON = Runtime("Python", lambda: True)
RUST_RUNTIME = Runtime("Rust", lambda: shutil.which("cargo") is not None, build=_build_rust)
SHELL = Runtime("shell", lambda: True)
NODE_RUNTIME = Runtime(
    "Node.js 18 or newer with npm",
    lambda: _runs("node", "-e", "process.exit(parseInt(process.versions.node) >= 18 ? 0 : 1)")
    and shutil.which("npm") is not None,
    "nodejs npm",
    _build_node,
)
PHP = Runtime(
    "PHP with phpredis and PDO for PostgreSQL",
    lambda: _runs("php", "-r", "exit(extension_loaded('redis') && extension_loaded('pdo_pgsql') ? 0 : 1);"),
    "php-cli php-redis php-pgsql",
)
RUBY = Runtime(
    "Ruby with redis and pg", lambda: _runs("ruby", "-e", "require 'redis'; require 'pg'"), "ruby ruby-redis ruby-pg"
)
PERL = Runtime(
    "Perl with Redis and DBD::Pg", lambda: _runs("perl", "-MRedis", "-MDBD::Pg", "-e", "1"), "libredis-perl libdbd-pg-perl"
)
GO_RUNTIME = Runtime(
    "Go with redigo and pgx",
    lambda: shutil.which("go") is not None
    and all((GO_SOURCES / "src/github.com" / name).is_dir() for name in ("gomodule/redigo", "jackc/pgx/v4")),
    "golang-go golang-github-gomodule-redigo-dev golang-github-jackc-pgx-v4-dev",
    _build_go,
)
JAVA = Runtime(
    "Java 17 or newer with PostgreSQL's JDBC driver",
    # A JDK: the program is compiled as it starts.
    lambda: _jdk() >= 17 and JDBC.exists(),
    "default-jdk-headless libpostgresql-jdbc-java",
)
HIBERNATE = Runtime(
    "Java 17 or newer with Hibernate and PostgreSQL's JDBC driver",
    lambda: _jdk() >= 17 and all(jar.exists() for jar in HIBERNATE_JARS),
    "default-jdk-headless libhibernate3-java libslf4j-java libpostgresql-jdbc-java",
)


def _python(name, protocol):
    return (sys.executable, HERE / "python" / f"{name}.py", protocol)


CLIENTS = (
    Client("redis-py-resp2-psycopg", _python("redis_py_psycopg", 2), PYTHON, resends=True),
    Client("redis-py-resp3-psycopg", _python("redis_py_psycopg", 3), PYTHON, resends=True),
    Client("redis-py-asyncio-resp2-asyncpg", _python("redis_py_asyncpg", 2), PYTHON, resends=True),
    Client("redis-py-asyncio-resp3-asyncpg", _python("redis_py_asyncpg", 3), PYTHON, resends=True),
    Client("node-redis-pg", ("node", NODE / "node_redis_pg.js"), NODE_RUNTIME),
    Client("ioredis-postgres.js", ("node", NODE / "ioredis_postgres.js"), NODE_RUNTIME, resends=True),
    Client("redis-rs-tokio-postgres", (RUST,), RUST_RUNTIME),
    Client("phpredis-pdo", ("php", HERE / "php" / "phpredis_pdo.php"), PHP),
    Client("redis-rb-pg", ("ruby", HERE / "ruby" / "redis_pg.rb"), RUBY, resends=True),
    Client("perl-redis-dbi", ("perl", HERE / "perl" / "redis_dbi.pl"), PERL),
    Client("redigo-pgx", (GO,), GO_RUNTIME),
    Client("jdbc", ("java", "-cp", JDBC, "-XX:TieredStopAtLevel=1", HERE / "java" / "Story.java"), JAVA),
    Client("redis-cli-psql", ("sh", HERE / "shell" / "story.sh"), SHELL),
)

# What saves an object whose row may be gone. Those in Python are in tests/recipes.
ORMS = (
    Client("typeorm", ("node", NODE / "typeorm_save.js"), NODE_RUNTIME),
    Client(
        "hibernate",
        (
            "java",
            "-cp",
            os.pathsep.join(map(str, HIBERNATE_JARS)),
            "-XX:TieredStopAtLevel=1",
            HERE / "java" / "Merge.java",
        ),
        HIBERNATE,
    ),
)
PROGRAMS = (*CLIENTS, *ORMS)

# What makes the calls that test_calls.py gives it.
CALLERS = (
    Caller("pg", ("node", NODE / "calls_pg.js"), NODE_RUNTIME),
    Caller("postgres.js", ("node", NODE / "calls_postgres.js"), NODE_RUNTIME, asks_for_types=True),
    Caller("jdbc", ("java", "-cp", JDBC, "-XX:TieredStopAtLevel=1", HERE / "java" / "Calls.java"), JAVA, casts_json=True),
)


@functools.cache
def there(runtime):
    """Whether this machine can run the clients of a runtime; asked once."""
    return runtime.there()


def absent():
    """The runtimes that this machine lacks, and the names of the clients that they would run."""
    lacking = {client.runtime: [] for client in PROGRAMS if not there(client.runtime)}
    for client in PROGRAMS:
        if client.runtime in lacking:
            lacking[client.runtime].append(client.name)
    return lacking


def build():
    """Make all clients ready whose runtime is there. One builds at a time; done already, it takes a fraction of a second."""
    BUILT.mkdir(parents=True, exist_ok=True)
    with open(BUILT / "lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        for runtime in dict.fromkeys(client.runtime for client in PROGRAMS):
            if there(runtime):
                runtime.build()


def install():
    """Get the missing runtimes from Debian's packages, as root or with sudo."""
    packages = " ".join(runtime.packages for runtime in absent()).split()
    if not packages:
        return
    as_root = [] if os.geteuid() == 0 else ["sudo"]
    _run(*as_root, "apt-get", "-qq", "update")
    options = ["-qq", "-o", "DPkg::Lock::Timeout=300", "install", "--yes", "--no-install-recommends"]
    _run(*as_root, "env", "DEBIAN_FRONTEND=noninteractive", "apt-get", *options, *packages)


def _run(*command, **kwargs):
    subprocess.run([str(word) for word in command], check=True, **kwargs)


if __name__ == "__main__":
    {"build": build, "install": install}[sys.argv[1]]()
