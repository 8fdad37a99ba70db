"""Makes a static site, with a search, of every page of the project: `python -m pages FOLDER`, by `make docs`.

The pages are the Markdown files that users read, where they are: nothing is written twice, and a link works on the site as
it does in the repository. A link that leads nowhere is an error. Needs the packages of requirements.txt.
"""

import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from harness import places

# In the order of the menu.
PAGES = {
    "Start": ["README.md", "docs/install.md", "fence/README.md"],
    "Reference": ["redis_fencelock/README.md", "pg_fence/README.md"],
    "Guarantees": ["docs/guarantees.md", "docs/how-it-works.md", "docs/objections.md", "docs/comparison.md"],
    "Operations": ["docs/operations.md", "docs/errors.md", "packaging/watching/README.md", "docs/servers.md", "docs/stability.md", "packaging/README.md"],
    "Figures": ["docs/performance.md", "tools/bench/RESULTS.md", "docs/stalls.md", "tools/lab/README.md"],
    "Project": ["CONTRIBUTING.md", "tests/README.md", "tools/fuzz/README.md", "tests/clients/README.md", "SECURITY.md", "CHANGELOG.md"],
}
# The index, which becomes the start page.
START = "docs/README.md"
CONFIGURATION = """
project = "Fencelock"
root_doc = "index"
extensions = ["myst_parser"]
html_theme = "furo"
html_title = "Fencelock"
html_copy_source = False
# SQL with the commands of psql in it is shown as it is.
suppress_warnings = ["toc.not_included", "misc.highlighting_failure"]
myst_heading_anchors = 4
"""


def main(folder):
    """Build the site in the folder."""
    with tempfile.TemporaryDirectory() as source:
        source = Path(source)
        _gather(source)
        (source / "conf.py").write_text(CONFIGURATION)
        (source / "index.md").write_text(_menu())
        command = [sys.executable, "-m", "sphinx", "-q", "-b", "html", "--fail-on-warning", "--keep-going", str(source), folder]
        return subprocess.run(command).returncode


def _gather(source):
    """Copy every file that git tracks, because a page may link to it, in its place."""
    listed = subprocess.run(["git", "-C", places.ROOT, "ls-files", "-z"], check=True, stdout=subprocess.PIPE).stdout
    for name in filter(None, listed.decode().split("\0")):
        original, copy = places.ROOT / name, source / name
        if not original.exists():
            continue
        copy.parent.mkdir(parents=True, exist_ok=True)
        if name.endswith(".md"):
            copy.write_text(_without_folders(original))
        else:
            shutil.copyfile(original, copy)


def _without_folders(page):
    """The text of a page; a link to a folder, which a site cannot show, is its words alone."""

    def plain(link):
        return link[1] if (page.parent / link[2]).is_dir() else link[0]

    return re.sub(r"(?<!!)\[([^\]]+)\]\(([^)#\s]+)\)", plain, page.read_text())


def _menu():
    """The start page, which is the index with its links as from the top, and the menu."""
    start = (places.ROOT / START).read_text()
    moved = re.sub(r"\]\((?!\.\./|https?:)([^)]+)\)", r"](docs/\1)", start).replace("](../", "](")
    groups = "\n".join(
        "\n".join([f"```{{toctree}}\n:hidden:\n:caption: {caption}\n", *(page.removesuffix(".md") for page in group), "```\n"])
        for caption, group in PAGES.items()
    )
    return f"{moved}\n{groups}"


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(__doc__.splitlines()[0])
    sys.exit(main(sys.argv[1]))
