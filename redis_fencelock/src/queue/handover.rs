//! The hand-over: a lock that is free goes to the head of its queue, in the same step in which it became free.
//!
//! Not what makes it free. Called by the command that releases and by the reaper.
//! Invariant: nobody is granted a lock while another waits for it longer.

use fence::cluster::Served;
use fence::lock::lease::{self, Hold, State};
use fence::lock::queue::LockName;

use crate::cluster;
use crate::counters::Count;
use crate::ffi::{Ctx, NotPropagated, OwnName};
use crate::lock::slot::{AHEAD_OF_ALL, Slot, WRONG_TYPE};
use crate::queue::waiters;
use crate::server::server;

/// How often a lock with waiters is looked at in a cluster: its slot may move without a word to the module.
const CLUSTER_LOOK_US: u64 = 1_000_000;

/// When a lock is looked at again whose hand-over could not be propagated.
const NOT_PROPAGATED_LOOK_US: u64 = 1_000_000;

/// What a waiter is told whose lock is no longer served here. Clients of a cluster try again and are redirected.
const NOT_SERVED: &str = "TRYAGAIN the lock is not served by this server any more";

/// Looks at a lock that somebody waits for, and hands it over if it is free.
pub(crate) fn look(ctx: Ctx, lock: LockName) {
    if server().queues.borrow().waiting(lock) == 0 || !ctx.select_db(lock.db) {
        return;
    }
    let name = OwnName::new(lock.name);
    if cluster::served(ctx, name.0) != Served::Here {
        return waiters::refuse_all(lock, NOT_SERVED);
    }
    match Slot::open(ctx, name.0) {
        Err(_) => waiters::refuse_all(lock, WRONG_TYPE),
        Ok(mut slot) => {
            slot.refile_if_moved();
            settle(&mut slot, lock);
        }
    }
}

/// Hands the lock to the head of its queue if it is free, and notes when to look again.
pub(crate) fn settle(slot: &mut Slot, lock: LockName) {
    let now_us = server().steady_us();
    slot.note_run_out(now_us);
    let is_free = slot.lease().is_none_or(|lease| lease.state(now_us) == State::Free);
    if is_free && serve(slot, lock).is_err() {
        return server().look_at(lock, now_us + NOT_PROPAGATED_LOOK_US);
    }
    look_again(slot, lock, now_us);
}

/// Notes when the lock may be free for those who wait.
pub(crate) fn look_again(slot: &Slot, lock: LockName, now_us: u64) {
    if server().queues.borrow().is_empty() {
        return;
    }
    let due_us = slot.lease().map_or(now_us, |lease| lease.due_us(now_us));
    let due_us = if server().in_cluster.get() { due_us.min(now_us + CLUSTER_LOOK_US) } else { due_us };
    server().look_at(lock, due_us);
}

/// Grants a free lock to the head of its queue; false when there is none, or no fence for it.
fn serve(slot: &mut Slot, lock: LockName) -> Result<bool, NotPropagated> {
    let server = server();
    let clocks = server.clocks();
    end_late_waits(lock, clocks.steady_us);
    let head = server.queues.borrow().head(lock).map(|(ticket, waiter)| (ticket, waiter.clone()));
    let Some((ticket, waiter)) = head else { return Ok(false) };
    if !slot.observe_stored() {
        waiters::refuse_all(lock, AHEAD_OF_ALL);
        return Ok(false);
    }
    let mut issuer = server.issuer();
    let Ok(lease) = lease::grant(waiter.terms, &mut issuer, server.now(clocks)) else {
        waiters::refuse_all(lock, "ERR all fences are issued");
        return Ok(false);
    };
    slot.grant(&Hold { lease, owner: &waiter.owner }, clocks)?;
    server.set_issuer(issuer);
    server.queues.borrow_mut().leave(ticket);
    slot.bind_if_ephemeral(waiter.client);
    server.stats.count_for(lock, Count::HandOvers);
    server.stats.waited(lock, clocks.steady_us.saturating_sub(waiter.since_us));
    waiter.granted(lease.fence);
    Ok(true)
}

/// Sends those away whose time is over and who would be next: the timer may come late.
fn end_late_waits(lock: LockName, now_us: u64) {
    loop {
        let late = server().queues.borrow_mut().pop_late_head(lock, now_us);
        let Some(waiter) = late else { return };
        waiter.timed_out();
    }
}

/// Ends a lease by its holder's wish or because nobody is there to hold it: the head of the queue gets the lock.
pub(crate) fn pass_on(slot: &mut Slot, lock: LockName, now_us: u64) -> Result<(), NotPropagated> {
    if server().queues.borrow().waiting(lock) > 0 && serve(slot, lock)? {
        look_again(slot, lock, now_us);
        return Ok(());
    }
    slot.remove(now_us)
}
