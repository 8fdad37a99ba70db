//! What the timer does: ends leases that have expired, and the waits, grants and bonds whose time has come.
//!
//! Not what ends a lease: its deadline does, whether or not the entry is still there. Work is done in slices, so that a
//! million leases that end together delay nobody.
//! Invariant: it writes only on a primary, while writes may be propagated, and to keys that this server serves.

use std::cell::Cell;
use std::ffi::c_void;
use std::ops::ControlFlow::{Break, Continue};

use crate::cluster::{self, NOT_SERVED_RETRY_US};
use crate::ffi::main_thread::MainThread;
use crate::ffi::{Ctx, NotPropagated, OwnedStr, callback};
use crate::lock::arrival::{self, Restored};
use crate::lock::index::index;
use crate::lock::slot::{self, Slot};
use crate::lock::value::Value;
use crate::queue::{awaited, awaiters, clients, ephemeral, handover, waiters};
use crate::replication::{self, Cause};
use crate::timer::{alarm, scan};
use crate::{clock, config, server};
use fence::lock::lease::State;

/// How long to wait while writes may not be propagated, as in a fail-over.
const PAUSED_RETRY_MS: u64 = 10;

/// How long to rest for each of the locks that were restored here and are not served yet.
const RESTORED_REST_US: u64 = 20;

/// When to go on with the locks that were restored here.
static RESTORED_DUE_US: MainThread<Cell<u64>> = MainThread::new(Cell::new(0));
/// How many of them this round has still to go through, if one is under way.
static RESTORED_LEFT: MainThread<Cell<Option<usize>>> = MainThread::new(Cell::new(None));

/// Called by the server's cron: sees to it that the timer goes off when there is something to do.
pub(crate) fn check_timer() {
    let has_remains = {
        let index = index().borrow();
        index.has_orphans() || index.has_remains()
    };
    // The link may have gone down unseen.
    let misses_stream = !awaiters::is_empty() && server::is_link_down();
    if config::is_check_due() || has_remains || misses_stream {
        alarm::arm_now();
    }
    alarm::take_over_if_late();
}

callback! {
    pub(crate) fn on_timer(ctx: Ctx, _data: *mut c_void) -> (), else alarm::arm_in(PAUSED_RETRY_MS);
    {
        alarm::disarm();
        index().borrow_mut().settle_suspects();
        scan::sweep();
        scan::discard_orphans();
        waiters::expire();
        clients::unblock_some();
        clients::close_unanswered(ctx);
        index().borrow_mut().forget_last_unlinked();
        config::warn_if_due(ctx);
        if !server::is_loading() {
            match server::is_primary() {
                true if Ctx::may_replicate() => write(ctx),
                true => alarm::arm_in(PAUSED_RETRY_MS),
                false => replication::send_due_to_file(ctx),
            }
            awaited::settle(ctx);
        }
        scan::walk(ctx);
    }
}

/// Does what has to be written, the locks that somebody waits for first.
fn write(ctx: Ctx) {
    replication::send_due(ctx);
    handover::undo_grants(ctx);
    ephemeral::end_closed(ctx);
    send_restored(ctx);
    handover::recheck_due(ctx);
    end_expired(ctx);
    alarm::arm_next(waiters::next_recheck_us());
    alarm::arm_next(cluster::down_until().or_else(|| index().borrow().next_us()));
}

/// Propagates records of locks that were restored here. One whose slot is not served yet waits, as long as it is there,
/// and holds no other up.
fn send_restored(ctx: Ctx) {
    if !arrival::has_restored() {
        return;
    }
    if clock::steady_us() < RESTORED_DUE_US.get() {
        return alarm::arm(RESTORED_DUE_US.get());
    }
    // One round: what is put back is not popped again in it.
    let mut left = RESTORED_LEFT.get().unwrap_or_else(arrival::restored);
    alarm::for_a_slice(|budget| {
        if left == 0 || *budget == 0 {
            return Break(());
        }
        (left, *budget) = (left - 1, *budget - 1);
        if let Some(restored) = arrival::pop_restored()
            && !propagate_restored(ctx, &restored)
        {
            arrival::put_back(restored);
        }
        Continue(())
    });
    RESTORED_LEFT.set((left > 0).then_some(left));
    if left == 0 && arrival::has_restored() {
        // Of a large slot that is long on its way not all are gone through each second.
        let rest_us = NOT_SERVED_RETRY_US.max(arrival::restored() as u64 * RESTORED_REST_US);
        RESTORED_DUE_US.set(clock::steady_us() + rest_us);
    }
    if arrival::has_restored() {
        alarm::arm(RESTORED_DUE_US.get().max(clock::steady_us() + 1_000));
    }
}

/// Propagates the record of a lock that was restored; false when its slot is not served yet.
fn propagate_restored(ctx: Ctx, restored: &Restored) -> bool {
    let name = OwnedStr::new(&restored.name);
    if !ctx.select_db(restored.db) || !matches!(slot::read(ctx, name.as_str()), Ok(Some(_))) {
        return true;
    }
    if cluster::await_served_soon(ctx, name.as_str(), clock::steady_us()).is_err() {
        return false;
    }
    if let Ok(slot) = Slot::open(ctx, name.as_str(), Cause::Other) {
        _ = slot.propagate_again(clock::clocks());
    }
    true
}

/// Ends the leases whose time has come.
fn end_expired(ctx: Ctx) {
    alarm::for_a_slice(|budget| {
        // A lease that has ended is free, whether or not its entry is still there.
        if cluster::down_until().is_some() {
            return Break(());
        }
        let Some(value) = index().borrow_mut().pop(clock::steady_us(), budget) else { return Break(()) };
        match retire(ctx, &value) {
            Retired::Done => index().borrow_mut().leave(value),
            Retired::Later(due_us) => index().borrow_mut().insert_at(due_us, &value),
        }
        Continue(())
    });
}

/// Whether a lock has left the index, or when its time comes.
enum Retired {
    Done,
    Later(u64),
}

/// Removes a lock whose time has come, if its key still holds it, or hands it on.
fn retire(ctx: Ctx, value: &Value) -> Retired {
    if !value.is_in_keyspace() || index().borrow().is_flushed(value) {
        return Retired::Done;
    }
    let now_us = clock::steady_us();
    let lease = value.lease();
    if lease.is_live(now_us) {
        return Retired::Later(lease.deadline_us);
    }
    let db = index().borrow().database(value.db());
    let name = OwnedStr::new(value.key());
    if !ctx.select_db(db) {
        return Retired::Later(now_us + NOT_SERVED_RETRY_US);
    }
    if let Err(retry_us) = cluster::await_served(ctx, name.as_str(), now_us) {
        return Retired::Later(retry_us);
    }
    let slot = Slot::open(ctx, name.as_str(), Cause::Other);
    let Some(mut slot) = slot.ok().filter(|slot| slot.holds(value)) else {
        index().borrow_mut().has_strays = true;
        return Retired::Done;
    };
    slot.note_expired(now_us);
    if lease.state(now_us) == State::Delay {
        return Retired::Later(lease.free_us());
    }
    match handover::pass_on(&mut slot, now_us) {
        Ok(()) => Retired::Done,
        Err(NotPropagated) => Retired::Later(now_us + NOT_SERVED_RETRY_US),
    }
}
