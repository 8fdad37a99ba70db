"""What is fetched from another release of Debian comes from that release, whatever this system has installed."""

import hashlib
import subprocess

from harness import debian, fetch


def test_a_package_that_is_installed_in_a_newer_version_comes_from_the_release(tmp_path, monkeypatch):
    packed = tmp_path / "packed" / "DEBIAN"
    packed.mkdir(parents=True)
    fields = "Package: base-files\nVersion: 0.1\nArchitecture: all\nMaintainer: nobody <nobody@example.org>\nDescription: a test\n"
    (packed / "control").write_text(fields)
    release = tmp_path / "mirror" / "dists" / "old"
    package = tmp_path / "mirror" / "base-files_0.1_all.deb"
    architecture = subprocess.run(["dpkg", "--print-architecture"], check=True, capture_output=True, text=True).stdout.strip()
    index = release / "main" / f"binary-{architecture}" / "Packages"
    index.parent.mkdir(parents=True)
    subprocess.run(["dpkg-deb", "--build", packed.parent, package], check=True, stdout=subprocess.DEVNULL)
    content = package.read_bytes()
    digest = hashlib.sha256(content).hexdigest()
    index.write_text(f"{fields}Filename: {package.name}\nSize: {len(content)}\nSHA256: {digest}\n")
    monkeypatch.setattr(debian, "mirrors", lambda: [f"[trusted=yes] file:{tmp_path / 'mirror'}"])
    downloads = tmp_path / "downloads"
    downloads.mkdir()
    fetch._Apt(tmp_path / "apt", "old").download(["base-files"], downloads)
    assert [path.read_bytes() for path in downloads.iterdir()] == [content]
