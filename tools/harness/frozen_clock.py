"""A Redis server with clocks that a test moves, through the C library: its wall clock alone, or all of them, which then
stand still until they are moved.

So a sequence of lock commands has one correct outcome, to the millisecond, on the module as it is shipped.
"""

import mmap
import struct
import subprocess
import time

from harness import RedisServer
from harness.redis_calls import Line

# Five numbers in a file: the nanoseconds on both clocks at which time stood still, those that it was moved by since (0
# while time runs), those by which the wall clock was stepped, and those for which the machine slept.
_SHIM = r"""
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/time.h>
#include <time.h>
static volatile int64_t *clocks;
static int (*real)(clockid_t, struct timespec *);
static int64_t booted; /* how far CLOCK_BOOTTIME is ahead of CLOCK_MONOTONIC */
static int64_t read_clock(clockid_t clock) {
    struct timespec t;
    real(clock, &t);
    return t.tv_sec * 1000000000L + t.tv_nsec;
}
static void start(void) {
    real = (int (*)(clockid_t, struct timespec *))dlsym(RTLD_NEXT, "clock_gettime");
    booted = read_clock(CLOCK_BOOTTIME) - read_clock(CLOCK_MONOTONIC);
    clocks = mmap(0, 40, PROT_READ, MAP_SHARED, open(getenv("MOVED_CLOCKS"), O_RDONLY), 0);
}
int clock_gettime(clockid_t clock, struct timespec *now) {
    if (!real) start();
    int steady = clock == CLOCK_MONOTONIC || clock == CLOCK_MONOTONIC_COARSE || clock == CLOCK_MONOTONIC_RAW;
    int wall = clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE;
    int boot = clock == CLOCK_BOOTTIME;
    int64_t moved = clocks[2];
    if (moved && (steady || wall || boot)) {
        int64_t at = clocks[wall ? 1 : 0] + moved + (boot ? booted : 0);
        now->tv_sec = at / 1000000000;
        now->tv_nsec = at % 1000000000;
    } else if (real(clock, now)) {
        return -1;
    }
    if (wall) now->tv_sec += clocks[3] / 1000000000;
    if (wall || boot) now->tv_sec += clocks[4] / 1000000000;
    return 0;
}
int gettimeofday(struct timeval *restrict now, void *restrict zone) {
    struct timespec t;
    (void)zone;
    clock_gettime(CLOCK_REALTIME, &t);
    now->tv_sec = t.tv_sec;
    now->tv_usec = t.tv_nsec / 1000;
    return 0;
}
time_t time(time_t *place) {
    struct timespec t;
    clock_gettime(CLOCK_REALTIME, &t);
    if (place) *place = t.tv_sec;
    return t.tv_sec;
}
/* Valkey 9 would count the ticks of the processor, which nobody can stop, if it knew how fast they are. */
FILE *fopen(const char *restrict name, const char *restrict mode) {
    FILE *(*open_file)(const char *, const char *) = (FILE *(*)(const char *, const char *))dlsym(RTLD_NEXT, "fopen");
    return strcmp(name, "/proc/cpuinfo") ? open_file(name, mode) : NULL;
}
FILE *fopen64(const char *restrict name, const char *restrict mode) { return fopen(name, mode); }
/* Valkey loads modules with a flag that makes them look for a clock past this library. */
void *dlopen(const char *name, int flags) {
    void *(*load)(const char *, int) = (void *(*)(const char *, int))dlsym(RTLD_NEXT, "dlopen");
    return load(name, flags & ~RTLD_DEEPBIND);
}
"""


class Clocks:
    """The clocks of a server to come: give `environment` to it."""

    def __init__(self, folder):
        folder.mkdir(parents=True, exist_ok=True)
        source, library, numbers = folder / "clock.c", folder / "clock.so", folder / "clocks"
        source.write_text(_SHIM)
        subprocess.run(["cc", "-O1", "-shared", "-fPIC", "-o", library, source, "-ldl"], check=True)
        numbers.write_bytes(bytes(40))
        # No space in the path: the loader takes it for the end of the name.
        self.environment = {"LD_PRELOAD": str(library), "MOVED_CLOCKS": str(numbers)}
        with open(numbers, "r+b") as file:
            self._numbers = mmap.mmap(file.fileno(), 40)

    def freeze(self, steady_ns, wall_ns):
        """Where both clocks stand from the first move on."""
        struct.pack_into("=qq", self._numbers, 0, steady_ns, wall_ns)

    def move(self, moved_ns):
        """How far they have moved from there; not 0."""
        struct.pack_into("=q", self._numbers, 16, moved_ns)

    def step_wall(self, seconds):
        """How far the wall clock alone is off; it need not be frozen."""
        struct.pack_into("=q", self._numbers, 24, seconds * 10**9)

    def sleep(self, seconds):
        """For how long the machine has slept: the monotonic clock stood still meanwhile, the others did not."""
        struct.pack_into("=q", self._numbers, 32, seconds * 10**9)

    def close(self):
        """Close the file."""
        self._numbers.close()


class FrozenRedis:
    """The server, started and frozen. `wall_us` is the Unix time at which it stands while it has not been moved."""

    def __init__(self, folder, module_args=()):
        self._clocks = Clocks(folder)
        self.server = RedisServer(module_args, data_dir=folder / "data", environment=self._clocks.environment).start()
        # A whole second later, so that no clock has gone back, and on a whole millisecond.
        steady_ns, wall_ns = (clock() // 10**9 * 10**9 + 2 * 10**9 for clock in (time.monotonic_ns, time.time_ns))
        self._clocks.freeze(steady_ns, wall_ns)
        self.wall_us, self._moved_us = wall_ns // 1000, 0
        self._control = Line(self.server.port)
        self.move_to(1000)

    @property
    def moved_us(self):
        """How far its time has been moved."""
        return self._moved_us

    def move_to(self, moved_us):
        """Move its time, and wait until it has done what that makes due."""
        assert moved_us >= self._moved_us, "time does not go back"
        self._moved_us = moved_us
        self._clocks.move(moved_us * 1000)
        self.settle()

    def settle(self):
        """Wait for two turns of its event loop: everything that was due is done, and every reply is on its way."""
        for _ in range(3):
            assert self._control.call("PING") == "PONG"

    def call(self, *words):
        """A command on a connection of its own."""
        return self._control.call(*words)

    def close(self):
        """End it."""
        self._control.close()
        self._clocks.close()
        self.server.close()
