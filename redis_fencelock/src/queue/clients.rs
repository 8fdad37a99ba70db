//! Blocked clients: how each is blocked and unblocked, and who writes its one reply.
//!
//! Not why it waits. Invariant: the server is asked once to write the reply of a client, and for few of them in one go.

use std::cell::{Cell, LazyCell, RefCell};
use std::collections::{HashMap, VecDeque};
use std::ffi::{c_int, c_void};
use std::rc::Rc;

use crate::ffi::main_thread::MainThread;
use crate::ffi::{Blocked, BlockedId, BlockedProcs, Ctx, callback, command_callback};
use crate::timer::alarm;

/// A client that is blocked by the module.
pub(crate) trait Waits {
    fn handle(&self) -> &Handle;

    /// Writes the reply.
    fn reply(&self, ctx: Ctx) -> c_int;

    /// CLIENT UNBLOCK has ended the wait: the reply is null.
    fn stop(&self);

    /// The client is gone, or the server has sent it another reply. A reply that was on its way does not arrive.
    fn lose(self: Rc<Self>);
}

/// The server's handle of a blocked client.
pub(crate) struct Handle {
    id: BlockedId,
    /// The connection.
    pub(crate) connection: u64,
    /// Taken once the server has been asked to write the reply.
    blocked: RefCell<Option<Blocked>>,
}

static CLIENTS: MainThread<LazyCell<Clients>> = MainThread::new(LazyCell::new(Clients::default));

#[derive(Default)]
struct Clients {
    /// Every blocked client, until the server has released it.
    blocked: RefCell<HashMap<BlockedId, Rc<dyn Waits>>>,
    /// Clients whose wait is over, to be unblocked when fewer are on their way.
    to_unblock: RefCell<VecDeque<Rc<dyn Waits>>>,
    /// How many were unblocked whose reply the server has not written yet: it writes all of them in one go.
    on_their_way: Cell<usize>,
    /// Connections whose reply was lost.
    unanswered: RefCell<Vec<u64>>,
}

/// How many clients are unblocked before others have their turn: the server writes all their replies in one go, each in
/// some 10 microseconds.
const AT_ONCE: usize = 100;

/// Blocks the client of the running command; `None`, with nothing done, where the server does not let it block.
pub(crate) fn block(ctx: Ctx) -> Option<Handle> {
    let blocked = ctx.block(&PROCS)?;
    Some(Handle { id: blocked.id(), connection: ctx.client_id(), blocked: RefCell::new(Some(blocked)) })
}

/// Notes a client that was just blocked.
pub(crate) fn enter(client: Rc<dyn Waits>) {
    CLIENTS.blocked.borrow_mut().insert(client.handle().id, client);
}

/// Has the server write the reply, when others have had their turn.
pub(crate) fn unblock_in_turn(client: Rc<dyn Waits>) {
    if CLIENTS.on_their_way.get() < AT_ONCE {
        client.handle().unblock();
    } else {
        CLIENTS.to_unblock.borrow_mut().push_back(client);
        alarm::arm_now();
    }
}

/// Unblocks more of those whose wait is over.
pub(crate) fn unblock_some() {
    while CLIENTS.on_their_way.get() < AT_ONCE {
        let Some(client) = CLIENTS.to_unblock.borrow_mut().pop_front() else { return };
        client.handle().unblock();
    }
    if !CLIENTS.to_unblock.borrow().is_empty() {
        alarm::arm_now();
    }
}

/// Closes clients whose reply was lost: the server unblocked them between the end of their wait and their reply, and
/// they would wait for ever. For a client that is gone this does nothing.
pub(crate) fn close_unanswered(ctx: Ctx) {
    CLIENTS.unanswered.take().into_iter().for_each(|connection| ctx.close_client(connection));
}

/// Leaves them to the server, which has answered them itself and closes them: its role has changed.
pub(crate) fn forget_unanswered() {
    CLIENTS.unanswered.take();
}

impl Handle {
    /// Has the server write the reply at once.
    pub(crate) fn unblock(&self) {
        if let Some(blocked) = self.blocked.take() {
            CLIENTS.on_their_way.set(CLIENTS.on_their_way.get() + 1);
            blocked.unblock();
        }
    }

    /// Whether the server was asked to write the reply.
    pub(crate) fn is_unblocked(&self) -> bool {
        self.blocked.borrow().is_none()
    }

    /// Has the connection closed: the reply that was on its way is lost.
    pub(crate) fn close_soon(&self) {
        CLIENTS.unanswered.borrow_mut().push(self.connection);
        alarm::arm_now();
    }
}

const PROCS: BlockedProcs =
    BlockedProcs { reply: on_blocked_reply, timeout: on_blocked_timeout, gone: on_blocked_gone, free: on_blocked_free };

fn find(id: BlockedId) -> Option<Rc<dyn Waits>> {
    CLIENTS.blocked.borrow().get(&id).cloned()
}

command_callback!(on_blocked_reply, |ctx, _strings| {
    find(ctx.blocked()).map_or_else(|| ctx.reply_null(), |client| client.reply(ctx))
});

command_callback!(
    /// CLIENT UNBLOCK: our own deadlines do not come here.
    on_blocked_timeout,
    |ctx, _strings| {
        if let Some(client) = find(ctx.blocked()) {
            client.stop();
            client.handle().unblock();
        }
        ctx.reply_null()
    }
);

callback! {
    fn on_blocked_gone(_ctx: Ctx, id: BlockedId) -> (), else ();
    {
        if let Some(client) = find(id) {
            client.lose();
        }
    }
}

callback! {
    fn on_blocked_free(_ctx: Ctx, data: *mut c_void) -> (), else ();
    {
        CLIENTS.blocked.borrow_mut().remove(&BlockedId::of_freed(data));
        CLIENTS.on_their_way.set(CLIENTS.on_their_way.get().saturating_sub(1));
    }
}
