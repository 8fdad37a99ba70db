"""What is read of a server process: the CPU time that it has used, and the instructions that callgrind counted.

Invariant: a count of instructions is the difference between two numbers of repetitions, so what a server does to start
and to end is not in it.
"""

import re
import shutil
from pathlib import Path

def cpu_seconds(pid):
    """The time that the threads of a process have run, in user and kernel mode: finer than the ticks of /proc/<pid>/stat."""
    tasks = Path(f"/proc/{pid}/task").iterdir()
    return sum(int((task / "schedstat").read_text().split()[0]) for task in tasks) / 1e9


class Callgrind:
    """Callgrind around a server, with its files in a folder that every account may write."""

    def __init__(self, folder):
        if not shutil.which("valgrind"):
            raise SystemExit("valgrind counts the instructions; install it (Debian: apt-get install valgrind)")
        self._folder = Path(folder)
        self._folder.mkdir(parents=True, exist_ok=True)
        self._folder.chmod(0o777)

    @property
    def wrapper(self):
        """What is put before the server's command line."""
        out = f"--callgrind-out-file={self._folder}/%p"
        return ("valgrind", "--tool=callgrind", "--trace-children=yes", "--quiet", out)

    def counted(self):
        """The count of each process that has ended, by pid."""
        found = {}
        for file in self._folder.iterdir():
            total = re.search(r"^totals: (\d+)", file.read_text(errors="replace"), re.MULTILINE)
            if total:
                found[file.name] = int(total[1])
        return found
