//! Events of the server: what happens to the keyspace, the role and the process as a whole.
//!
//! Nothing is written here: the server forbids it. What must be written is left to the reaper.
//! Invariant: after a flush, a swap or a full synchronisation the index describes the new keyspace.

use std::ffi::c_void;

use redis_module::raw;

use crate::ffi::{Ctx, api, callback};
use crate::reaper;
use crate::server::server;

type Handler = unsafe extern "C" fn(*mut raw::RedisModuleCtx, raw::RedisModuleEvent, u64, *mut c_void);

/// Subscribes to everything; false when the server lacks one that a correct lock needs.
pub(crate) fn subscribe(ctx: Ctx) -> bool {
    let events: [(u64, Handler); 7] = [
        (raw::REDISMODULE_EVENT_REPLICATION_ROLE_CHANGED, on_role),
        (raw::REDISMODULE_EVENT_FLUSHDB, on_flush),
        (raw::REDISMODULE_EVENT_SWAPDB, on_swap),
        (raw::REDISMODULE_EVENT_LOADING, on_loading),
        (raw::REDISMODULE_EVENT_REPL_ASYNC_LOAD, on_async_load),
        (raw::REDISMODULE_EVENT_FORK_CHILD, on_fork),
        (raw::REDISMODULE_EVENT_CRON_LOOP, on_cron),
    ];
    events.iter().all(|&(id, handler)| {
        let event = raw::RedisModuleEvent { id, dataver: 1 };
        // SAFETY: the handlers are functions of this module, which cannot be unloaded.
        unsafe { api!(RedisModule_SubscribeToServerEvent)(ctx.0, event, Some(handler)) == raw::REDISMODULE_OK as i32 }
    })
}

macro_rules! event {
    ($(#[$meta:meta])* $name:ident, |$sub:ident, $data:ident| $body:block) => {
        callback! {
            $(#[$meta])*
            fn $name(
                _ctx: *mut raw::RedisModuleCtx,
                _event: raw::RedisModuleEvent,
                $sub: u64,
                $data: *mut c_void,
            ) -> (), else ();
            $body
        }
    };
}

event!(on_role, |sub, _data| {
    let is_primary = sub == raw::REDISMODULE_EVENT_REPLROLECHANGED_NOW_MASTER;
    server().is_primary.set(is_primary);
    if is_primary {
        reaper::arm_now();
    }
});

event!(on_flush, |sub, data| {
    if sub == raw::REDISMODULE_SUBEVENT_FLUSHDB_END {
        // SAFETY: this event comes with this struct.
        let flush = unsafe { &*data.cast::<raw::RedisModuleFlushInfo>() };
        server().index.borrow_mut().forget((flush.dbnum >= 0).then_some(flush.dbnum));
    }
});

event!(on_swap, |_sub, data| {
    // SAFETY: this event comes with this struct.
    let swap = unsafe { &*data.cast::<raw::RedisModuleSwapDbInfo>() };
    server().index.borrow_mut().swap_databases(swap.dbnum_first, swap.dbnum_second);
});

event!(
    /// A snapshot from the primary was made just now, whatever the two wall clocks say; a file may be old.
    on_loading,
    |sub, _data| {
        server().from_primary.set(sub == raw::REDISMODULE_SUBEVENT_LOADING_REPL_START);
        if sub == raw::REDISMODULE_SUBEVENT_LOADING_ENDED || sub == raw::REDISMODULE_SUBEVENT_LOADING_FAILED {
            reaper::arm_now();
        }
    }
);

event!(
    /// The old keyspace, or the one that could not be loaded, is freed on another thread.
    on_async_load,
    |sub, _data| {
        if sub != raw::REDISMODULE_SUBEVENT_REPL_ASYNC_LOAD_STARTED {
            reaper::start_sweep();
        }
    }
);

event!(on_fork, |sub, _data| {
    let keeps_aof = Ctx(std::ptr::null_mut()).flags() & raw::REDISMODULE_CTX_FLAGS_AOF != 0;
    if sub == raw::REDISMODULE_SUBEVENT_FORK_CHILD_BORN && keeps_aof && server().issuer().last() != 0 {
        reaper::send_floor();
    }
});

event!(on_cron, |_sub, _data| {
    reaper::check_timer();
});
