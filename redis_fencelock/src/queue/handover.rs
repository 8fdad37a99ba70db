//! The handover: a lock that is free goes to the head of its queue, in the same step in which it became free.
//!
//! Not what makes it free. Called by the command that releases and by the timer.
//! Invariant: nobody is granted a lock while another waits for it longer.

use std::ops::ControlFlow::{Break, Continue};

use fence::Fence;
use fence::cluster::Served;
use fence::lock::lease::{self, Caller, Hold, State};
use fence::lock::queue::LockName;

use crate::cluster::{self, NOT_SERVED_RETRY_US};
use crate::counters::{self, Count};
use crate::ffi::{Ctx, NotPropagated, OwnedStr};
use crate::lock::slot::{self, AHEAD_OF_ALL, Slot, WRONG_TYPE};
use crate::queue::waiters::{self, Waiter};
use crate::replication::Cause;
use crate::timer::alarm;
use crate::{clock, server};

/// When a lock is rechecked whose handover could not be propagated.
const NOT_PROPAGATED_RETRY_US: u64 = 1_000_000;

/// What a waiter gets whose lock is no longer served here. Clients of a cluster try again and are redirected.
const NOT_SERVED: &str = "TRYAGAIN the lock is not served by this server any more";

/// Rechecks the locks whose time for that has come: hands them over if they are free.
pub(crate) fn recheck_due(ctx: Ctx) {
    alarm::for_a_slice(|budget| {
        let Some((db, name)) = waiters::pop_recheck(budget) else { return Break(()) };
        recheck(ctx, LockName { db, name: &name });
        Continue(())
    });
}

fn recheck(ctx: Ctx, lock: LockName) {
    if waiters::waiting(lock) == 0 || !ctx.select_db(lock.db) {
        return;
    }
    let name = OwnedStr::new(lock.name);
    if cluster::served(ctx, name.as_str()) != Served::Here {
        return waiters::refuse_all(lock, NOT_SERVED);
    }
    match Slot::open(ctx, name.as_str(), Cause::Other) {
        Err(_) => waiters::refuse_all(lock, WRONG_TYPE),
        Ok(mut slot) => {
            slot.refile_if_moved();
            settle(&mut slot);
        }
    }
}

/// Hands the lock to the head of its queue if it is free, and notes when to recheck it.
pub(crate) fn settle(slot: &mut Slot) {
    let (lock, now_us) = (slot.lock(), clock::steady_us());
    slot.note_expired(now_us);
    let is_free = slot.lease().is_none_or(|lease| lease.state(now_us) == State::Free);
    if is_free && serve(slot).is_err() {
        return waiters::recheck_at(lock, now_us + NOT_PROPAGATED_RETRY_US);
    }
    waiters::recheck_when_free(lock, slot.lease(), now_us);
}

/// Grants a free lock to the head of its queue; false when there is none, or no fence for it.
fn serve(slot: &mut Slot) -> Result<bool, NotPropagated> {
    let (lock, clocks) = (slot.lock(), clock::clocks());
    waiters::expire_heads(lock, clocks.steady_us);
    let Some((ticket, waiter)) = waiters::head(lock) else { return Ok(false) };
    if !slot.observe_stored() {
        waiters::refuse_all(lock, AHEAD_OF_ALL);
        return Ok(false);
    }
    let mut issuer = server::issuer();
    let Ok(lease) = lease::grant(waiter.terms, &mut issuer, server::now(clocks)) else {
        waiters::refuse_all(lock, "ERR all fences are issued");
        return Ok(false);
    };
    slot.grant(&Hold { lease, owner: &waiter.owner }, issuer, waiter.client(), clocks)?;
    waiters::leave(ticket);
    counters::count_for(lock, Count::HandOvers);
    counters::waited(lock, clocks.steady_us.saturating_sub(waiter.since_us));
    waiter.grant(lease.fence);
    Ok(true)
}

/// Ends a lease by its holder's wish or because nobody is there to hold it: the head of the queue gets the lock.
pub(crate) fn pass_on(slot: &mut Slot, now_us: u64) -> Result<(), NotPropagated> {
    if waiters::waiting(slot.lock()) > 0 && serve(slot)? {
        waiters::recheck_when_free(slot.lock(), slot.lease(), now_us);
        return Ok(());
    }
    slot.end(now_us)
}

/// Takes back what was granted to clients that were gone before they got their reply.
pub(crate) fn undo_grants(ctx: Ctx) {
    let mut kept = waiters::take_to_undo();
    kept.retain(|(waiter, fence)| !undo_grant(ctx, waiter, *fence));
    if !kept.is_empty() {
        alarm::arm_in(NOT_SERVED_RETRY_US / 1_000);
        waiters::keep_to_undo(kept);
    }
}

/// Takes a grant back; false when that is to be tried again.
fn undo_grant(ctx: Ctx, waiter: &Waiter, fence: Fence) -> bool {
    let now_us = clock::steady_us();
    if !ctx.select_db(waiter.db) {
        return true;
    }
    let name = OwnedStr::new(&waiter.name);
    if cluster::await_served_soon(ctx, name.as_str(), now_us).is_err() {
        // The hold stays here until it is undone, or until its slot has left and the server deletes the key.
        return slot::read(ctx, name.as_str()).ok().flatten().is_none_or(|value| value.fence() != fence);
    }
    let Ok(mut slot) = Slot::open(ctx, name.as_str(), Cause::Other) else { return true };
    let caller = Caller { owner: &waiter.owner, fence: Some(fence) };
    if lease::release(slot.hold(), caller, now_us).is_err() {
        return true;
    }
    let is_undone = pass_on(&mut slot, now_us).is_ok();
    if is_undone {
        counters::count(Count::Undone);
    }
    is_undone
}
