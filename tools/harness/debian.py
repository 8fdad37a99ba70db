"""Where Debian's packages come from: what this system's own apt is set up with, or what DEBIAN_MIRROR and
DEBIAN_SECURITY_MIRROR name.

`python3 -m harness.debian [security]` prints it for scripts. No host is named here: the system knows its own.
"""

import os
import platform
import re
import subprocess
import sys


def mirrors():
    """The places of this system's release; other releases of Debian lie there too. Empty where apt has none."""
    named = os.environ.get("DEBIAN_MIRROR")
    return [named] if named else _places_of(_codename())


def security_mirrors():
    """The places of the release's security updates."""
    named = os.environ.get("DEBIAN_SECURITY_MIRROR")
    return [named] if named else _places_of(f"{_codename()}-security")


def _places_of(suite):
    try:
        said = subprocess.run(["apt-get", "--print-uris", "update"], check=False, stdout=subprocess.PIPE, text=True).stdout
    except FileNotFoundError:
        return []
    return re.findall(rf"^'(\S+)/dists/{re.escape(suite)}/InRelease'", said, re.MULTILINE)


def _codename():
    return platform.freedesktop_os_release().get("VERSION_CODENAME", "")


if __name__ == "__main__":
    found = security_mirrors() if sys.argv[1:] == ["security"] else mirrors()
    if not found:
        sys.exit("apt has no source of Debian's packages here: name one in DEBIAN_MIRROR (and DEBIAN_SECURITY_MIRROR)")
    print(found[0])
