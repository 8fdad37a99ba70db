"""Server processes: who they run as, where their files lie, which port they take, and how they end.

Knows nothing of Redis or PostgreSQL. Invariant: a process is signalled by its own pid only, and an attached one ends
with the process that started it, also when that one is killed.
"""

import ctypes
import functools
import os
import pwd
import shutil
import signal
import socket
import subprocess
import tempfile
import threading
import time
from pathlib import Path

from .waiting import eventually

# A cold start on a loaded two-core machine took up to 4 s; ten times that is a server that will not come.
START_WITHIN_S = 40.0
STOP_WITHIN_S = 30.0
# Two servers rarely choose the same free port at once; so many times in a row means something else.
PORT_ATTEMPTS = 10
_MEMORY = "/dev/shm"
# A data folder of the tests stays below 0.5 GB, and few run at a time.
_MEMORY_NEEDED = 2 * 1024**3
# What a Rust library does with it inside a server does not concern the caller's shell: it fills error details.
_NOT_INHERITED = (
    "RUST_BACKTRACE",
    "PGHOST",
    "PGPORT",
    "PGUSER",
    "PGDATABASE",
    "PGPASSWORD",
    "PGSERVICE",
    "PGOPTIONS",
    "PGDATA",
)


class ServerFailed(Exception):
    """A server did not start or stop; the text carries the end of its log."""


class PortTaken(Exception):
    """Another process took the port between the choice and the start."""


def server_account():
    """The account for a server that refuses to run as root: None when we are not root ourselves.

    `postgres` where it exists, else `nobody`, else any other account that is not root (initdb insists on a name).
    """
    if os.geteuid() != 0:
        return None
    for name in ("postgres", "nobody"):
        try:
            return pwd.getpwnam(name)
        except KeyError:
            continue
    for account in pwd.getpwall():
        if account.pw_uid != 0:
            return account
    raise ServerFailed("PostgreSQL does not run as root, and this machine has no other account")


def temporary_folder(name, account=None, *, in_memory=False):
    """A new folder that `account` owns and can reach, whoever may read the checkout or TMPDIR.

    in_memory: on the memory file system where there is one with room. Making a database there takes a twentieth of the
    time. Programs do not run from it everywhere.
    """
    disks = (tempfile.gettempdir(), "/tmp", "/var/tmp")
    for parent in dict.fromkeys((*_memory(in_memory), *disks)):
        if not os.path.isdir(parent) or not os.access(parent, os.W_OK):
            continue
        _sweep(Path(parent))
        folder = Path(tempfile.mkdtemp(prefix=f"{name}-{os.getpid()}-", dir=parent))
        if account is None:
            return folder
        # Others may pass through, none but the account may write.
        folder.chmod(0o755)
        os.chown(folder, account.pw_uid, account.pw_gid)
        if _reaches(account, folder):
            return folder
        folder.rmdir()
    raise ServerFailed(f"no temporary folder that {account.pw_name if account else 'we'} can reach")


def _memory(wanted):
    """The memory file system as a parent folder; TMPDIR is the user's wish to have it elsewhere."""
    if not wanted or "TMPDIR" in os.environ or not os.path.isdir(_MEMORY):
        return ()
    return (_MEMORY,) if shutil.disk_usage(_MEMORY).free >= _MEMORY_NEEDED else ()


@functools.cache
def _sweep(parent):
    """Once per process: remove what a killed run left a day ago or earlier."""
    for folder in parent.glob("fencelock-*-*-*"):
        pid = folder.name.split("-")[-2]
        try:
            abandoned = pid.isdigit() and start_time(int(pid)) is None and folder.stat().st_mtime < time.time() - 86_400
        except OSError:
            continue
        if abandoned:
            shutil.rmtree(folder, ignore_errors=True)


class Remains:
    """What a server leaves behind: a process and a temporary folder, until `remove` or the end of this process.

    `weakref.finalize(server, remains.remove)` runs it when the server object goes, and at exit. A forked child that
    exits inherits that call, and must not end its parent's server.
    """

    def __init__(self, folder=None):
        self.process = None
        self.folder = folder
        self._owner = os.getpid()

    def remove(self):
        """Kill the process by its pid and delete the folder."""
        if os.getpid() != self._owner:
            return
        if self.process is not None and self.process.poll() is None:
            kill_with_children(self.process)
        if self.folder is not None:
            shutil.rmtree(self.folder, ignore_errors=True)


def kill_with_children(process):
    """SIGKILL for a process and then for the children it had, each by its pid, and wait for their end."""
    children = children_of(process.pid)
    process.kill()
    process.wait()
    for pid in children:
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            continue
    wait_until_gone(children)


def own(folder, account):
    """Give a whole folder to the account (a no-op when the server runs as ourselves)."""
    if account is None:
        return
    for path in (folder, *Path(folder).rglob("*")):
        os.chown(path, account.pw_uid, account.pw_gid, follow_symlinks=False)


def free_port():
    """A port of 127.0.0.1 that was free a moment ago: the caller retries when another process was faster."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def server_environment(libraries=(), extra=None):
    """The caller's environment without what would change a server's behaviour, and with its own shared libraries."""
    environment = {name: value for name, value in os.environ.items() if name not in _NOT_INHERITED}
    if libraries:
        ours = os.pathsep.join(str(folder) for folder in libraries)
        theirs = environment.get("LD_LIBRARY_PATH")
        environment["LD_LIBRARY_PATH"] = os.pathsep.join(filter(None, (ours, theirs)))
    environment.update(extra or {})
    return environment


def spawn(argv, *, log, environment, cwd, account=None, end_with_owner=signal.SIGKILL):
    """Start a server with its output in the file `log`.

    `end_with_owner` is the signal it gets when this process dies by any means; None detaches it.
    """
    with open(log, "ab") as out:
        return subprocess.Popen(
            [str(word) for word in argv],
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=out,
            cwd=cwd,
            env=environment,
            start_new_session=True,
            preexec_fn=_before_exec(end_with_owner),
            **as_account(account),
        )


def as_account(account):
    """The subprocess arguments that run a program as `account`."""
    if account is None:
        return {}
    return {"user": account.pw_uid, "group": account.pw_gid, "extra_groups": []}


def end(process, signal_number, within_s=STOP_WITHIN_S):
    """Send one signal to a process of ours and wait for its end; SIGKILL when it does not go."""
    if process.poll() is None:
        process.send_signal(signal_number)
    try:
        process.wait(within_s)
    except subprocess.TimeoutExpired:
        kill_with_children(process)
        raise ServerFailed(f"pid {process.pid} did not end {within_s} s after signal {signal_number}") from None


def children_of(pid):
    """The pids of a process's children; empty when it is gone."""
    try:
        tasks = list(Path(f"/proc/{pid}/task").iterdir())
        return [int(child) for task in tasks for child in (task / "children").read_text().split()]
    except OSError:
        return []


def start_time(pid):
    """When a process started, as the system reports it: with the pid it names one process uniquely. None when gone."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    except OSError:
        return None
    # Fields 3 and 22 of proc(5); the clock ticks since the boot repeat after a reboot, its id does not.
    boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    return None if stat[0] in ("Z", "X") else f"{boot} {stat[19]}"


def wait_until_gone(pids, within_s=STOP_WITHIN_S):
    """Wait until none of the pids is a running process (a zombie is not one)."""
    eventually(lambda: [pid for pid in pids if start_time(pid) is not None], [], within_s=within_s)


def tail(path, lines=30):
    """The end of a log, for a message."""
    try:
        return "\n".join(Path(path).read_text(errors="replace").splitlines()[-lines:])
    except OSError:
        return "(no log)"


def _reaches(account, folder):
    """Whether the account can enter the folder, tried for real: mode bits do not say all."""
    probe = subprocess.run(
        ["/bin/sh", "-c", 'cd "$1"', "sh", str(folder)],
        stderr=subprocess.DEVNULL,
        cwd="/",
        **as_account(account),
    )
    return probe.returncode == 0


_PR_SET_PDEATHSIG = 1
_libc = ctypes.CDLL(None, use_errno=True)


def _before_exec(end_with_owner):
    # The kernel ties this signal to the *thread* that forked, so a server that a worker thread starts would end with
    # that thread. Those rely on their owner's finalizer and atexit alone.
    if end_with_owner is None or threading.current_thread() is not threading.main_thread():
        return None
    owner = os.getpid()

    def before_exec():
        _libc.prctl(_PR_SET_PDEATHSIG, end_with_owner)
        if os.getppid() != owner:
            os._exit(1)

    return before_exec
