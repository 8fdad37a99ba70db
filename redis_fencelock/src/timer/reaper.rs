//! The timer: removes leases that have run out, and keeps the deadline index true to the keyspace.
//!
//! Not what ends a lease: its deadline does, whether or not the entry is still there. Work is done in slices, so that a
//! million leases that end together delay nobody.
//! Invariant: it writes only on a primary, while writes may be replicated, and to keys that this server serves.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::ffi::c_void;

use fence::Fence;
use fence::cluster::Served;
use fence::lock::lease::{self, Caller, State};
use fence::lock::queue::LockName;
use redis_module::raw;

use crate::cluster;
use crate::config;
use crate::counters::Count;
use crate::ffi::{Ctx, Name, NotPropagated, OwnName, api, callback};
use crate::lock::slot::Slot;
use crate::lock::value::Value;
use crate::queue::handover;
use crate::queue::waiters::{self, Waiter};
use crate::replication::{self, FLOOR};
use crate::server::server;
use crate::timer::scan::Walk;

/// How long one slice of work may take.
const SLICE_US: u64 = 1_000;
/// Entries handled between two looks at the clock.
const BATCH: usize = 64;
/// Places that a sweep looks at between two looks at the clock.
const SWEEP_BATCH: usize = 500;
/// How long to wait while writes may not be replicated, as in a fail-over.
const PAUSED_RETRY_MS: u64 = 10;
/// How long a walk over the keyspace rests between slices: it is in no hurry.
const WALK_REST_MS: u64 = 10;
/// How long a lock stays whose slot this server does not serve, before it is looked at again.
const NOT_SERVED_RETRY_US: u64 = 1_000_000;
const RETRY_MS: u64 = NOT_SERVED_RETRY_US / 1_000;
/// The longest timer, a day: one may always be early.
const LONGEST_TIMER_MS: u64 = 24 * 3_600 * 1_000;
/// How long a sweep that has found nothing rests before it looks again: keys are freed on another thread.
const SWEEP_REST_MS: u64 = 100;
/// How late the timer may be before the cron takes over: the server's timers follow the wall clock, which may step back.
const LATE_US: u64 = 50_000;

/// What the reaper has to do.
#[derive(Default)]
pub(crate) struct Reaper {
    armed: Cell<Option<Armed>>,
    sweep: Cell<Sweep>,
    walk: RefCell<Option<Walk>>,
    /// Replicas are to be sent the clock.
    clock_due: Cell<bool>,
    /// Locks that were restored here, whose own record is to be sent.
    restored: RefCell<VecDeque<(i32, Box<[u8]>)>>,
    /// When to go on with them.
    restored_due_us: Cell<u64>,

    /// When to try again to end the leases of closed connections whose end was put off, and where to go on with that.
    put_off_due_us: Cell<Option<u64>>,
    put_off_from: Cell<u32>,
    put_off_next_us: Cell<Option<u64>>,
    /// When the walk goes on.
    walk_due_us: Cell<u64>,
    /// The last issued fence is to be sent into the append-only file.
    floor_due: Cell<bool>,
    /// The settings of the server are to be looked at.
    settings_due: Cell<bool>,
}

impl Reaper {
    /// Has this server's own record of a lock sent when it is there: what was restored was written elsewhere, by another
    /// wall clock, and replicas and files get no other.
    pub fn send_later(&self, db: i32, name: &[u8]) {
        self.restored.borrow_mut().push_back((db, name.into()));
        arm_now();
    }
}

#[derive(Clone, Copy)]
struct Armed {
    timer: raw::RedisModuleTimerID,
    due_us: u64,
}

/// A pass over the index for values that no key holds any more.
#[derive(Clone, Copy, Default)]
struct Sweep {
    from: usize,
    due_us: u64,
    forgotten: usize,
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
    let index = server().index.borrow();
    let is_due = reaper.settings_due.get() || index.has_orphans() || index.has_remains();
    drop(index);
    if is_due {
        arm_now();
    }
    let Some(armed) = reaper.armed.get() else { return };
    if server().steady_us() > armed.due_us.saturating_add(LATE_US) {
        server().detached.get().stop_timer(armed.timer);
        reaper.armed.set(None);
        arm_now();
    }
}

/// Has the settings of the server looked at by the next cron. No timer is made for it: it is called when the module is
/// loaded, and while a module holds a timer servers crash if they reject the load after that, for a wrong setting.
pub(crate) fn check_settings() {
    server().reaper.settings_due.set(true);
}

/// Sends the clock to the replicas.
pub(crate) fn send_clock() {
    server().reaper.clock_due.set(true);
    arm_now();
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
        discard_orphans();
        end_waits();
        waiters::unblock_some();
        close_unanswered(ctx);
        server.last_unlinked.take();
        if server.reaper.settings_due.take() {
            config::warn_about(ctx);
        }
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

/// Tells waiters that their time is over.
fn end_waits() {
    let server = server();
    for_a_slice(|budget| {
        let Some(waiter) = server.queues.borrow_mut().pop_expired(server.steady_us(), budget) else { return false };
        waiter.timed_out();
        true
    });
    arm_next(server.queues.borrow().next_expiry_us());
}

/// Closes clients whose reply was lost: the server unblocked them between the end of their wait and their reply, and they
/// would wait for ever. One that is gone already is no matter.
fn close_unanswered(ctx: Ctx) {
    for (waiter, _) in server().unanswered.borrow().iter() {
        ctx.close_client(waiter.client);
    }
    server().unanswered.borrow_mut().retain(|(_, granted)| granted.is_some());
}

/// Does what has to be written, the locks that somebody waits for first.
fn write(ctx: Ctx) {
    let server = server();
    if server.reaper.floor_due.take() {
        let sent = ctx.replicate_number(FLOOR, server.issuer().last());
        server.reaper.floor_due.set(sent.is_err());
    }
    if server.reaper.clock_due.take() {
        replication::send_clock(ctx);
    }
    undo_grants(ctx);
    end_ephemeral(ctx);
    send_restored(ctx);
    for_a_slice(|budget| {
        let Some((db, name)) = server.queues.borrow_mut().pop_recheck(server.steady_us(), budget) else { return false };
        handover::look(ctx, LockName { db, name: &name });
        true
    });
    let down_until = || {
        let refusals = server.refusals.borrow();
        if server.in_cluster.get() { refusals.down_until(server.steady_us()) } else { None }
    };
    for_a_slice(|budget| {
        // A lease that has ended is free, whether or not its entry is still there.
        if down_until().is_some() {
            return false;
        }
        let Some(value) = server.index.borrow_mut().pop(server.steady_us(), budget) else { return false };
        match retire(ctx, value) {
            Retired::Done => server.index.borrow_mut().leave(value),
            Retired::Later(due_us) => server.index.borrow_mut().insert_at(due_us, value),
        }
        true
    });
    arm_next(server.queues.borrow().next_recheck_us());
    arm_next(down_until().or_else(|| server.index.borrow().next_us()));
}

/// Repeats `step` until it finds nothing to do or the slice is over. A step also ends when its budget is used up.
fn for_a_slice(mut step: impl FnMut(&mut usize) -> bool) {
    let end_us = server().steady_us() + SLICE_US;
    loop {
        let mut budget = BATCH;
        while step(&mut budget) {}
        if budget > 0 || server().steady_us() >= end_us {
            return;
        }
    }
}

fn arm_next(due_us: Option<u64>) {
    if let Some(due_us) = due_us {
        arm(due_us);
    }
}

/// Sends records of locks that were restored here. One whose slot is not served yet waits, as long as it is there.
fn send_restored(ctx: Ctx) {
    let server = server();
    let Reaper { restored, restored_due_us, .. } = &server.reaper;
    if restored.borrow().is_empty() {
        return;
    }
    if server.steady_us() < restored_due_us.get() {
        return arm(restored_due_us.get());
    }
    for_a_slice(|budget| {
        *budget -= 1;
        let Some((db, name)) = restored.borrow_mut().pop_front() else { return false };
        let own = OwnName::new(&name);
        if !ctx.select_db(db) || !matches!(Slot::look(ctx, own.0), Ok(Some(_))) {
            return *budget > 0;
        }
        if cluster::served(ctx, own.0) != Served::Here {
            restored.borrow_mut().push_back((db, name));
            restored_due_us.set(server.steady_us() + NOT_SERVED_RETRY_US);
            *budget = (*budget).max(1); // the slice ends
            return false;
        }
        if let Ok(slot) = Slot::open(ctx, own.0) {
            _ = slot.send_again(server.clocks());
        }
        *budget > 0
    });
    if !restored.borrow().is_empty() {
        arm(restored_due_us.get().max(server.steady_us() + 1_000));
    }
}

/// Takes back what was granted to clients that were gone before they could be told.
fn undo_grants(ctx: Ctx) {
    let mut kept = Vec::new();
    for (waiter, granted) in server().unanswered.take() {
        if let Some(fence) = granted
            && !undo_grant(ctx, &waiter, fence)
        {
            kept.push((waiter, granted));
        }
    }
    if !kept.is_empty() {
        arm_in(RETRY_MS);
        server().unanswered.borrow_mut().extend(kept);
    }
}

/// Takes a grant back; false when that is to be tried again.
fn undo_grant(ctx: Ctx, waiter: &Waiter, fence: Fence) -> bool {
    let lock = LockName { db: waiter.db, name: &waiter.name };
    let caller = Caller { owner: &waiter.owner, fence: Some(fence) };
    let now_us = server().steady_us();
    let undo = |slot: &mut Slot| {
        if lease::release(slot.hold(), caller, now_us).is_err() {
            return true;
        }
        let done = handover::pass_on(slot, lock, now_us).is_ok();
        if done {
            server().stats.count(Count::Undone);
        }
        done
    };
    with_slot(ctx, lock, undo).unwrap_or_else(|_| {
        // The hold stays here until it is undone, or until its slot has left and the server deletes the key.
        let name = OwnName::new(lock.name);
        !ctx.select_db(lock.db)
            || Slot::look(ctx, name.0).ok().flatten().is_none_or(|value| value.lease().fence != fence)
    })
}

/// Ends the leases whose connection has closed. They run out, so their delay applies.
fn end_ephemeral(ctx: Ctx) {
    let server = server();
    let mut is_down = false;
    for_a_slice(|budget| {
        if is_down || *budget == 0 {
            return false;
        }
        let Some((place, db)) = server.index.borrow_mut().bonds.next_closed() else { return false };
        *budget -= 1;
        match end_bound(ctx, place, db) {
            Ok(()) => server.index.borrow_mut().bonds.unbind(place),
            Err(retry_us) if server.refusals.borrow().down_until(server.steady_us()).is_some() => {
                is_down = true;
                arm(retry_us);
            }
            Err(retry_us) => {
                server.index.borrow_mut().bonds.put_off(place);
                put_off_until(retry_us);
            }
        }
        true
    });
    if !is_down && server.index.borrow_mut().bonds.next_closed().is_some() {
        arm_now();
    }
    end_put_off(ctx);
}

fn put_off_until(retry_us: u64) {
    let reaper = &server().reaper;
    let due_us = reaper.put_off_due_us.get().filter(|&due_us| due_us <= retry_us).unwrap_or(retry_us);
    reaper.put_off_due_us.set(Some(due_us));
    arm(due_us);
}

/// Tries again to end those leases of closed connections whose end was put off.
fn end_put_off(ctx: Ctx) {
    let server = server();
    let reaper = &server.reaper;
    let Some(due_us) = reaper.put_off_due_us.get() else { return };
    if server.steady_us() < due_us {
        return arm(due_us);
    }
    let mut from = Some(reaper.put_off_from.get());
    for_a_slice(|budget| {
        let Some(start) = from.filter(|_| *budget > 0) else { return false };
        *budget -= 1;
        let next = server.index.borrow().bonds.next_put_off(start);
        from = next.map(|(place, _)| place + 1);
        if let Some((place, db)) = next {
            match end_bound(ctx, place, db) {
                Ok(()) => server.index.borrow_mut().bonds.unbind(place),
                Err(retry_us) => {
                    let earliest = reaper.put_off_next_us.get().map_or(retry_us, |next_us| next_us.min(retry_us));
                    reaper.put_off_next_us.set(Some(earliest));
                }
            }
        }
        true
    });
    reaper.put_off_from.set(from.unwrap_or(0));
    if from.is_some() {
        return arm_now();
    }
    reaper.put_off_due_us.set(reaper.put_off_next_us.take());
    arm_next(reaper.put_off_due_us.get());
}

/// Ends the lease in a place, bound in a database, unless it has ended or moved. The error is when to try again.
fn end_bound(ctx: Ctx, place: u32, db: i32) -> Result<(), u64> {
    let server = server();
    let (value, is_here) = {
        let index = server.index.borrow();
        let value = index.bound(place);
        (value, value.is_in_keyspace() && !index.is_flushed(value) && index.database(value.db()) == db)
    };
    let clocks = server.clocks();
    let lease = value.lease();
    if !is_here || !lease.is_live(clocks.steady_us) {
        return Ok(());
    }
    let name = OwnName::new(value.key());
    if !ctx.select_db(db) {
        return Ok(());
    }
    await_served(ctx, name.0, clocks.steady_us)?;
    match Slot::open(ctx, name.0) {
        Ok(slot) if slot.holds(value) => slot
            .set_deadline(lease.expire(clocks.steady_us), clocks)
            .map_err(|NotPropagated| clocks.steady_us + NOT_SERVED_RETRY_US),
        _ => Ok(()),
    }
}

/// Asks whether a key is served. The error is when to ask again.
fn await_served(ctx: Ctx, name: Name, now_us: u64) -> Result<(), u64> {
    match cluster::served_or_wait(ctx, name, now_us)? {
        Served::Here => Ok(()),
        Served::Elsewhere | Served::Down => {
            let until = server().refusals.borrow().until(name.bytes(), now_us);
            Err(until.unwrap_or(now_us + NOT_SERVED_RETRY_US))
        }
    }
}

/// Runs `act` on a lock that this server serves and that is of the type. The error is when to ask again.
fn with_slot(ctx: Ctx, lock: LockName, act: impl FnOnce(&mut Slot) -> bool) -> Result<bool, u64> {
    let name = OwnName::new(lock.name);
    if !ctx.select_db(lock.db) {
        return Ok(true);
    }
    await_served(ctx, name.0, server().steady_us())?;
    Ok(Slot::open(ctx, name.0).map_or(true, |mut slot| act(&mut slot)))
}

enum Retired {
    Done,
    Later(u64),
}

/// Gives back the places of values that were freed on another thread.
fn discard_orphans() {
    for_a_slice(|budget| {
        if server().index.borrow_mut().discard_orphans(BATCH) {
            *budget = 0;
        }
        false
    });
    if server().index.borrow().has_orphans() {
        arm_in(1);
    }
}

/// Removes a lock whose time has come, if its key still holds it, or hands it on.
fn retire(ctx: Ctx, value: Value) -> Retired {
    let server = server();
    if !value.is_in_keyspace() || server.index.borrow().is_flushed(value) {
        return Retired::Done;
    }
    let now_us = server.steady_us();
    let lease = value.lease();
    if lease.is_live(now_us) {
        return Retired::Later(lease.deadline_us);
    }
    let db = server.index.borrow().database(value.db());
    let name = OwnName::new(value.key());
    if !ctx.select_db(db) {
        return Retired::Later(now_us + NOT_SERVED_RETRY_US);
    }
    if let Err(retry_us) = await_served(ctx, name.0, now_us) {
        return Retired::Later(retry_us);
    }
    let Some(mut slot) = Slot::open(ctx, name.0).ok().filter(|slot| slot.holds(value)) else {
        server.index.borrow_mut().has_strays = true;
        return Retired::Done;
    };
    slot.note_run_out(now_us);
    if lease.state(now_us) == State::Delay {
        return Retired::Later(lease.free_us());
    }
    let lock = slot.lock();
    match handover::pass_on(&mut slot, lock, now_us) {
        Ok(()) => Retired::Done,
        Err(NotPropagated) => Retired::Later(now_us + NOT_SERVED_RETRY_US),
    }
}

/// Forgets values that no key holds any more: those of flushed databases, and those that another thread has freed.
fn sweep() {
    let server = server();
    let reaper = &server.reaper;
    if !server.index.borrow().has_remains() {
        return;
    }
    let Sweep { mut from, due_us, mut forgotten } = reaper.sweep.get();
    let now_us = server.steady_us();
    if now_us < due_us {
        return arm(due_us);
    }
    let mut is_over = false;
    for_a_slice(|budget| {
        if is_over || *budget == 0 {
            return false;
        }
        let (next, found) = server.index.borrow_mut().sweep(from, SWEEP_BATCH);
        forgotten += found;
        is_over = next.is_none();
        from = next.unwrap_or(0);
        *budget = if is_over { *budget } else { 0 };
        !is_over
    });
    // The other thread may not have come far: a pass that has found nothing is not repeated at once.
    let rest_us = if is_over && forgotten == 0 { SWEEP_REST_MS * 1_000 } else { 0 };
    reaper.sweep.set(Sweep { from, due_us: now_us + rest_us, forgotten: if is_over { 0 } else { forgotten } });
    if server.index.borrow().has_remains() {
        arm(now_us + rest_us);
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
    let now_us = server.steady_us();
    if now_us < server.reaper.walk_due_us.get() {
        return arm(server.reaper.walk_due_us.get());
    }
    server.reaper.walk_due_us.set(now_us + WALK_REST_MS * 1_000);
    let (found, done) = walk.step(ctx);
    for (db, name) in &found {
        if ctx.select_db(*db)
            && let Ok(mut slot) = Slot::open(ctx, name.0)
        {
            slot.refile_if_moved();
        }
    }
    if done {
        *running = None;
    }
    if !done || server.index.borrow().has_strays {
        arm(server.reaper.walk_due_us.get());
    }
}
