//! Clients that wait for a lock, and the one reply that each gets.
//!
//! Not how they are blocked, which is `clients`, nor the order of the queues, which is `fence::lock::queue`, nor the
//! handover. The deadlines are our own, on the clock of leases. Invariant: a waiter is resolved once, and a grant that
//! cannot be delivered is undone.

use std::cell::{Cell, LazyCell, RefCell};
use std::collections::BTreeMap;
use std::ffi::c_int;
use std::ops::ControlFlow;
use std::rc::Rc;

use crate::counters::{self, Count};
use crate::ffi::Ctx;
use crate::ffi::main_thread::MainThread;
use crate::queue::clients::{self, Handle, Waits};
use crate::timer::alarm;
use crate::{clock, config, server};
use fence::Fence;
use fence::lock::lease::{Lease, Millis, Request, Terms};
use fence::lock::queue::{LockName, Queues, Ticket};

static WAITERS: MainThread<LazyCell<Waiters>> = MainThread::new(LazyCell::new(|| Waiters {
    queues: RefCell::new(Queues::new(clock::origin_us())),
    undelivered: RefCell::default(),
    to_undo: RefCell::default(),
}));

struct Waiters {
    queues: RefCell<Queues<Rc<Waiter>>>,
    /// Grants on their way to a client that waited.
    undelivered: RefCell<BTreeMap<Fence, Rc<Waiter>>>,
    /// Grants that were on their way to a client that is gone.
    to_undo: RefCell<Vec<(Rc<Waiter>, Fence)>>,
}

/// How often a lock with waiters is rechecked in a cluster: its slot may move unseen by the module.
const CLUSTER_RECHECK_US: u64 = 1_000_000;

/// How many wait, for any lock.
pub(crate) fn len() -> usize {
    WAITERS.queues.borrow().len()
}

pub(crate) fn is_empty() -> bool {
    len() == 0
}

/// How many wait for this lock.
pub(crate) fn waiting(lock: LockName) -> usize {
    let queues = WAITERS.queues.borrow();
    if queues.is_empty() { 0 } else { queues.waiting(lock) }
}

/// Who is served next.
pub(crate) fn head(lock: LockName) -> Option<(Ticket, Rc<Waiter>)> {
    WAITERS.queues.borrow().head(lock).map(|(ticket, waiter)| (ticket, waiter.clone()))
}

/// Takes a waiter out of its queue.
pub(crate) fn leave(ticket: Ticket) -> Option<Rc<Waiter>> {
    WAITERS.queues.borrow_mut().leave(ticket)
}

/// Has a lock rechecked at `due_us`, if somebody waits for it.
pub(crate) fn recheck_at(lock: LockName, due_us: u64) {
    if !is_empty() {
        WAITERS.queues.borrow_mut().recheck_at(lock, due_us);
        alarm::arm(due_us);
    }
}

/// Has a lock rechecked when it may be free for those who wait.
pub(crate) fn recheck_when_free(lock: LockName, lease: Option<Lease>, now_us: u64) {
    if is_empty() {
        return;
    }
    let due_us = lease.map_or(now_us, |lease| lease.due_us(now_us));
    recheck_at(lock, if server::in_cluster() { due_us.min(now_us + CLUSTER_RECHECK_US) } else { due_us });
}

/// Rechecks every lock that has waiters. Waiters belong to a database number, so SWAPDB changes the key under them.
pub(crate) fn recheck_all(db: Option<i32>) {
    WAITERS.queues.borrow_mut().recheck_all(db, clock::steady_us());
    alarm::arm_now();
}

/// A lock that is to be rechecked now, as its database and name. `budget` as for `Wheel::pop`.
pub(crate) fn pop_recheck(budget: &mut usize) -> Option<(i32, Box<[u8]>)> {
    WAITERS.queues.borrow_mut().pop_recheck(clock::steady_us(), budget)
}

/// When to call `pop_recheck` next.
pub(crate) fn next_recheck_us() -> Option<u64> {
    WAITERS.queues.borrow().next_recheck_us()
}

/// A blocked client.
pub(crate) struct Waiter {
    handle: Handle,
    pub(crate) db: i32,
    pub(crate) name: Box<[u8]>,
    pub(crate) owner: Box<[u8]>,
    pub(crate) terms: Terms,
    pub(crate) since_us: u64,
    ticket: Cell<Option<Ticket>>,
    outcome: Cell<Outcome>,
    /// A repeated call has got the same grant, so it stands whatever becomes of this client.
    confirmed: Cell<bool>,
}

/// What became of a waiter.
#[derive(Clone, Copy, PartialEq)]
enum Outcome {
    Waiting,
    Granted(Fence),
    /// The wait expired, or a repeated call has taken its turn.
    Nothing,
    Refused(&'static str),
    /// The reply has been written, or nobody is there to read it.
    Over,
}

/// Why a call does not wait.
pub(crate) enum NotQueued {
    /// The server does not let this client block: a transaction, a script; on Valkey also a subscriber.
    MustNotBlock,
    /// The queue is as long as it may be.
    Full,
}

/// Blocks the client of the running command until `wait` is over or the lock is its own.
///
/// With `retry` the turn of an earlier call of the same owner is taken over, and that call gets null.
pub(crate) fn enqueue(ctx: Ctx, lock: LockName, request: &Request, wait: Millis) -> Result<(), NotQueued> {
    if !ctx.may_block() {
        return Err(NotQueued::MustNotBlock);
    }
    let queues = &WAITERS.queues;
    let replaces = request.retry && queues.borrow().place_of(lock, request.owner).is_some();
    if !replaces && queues.borrow().waiting(lock) as u64 >= config::max_waiters() {
        return Err(NotQueued::Full);
    }
    let Some(handle) = clients::block(ctx) else { return Err(NotQueued::MustNotBlock) };
    let now_us = clock::steady_us();
    let deadline_us = now_us.saturating_add(wait.as_micros());
    let waiter = Rc::new(Waiter {
        handle,
        db: lock.db,
        name: lock.name.into(),
        owner: request.owner.into(),
        terms: request.terms,
        since_us: now_us,
        ticket: Cell::new(None),
        outcome: Cell::new(Outcome::Waiting),
        confirmed: Cell::new(false),
    });
    clients::enter(waiter.clone());
    let joined = if replaces {
        let taken = queues.borrow_mut().take_over(lock, request.owner, deadline_us, waiter.clone());
        taken.ok().map(|(ticket, before)| {
            before.resolve(Outcome::Nothing);
            ticket
        })
    } else {
        queues.borrow_mut().join(lock, request.owner, deadline_us, waiter.clone())
    };
    match joined {
        Some(ticket) => waiter.ticket.set(Some(ticket)),
        None => waiter.resolve(Outcome::Refused("ERR more clients wait than can be counted")),
    }
    counters::count_for(lock, Count::Waits);
    alarm::arm(deadline_us);
    Ok(())
}

/// Ends the wait of an earlier call of `owner`: the acquisition goes on without waiting.
pub(crate) fn give_up_turn(lock: LockName, owner: &[u8]) {
    let ticket = WAITERS.queues.borrow().place_of(lock, owner);
    let waiter = ticket.and_then(|ticket| WAITERS.queues.borrow_mut().leave(ticket));
    if let Some(waiter) = waiter {
        waiter.resolve(Outcome::Nothing);
    }
}

/// Ends every wait of `owner` for this lock; false when it had none.
pub(crate) fn give_up_all_turns(lock: LockName, owner: &[u8]) -> bool {
    let gone = WAITERS.queues.borrow_mut().leave_all_of(lock, owner);
    gone.iter().for_each(|waiter| waiter.resolve(Outcome::Nothing));
    !gone.is_empty()
}

/// Keeps a grant that a repeated call has got too, even if the client that waited for it is gone.
pub(crate) fn confirm(fence: Fence) {
    if let Some(waiter) = WAITERS.undelivered.borrow_mut().remove(&fence) {
        waiter.confirmed.set(true);
    }
    WAITERS.to_undo.borrow_mut().retain(|(_, granted)| *granted != fence);
}

/// Ends every wait for `lock` with an error.
pub(crate) fn refuse_all(lock: LockName, error: &'static str) {
    loop {
        let head = WAITERS.queues.borrow().head(lock).map(|(ticket, _)| ticket);
        let Some(ticket) = head else { return };
        if let Some(waiter) = WAITERS.queues.borrow_mut().leave(ticket) {
            waiter.resolve(Outcome::Refused(error));
        }
    }
}

/// Ends every wait with an error, and forgets the grants on their way: this server is no longer a primary. It has said
/// so to these clients, and closes them.
pub(crate) fn refuse_everybody(error: &'static str) {
    let waiting = WAITERS.queues.borrow_mut().leave_all();
    waiting.iter().for_each(|waiter| waiter.resolve(Outcome::Refused(error)));
    WAITERS.undelivered.take();
    WAITERS.to_undo.take();
}

/// Ends expired waits, as many as a slice has time for.
pub(crate) fn expire() {
    alarm::for_a_slice(|budget| {
        let expired = WAITERS.queues.borrow_mut().pop_expired(clock::steady_us(), budget);
        let Some(waiter) = expired else { return ControlFlow::Break(()) };
        waiter.time_out();
        ControlFlow::Continue(())
    });
    alarm::arm_next(WAITERS.queues.borrow().next_expiry_us());
}

/// Ends expired waits at the head of the queue: the timer may be late.
pub(crate) fn expire_heads(lock: LockName, now_us: u64) {
    loop {
        let late = WAITERS.queues.borrow_mut().pop_late_head(lock, now_us);
        let Some(waiter) = late else { return };
        waiter.time_out();
    }
}

/// Takes the grants that are to be undone, because their client was gone.
pub(crate) fn take_to_undo() -> Vec<(Rc<Waiter>, Fence)> {
    WAITERS.to_undo.take()
}

/// Puts those back that are to be tried again.
pub(crate) fn keep_to_undo(kept: Vec<(Rc<Waiter>, Fence)>) {
    WAITERS.to_undo.borrow_mut().extend(kept);
}

impl Waiter {
    /// The connection.
    pub(crate) fn client(&self) -> u64 {
        self.handle.connection
    }

    /// Sends the client its fence.
    pub(crate) fn grant(self: &Rc<Self>, fence: Fence) {
        WAITERS.undelivered.borrow_mut().insert(fence, self.clone());
        self.resolve(Outcome::Granted(fence));
    }

    /// Sends the client null: its wait has expired.
    pub(crate) fn time_out(self: &Rc<Self>) {
        counters::count_for(LockName { db: self.db, name: &self.name }, Count::WaitTimeouts);
        self.resolve(Outcome::Nothing);
    }

    fn resolve(self: &Rc<Self>, outcome: Outcome) {
        if self.outcome.replace(outcome) != Outcome::Waiting {
            self.outcome.set(Outcome::Over);
            return;
        }
        self.ticket.set(None);
        // A grant is never held back.
        match outcome {
            Outcome::Granted(_) => self.handle.unblock(),
            _ => clients::unblock_in_turn(self.clone()),
        }
    }

    fn leave_queue(&self) -> bool {
        self.ticket.take().is_some_and(|ticket| WAITERS.queues.borrow_mut().leave(ticket).is_some())
    }
}

impl Waits for Waiter {
    fn handle(&self) -> &Handle {
        &self.handle
    }

    fn reply(&self, ctx: Ctx) -> c_int {
        match self.outcome.replace(Outcome::Over) {
            Outcome::Granted(fence) => {
                WAITERS.undelivered.borrow_mut().remove(&fence);
                ctx.reply_integer(fence.get() as i64)
            }
            Outcome::Refused(error) => ctx.reply_error(error),
            Outcome::Waiting | Outcome::Nothing | Outcome::Over => ctx.reply_null(),
        }
    }

    fn stop(&self) {
        self.leave_queue();
        self.outcome.set(Outcome::Over);
    }

    fn lose(self: Rc<Self>) {
        match self.outcome.replace(Outcome::Over) {
            Outcome::Waiting => {
                if self.leave_queue() {
                    self.handle.unblock();
                }
                return;
            }
            Outcome::Over => return,
            Outcome::Nothing | Outcome::Refused(_) if !self.handle.is_unblocked() => return self.handle.unblock(),
            Outcome::Nothing | Outcome::Refused(_) => {}
            Outcome::Granted(fence) => {
                WAITERS.undelivered.borrow_mut().remove(&fence);
                if !self.confirmed.get() {
                    WAITERS.to_undo.borrow_mut().push((self.clone(), fence));
                }
            }
        }
        self.handle.close_soon();
    }
}
