//! The clocks of this server: the one that leases are measured by, and the Unix time.
//!
//! Every reading of a clock is here. A replica follows the clock of its primary: see `fence::lock::follow`.
//! Invariant: on a primary the clock of leases never steps.

use std::cell::{Cell, LazyCell, RefCell};
use std::ffi::c_int;

use fence::lock::codec::{Clocks, Reading, Record, Route, Stamp};
use fence::lock::follow::Follower;
use fence::lock::lease::Lease;

use crate::ffi::main_thread::MainThread;
use crate::ffi::system::{CLOCK_BOOTTIME, CLOCK_MONOTONIC, CLOCK_MONOTONIC_COARSE, CLOCK_REALTIME, clock_us};

static CLOCK: MainThread<LazyCell<Clock>> = MainThread::new(LazyCell::new(Clock::new));

struct Clock {
    /// The wall time at which the module was loaded.
    origin_us: u64,
    /// What is added to the monotonic clock of the system.
    offset_us: Cell<u64>,
    /// How much of that makes the clock of a replica agree with its primary's.
    ahead_us: Cell<i64>,
    /// What is added to that for the Unix time: how far the wall clock has stepped since.
    stepped_us: Cell<i64>,
    /// The system's clock behind the clock of leases.
    steady_clock: c_int,
    /// How far it is ahead of the coarse one, by how long the machine has slept.
    slept_us: Cell<u64>,
    /// The coarse monotonic clock, or the other where there is none.
    coarse_clock: c_int,
    /// The number of this run: see `codec::Reading`.
    incarnation: Cell<u64>,
    /// The clocks of the primaries that this server has followed.
    follower: RefCell<Follower>,
    /// The clock of the primary that this server followed before it became one, and the same moment on its own.
    predecessor: Cell<Option<(Reading, u64)>>,
    /// Replicas do not know yet whose clock it is now.
    is_new: Cell<bool>,
}

impl Clock {
    fn new() -> Clock {
        let or_monotonic = |clock| if clock_us(clock) == 0 { CLOCK_MONOTONIC } else { clock };
        let steady_clock = or_monotonic(CLOCK_BOOTTIME);
        let origin_us = clock_us(CLOCK_REALTIME);
        Clock {
            origin_us,
            offset_us: Cell::new(origin_us.saturating_sub(clock_us(steady_clock))),
            ahead_us: Cell::new(0),
            stepped_us: Cell::new(0),
            steady_clock,
            slept_us: Cell::new(slept_us(steady_clock)),
            coarse_clock: or_monotonic(CLOCK_MONOTONIC_COARSE),
            incarnation: Cell::default(),
            follower: RefCell::default(),
            predecessor: Cell::default(),
            is_new: Cell::new(false),
        }
    }
}

/// The clock of leases: microseconds on the monotonic clock, counted from the wall time at which the module was loaded,
/// so that a moment before the start of the process has a number too. On a primary it never steps. A replica moves its
/// own when it knows better how late its primary's stream is.
pub(crate) fn steady_us() -> u64 {
    CLOCK.offset_us.get().wrapping_add(clock_us(CLOCK.steady_clock))
}

/// What the clock of leases read when it began.
pub(crate) fn origin_us() -> u64 {
    CLOCK.origin_us
}

/// The clock of leases as it was at the last tick of the kernel, usually some milliseconds ago: cheap, and never ahead.
/// After the machine has slept it is behind by that time until the next run of the server's cron.
pub(crate) fn coarse_us() -> u64 {
    CLOCK.offset_us.get().wrapping_add(clock_us(CLOCK.coarse_clock) + CLOCK.slept_us.get())
}

/// Both clocks by one reading. A step of the wall clock is in it after the next run of the server's cron.
pub(crate) fn clocks() -> Clocks {
    let steady_us = steady_us();
    Clocks { steady_us, wall_us: steady_us.saturating_add_signed(CLOCK.stepped_us.get()) }
}

/// Both clocks by two readings, for what is written to a file or read from one: no cron runs meanwhile.
pub(crate) fn exact_clocks() -> Clocks {
    Clocks { steady_us: steady_us(), wall_us: clock_us(CLOCK_REALTIME) }
}

/// Called by the server's cron: follows a step of the wall clock, and a sleep of the machine. Without them all clocks
/// run at the same rate. Returns how far the wall clock stepped ahead.
pub(crate) fn follow_system() -> i64 {
    CLOCK.slept_us.set(slept_us(CLOCK.steady_clock));
    let before_us = steady_us();
    let wall_us = clock_us(CLOCK_REALTIME);
    let after_us = steady_us();
    let [most_us, least_us] = [before_us, after_us].map(|steady_us| wall_us as i64 - steady_us as i64);
    let stepped_us = CLOCK.stepped_us.get().clamp(least_us, most_us);
    stepped_us.saturating_sub(CLOCK.stepped_us.replace(stepped_us))
}

/// Begins to issue, with a clock of its own under this number, which goes on from where it is.
pub(crate) fn become_issuer(incarnation: u64) {
    let now_us = steady_us();
    let before = CLOCK.follower.borrow_mut().become_issuer(incarnation, now_us);
    CLOCK.incarnation.set(incarnation);
    CLOCK.predecessor.set(before.map(|before| (before, now_us)));
    CLOCK.is_new.set(true);
}

/// What replicas must know of this clock: its reading now, and what the predecessor's reads.
pub(crate) fn readings() -> (Reading, Option<Reading>) {
    let now_us = steady_us();
    let before = CLOCK.predecessor.get().map(|(before, then_us)| {
        let steady_us = before.steady_us.wrapping_add(now_us.wrapping_sub(then_us));
        Reading { steady_us, ..before }
    });
    (Reading { incarnation: CLOCK.incarnation.get(), steady_us: now_us }, before)
}

/// Whether replicas do not know yet whose clock it is now.
pub(crate) fn is_new() -> bool {
    CLOCK.is_new.get()
}

/// Notes that they know.
pub(crate) fn set_known() {
    CLOCK.is_new.set(false);
}

/// Takes note of what a primary read on its clock, and of what it knows of its predecessor's.
pub(crate) fn receive(reading: Reading, before: Option<Reading>) {
    let ahead_us = CLOCK.ahead_us.get();
    let local_us = steady_us().wrapping_sub(ahead_us as u64);
    let more_us = CLOCK.follower.borrow_mut().receive(reading, before, local_us, ahead_us) - ahead_us;
    CLOCK.ahead_us.set(ahead_us + more_us);
    CLOCK.offset_us.set(CLOCK.offset_us.get().wrapping_add(more_us as u64));
    // The wall clock stays where it is.
    CLOCK.stepped_us.set(CLOCK.stepped_us.get().saturating_sub(more_us));
}

/// The moment of writing a record: a replica writes by the clock that it follows.
pub(crate) fn stamp(clocks: Clocks, is_primary: bool) -> Stamp {
    let followed = (!is_primary).then(|| CLOCK.follower.borrow().reading(clocks.steady_us)).flatten();
    let issuer = Stamp::of_issuer(CLOCK.incarnation.get(), clocks);
    followed.map_or(issuer, |issued| Stamp { issued, ..issuer })
}

/// The lease of a record on this clock. An end that its issuer has seen has come, however late the stream is taken to
/// be: nothing more is propagated to correct a reader.
pub(crate) fn lease_of(record: &Record, route: Route, is_primary: bool) -> Lease {
    let lease = lease_by_issuer(record, route, is_primary);
    if route == Route::Stream && record.has_ended() { lease.ended_by(steady_us()) } else { lease }
}

fn lease_by_issuer(record: &Record, route: Route, is_primary: bool) -> Lease {
    match record.issued.filter(|_| route != Route::Travel) {
        Some(reading) if route == Route::Stream && !is_primary => {
            let knows = CLOCK.follower.borrow().knows(reading.incarnation);
            if !knows {
                receive(reading, None);
            }
            CLOCK.follower.borrow().lease(record, exact_clocks())
        }
        Some(reading) if route == Route::File => {
            let written_us = record.written_us(exact_clocks(), route);
            CLOCK.follower.borrow_mut().read_in_file(reading, written_us);
            record.lease_written_at(written_us)
        }
        _ => record.lease(exact_clocks(), route),
    }
}

/// How far the clock of leases is ahead of the one that stands still while the machine sleeps; rather less than more.
fn slept_us(steady_clock: c_int) -> u64 {
    let steady_us = clock_us(steady_clock);
    steady_us.saturating_sub(clock_us(CLOCK_MONOTONIC))
}
