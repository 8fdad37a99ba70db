"""tools/setup says what is missing before it downloads anything: run from a copy, on a machine of stand-ins."""

import re
import shutil
import subprocess

import pytest

from harness import places


@pytest.fixture
def machine(tmp_path):
    """A factory of runs: what the stand-ins print, and what the script said. They write down how they were called."""
    (tmp_path / "tools").mkdir()
    shutil.copy(places.ROOT / "tools" / "setup", tmp_path / "tools")
    shutil.copy(places.ROOT / "tools" / "requirements.txt", tmp_path / "tools")
    stubs = tmp_path / "bin"
    stubs.mkdir()
    calls = tmp_path / "calls"

    def run(wanted="demo", environment=(), **programs):
        programs = {
            **{"cargo": "", "rustc": "echo rustc 1.97.1", "df": 'echo; echo "disk 0 0 99000000"'},
            **{"apt-get": "exit 1", "apt-cache": "exit 1", "python3": "exit 1"},
            **{name.replace("_", "-"): body for name, body in programs.items()},
        }
        for name, body in programs.items():
            (stubs / name).write_text(f'#!/bin/sh\necho "{name} $*" >>{calls}\n{body}\n')
            (stubs / name).chmod(0o755)
        calls.write_text("")
        done = subprocess.run(
            [tmp_path / "tools" / "setup", wanted],
            env={"PATH": f"{stubs}:/usr/bin:/bin", "HOME": str(tmp_path), **dict(environment)},
            capture_output=True,
            text=True,
        )
        assert done.returncode != 0
        return done.stderr.replace("tools/setup: ", ""), calls.read_text()

    run.stubs = stubs
    return run


def downloads(calls):
    return [call for call in calls.splitlines() if call.startswith(("apt-get", "python3 -m pip"))]


def test_an_old_rust_is_named_with_what_to_do(machine):
    said, calls = machine(rustc='echo "rustc 1.65.0 (897e37553 2022-11-02)"')
    assert said.startswith("Rust 1.65 found, 1.95 needed: run `rustup update stable`")
    assert downloads(calls) == []


def test_the_rust_that_is_needed_is_the_one_that_the_readme_names():
    needed = places.ROOT / "tools" / "setup"
    (line,) = [line for line in needed.read_text().splitlines() if line.startswith("rust_needed=")]
    assert f"Rust 1.{line.partition('=')[2]}" in (places.ROOT / "README.md").read_text()


def test_missing_server_headers_are_named_with_their_package(machine, tmp_path):
    include = tmp_path / "include"
    config = f"""case $1 in --version) echo "PostgreSQL 16.4" ;; *) echo {include} ;; esac"""
    path = machine.stubs / "my_pg_config"
    path.write_text(f"#!/bin/sh\n{config}\n")
    path.chmod(0o755)
    said, calls = machine(environment=[("PG_CONFIG", str(path))])
    assert said.startswith(f"{include}/postgres.h is missing: install the server headers of PostgreSQL 16")
    assert "postgresql-server-dev-16" in said
    assert downloads(calls) == []
    include.mkdir()
    (include / "postgres.h").touch()
    assert "postgres.h" not in machine(environment=[("PG_CONFIG", str(path))])[0]


def test_the_headers_of_icu_are_needed_where_the_server_was_built_with_it(machine, tmp_path):
    path = machine.stubs / "my_pg_config"
    path.write_text(f"""#!/bin/sh\necho "{tmp_path}"\n""")
    path.chmod(0o755)
    (tmp_path / "postgres.h").touch()
    (tmp_path / "pg_config.h").write_text("#define USE_ICU 1\n")
    without_icu = {"cc": "! grep -q unicode", "id": "echo 0", "apt_get": "true", "apt_cache": 'echo "  Candidate: (none)"'}
    chosen = [("PG_CONFIG", str(path)), ("LIBCLANG_PATH", "/here")]
    needed = "no source of apt has libicu-dev"
    assert needed in machine(environment=chosen, python3="[ $1 = -c ]", **without_icu)[0]
    assert needed not in machine(environment=chosen, python3="[ $1 = -c ]", **{**without_icu, "cc": "true"})[0]
    (tmp_path / "pg_config.h").write_text("/* #undef USE_ICU */\n")
    assert needed not in machine(environment=chosen, python3="[ $1 = -c ]", **without_icu)[0]
    fetched = tmp_path / "target" / "servers" / "postgres-15"
    fetched.mkdir(parents=True)
    (tmp_path / "pg_config.h").write_text("#define USE_ICU 1\n")
    path.rename(fetched / "pg_config")
    assert needed not in machine(environment=[("PG_CONFIG", str(fetched / "pg_config")), chosen[1]], python3="[ $1 = -c ]", **without_icu)[0]


@pytest.mark.parametrize(("wanted", "needed_gb"), [("demo", 3), ("test", 6)])
def test_a_full_disk_is_named_before_anything_is_fetched(machine, wanted, needed_gb):
    said, calls = machine(wanted, df=f'echo; echo "disk 0 0 {needed_gb * 1024 * 1024 - 1}"')
    assert said.startswith(f"{needed_gb} GB of disk are needed, and ")
    assert downloads(calls) == []


def test_the_time_of_the_first_build_is_said_once(machine, tmp_path):
    assert "2 to 5 minutes" in machine()[0]
    built = tmp_path / "target" / "release"
    built.mkdir(parents=True)
    (built / "libredis_fencelock.so").touch()
    assert "minutes" not in machine(df='echo; echo "disk 0 0 1"')[0]


def test_a_package_that_no_source_of_apt_has_is_named(machine):
    said, calls = machine(cc="exit 1", id="echo 0", apt_get="true", apt_cache='echo "$2:"; echo "  Candidate: (none)"')
    assert "no source of apt has gcc: see /etc/apt/sources.list" in said
    assert not any("install" in call for call in downloads(calls))


def test_lists_that_cannot_be_updated_are_tried_all_the_same(machine):
    said, calls = machine(cc="exit 1", id="echo 0", apt_get='[ "$2" != update ]', apt_cache='echo "  Candidate: 12.2"')
    assert "apt-get update failed: trying with the lists that are here" in said
    assert any("install" in call and "gcc" in call for call in downloads(calls))


@pytest.mark.parametrize(("wanted", "installs"), [("demo", False), ("test", True)])
def test_the_packages_of_the_tests_are_for_the_tests(machine, tmp_path, wanted, installs):
    python = f"""case "$*" in *venv*)
        mkdir -p "$3/bin"
        for name in python pip; do
            printf '#!/bin/sh\\necho "venv $*" >>{tmp_path}/calls\\nexit 1\\n' >"$3/bin/$name"
            chmod 755 "$3/bin/$name"
        done
    esac"""
    _, calls = machine(wanted, python3=python, cc="true", environment=[("LIBCLANG_PATH", "/here")])
    assert ("requirements.txt" in calls) == installs
    assert ("harness.fetch" in calls) == (not installs), "the stand-in for pip fails"


def test_a_first_build_compiles_no_unicode_data():
    """Cargo.toml says how it is left out."""
    locked = re.findall(r'^name = "(.*)"', (places.ROOT / "Cargo.lock").read_text(), re.MULTILINE)
    assert [name for name in locked if name.startswith("icu_")] == []
