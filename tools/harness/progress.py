"""Shows that a long step is under way, and how long it took.

In a terminal one line counts the seconds and what has arrived; elsewhere a line says that it begins, and one that it is
done.
"""

import contextlib
import sys
import threading
import time

_EVERY_S = 0.5


@contextlib.contextmanager
def progress(what, folder):
    """Around a step that fills a folder."""
    began = time.monotonic()
    over = threading.Event()
    terminal = sys.stdout.isatty()

    def show(end):
        print(f"{what}: {time.monotonic() - began:.0f} s, {_megabytes(folder)} MB", end=end, flush=True)

    def count():
        while not over.wait(_EVERY_S):
            show("\r")

    if terminal:
        counting = threading.Thread(target=count, daemon=True)
        counting.start()
    else:
        print(what, flush=True)
    try:
        yield
    finally:
        over.set()
        if terminal:
            counting.join()
        show("\n")


def _megabytes(folder):
    """What is in the folder now; files come and go meanwhile."""
    size = 0
    for path in folder.rglob("*"):
        with contextlib.suppress(OSError):
            size += path.lstat().st_size
    return size // 1_000_000
