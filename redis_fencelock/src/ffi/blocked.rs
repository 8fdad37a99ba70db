//! Clients that wait for their reply.

use std::ffi::{c_int, c_void};

use redis_module::raw;

use crate::ffi::context::Ctx;
use crate::ffi::guard::{FromServer, api};

/// A blocked client, to be unblocked once.
pub(crate) struct Blocked(*mut raw::RedisModuleBlockedClient);

/// Identifies a blocked client until it is freed.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct BlockedId(usize);

// SAFETY: a number that nobody follows.
unsafe impl FromServer for BlockedId {
    type Raw = *mut raw::RedisModuleBlockedClient;

    unsafe fn from_server(raw: Self::Raw) -> Self {
        BlockedId(raw as usize)
    }
}

type ReplyProc = unsafe extern "C" fn(*mut raw::RedisModuleCtx, *mut *mut raw::RedisModuleString, c_int) -> c_int;

/// What the server calls for a blocked client.
pub(crate) struct BlockedProcs {
    /// To write the reply, once it is unblocked.
    pub(crate) reply: ReplyProc,
    /// After CLIENT UNBLOCK.
    pub(crate) timeout: ReplyProc,
    /// When it is gone.
    pub(crate) gone: unsafe extern "C" fn(*mut raw::RedisModuleCtx, *mut raw::RedisModuleBlockedClient),
    /// When the server has released it.
    pub(crate) free: unsafe extern "C" fn(*mut raw::RedisModuleCtx, *mut c_void),
}

impl Ctx<'_> {
    /// Whether the client of the running command may block: not in a transaction, and not in a script.
    pub(crate) fn may_block(self) -> bool {
        let denies = raw::REDISMODULE_CTX_FLAGS_DENY_BLOCKING
            | raw::REDISMODULE_CTX_FLAGS_MULTI
            | raw::REDISMODULE_CTX_FLAGS_LUA;
        self.flags() & denies == 0
    }

    /// Blocks the client of the running command, without a time limit; `None`, with nothing done, when the server does
    /// not allow that.
    pub(crate) fn block(self, procs: &BlockedProcs) -> Option<Blocked> {
        // SAFETY: the context is that of a command; the callbacks are functions of this module, which stays loaded.
        unsafe {
            let block = api!(RedisModule_BlockClient);
            let handle = block(self.0, Some(procs.reply), Some(procs.timeout), Some(procs.free), 0);
            if handle.is_null() {
                return None;
            }
            api!(RedisModule_SetDisconnectCallback)(handle, Some(procs.gone));
            Some(Blocked(handle))
        }
    }

    /// The blocked client of the running callback.
    pub(crate) fn blocked(self) -> BlockedId {
        // SAFETY: the context is that of a blocked client.
        BlockedId(unsafe { api!(RedisModule_GetBlockedClientHandle)(self.0) } as usize)
    }
}

impl Blocked {
    pub(crate) fn id(&self) -> BlockedId {
        BlockedId(self.0 as usize)
    }

    /// Has the server write the reply. `free` gets the number.
    pub(crate) fn unblock(self) {
        // SAFETY: the handle is of a client that was blocked and not unblocked yet. The data is a number, not a
        // pointer.
        unsafe { api!(RedisModule_UnblockClient)(self.0, self.0.cast()) };
    }
}

impl BlockedId {
    /// The number that `free` gets.
    pub(crate) fn of_freed(data: *mut c_void) -> BlockedId {
        BlockedId(data as usize)
    }
}
