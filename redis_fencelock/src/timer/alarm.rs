//! The one timer of the module: when it goes off next.
//!
//! Not what is done then, which is `expiry`. The server's timers follow the wall clock, so its cron checks this one.
//! Invariant: there is at most one timer, and it goes off at the earliest time that was asked for, or before.

use std::cell::Cell;
use std::ops::ControlFlow;

use redis_module::raw;

use crate::clock;
use crate::ffi::main_thread::MainThread;
use crate::ffi::{Ctx, TimerProc};

/// How long one slice of work may take.
const SLICE_US: u64 = 1_000;
/// Entries handled between two readings of the clock.
pub(crate) const BATCH: usize = 64;
/// The longest timer, a day: one may always be early.
const LONGEST_TIMER_MS: u64 = 24 * 3_600 * 1_000;
/// How late the timer may be before the cron takes over: the wall clock may step back.
const LATE_US: u64 = 50_000;

static ALARM: MainThread<Alarm> = MainThread::new(Alarm { armed: Cell::new(None), handler: Cell::new(None) });

struct Alarm {
    armed: Cell<Option<Armed>>,
    /// What the timer calls.
    handler: Cell<Option<TimerProc>>,
}

#[derive(Clone, Copy)]
struct Armed {
    timer: raw::RedisModuleTimerID,
    due_us: u64,
}

/// Says what the timer calls. Before that nothing is armed.
pub(crate) fn set_handler(handler: TimerProc) {
    ALARM.handler.set(Some(handler));
}

/// Has the timer go off at `due_us` or before.
pub(crate) fn arm(due_us: u64) {
    let armed = ALARM.armed.get();
    if armed.is_some_and(|armed| armed.due_us <= due_us) {
        return;
    }
    let Some(handler) = ALARM.handler.get() else { return };
    let ctx = Ctx::detached();
    if let Some(armed) = armed {
        ctx.stop_timer(armed.timer);
    }
    let after_us = due_us.saturating_sub(clock::steady_us());
    let after_ms = after_us.div_ceil(1_000).min(LONGEST_TIMER_MS);
    ALARM.armed.set(Some(Armed { timer: ctx.create_timer(after_ms, handler), due_us }));
}

/// Has the timer go off as soon as the running call is over.
pub(crate) fn arm_now() {
    arm(clock::steady_us());
}

pub(crate) fn arm_in(after_ms: u64) {
    arm(clock::steady_us() + after_ms * 1_000);
}

/// The same, if there is such a time.
pub(crate) fn arm_next(due_us: Option<u64>) {
    if let Some(due_us) = due_us {
        arm(due_us);
    }
}

/// Called when the timer has gone off.
pub(crate) fn disarm() {
    ALARM.armed.set(None);
}

/// Called by the server's cron: takes over from a timer that is late because the wall clock stepped back.
pub(crate) fn take_over_if_late() {
    let Some(armed) = ALARM.armed.get() else { return };
    if clock::steady_us() > armed.due_us.saturating_add(LATE_US) {
        Ctx::detached().stop_timer(armed.timer);
        disarm();
        arm_now();
    }
}

/// Repeats `step` until it breaks off, with nothing left to do, or the slice is over. `step` also breaks off when its
/// budget is used up, and is called again with a new one.
pub(crate) fn for_a_slice(mut step: impl FnMut(&mut usize) -> ControlFlow<()>) {
    let end_us = clock::steady_us() + SLICE_US;
    loop {
        let mut budget = BATCH;
        while step(&mut budget).is_continue() {}
        if budget > 0 || clock::steady_us() >= end_us {
            return;
        }
    }
}
