//! Events of the server: what happens to the keyspace, the role and the process as a whole.
//!
//! Nothing is written here: the server forbids it. What must be written is left to the reaper.
//! Invariant: after a flush, a swap or a full synchronisation the index describes the new keyspace.

use std::ffi::{c_char, c_int, c_void};

use fence::lock::queue::LockName;
use redis_module::raw;

use crate::counters::Count;
use crate::ffi::{Ctx, Name, api, callback};
use crate::lock::value::Value;
use crate::queue::waiters;
use crate::replication;
use crate::server::server;
use crate::timer::reaper;

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
    replication::somebody_may_listen();
    let was_primary = server().is_primary.replace(is_primary);
    if is_primary && !was_primary {
        server().become_issuer(Ctx::random());
        server().skip_lost_fences();
    }
    if is_primary {
        reaper::arm_now();
    } else {
        waiters::refuse_everybody("UNBLOCKED this server is a replica now: it grants nothing");
        // What the new primary knows of these leases is their deadline.
        server().index.borrow_mut().bonds.dissolve();
        server().undelivered.take();
        // The server has told these clients that it is no primary, and closes them.
        server().unanswered.take();
    }
}

event!(on_flush, |sub, data| {
    // SAFETY: this event comes with this struct.
    let Some(flush) = (unsafe { data.cast::<raw::RedisModuleFlushInfo>().as_ref() }) else { return };
    let db = (flush.dbnum >= 0).then_some(flush.dbnum);
    // Before the values are freed, so that each is not taken for one that was dropped without a word.
    let mut index = server().index.borrow_mut();
    index.flush(db);
    if sub == raw::REDISMODULE_SUBEVENT_FLUSHDB_END {
        if Value::has_freed_all() {
            index.note_all_freed();
        }
        drop(index);
        look_at_all(db);
    } else if flush.sync == 0 {
        index.note_freed_elsewhere();
    } else if db.is_none() && index.is_freed_here() && !server().in_cluster.get() {
        // In a cluster another thread may free the keys of a slot that has left, and no event tells.
        Value::begin_to_free_all();
    }
});

event!(on_swap, |_sub, data| {
    // SAFETY: this event comes with this struct.
    let Some(swap) = (unsafe { data.cast::<raw::RedisModuleSwapDbInfo>().as_ref() }) else { return };
    server().index.borrow_mut().swap_databases(swap.dbnum_first, swap.dbnum_second);
    look_at_all(Some(swap.dbnum_first));
    look_at_all(Some(swap.dbnum_second));
});

/// Has the locks looked at that somebody waits for: waiters stay with the number of their database.
fn look_at_all(db: Option<i32>) {
    server().queues.borrow_mut().recheck_all(db, server().steady_us());
    reaper::arm_now();
}

event!(
    /// A snapshot from the primary was made just now, whatever the two wall clocks say; a file may be old.
    on_loading,
    |sub, _data| {
        server().from_primary.set(sub == raw::REDISMODULE_SUBEVENT_LOADING_REPL_START);
        if sub == raw::REDISMODULE_SUBEVENT_LOADING_ENDED {
            server().skip_lost_fences();
        }
        if sub == raw::REDISMODULE_SUBEVENT_LOADING_ENDED || sub == raw::REDISMODULE_SUBEVENT_LOADING_FAILED {
            reaper::arm_now();
            look_at_all(None);
        }
    }
);

event!(
    /// The old keyspace, or the one that could not be loaded, is freed on another thread.
    on_async_load,
    |sub, _data| {
        let is_loading = sub == raw::REDISMODULE_SUBEVENT_REPL_ASYNC_LOAD_STARTED;
        server().index.borrow_mut().note_loading_aside(is_loading);
        if !is_loading {
            reaper::arm_now();
        }
    }
);

event!(on_fork, |sub, _data| {
    replication::somebody_may_listen();
    let keeps_aof = Ctx(std::ptr::null_mut()).flags() & raw::REDISMODULE_CTX_FLAGS_AOF != 0;
    let may_write = server().is_primary.get();
    if sub == raw::REDISMODULE_SUBEVENT_FORK_CHILD_BORN && keeps_aof && may_write && server().issuer().last() != 0 {
        if server().save_last_fence.get() {
            reaper::send_floor();
        }
    }
});

event!(
    /// Ten times a second: sees to it that no missed call leaves the module behind.
    on_cron,
    |_sub, _data| {
        let is_primary = Ctx(std::ptr::null_mut()).flags() & raw::REDISMODULE_CTX_FLAGS_MASTER != 0;
        if is_primary != server().is_primary.get() {
            set_role(is_primary);
        }
        server().follow_clocks();
        reaper::check_timer();
        replication::look_for_listeners();
        replication::look_at_the_clock();
    }
);

event!(on_client, |sub, data| {
    if sub == raw::REDISMODULE_SUBEVENT_CLIENT_CHANGE_DISCONNECTED {
        // SAFETY: this event comes with this struct.
        let Some(client) = (unsafe { data.cast::<raw::RedisModuleClientInfo>().as_ref() }) else { return };
        if server().index.borrow_mut().bonds.close(client.id) {
            reaper::arm_now();
        }
    }
});

event!(
    /// A new replica knows how long its leases are once it knows the clock.
    on_replica,
    |sub, _data| {
        replication::somebody_may_listen();
        if sub == raw::REDISMODULE_SUBEVENT_REPLICA_CHANGE_ONLINE {
            replication::send_clock_soon();
        }
    }
);

event!(on_config, |_sub, _data| {
    replication::somebody_may_listen();
    reaper::check_settings();
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
        let evicted = server().last_unlinked.take();
        let lock = LockName { db: Ctx(ctx).selected_db(), name: Name(key).bytes() };
        if evicted.is_some_and(|(db, name)| db == lock.db && *name == *lock.name) {
            server().stats.count(Count::Evicted);
        }
        0
    }
}
