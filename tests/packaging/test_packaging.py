"""What users install is what was built: the packages, their metadata, and the files that make containers.

Quick checks, on what `make test` has built anyway. `make test-packages` installs, uses and removes the packages in
systems of their own.
"""

import hashlib
import io
import json
import os
import re
import shlex
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest

from harness import places

PACKAGING = places.ROOT / "packaging"
sys.path.insert(0, str(PACKAGING))
import packages  # noqa: E402

META = json.loads((PACKAGING / "META.json").read_text())
DOCKERFILES = sorted(PACKAGING.glob("*.Dockerfile"))


@pytest.fixture
def out(tmp_path, monkeypatch):
    """The folder of packages, and a major; one is enough. The libraries are those of the tests; git is not asked."""
    major = places.majors_under_test()[0]
    if major is None:
        said = subprocess.run([places.chosen_pg_config(), "--version"], check=True, capture_output=True, text=True)
        major = int(re.search(r"\d+", said.stdout)[0])
    monkeypatch.setattr(packages, "OUT", tmp_path)
    monkeypatch.setattr(packages, "extension_library", lambda major: places.TARGET / "pg_fence" / str(major) / "pg_fence.so")
    monkeypatch.setenv("SOURCE_DATE_EPOCH", "1700000000")
    monkeypatch.setenv("DEBFULLNAME", "A Maintainer")
    monkeypatch.setenv("DEBEMAIL", "maintainer@example.org")
    return tmp_path, major


def listed(package):
    """What a Debian package installs: mode, owner and place of each file."""
    said = subprocess.run(["dpkg-deb", "--contents", package], check=True, capture_output=True, text=True).stdout
    lines = [line.split() for line in said.splitlines()]
    return {line[5].removeprefix("."): (line[0], line[1]) for line in lines if not line[5].endswith("/")}


def control(package):
    """The fields of a Debian package."""
    said = subprocess.run(["dpkg-deb", "--field", package], check=True, capture_output=True, text=True).stdout
    return dict(re.findall(r"^([\w-]+): (.*)$", said, re.MULTILINE))


def test_debian_packages_hold_the_libraries_and_what_belongs_to_them(out):
    folder, major = out
    packages.main("deb", [major])
    module, extension = sorted(folder.glob("*.deb"), reverse=True)
    files = listed(module)
    library = "/usr/lib/redis/modules/redis_fencelock.so"
    # Redis loads no module that is not executable.
    assert files[library] == ("-rwxr-xr-x", "root/root")
    assert {owner for _, owner in files.values()} == {"root/root"}
    assert set(files) - {library} == {
        "/etc/redis/fencelock.conf",
        "/usr/share/lintian/overrides/redis-fencelock",
        *(f"/usr/share/doc/redis-fencelock/{name}" for name in ("README.md.gz", "changelog.gz", "changelog.Debian.gz", "copyright")),
    }
    installed = {name for name in listed(extension) if "/doc/" not in name and "/lintian/" not in name}
    scripts = {path.name for path in (places.ROOT / "sql").glob("pg_fence--*.sql")}
    assert installed == {
        f"/usr/lib/postgresql/{major}/lib/pg_fence.so",
        *(f"/usr/share/postgresql/{major}/extension/{name}" for name in {"pg_fence.control", *scripts}),
    }
    fields = control(extension)
    assert fields["Package"] == f"postgresql-{major}-pg-fence"
    assert fields["Maintainer"] == "A Maintainer <maintainer@example.org>"
    assert re.fullmatch(rf"libc6 \(>= 2\.\d+\), libgcc-s1 \(>= 4\.2\), postgresql-{major}", fields["Depends"])
    scripts = subprocess.run(["dpkg-deb", "--ctrl-tarfile", module], check=True, capture_output=True).stdout
    with tarfile.open(fileobj=io.BytesIO(scripts)) as archive:
        assert archive.getmember("./prerm").mode == 0o755
    assert control(module)["Version"].split("-")[0] == packages.version()


def test_the_removal_of_the_module_warns_of_what_still_loads_it(tmp_path):
    redis, valkey = tmp_path / "etc" / "redis", tmp_path / "etc" / "valkey"
    for folder in (redis, valkey):
        folder.mkdir(parents=True)
    (redis / "fencelock.conf").write_text((PACKAGING / "fencelock.conf").read_text())
    (redis / "redis.conf").write_text("port 6379\n# include /etc/redis/fencelock.conf\n")
    (valkey / "valkey.conf").write_text("port 6380\n")

    def removed(how):
        environment = {"PATH": os.environ["PATH"], "DPKG_ROOT": str(tmp_path)}
        return subprocess.run(["sh", PACKAGING / "redis_fencelock.prerm", how], check=True, capture_output=True, text=True, env=environment).stderr

    assert removed("remove") == ""
    for path, line in ((redis / "redis.conf", "include /etc/redis/fencelock.conf"), (valkey / "valkey.conf", "  loadmodule /x/redis_fencelock.so")):
        path.write_text(f"port 6379\n{line}\n")
        assert f"{path} still loads the module: remove that line" in removed("remove")
    assert removed("upgrade") == ""


def test_the_copyright_file_names_every_crate_that_is_linked(out):
    text = packages._copyright("redis_fencelock")
    assert "Files: redis-module-2.0.8/*" in text
    assert "License: BSD-3-Clause\n Copyright (c)" in text or "License: BSD-3-Clause\n BSD" in text
    for name in set(re.findall(r"^License: (\S+)$", text, re.MULTILINE)):
        assert re.search(rf"^License: {re.escape(name)}\n .{{20}}", text, re.MULTILINE), f"no text of {name}"


def test_the_same_commit_makes_the_same_bytes(out, tmp_path):
    folder, major = out

    def digests():
        for kind in ("deb", "tarball"):
            packages.main(kind, [major])
        return (folder / "SHA256SUMS").read_text()

    first = digests()
    for path in folder.iterdir():
        path.unlink()
    assert digests() == first
    for line in first.splitlines():
        digest, name = line.split("  ")
        assert hashlib.sha256((folder / name).read_bytes()).hexdigest() == digest
    assert len(first.splitlines()) == 3


def test_the_tarball_has_all_that_its_instructions_name(out):
    folder, major = out
    packages.main("tarball", [major])
    (path,) = folder.glob("*.tar.gz")
    with tarfile.open(path) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
        modes = {Path(member.name).name: member.mode for member in archive if member.isfile()}
    named = set(re.findall(r"\b(?:\w+\.(?:so|md)|postgresql-\d+/pg_fence\.so)\b", (PACKAGING / "INSTALL").read_text()))
    assert {name.replace("postgresql-18", f"postgresql-{major}") for name in named} - {"pg_fence.so"} <= names
    assert {"extension/pg_fence.control", "LICENSE", "CHANGELOG.md"} <= names
    assert modes["redis_fencelock.so"] == 0o755


# --- PGXN


def test_the_metadata_of_pgxn_is_what_its_specification_wants():
    """https://pgxn.org/meta/spec.txt, version 1.0.0: what is required, and the form of what is there."""
    assert {"name", "version", "abstract", "maintainer", "license", "provides", "meta-spec"} <= set(META)
    assert META["meta-spec"] == {"version": "1.0.0", "url": "https://pgxn.org/meta/spec.txt"}
    assert re.fullmatch(r"[^/\\\s\x00-\x1f]{2,}", META["name"])
    assert META["license"] == "mit"
    assert all(re.fullmatch(r"[^/\\\x00-\x1f]{1,255}", tag) for tag in META["tags"])
    assert all(re.fullmatch(r"\d+\.\d+\.\d+", version) for version in META["prereqs"]["runtime"]["requires"].values())
    for extension in META["provides"].values():
        assert {"file", "version"} <= set(extension)
        assert (places.ROOT / extension["file"]).is_file()
        assert (places.ROOT / extension["docfile"]).is_file()


def test_all_versions_are_one():
    version = packages.version()
    assert re.fullmatch(r"\d+\.\d+\.\d+", version)
    assert META["version"] == META["provides"]["pg_fence"]["version"] == version
    assert META["provides"]["pg_fence"]["file"] == f"sql/pg_fence--{version}.sql"
    assert f"default_version = '{version}'" in (places.ROOT / "sql" / "pg_fence.control").read_text()


# --- containers


@pytest.mark.parametrize("path", DOCKERFILES, ids=lambda path: path.stem)
def test_a_dockerfile_names_files_and_targets_that_are_there(path):
    text = path.read_text().replace("\\\n", " ")
    targets = set(re.findall(r"^([a-z-]+):", (places.ROOT / "Makefile").read_text(), re.MULTILINE))
    for line in re.findall(r"^COPY (?!--from)(.+)$", text, re.MULTILINE):
        *sources, _ = shlex.split(line)
        assert all((places.ROOT / source).exists() for source in sources)
    assert set(re.findall(r"(?:^RUN|&&) +make ([a-z-]+)", text, re.MULTILINE)) <= targets


def test_the_module_of_the_image_is_where_make_leaves_it():
    assert places.MODULE.relative_to(places.TARGET).as_posix() == "release/libredis_fencelock.so"
    assert "/src/target/release/libredis_fencelock.so" in (PACKAGING / "redis.Dockerfile").read_text()


def test_the_compose_file_names_dockerfiles_that_are_there_and_arguments_of_the_demo():
    text = (PACKAGING / "compose.yaml").read_text()
    named = re.findall(r"dockerfile: (\S+?) }", text)
    assert {places.ROOT / name for name in named} == set(DOCKERFILES)
    said = subprocess.run([sys.executable, "-m", "demo", "--help"], cwd=places.ROOT / "tools", capture_output=True, text=True).stdout
    assert set(re.findall(r"- (--[a-z-]+)=", text)) == {"--redis-url", "--database-url"} <= set(re.findall(r"--[a-z-]+", said))


def test_the_files_of_the_demo_in_its_image_are_all_that_it_imports(tmp_path):
    """Run from a copy of just these files, it can start."""
    for line in re.findall(r"^COPY (.+)$", (PACKAGING / "demo.Dockerfile").read_text(), re.MULTILINE):
        *sources, to = line.split()
        for source in sources:
            subprocess.run(["cp", "-r", places.ROOT / source, tmp_path / to], check=True)
    done = subprocess.run([sys.executable, "-m", "demo", "--help"], cwd=tmp_path, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")


# --- the snippet for redis.conf


def test_the_settings_in_the_snippet_are_accepted(make_redis):
    text = (PACKAGING / "fencelock.conf").read_text()
    (arguments,) = re.findall(r"^# +loadmodule \S+ (.+)$", text, re.MULTILINE)
    (setting, value) = re.findall(r"CONFIG SET (\S+) (\d+)", text)[0]
    server = make_redis(arguments.split())
    assert server.cli("CONFIG", "GET", setting).splitlines() == [setting, value]


def test_the_snippet_loads_what_the_package_installs():
    (loaded,) = re.findall(r"^loadmodule (\S+)$", (PACKAGING / "fencelock.conf").read_text(), re.MULTILINE)
    assert loaded == "/usr/lib/redis/modules/redis_fencelock.so"
