//! Clients that await the end of a hold, and the one reply that each gets.
//!
//! Not how they are blocked, which is `clients`, nor who awaits what, which is `fence::lock::awaits`. It reads no key:
//! whoever ends a hold reports it here. Invariant: an awaiter is answered once, by the first end that is reported.

use std::cell::{Cell, LazyCell, RefCell};
use std::collections::{BTreeMap, VecDeque};
use std::ffi::c_int;
use std::rc::Rc;

use crate::counters::{self, Count};
use crate::ffi::Ctx;
use crate::ffi::main_thread::MainThread;
use crate::queue::clients::{self, Handle, Waits};
use crate::timer::alarm;
use crate::{clock, config, server};
use fence::Fence;
use fence::lock::awaits::Awaits;
use fence::lock::ending::Ending;
use fence::lock::lease::{Lease, Millis};
use fence::lock::queue::{LockName, Ticket};

static AWAITERS: MainThread<LazyCell<Awaiters>> = MainThread::new(LazyCell::new(|| Awaiters {
    awaits: RefCell::new(Awaits::new(clock::origin_us())),
    unlinked: RefCell::default(),
    flushes: RefCell::default(),
}));

struct Awaiters {
    awaits: RefCell<Awaits<Rc<Awaiter>>>,
    /// Holds that have left their key, to be reported when it is known why.
    unlinked: RefCell<VecDeque<Unlinked>>,
    /// How often each database was flushed; under `None` all at once.
    flushes: RefCell<BTreeMap<Option<i32>, u64>>,
}

/// An awaited hold that has left its key, and those who await it.
pub(crate) struct Unlinked {
    pub(crate) db: i32,
    pub(crate) name: Box<[u8]>,
    pub(crate) ending: Ending,
    awaiters: Vec<Rc<Awaiter>>,
}

/// A blocked client.
pub(crate) struct Awaiter {
    handle: Handle,
    pub(crate) db: i32,
    pub(crate) name: Box<[u8]>,
    pub(crate) fence: Fence,
    /// How often its database was flushed before.
    flushes: u64,
    ticket: Cell<Option<Ticket>>,
    outcome: Cell<Outcome>,
}

/// What became of an awaiter.
#[derive(Clone, Copy, PartialEq)]
enum Outcome {
    Waiting,
    Ended(Ending),
    /// The time is over, and the hold is still there.
    StillHeld,
    /// Its fence is above all that this server knows, which is a primary now.
    Ahead,
    Refused(&'static str),
    /// The reply has been written, or nobody is there to read it.
    Over,
}

/// Why a call does not wait.
pub(crate) enum NotAwaited {
    /// The server does not let this client block: a transaction, a script; on Valkey also a subscriber.
    MustNotBlock,
    /// As many await an end as may.
    Full,
}

/// The error on a replica whose stream has stopped: it sees no end.
pub(crate) const LINK_DOWN: &str =
    "MASTERDOWN the link with the primary is down: this replica cannot know when the hold ends";

/// How often an awaited lock is rechecked in a cluster: its slot may move unseen by the module.
const CLUSTER_RECHECK_US: u64 = 1_000_000;

/// How many await an end.
pub(crate) fn len() -> usize {
    AWAITERS.awaits.borrow().len()
}

pub(crate) fn is_empty() -> bool {
    len() == 0
}

/// Whether somebody awaits the end of a hold with this fence.
pub(crate) fn awaits(fence: Fence) -> bool {
    AWAITERS.awaits.borrow().awaits(fence)
}

/// Blocks the client of the running command until the hold of `fence` has ended or `wait` is over. `is_ahead`: the
/// hold has yet to arrive.
pub(crate) fn enqueue(ctx: Ctx, lock: LockName, fence: Fence, is_ahead: bool, wait: Millis) -> Result<(), NotAwaited> {
    if !ctx.may_block() {
        return Err(NotAwaited::MustNotBlock);
    }
    if len() as u64 >= config::max_awaiters() {
        return Err(NotAwaited::Full);
    }
    let Some(handle) = clients::block(ctx) else { return Err(NotAwaited::MustNotBlock) };
    let deadline_us = clock::steady_us().saturating_add(wait.as_micros());
    let awaiter = Rc::new(Awaiter {
        handle,
        db: lock.db,
        name: lock.name.into(),
        fence,
        flushes: flushes(lock.db),
        ticket: Cell::new(None),
        outcome: Cell::new(Outcome::Waiting),
    });
    clients::enter(awaiter.clone());
    match AWAITERS.awaits.borrow_mut().join(lock, fence, is_ahead, deadline_us, awaiter.clone()) {
        Some(ticket) => awaiter.ticket.set(Some(ticket)),
        None => awaiter.resolve(Outcome::Refused("ERR more clients wait than can be counted")),
    }
    counters::count(Count::Awaits);
    alarm::arm(deadline_us);
    Ok(())
}

/// Reports that the hold of `fence` has ended.
#[inline]
pub(crate) fn end(lock: LockName, fence: Fence, ending: Ending) {
    if awaits(fence) {
        let ended = AWAITERS.awaits.borrow_mut().end(lock, fence);
        ended.iter().for_each(|awaiter| awaiter.resolve(Outcome::Ended(ending)));
    }
}

/// Reports that the hold of `fence` was found to have ended, unseen.
pub(crate) fn end_unseen(lock: LockName, fence: Fence) {
    let ended = AWAITERS.awaits.borrow_mut().end(lock, fence);
    ended.iter().for_each(|awaiter| awaiter.resolve(Outcome::Ended(awaiter.ending_unseen())));
}

/// Reports that the hold of `fence` has left its key, for a reason that shows a moment later.
pub(crate) fn unlink(lock: LockName, fence: Fence) {
    let awaiters = AWAITERS.awaits.borrow_mut().end(lock, fence);
    if !awaiters.is_empty() {
        let unlinked = Unlinked { db: lock.db, name: lock.name.into(), ending: Ending::Deleted, awaiters };
        AWAITERS.unlinked.borrow_mut().push_back(unlinked);
        alarm::arm_now();
    }
}

/// The hold that has left its key last was evicted, if it was this one.
pub(crate) fn note_evicted(lock: LockName) {
    if let Some(last) = AWAITERS.unlinked.borrow_mut().back_mut()
        && (last.db, &*last.name) == (lock.db, lock.name)
    {
        last.ending = Ending::Evicted;
    }
}

/// A hold that has left its key, to be reported.
pub(crate) fn pop_unlinked() -> Option<Unlinked> {
    AWAITERS.unlinked.borrow_mut().pop_front()
}

pub(crate) fn has_unlinked() -> bool {
    !AWAITERS.unlinked.borrow().is_empty()
}

impl Unlinked {
    /// Reports why it has ended.
    pub(crate) fn report(self, ending: Ending) {
        self.awaiters.iter().for_each(|awaiter| awaiter.resolve(Outcome::Ended(ending)));
    }
}

/// Notes a flush of a database, or of all.
pub(crate) fn note_flush(db: Option<i32>) {
    *AWAITERS.flushes.borrow_mut().entry(db).or_default() += 1;
    recheck_all(db);
}

fn flushes(db: i32) -> u64 {
    let flushes = AWAITERS.flushes.borrow();
    [None, Some(db)].iter().filter_map(|key| flushes.get(key)).sum()
}

/// The hold of `fence` has arrived from the primary.
pub(crate) fn arrive(lock: LockName, fence: Fence) {
    if awaits(fence) {
        AWAITERS.awaits.borrow_mut().arrive(lock, fence);
    }
}

/// Every fence up to the last one is known: a hold that has not arrived by now will not.
pub(crate) fn end_passed() {
    loop {
        let passed = AWAITERS.awaits.borrow_mut().pop_passed(server::last_fence());
        let Some(passed) = passed else { return };
        passed.iter().for_each(|awaiter| awaiter.resolve(Outcome::Ended(Ending::Unknown)));
    }
}

/// This server is a primary now: it knows of no fence above the last, and judges every hold by its own clock.
pub(crate) fn become_primary() {
    end_passed();
    loop {
        let ahead = AWAITERS.awaits.borrow_mut().pop_passed(Fence::MAX);
        let Some(ahead) = ahead else { break };
        ahead.iter().for_each(|awaiter| awaiter.resolve(Outcome::Ahead));
    }
    recheck_all(None);
}

/// Answers everybody with an error.
pub(crate) fn refuse_everybody(error: &'static str) {
    if !is_empty() {
        let awaiters = AWAITERS.awaits.borrow_mut().leave_all();
        awaiters.iter().for_each(|awaiter| awaiter.resolve(Outcome::Refused(error)));
    }
}

/// Has a lock rechecked when its lease ends, if somebody awaits that: whatever keeps the server from ending it then, it
/// is over. Not on a replica.
pub(crate) fn recheck_at_end(lock: LockName, lease: &Lease) {
    if !awaits(lease.fence) || !server::is_primary() {
        return;
    }
    let in_cluster_us = clock::steady_us() + CLUSTER_RECHECK_US;
    let due_us = if server::in_cluster() { lease.deadline_us.min(in_cluster_us) } else { lease.deadline_us };
    AWAITERS.awaits.borrow_mut().recheck_at(lock, due_us);
    alarm::arm(due_us);
}

/// Rechecks a lock as soon as the running call is over: its key is about to hold another value.
pub(crate) fn recheck(lock: LockName) {
    if !is_empty() {
        AWAITERS.awaits.borrow_mut().recheck_at(lock, clock::steady_us());
        alarm::arm_now();
    }
}

/// Rechecks every lock of a database, or of all.
pub(crate) fn recheck_all(db: Option<i32>) {
    if !is_empty() {
        AWAITERS.awaits.borrow_mut().recheck_all(db, clock::steady_us());
        alarm::arm_now();
    }
}

/// A lock that is to be rechecked now, as its database and name. `budget` as for `Wheel::pop`.
pub(crate) fn pop_recheck(budget: &mut usize) -> Option<(i32, Box<[u8]>)> {
    AWAITERS.awaits.borrow_mut().pop_recheck(clock::steady_us(), budget)
}

/// The fences that are awaited under a lock and are not its live hold.
pub(crate) fn others(lock: LockName, live: Option<Fence>) -> Vec<Fence> {
    AWAITERS.awaits.borrow().others(lock, live)
}

/// Somebody whose time is over. `budget` as for `Wheel::pop`.
pub(crate) fn pop_expired(budget: &mut usize) -> Option<Rc<Awaiter>> {
    AWAITERS.awaits.borrow_mut().pop_expired(clock::steady_us(), budget)
}

/// When to pop again.
pub(crate) fn next_us() -> Option<u64> {
    AWAITERS.awaits.borrow().next_us()
}

impl Awaiter {
    /// Answers that the hold has ended, or that it has not.
    pub(crate) fn answer(self: &Rc<Self>, ended: Option<Ending>) {
        self.resolve(ended.map_or(Outcome::StillHeld, Outcome::Ended));
    }

    /// Why a hold has ended that is not under its key any more.
    pub(crate) fn ending_unseen(&self) -> Ending {
        if self.flushes != flushes(self.db) { Ending::Flushed } else { Ending::Deleted }
    }

    fn resolve(self: &Rc<Self>, outcome: Outcome) {
        if self.outcome.replace(outcome) != Outcome::Waiting {
            self.outcome.set(Outcome::Over);
            return;
        }
        self.ticket.set(None);
        clients::unblock_in_turn(self.clone());
    }

    fn leave(&self) -> bool {
        self.ticket.take().is_some_and(|ticket| AWAITERS.awaits.borrow_mut().leave(ticket).is_some())
    }
}

/// The error for a fence that no hold can have yet.
pub(crate) fn ahead_of_all(fence: Fence) -> String {
    format!("ERR fence {fence} is above {}, the last one issued: there is no such hold", server::last_fence())
}

impl Waits for Awaiter {
    fn handle(&self) -> &Handle {
        &self.handle
    }

    fn reply(&self, ctx: Ctx) -> c_int {
        match self.outcome.replace(Outcome::Over) {
            Outcome::Ended(ending) => ctx.reply_bytes(ending.word().as_bytes()),
            Outcome::Ahead => ctx.reply_error(&ahead_of_all(self.fence)),
            Outcome::Refused(error) => ctx.reply_error(error),
            Outcome::Waiting | Outcome::StillHeld | Outcome::Over => ctx.reply_null(),
        }
    }

    fn stop(&self) {
        self.leave();
        self.outcome.set(Outcome::Over);
    }

    fn lose(self: Rc<Self>) {
        match self.outcome.replace(Outcome::Over) {
            Outcome::Over => {}
            Outcome::Waiting => {
                self.leave();
                self.handle.unblock();
            }
            _ if !self.handle.is_unblocked() => self.handle.unblock(),
            _ => self.handle.close_soon(),
        }
    }
}
