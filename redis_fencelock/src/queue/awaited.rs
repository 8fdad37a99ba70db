//! Checks the holds whose end somebody awaits: by their keys, and in a cluster by the slots.
//!
//! What ends a hold reports it to `awaiters`; what is checked here happened unseen, or is late. It writes nothing, so it
//! goes on where writes may not be propagated. Invariant: a replica ends no wait by its clock.

use std::ops::ControlFlow::{Break, Continue};

use fence::Fence;
use fence::cluster::Served;
use fence::lock::awaits::{self, Found, Judge, Stored};
use fence::lock::ending::Ending;
use fence::lock::lease::Lease;
use fence::lock::queue::LockName;

use crate::cluster;
use crate::ffi::{Ctx, OwnedStr, Str};
use crate::lock::slot::{self, WrongType};
use crate::queue::awaiters::{self, Awaiter};
use crate::timer::alarm;
use crate::{clock, server};

fn judge() -> Judge {
    if server::is_primary() { Judge::Clock(clock::steady_us()) } else { Judge::Stream }
}

/// What is stored under a key.
fn stored(ctx: Ctx, name: Str) -> Result<Option<Stored>, WrongType> {
    let value = slot::read(ctx, name)?;
    Ok(value.map(|value| Stored { lease: value.lease(), is_over: value.is_marked_over() }))
}

/// Looks for a hold under a key. With it comes the stored lease.
pub(crate) fn find(ctx: Ctx, name: Str, fence: Fence) -> Result<(Found, Option<Lease>), WrongType> {
    let stored = stored(ctx, name)?;
    let found = awaits::find(stored, fence, server::last_fence(), judge());
    Ok((found, stored.map(|stored| stored.lease)))
}

/// Called by the timer: answers those whose hold has ended, or whose time is over.
pub(crate) fn settle(ctx: Ctx) {
    if awaiters::has_unlinked() {
        report_unlinked(ctx);
    }
    if awaiters::is_empty() {
        return;
    }
    if server::is_link_down() {
        return awaiters::refuse_everybody(awaiters::LINK_DOWN);
    }
    recheck_due(ctx);
    // First what has ended: null is the answer of a hold that has not.
    expire(ctx);
    alarm::arm_next(awaiters::next_us());
}

/// Reports holds that have left their keys: deleted, unless the slot has left this server.
fn report_unlinked(ctx: Ctx) {
    alarm::for_a_slice(|budget| {
        if *budget == 0 {
            return Break(());
        }
        let Some(unlinked) = awaiters::pop_unlinked() else { return Break(()) };
        *budget -= 1;
        let name = OwnedStr::new(&unlinked.name);
        let may_have_moved = unlinked.ending == Ending::Deleted && ctx.select_db(unlinked.db);
        let has_moved = may_have_moved && is_elsewhere(ctx, name.as_str());
        let ending = if has_moved { Ending::Moved } else { unlinked.ending };
        unlinked.report(ending);
        Continue(())
    });
    if awaiters::has_unlinked() {
        alarm::arm_now();
    }
}

/// Whether another server of the cluster serves the key. A replica serves no key, and cannot know.
fn is_elsewhere(ctx: Ctx, name: Str) -> bool {
    server::in_cluster() && server::is_primary() && cluster::served(ctx, name) == Served::Elsewhere
}

fn recheck_due(ctx: Ctx) {
    alarm::for_a_slice(|budget| {
        let Some((db, name)) = awaiters::pop_recheck(budget) else { return Break(()) };
        recheck(ctx, LockName { db, name: &name });
        Continue(())
    });
}

/// Ends the waits for all that is not the live hold of a lock.
fn recheck(ctx: Ctx, lock: LockName) {
    if !ctx.select_db(lock.db) {
        return;
    }
    let name = OwnedStr::new(lock.name);
    let has_moved = is_elsewhere(ctx, name.as_str());
    let stored = stored(ctx, name.as_str()).ok().flatten();
    let live = stored.filter(|stored| !has_moved && stored.is_live(judge())).map(|stored| stored.lease);
    for fence in awaiters::others(lock, live.map(|lease| lease.fence)) {
        match reason(stored, fence, has_moved) {
            Some(ending) => awaiters::end(lock, fence, ending),
            None => awaiters::end_unseen(lock, fence),
        }
    }
    if let Some(lease) = live {
        awaiters::recheck_at_end(lock, &lease);
    }
}

/// Why a hold has ended, if its lease or its slot shows it.
fn reason(stored: Option<Stored>, fence: Fence, has_moved: bool) -> Option<Ending> {
    if has_moved {
        return Some(Ending::Moved);
    }
    let own = stored.filter(|stored| stored.lease.fence == fence)?;
    Some(own.ending(judge()))
}

/// Answers those whose time is over. The server may have been late: what had ended by then is an end.
fn expire(ctx: Ctx) {
    alarm::for_a_slice(|budget| {
        let Some(awaiter) = awaiters::pop_expired(budget) else { return Break(()) };
        let ended = ended(ctx, &awaiter);
        awaiter.answer(ended);
        Continue(())
    });
}

fn ended(ctx: Ctx, awaiter: &Awaiter) -> Option<Ending> {
    if !ctx.select_db(awaiter.db) {
        return None;
    }
    let name = OwnedStr::new(&awaiter.name);
    let stored = stored(ctx, name.as_str()).ok().flatten();
    match awaits::find(stored, awaiter.fence, server::last_fence(), judge()) {
        Found::Over => Some(reason(stored, awaiter.fence, false).unwrap_or_else(|| awaiter.ending_unseen())),
        Found::Live | Found::Ahead => None,
    }
}
