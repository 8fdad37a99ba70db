//! Events of the server: what happens to the keyspace, the role and the process as a whole.
//!
//! Nothing is written here: the server forbids it. What must be written is left to the reaper.
//! Invariant: after a flush, a swap or a full synchronisation the index describes the new keyspace.

use std::ffi::{c_char, c_int, c_void};

use fence::lock::queue::LockName;
use redis_module::raw;

use crate::counters::{self, Count};
use crate::ffi::{Ctx, Str, api, callback};
use crate::lock::arrival;
use crate::lock::index::index;
use crate::lock::value::Value;
use crate::queue::{ephemeral, waiters};
use crate::timer::{alarm, expiry};
use crate::{clock, config, replication, server};

type Handler = unsafe extern "C" fn(*mut raw::RedisModuleCtx, raw::RedisModuleEvent, u64, *mut c_void);

/// Subscribes to everything; false, with nothing subscribed, when the server lacks one that a correct lock needs.
pub(crate) fn subscribe(ctx: Ctx) -> bool {
    const EVENTS: [(u64, Handler); 10] = [
        (raw::REDISMODULE_EVENT_REPLICATION_ROLE_CHANGED, on_role),
        (raw::REDISMODULE_EVENT_FLUSHDB, on_flush),
        (raw::REDISMODULE_EVENT_SWAPDB, on_swap),
        (raw::REDISMODULE_EVENT_LOADING, on_loading),
        (raw::REDISMODULE_EVENT_REPL_ASYNC_LOAD, on_async_load),
        (raw::REDISMODULE_EVENT_FORK_CHILD, on_fork),
        (raw::REDISMODULE_EVENT_CRON_LOOP, on_cron),
        (raw::REDISMODULE_EVENT_CLIENT_CHANGE, on_client),
        (raw::REDISMODULE_EVENT_CONFIG, on_config),
        (raw::REDISMODULE_EVENT_REPLICA_CHANGE, on_replica),
    ];
    let set = |id: u64, handler: Option<Handler>| {
        let event = raw::RedisModuleEvent { id, dataver: 1 };
        // SAFETY: the handlers are functions of this module, which stays loaded; without one the subscription ends.
        unsafe { api!(RedisModule_SubscribeToServerEvent)(ctx.0, event, handler) == raw::REDISMODULE_OK as c_int }
    };
    if !EVENTS.iter().all(|&(id, handler)| set(id, Some(handler))) {
        EVENTS.iter().for_each(|&(id, _)| {
            set(id, None);
        });
        return false;
    }
    // Evictions alone: other keys cost nothing. The server cannot refuse this one.
    // SAFETY: the callback is a function of this module, which stays loaded.
    unsafe { api!(RedisModule_SubscribeToKeyspaceEvents)(ctx.0, raw::REDISMODULE_NOTIFY_EVICTED, Some(on_evicted)) };
    true
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
    set_role(sub == raw::REDISMODULE_EVENT_REPLROLECHANGED_NOW_MASTER);
});

fn set_role(is_primary: bool) {
    replication::resume();
    server::set_role(is_primary);
    if is_primary {
        alarm::arm_now();
    } else {
        waiters::refuse_everybody("UNBLOCKED this server is a replica now: it grants nothing");
        ephemeral::dissolve();
    }
}

event!(on_flush, |sub, data| {
    // SAFETY: this event comes with this struct.
    let Some(flush) = (unsafe { data.cast::<raw::RedisModuleFlushInfo>().as_ref() }) else { return };
    let db = (flush.dbnum >= 0).then_some(flush.dbnum);
    // Before the values are freed, so that each is not taken for one that was dropped without a word.
    let mut index = index().borrow_mut();
    index.flush(db);
    if sub == raw::REDISMODULE_SUBEVENT_FLUSHDB_END {
        if Value::has_freed_all() {
            index.note_all_freed();
        }
        drop(index);
        waiters::recheck_all(db);
    } else if flush.sync == 0 {
        index.note_freed_elsewhere();
    } else if db.is_none() && index.is_freed_here() && !server::in_cluster() {
        // In a cluster another thread may free the keys of a slot that has left, and no event tells.
        Value::begin_to_free_all();
    }
});

event!(on_swap, |_sub, data| {
    // SAFETY: this event comes with this struct.
    let Some(swap) = (unsafe { data.cast::<raw::RedisModuleSwapDbInfo>().as_ref() }) else { return };
    index().borrow_mut().swap_databases(swap.dbnum_first, swap.dbnum_second);
    waiters::recheck_all(Some(swap.dbnum_first));
    waiters::recheck_all(Some(swap.dbnum_second));
});

event!(
    /// A snapshot from the primary was made just now, whatever the two wall clocks say; a file may be old.
    on_loading,
    |sub, _data| {
        arrival::set_from_primary(sub == raw::REDISMODULE_SUBEVENT_LOADING_REPL_START);
        if sub == raw::REDISMODULE_SUBEVENT_LOADING_ENDED {
            server::skip_lost_fences();
        }
        if sub == raw::REDISMODULE_SUBEVENT_LOADING_ENDED || sub == raw::REDISMODULE_SUBEVENT_LOADING_FAILED {
            alarm::arm_now();
            waiters::recheck_all(None);
        }
    }
);

event!(
    /// The old keyspace, or the one that could not be loaded, is freed on another thread.
    on_async_load,
    |sub, _data| {
        let is_loading = sub == raw::REDISMODULE_SUBEVENT_REPL_ASYNC_LOAD_STARTED;
        index().borrow_mut().note_loading_aside(is_loading);
        if !is_loading {
            alarm::arm_now();
        }
    }
);

event!(on_fork, |sub, _data| {
    replication::resume();
    let keeps_aof = Ctx::none().flags() & raw::REDISMODULE_CTX_FLAGS_AOF != 0;
    let may_write = server::is_primary();
    let has_fence = config::save_last_fence() && server::last_fence() != 0;
    if sub == raw::REDISMODULE_SUBEVENT_FORK_CHILD_BORN && keeps_aof && may_write && has_fence {
        replication::send_floor_soon();
    }
});

event!(
    /// Ten times a second: sees to it that no missed call leaves the module behind.
    on_cron,
    |_sub, _data| {
        let is_primary = Ctx::none().flags() & raw::REDISMODULE_CTX_FLAGS_MASTER != 0;
        if is_primary != server::is_primary() {
            set_role(is_primary);
        }
        clock::follow_system();
        expiry::check_timer();
        replication::check_recipients();
        replication::check_clock(index().borrow().len() > 0);
    }
);

event!(on_client, |sub, data| {
    if sub == raw::REDISMODULE_SUBEVENT_CLIENT_CHANGE_DISCONNECTED {
        // SAFETY: this event comes with this struct.
        let Some(client) = (unsafe { data.cast::<raw::RedisModuleClientInfo>().as_ref() }) else { return };
        ephemeral::close(client.id);
    }
});

event!(
    /// A new replica knows how long its leases are once it knows the clock.
    on_replica,
    |sub, _data| {
        replication::resume();
        if sub == raw::REDISMODULE_SUBEVENT_REPLICA_CHANGE_ONLINE {
            replication::send_clock_soon();
        }
    }
);

event!(on_config, |_sub, _data| {
    replication::resume();
    config::check_soon();
});

callback! {
    /// Called right after a key was evicted: it was a lock if one has just left that key.
    fn on_evicted(
        ctx: *mut raw::RedisModuleCtx,
        _kind: c_int,
        _event: *const c_char,
        key: *mut raw::RedisModuleString,
    ) -> c_int, else 0;
    {
        // SAFETY: the server passes the name of the key, alive during the call.
        let name = unsafe { Str::from_raw(key) }.bytes();
        if index().borrow_mut().was_last_unlinked(LockName { db: Ctx(ctx).selected_db(), name }) {
            counters::count(Count::Evicted);
        }
        0
    }
}
