"""Makes what users install, in target/packages/: `python3 packaging/packages.py deb|tarball|pgxn [MAJOR...]`.

Builds nothing: `make deb`, `make tarball` and `make pgxn` have built before what is packed here. Standard library, dpkg,
binutils, tar, git. The same commit makes the same bytes: all times are the commit's.
"""

import functools
import gzip
import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from email.utils import formatdate
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent
sys.path.insert(0, str(ROOT / "tools"))

from harness import places  # noqa: E402

OUT = places.TARGET / "packages"
MODULE = places.MODULE
# The Debian revision: raised when only the packaging changes.
REVISION = 1


def main(what, majors):
    """Make the packages of one kind and list them in SHA256SUMS."""
    OUT.mkdir(parents=True, exist_ok=True)
    makers = {"deb": _debs, "tarball": _tarball, "pgxn": _pgxn}
    made = makers[what](majors)
    _write_sums()
    print(*(os.path.relpath(path) for path in [*made, OUT / "SHA256SUMS"]), sep="\n")


def version():
    """The version of the workspace, which the module and the extension share."""
    return re.search(r'^version = "(.+)"$', (ROOT / "Cargo.toml").read_text(), re.MULTILINE)[1]


def extension_library(major):
    """The extension's library as it is packed: built with the oldest minor of its major."""
    return OUT / str(major) / "pg_fence.so"


def _commit_time():
    """Seconds since 1970: the commit's, or what SOURCE_DATE_EPOCH says."""
    given = os.environ.get("SOURCE_DATE_EPOCH")
    return int(given or _said("git", "-C", ROOT, "log", "-1", "--format=%ct"))


def _architecture():
    return _said("dpkg", "--print-architecture")


# --- Debian packages


def _debs(majors):
    architecture = _architecture()
    return [_deb_of_the_module(architecture), *(_deb_of_the_extension(major, architecture) for major in majors)]


def _deb_of_the_module(architecture):
    files = {
        "usr/lib/redis/modules/redis_fencelock.so": _stripped(MODULE),
        "etc/redis/fencelock.conf": (HERE / "fencelock.conf").read_bytes(),
        "usr/share/doc/redis-fencelock/README.md.gz": _zipped((ROOT / "redis_fencelock" / "README.md").read_bytes()),
    }
    return _deb("redis-fencelock", "redis_fencelock", architecture, files, conffiles=["/etc/redis/fencelock.conf"])


def _deb_of_the_extension(major, architecture):
    name = f"postgresql-{major}-pg-fence"
    files = {
        f"usr/lib/postgresql/{major}/lib/pg_fence.so": _stripped(extension_library(major)),
        f"usr/share/doc/{name}/README.md.gz": _zipped((ROOT / "pg_fence" / "README.md").read_bytes()),
    }
    for source in _extension_scripts():
        files[f"usr/share/postgresql/{major}/extension/{source.name}"] = source.read_bytes()
    return _deb(name, "pg_fence", architecture, files, major=major)


def _extension_scripts():
    return [ROOT / "sql" / "pg_fence.control", *sorted((ROOT / "sql").glob("pg_fence--*.sql"))]


def _deb(name, crate, architecture, files, *, conffiles=(), major=""):
    """One package, from the template of its control file and the files by their place."""
    revision = f"{version()}-{REVISION}"
    docs = f"usr/share/doc/{name}"
    files = {
        **files,
        # It was never uploaded to Debian, so there is no bug that asks for it.
        f"usr/share/lintian/overrides/{name}": f"{name}: initial-upload-closes-no-bugs\n".encode(),
        f"{docs}/copyright": _copyright(crate).encode(),
        f"{docs}/changelog.gz": _zipped((ROOT / "CHANGELOG.md").read_bytes()),
        f"{docs}/changelog.Debian.gz": _zipped(_debian_changelog(name, revision).encode()),
    }
    control = (HERE / f"{crate}.control").read_text().format(
        package=name,
        version=revision,
        architecture=architecture,
        maintainer=_maintainer(),
        size=-(-sum(map(len, files.values())) // 1024),
        libc=_libc_needed([content for place, content in files.items() if place.endswith(".so")]),
        major=major,
    )
    final = OUT / f"{name}_{revision}_{architecture}.deb"
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder) / name
        for place, content in files.items():
            _put(root / place, content)
        sums = "".join(f"{hashlib.md5(content).hexdigest()}  {place}\n" for place, content in sorted(files.items()))
        _put(root / "DEBIAN" / "md5sums", sums.encode())
        _put(root / "DEBIAN" / "control", control.encode())
        prerm = HERE / f"{crate}.prerm"
        if prerm.exists():
            _put(root / "DEBIAN" / "prerm", prerm.read_bytes())
        if conffiles:
            _put(root / "DEBIAN" / "conffiles", "".join(f"{place}\n" for place in conffiles).encode())
        # umask and setgid folders must not show. Redis loads no module that is not executable.
        for path in (root, *root.rglob("*")):
            path.chmod(0o755 if path.is_dir() or path.parent.name == "modules" or path.name == "prerm" else 0o644)
        environment = {**os.environ, "SOURCE_DATE_EPOCH": str(_commit_time())}
        _run("dpkg-deb", "--root-owner-group", "-Zxz", "--build", root, final, env=environment, stdout=subprocess.DEVNULL)
    return final


def _maintainer():
    """Who answers for the package: as Debian's tools, by DEBFULLNAME and DEBEMAIL; else who made the commit."""
    name = os.environ.get("DEBFULLNAME") or _said("git", "-C", ROOT, "log", "-1", "--format=%an")
    mail = os.environ.get("DEBEMAIL") or _said("git", "-C", ROOT, "log", "-1", "--format=%ae")
    return f"{name} <{mail}>"


def _debian_changelog(name, revision):
    date = formatdate(_commit_time())
    return f"{name} ({revision}) unstable; urgency=medium\n\n  * Release {version()}; see changelog.gz.\n\n -- {_maintainer()}  {date}\n"


@functools.cache
def _copyright(crate):
    """Ours, and that of every crate that is linked into the library."""
    ours = (ROOT / "LICENSE").read_text()
    holder = re.search(r"^Copyright \(c\) (.+)$", ours, re.MULTILINE)[1]
    text = ours.split("\n\n", 2)[2]
    parts = [
        "Format: https://www.debian.org/doc/packaging-manuals/copyright-format/1.0/\nUpstream-Name: fencelock\n"
        "Comment: Rust crates are linked into the library. The stanzas after the first are theirs; a crate that offers\n"
        " a choice of licenses is used under the one that is named here.\n",
        f"Files: *\nCopyright: {holder}\nLicense: MIT\n",
    ]
    parts.append("Files: rust-std/*\nCopyright: The Rust Project Developers\nLicense: MIT\n")
    licenses = {"MIT": text}
    for name, used, holders, license_text in _linked_crates(crate):
        parts.append(f"Files: {name}/*\nCopyright: {holders}\nLicense: {used}\n")
        licenses.setdefault(used, license_text)
    parts += [f"License: {name}\n{_indented(text)}" for name, text in licenses.items()]
    return "\n".join(parts)


# In the order of our choice, where a crate offers several.
_LICENSES = ("MIT", "BSD-3-Clause", "BSD-2-Clause", "Apache-2.0", "ISC", "Zlib", "Unicode-3.0", "BSL-1.0")


def _linked_crates(crate):
    """(name, license, copyright holders, text) of each foreign crate in the library."""
    tree = _said(
        *("cargo", "tree", "--locked", "--manifest-path", ROOT / "Cargo.toml", "-p", crate, "-e", "normal,no-proc-macro"),
        *(("--features", "pg18") if crate == "pg_fence" else ()),
        *("--prefix", "none", "--format", "{p}"),
    )
    wanted = {tuple(line.split()[:2]) for line in tree.splitlines() if f"({ROOT}" not in line}
    host = re.search(r"^host: (.+)$", _said("rustc", "-vV"), re.MULTILINE)[1]
    metadata = json.loads(
        _said(
            *("cargo", "metadata", "--locked", "--format-version", "1", "--filter-platform", host),
            *("--manifest-path", ROOT / "Cargo.toml"),
        )
    )
    for package in metadata["packages"]:
        if (package["name"], f"v{package['version']}") not in wanted:
            continue
        offered = re.split(r"\s+OR\s+|/", (package["license"] or "").strip("()"))
        used = next((name for name in _LICENSES if name in offered), package["license"])
        texts = [path.read_text(errors="replace") for path in _license_files(Path(package["manifest_path"]).parent, used)]
        holders = re.findall(r"^\s*Copyright (?:\(c\)|©)?\s*(.+?)\.?\s*$", "\n".join(texts), re.MULTILINE | re.IGNORECASE)
        authors = [re.sub(r"\s*<.*>", "", author) for author in package["authors"]]
        named = [holder for holder in holders if re.match(r"\d{4}|[A-Z]", holder) and "notice" not in holder]
        if not any(re.search("[A-Za-z]", holder) for holder in named):
            named += authors or [f"the authors of {package['name']}"]
        who = "\n ".join(dict.fromkeys(named))
        yield f"{package['name']}-{package['version']}", used, who, texts[0] if texts else f"{used}\n"


def _license_files(folder, used):
    """The files with the text of the used license first."""
    files = sorted(path for path in folder.iterdir() if re.match(r"(?i)(licen[cs]e|copying)", path.name) and path.is_file())
    return sorted(files, key=lambda path: used.split("-")[0].lower() not in path.name.lower())


def _indented(text):
    return "".join(f" {line}\n" if line.strip() else " .\n" for line in text.strip().splitlines())


def _libc_needed(libraries):
    """The lowest version of the C library that has every symbol that is used."""
    needed = [(0, 0)]
    for content in libraries:
        needed += [(int(a), int(b)) for a, b in re.findall(rb"GLIBC_(\d+)\.(\d+)", content)]
    return ".".join(map(str, max(needed)))


def _stripped(library):
    """A library without the symbols that nobody links to."""
    with tempfile.TemporaryDirectory() as folder:
        stripped = Path(folder) / library.name
        _run("strip", "--strip-unneeded", "-o", stripped, library)
        return stripped.read_bytes()


def _zipped(content):
    return gzip.compress(content, 9, mtime=0)


def _put(path, content):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)


# --- the tarball


def _tarball(majors):
    """Both libraries and what belongs to them, for systems without these packages."""
    machine = os.uname().machine
    name = f"fencelock-{version()}-linux-{machine}"
    final = OUT / f"{name}.tar.gz"
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder) / name
        _put(root / "redis_fencelock.so", _stripped(MODULE))
        _put(root / "fencelock.conf", (HERE / "fencelock.conf").read_bytes())
        for major in majors:
            _put(root / f"postgresql-{major}" / "pg_fence.so", _stripped(extension_library(major)))
        for source in _extension_scripts():
            _put(root / "extension" / source.name, source.read_bytes())
        _put(root / "INSTALL", (HERE / "INSTALL").read_bytes())
        for document in ("LICENSE", "CHANGELOG.md"):
            _put(root / document, (ROOT / document).read_bytes())
        for crate in ("redis_fencelock", "pg_fence"):
            _put(root / f"{crate}.md", (ROOT / crate / "README.md").read_bytes())
            _put(root / f"{crate}.copyright", _copyright(crate).encode())
        (root / "redis_fencelock.so").chmod(0o755)
        packed = _tar(root, name)
    final.write_bytes(_zipped(packed))
    return [final]


def _tar(root, name):
    command = ["tar", "--sort=name", "--owner=0", "--group=0", "--numeric-owner", f"--mtime=@{_commit_time()}"]
    command += ["--mode=u=rwX,go=rX", "--format=ustar", "-C", str(root.parent), "-cf", "-", name]
    return subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout


# --- PGXN


def _pgxn(_majors):
    """The committed sources, with META.json at the top, as PGXN wants them."""
    name = f"pg_fence-{version()}"
    final = OUT / f"{name}.zip"
    with tempfile.TemporaryDirectory() as folder:
        unfinished = Path(folder) / "zip"
        command = ["git", "-C", ROOT, "archive", "--format=zip", f"--prefix={name}/"]
        _run(*command, f"--add-file={HERE / 'META.json'}", "-o", unfinished, "HEAD")
        shutil.copyfile(unfinished, final)
    return [final]


def _write_sums():
    files = sorted(path for path in OUT.iterdir() if path.suffix in (".deb", ".gz", ".zip"))
    lines = (f"{hashlib.sha256(path.read_bytes()).hexdigest()}  {path.name}\n" for path in files)
    (OUT / "SHA256SUMS").write_text("".join(lines))


def _said(*command):
    return subprocess.run([str(word) for word in command], check=True, stdout=subprocess.PIPE, text=True).stdout.strip()


def _run(*command, **kwargs):
    subprocess.run([str(word) for word in command], check=True, **kwargs)


if __name__ == "__main__":
    main(sys.argv[1], [int(major) for major in sys.argv[2:]])
