//! Clients that wait for a lock: how they are blocked, and the one reply that each gets.
//!
//! Not the queue, which is in `fence::lock::queue`, and not the hand-over. The deadlines are our own, on the monotonic clock.
//! Invariant: a waiter is resolved once, and a grant that cannot be delivered is undone.

use std::cell::Cell;
use std::ffi::{c_int, c_void};
use std::rc::Rc;

use fence::Fence;
use fence::lock::lease::{Millis, Request, Terms};
use fence::lock::queue::{LockName, Ticket};
use redis_module::raw;

use crate::counters::Count;
use crate::ffi::{Ctx, INTERNAL_ERROR, Name, api, callback};
use crate::server::server;
use crate::timer::reaper;

/// A blocked client.
pub(crate) struct Waiter {
    handle: *mut raw::RedisModuleBlockedClient,
    pub db: i32,
    pub name: Box<[u8]>,
    pub owner: Box<[u8]>,
    pub terms: Terms,
    /// The connection.
    pub client: u64,
    pub since_us: u64,
    ticket: Cell<Option<Ticket>>,
    outcome: Cell<Outcome>,
    /// The server was told that the wait is over.
    unblocked: Cell<bool>,
    /// A repeated call has got the same grant, so it stands whatever becomes of this client.
    confirmed: Cell<bool>,
}

/// What became of a waiter.
#[derive(Clone, Copy, PartialEq)]
enum Outcome {
    Waiting,
    Granted(Fence),
    /// The wait ran out, or a repeated call took the place over.
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
/// With `retry` the place of an earlier call of the same owner is taken over, and that call gets nothing.
pub(crate) fn enqueue(ctx: Ctx, key: Name, request: &Request, wait: Millis) -> Result<(), NotQueued> {
    if must_not_block(ctx) {
        return Err(NotQueued::MustNotBlock);
    }
    let server = server();
    let lock = LockName { db: ctx.selected_db(), name: key.bytes() };
    let queues = &server.queues;
    let replaces = request.retry && queues.borrow().place_of(lock, request.owner).is_some();
    if !replaces && queues.borrow().waiting(lock) as u64 >= server.max_waiters.get() {
        return Err(NotQueued::Full);
    }
    let Some(handle) = block(ctx) else { return Err(NotQueued::MustNotBlock) };
    let now_us = server.steady_us();
    let deadline_us = now_us.saturating_add(wait.as_micros());
    let waiter = Rc::new(Waiter {
        handle,
        db: lock.db,
        name: lock.name.into(),
        owner: request.owner.into(),
        terms: request.terms,
        client: ctx.client_id(),
        since_us: now_us,
        ticket: Cell::new(None),
        outcome: Cell::new(Outcome::Waiting),
        unblocked: Cell::new(false),
        confirmed: Cell::new(false),
    });
    server.blocked.borrow_mut().insert(waiter.handle as usize, waiter.clone());
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
    server.stats.count_for(lock, Count::Waits);
    reaper::arm(deadline_us);
    Ok(())
}

/// Ends the wait of an earlier call of `owner`: the acquisition goes on without waiting.
pub(crate) fn give_up_place(lock: LockName, owner: &[u8]) {
    let server = server();
    let ticket = server.queues.borrow().place_of(lock, owner);
    let waiter = ticket.and_then(|ticket| server.queues.borrow_mut().leave(ticket));
    if let Some(waiter) = waiter {
        waiter.resolve(Outcome::Nothing);
    }
}

/// Ends every wait of `owner` for this lock; false when it had none.
pub(crate) fn give_up_all_places(lock: LockName, owner: &[u8]) -> bool {
    let gone = server().queues.borrow_mut().leave_all_of(lock, owner);
    gone.iter().for_each(|waiter| waiter.resolve(Outcome::Nothing));
    !gone.is_empty()
}

/// Lets a grant stand that a repeated call has got too, even if the client that waited for it is gone.
pub(crate) fn confirm(fence: Fence) {
    let server = server();
    if let Some(waiter) = server.undelivered.borrow_mut().remove(&fence) {
        waiter.confirmed.set(true);
    }
    for (_, granted) in server.unanswered.borrow_mut().iter_mut().filter(|(_, granted)| *granted == Some(fence)) {
        *granted = None;
    }
}

/// Ends the waits of everybody in the queue of `lock` with an error.
pub(crate) fn refuse_all(lock: LockName, error: &'static str) {
    let server = server();
    loop {
        let head = server.queues.borrow().head(lock).map(|(ticket, _)| ticket);
        let Some(ticket) = head else { return };
        if let Some(waiter) = server.queues.borrow_mut().leave(ticket) {
            waiter.resolve(Outcome::Refused(error));
        }
    }
}

/// Ends every wait with an error: this server may grant nothing any more.
pub(crate) fn refuse_everybody(error: &'static str) {
    let waiting: Vec<Rc<Waiter>> = server().blocked.borrow().values().cloned().collect();
    for waiter in waiting {
        if waiter.leave_queue() {
            waiter.resolve(Outcome::Refused(error));
        }
    }
}

impl Waiter {
    /// Tells the client that it has the lock.
    pub fn granted(self: &Rc<Self>, fence: Fence) {
        server().undelivered.borrow_mut().insert(fence, self.clone());
        self.resolve(Outcome::Granted(fence));
    }

    /// Tells the client that its wait is over.
    pub fn timed_out(self: &Rc<Self>) {
        server().stats.count_for(LockName { db: self.db, name: &self.name }, Count::WaitTimeouts);
        self.resolve(Outcome::Nothing);
    }

    fn resolve(self: &Rc<Self>, outcome: Outcome) {
        if self.outcome.replace(outcome) != Outcome::Waiting {
            self.outcome.set(Outcome::Over);
            return;
        }
        self.ticket.set(None);
        let is_grant = matches!(outcome, Outcome::Granted(_));
        if is_grant || server().on_their_way.get() < AT_ONCE {
            self.unblock();
        } else {
            server().to_unblock.borrow_mut().push_back(self.clone());
            reaper::arm_now();
        }
    }

    /// Has the server write the reply, once.
    fn unblock(&self) {
        if self.unblocked.replace(true) {
            return;
        }
        let server = server();
        let waiter = server.blocked.borrow().get(&(self.handle as usize)).cloned();
        let data = waiter.map_or(std::ptr::null(), |waiter| {
            server.on_their_way.set(server.on_their_way.get() + 1);
            Rc::into_raw(waiter)
        });
        // SAFETY: the handle is of a client blocked by `block` and not unblocked yet; the data is freed by `on_waiter_free`.
        unsafe { api!(RedisModule_UnblockClient)(self.handle, data.cast_mut().cast()) };
    }

    fn leave_queue(&self) -> bool {
        self.ticket.take().is_some_and(|ticket| server().queues.borrow_mut().leave(ticket).is_some())
    }

    fn reply(&self, ctx: Ctx) -> c_int {
        match self.outcome.replace(Outcome::Over) {
            Outcome::Granted(fence) => {
                server().undelivered.borrow_mut().remove(&fence);
                ctx.reply_integer(fence.get() as i64)
            }
            Outcome::Refused(error) => ctx.reply_error(error),
            Outcome::Waiting | Outcome::Nothing | Outcome::Over => ctx.reply_null(),
        }
    }
}

fn must_not_block(ctx: Ctx) -> bool {
    let flags =
        raw::REDISMODULE_CTX_FLAGS_DENY_BLOCKING | raw::REDISMODULE_CTX_FLAGS_MULTI | raw::REDISMODULE_CTX_FLAGS_LUA;
    ctx.flags() & flags != 0
}

/// How many clients are unblocked before others have their turn: the server writes all their replies in one go, each in
/// some 10 microseconds. A grant is never held back.
const AT_ONCE: usize = 250;

/// Unblocks more of those whose wait is over.
pub(crate) fn unblock_some() {
    let server = server();
    while server.on_their_way.get() < AT_ONCE {
        let Some(waiter) = server.to_unblock.borrow_mut().pop_front() else { return };
        waiter.unblock();
    }
    if !server.to_unblock.borrow().is_empty() {
        reaper::arm_now();
    }
}

/// Blocks the client of the running command; `None`, with nothing done, when the server does not allow that.
fn block(ctx: Ctx) -> Option<*mut raw::RedisModuleBlockedClient> {
    // SAFETY: the context is that of a command whose client may block; no core timeout, but a callback for CLIENT UNBLOCK.
    unsafe {
        let block = api!(RedisModule_BlockClient);
        let handle = block(ctx.0, Some(on_waiter_reply), Some(on_waiter_timeout), Some(on_waiter_free), 0);
        if handle.is_null() {
            return None;
        }
        api!(RedisModule_SetDisconnectCallback)(handle, Some(on_waiter_gone));
        Some(handle)
    }
}

fn find(handle: *mut raw::RedisModuleBlockedClient) -> Option<Rc<Waiter>> {
    server().blocked.borrow().get(&(handle as usize)).cloned()
}

callback! {
    fn on_waiter_reply(
        ctx: *mut raw::RedisModuleCtx,
        _argv: *mut *mut raw::RedisModuleString,
        _argc: c_int,
    ) -> c_int, else Ctx(ctx).reply_error(INTERNAL_ERROR);
    {
        // SAFETY: the data is what `unblock` passed, alive until `on_waiter_free`.
        let waiter = unsafe { api!(RedisModule_GetBlockedClientPrivateData)(ctx).cast::<Waiter>().as_ref() };
        waiter.map_or_else(|| Ctx(ctx).reply_null(), |waiter| waiter.reply(Ctx(ctx)))
    }
}

callback! {
    /// CLIENT UNBLOCK: our own deadlines do not come here.
    fn on_waiter_timeout(
        ctx: *mut raw::RedisModuleCtx,
        _argv: *mut *mut raw::RedisModuleString,
        _argc: c_int,
    ) -> c_int, else Ctx(ctx).reply_error(INTERNAL_ERROR);
    {
        // SAFETY: the context is that of a blocked client.
        let handle = unsafe { api!(RedisModule_GetBlockedClientHandle)(ctx) };
        if let Some(waiter) = find(handle) {
            waiter.leave_queue();
            waiter.outcome.set(Outcome::Over);
            waiter.unblock();
        }
        Ctx(ctx).reply_null()
    }
}

callback! {
    /// The client is gone, or was told something else by the server. What was on its way to it does not arrive.
    fn on_waiter_gone(_ctx: *mut raw::RedisModuleCtx, handle: *mut raw::RedisModuleBlockedClient) -> (), else ();
    {
        let Some(waiter) = find(handle) else { return };
        let granted = match waiter.outcome.replace(Outcome::Over) {
            Outcome::Waiting => {
                if waiter.leave_queue() {
                    waiter.unblock();
                }
                return;
            }
            Outcome::Over => return,
            Outcome::Nothing | Outcome::Refused(_) if !waiter.unblocked.get() => return waiter.unblock(),
            Outcome::Nothing | Outcome::Refused(_) => None,
            Outcome::Granted(fence) => {
                server().undelivered.borrow_mut().remove(&fence);
                (!waiter.confirmed.get()).then_some(fence)
            }
        };
        server().unanswered.borrow_mut().push((waiter, granted));
        reaper::arm_now();
    }
}

callback! {
    fn on_waiter_free(_ctx: *mut raw::RedisModuleCtx, data: *mut c_void) -> (), else ();
    {
        if !data.is_null() {
            // SAFETY: the data is what `unblock` made of an Rc, and the server passes it here once.
            let waiter = unsafe { Rc::from_raw(data.cast::<Waiter>().cast_const()) };
            server().blocked.borrow_mut().remove(&(waiter.handle as usize));
            server().on_their_way.set(server().on_their_way.get().saturating_sub(1));
        }
    }
}
