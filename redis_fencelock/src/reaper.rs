//! The timer: removes leases that have run out, and keeps the deadline index true to the keyspace.
//!
//! Not what ends a lease: its deadline does, whether or not the entry is still there. Work is done in slices, so that a
//! million leases that end together delay nobody.
//! Invariant: it writes only on a primary, while writes may be replicated, and to keys that this server serves.

use std::cell::{Cell, RefCell};
use std::ffi::{CStr, c_void};

use fence::lease::State;
use redis_module::raw;

use crate::ffi::{Ctx, Name, OwnName, api, callback};
use crate::keyspace::Walk;
use crate::server::server;
use crate::store::Slot;
use crate::value::Value;

/// Entries handled in one slice: about a millisecond of deletions.
const SLICE: usize = 500;
/// Entries looked at in one slice of a sweep, which only reads memory.
const SWEEP_SLICE: usize = 5_000;
/// How long to wait while writes may not be replicated, as in a fail-over.
const PAUSED_RETRY_MS: u64 = 10;
/// How long a walk over the keyspace rests between slices: it is in no hurry.
const WALK_REST_MS: u64 = 10;
/// Passes of a sweep that may find nothing before it is over: the other thread may not have begun.
const SWEEP_PATIENCE: u8 = 2;
/// How long a lock stays whose slot this server does not serve, before it is looked at again.
const NOT_SERVED_RETRY_US: u64 = 1_000_000;
/// The longest timer, a day: one may always be early.
const LONGEST_TIMER_MS: u64 = 24 * 3_600 * 1_000;
/// The internal command that carries the last issued fence.
pub(crate) const FLOOR: &CStr = c"FENCELOCK._FLOOR";
/// How long a sweep rests before it looks again: keys are freed on another thread.
const SWEEP_REST_MS: u64 = 1_000;
/// How late the timer may be before the cron takes over: the server's timers follow the wall clock, which may step back.
const LATE_US: u64 = 50_000;

/// What the reaper has to do.
#[derive(Default)]
pub(crate) struct Reaper {
    armed: Cell<Option<Armed>>,
    sweep: Cell<Option<Sweep>>,
    walk: RefCell<Option<Walk>>,
    /// The last issued fence is to be sent into the append-only file.
    floor_due: Cell<bool>,
}

#[derive(Clone, Copy)]
struct Armed {
    timer: raw::RedisModuleTimerID,
    due_us: u64,
}

/// A pass over the index for values that no key holds any more.
#[derive(Clone, Copy)]
struct Sweep {
    from: usize,
    due_us: u64,
    forgotten: usize,
    /// Passes left that may find nothing before the sweep is over.
    patience: u8,
}

/// Wakes the reaper at `due_us` or before.
pub(crate) fn arm(due_us: u64) {
    let reaper = &server().reaper;
    let armed = reaper.armed.get();
    if armed.is_some_and(|armed| armed.due_us <= due_us) {
        return;
    }
    let ctx = server().detached.get();
    if let Some(armed) = armed {
        ctx.stop_timer(armed.timer);
    }
    let after_us = due_us.saturating_sub(server().steady_us());
    let after_ms = after_us.div_ceil(1_000).min(LONGEST_TIMER_MS);
    reaper.armed.set(Some(Armed { timer: ctx.create_timer(after_ms, on_timer), due_us }));
}

/// Wakes the reaper as soon as the running call is over.
pub(crate) fn arm_now() {
    arm(server().steady_us());
}

fn arm_in(after_ms: u64) {
    arm(server().steady_us() + after_ms * 1_000);
}

/// Called by the server's cron: takes over from a timer that is late because the wall clock stepped back.
pub(crate) fn check_timer() {
    let reaper = &server().reaper;
    let Some(armed) = reaper.armed.get() else { return };
    if server().steady_us() > armed.due_us.saturating_add(LATE_US) {
        server().detached.get().stop_timer(armed.timer);
        reaper.armed.set(None);
        arm_now();
    }
}

/// Looks for values that were freed without a word, as after a flush on another thread.
pub(crate) fn start_sweep() {
    let due_us = server().steady_us() + SWEEP_REST_MS * 1_000;
    server().reaper.sweep.set(Some(Sweep { from: 0, due_us, forgotten: 0, patience: SWEEP_PATIENCE }));
    arm(due_us);
}

/// Sends the last issued fence into the append-only file: a rewrite keeps it only where a lock exists.
pub(crate) fn send_floor() {
    server().reaper.floor_due.set(true);
    arm_now();
}

callback! {
    fn on_timer(ctx: *mut raw::RedisModuleCtx, _data: *mut c_void) -> (), else arm_in(PAUSED_RETRY_MS);
    {
        let (server, ctx) = (server(), Ctx(ctx));
        server.reaper.armed.set(None);
        server.index.borrow_mut().settle_suspects();
        sweep();
        if server.is_primary.get() && !server.is_loading() {
            if may_replicate() {
                write(ctx);
            } else {
                arm_in(PAUSED_RETRY_MS);
            }
        }
        walk(ctx);
    }
}

/// Whether a write may be replicated now. In a fail-over or a pause it would end the server.
fn may_replicate() -> bool {
    // SAFETY: takes no argument.
    unsafe { api!(RedisModule_AvoidReplicaTraffic)() == 0 }
}

fn write(ctx: Ctx) {
    let server = server();
    if server.reaper.floor_due.take() {
        ctx.replicate_number(FLOOR, server.issuer().last());
    }
    let mut budget = SLICE;
    loop {
        let popped = server.index.borrow_mut().pop(server.steady_us(), &mut budget);
        let Some(value) = popped else { break };
        match retire(ctx, value) {
            Retired::Done => value.leave_index(),
            Retired::Later(due_us) => server.index.borrow_mut().insert_at(due_us, value),
        }
    }
    let next_us = server.index.borrow().next_us();
    if let Some(next_us) = next_us {
        arm(next_us);
    }
}

enum Retired {
    Done,
    Later(u64),
}

/// Removes a lock whose time has come, if its key still holds it.
fn retire(ctx: Ctx, value: Value) -> Retired {
    let server = server();
    if !value.is_in_keyspace() {
        return Retired::Done;
    }
    let now_us = server.steady_us();
    let lease = value.lease();
    if lease.state(now_us) != State::Free {
        return Retired::Later(lease.free_us());
    }
    let db = server.index.borrow().database(value.db());
    let name = OwnName::new(value.key());
    if !ctx.select_db(db) || !serves(ctx, name.0) {
        return Retired::Later(now_us + NOT_SERVED_RETRY_US);
    }
    match Slot::open(ctx, name.0) {
        Ok(slot) if slot.holds(value) => slot.remove(),
        _ => server.index.borrow_mut().has_strays = true,
    }
    Retired::Done
}

/// Whether this server serves the key: in a cluster its slot may have moved.
fn serves(ctx: Ctx, name: Name) -> bool {
    !server().in_cluster.get() || ctx.probe(name)
}

fn sweep() {
    let reaper = &server().reaper;
    let Some(mut sweep) = reaper.sweep.get() else { return };
    let now_us = server().steady_us();
    if now_us < sweep.due_us {
        return arm(sweep.due_us);
    }
    let (next, forgotten) = server().index.borrow_mut().sweep(sweep.from, SWEEP_SLICE);
    sweep.forgotten += forgotten;
    sweep.from = next.unwrap_or(0);
    if next.is_none() {
        sweep.patience = if sweep.forgotten > 0 { SWEEP_PATIENCE } else { sweep.patience - 1 };
        sweep.forgotten = 0;
        sweep.due_us = now_us + SWEEP_REST_MS * 1_000;
    }
    reaper.sweep.set((sweep.patience > 0).then_some(sweep));
    if sweep.patience > 0 {
        arm(sweep.due_us);
    }
}

/// Finds values that were renamed or moved, and files them under their new name.
fn walk(ctx: Ctx) {
    let server = server();
    let mut running = server.reaper.walk.borrow_mut();
    if running.is_none() && std::mem::take(&mut server.index.borrow_mut().has_strays) {
        *running = Some(Walk::new());
    }
    let Some(walk) = running.as_mut() else { return };
    let (found, done) = walk.step(ctx);
    for (db, name) in &found {
        if ctx.select_db(*db)
            && let Ok(slot) = Slot::open(ctx, name.0)
        {
            slot.refile();
        }
    }
    if done {
        *running = None;
    }
    if !done || server.index.borrow().has_strays {
        arm_in(WALK_REST_MS);
    }
}
