//! Events of the server: what happens to the keyspace, the role and the process as a whole.
//!
//! Nothing is written here, because the server forbids it: the timer writes.
//! Invariant: after a flush, a swap or a full synchronisation the index describes the new keyspace.

use std::ffi::{c_char, c_int, c_void};

use fence::lock::queue::LockName;
use redis_module::raw;

use crate::counters::{self, Count};
use crate::ffi::event::{Client, EventProc, Flush, Swap};
use crate::ffi::{Ctx, Str, callback};
use crate::lock::arrival;
use crate::lock::index::index;
use crate::lock::value::Value;
use crate::queue::{awaiters, clients, ephemeral, waiters};
use crate::timer::{alarm, expiry};
use crate::{config, replication, server};

/// Subscribes to everything; false, with nothing subscribed, when the server lacks one that a correct lock needs.
pub(crate) fn subscribe(ctx: Ctx) -> bool {
    const EVENTS: [(u64, EventProc); 11] = [
        (raw::REDISMODULE_EVENT_REPLICATION_ROLE_CHANGED, on_role),
        (raw::REDISMODULE_EVENT_MASTER_LINK_CHANGE, on_link),
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
    if !EVENTS.iter().all(|&(id, handler)| ctx.subscribe(id, Some(handler))) {
        for (id, _) in EVENTS {
            ctx.subscribe(id, None);
        }
        return false;
    }
    ctx.subscribe_to_evictions(on_evicted);
    true
}

macro_rules! event {
    ($(#[$meta:meta])* $name:ident, |$sub:ident| $body:block) => {
        event!($(#[$meta])* $name, |$sub, _data: *mut c_void| $body);
    };
    ($(#[$meta:meta])* $name:ident, |$sub:ident, $data:ident: $type:ty| $body:block) => {
        callback! {
            $(#[$meta])*
            fn $name(_ctx: Ctx, _event: raw::RedisModuleEvent, $sub: u64, $data: $type) -> (), else ();
            $body
        }
    };
}

event!(on_role, |sub| {
    set_role(sub == raw::REDISMODULE_EVENT_REPLROLECHANGED_NOW_MASTER);
});

fn set_role(is_primary: bool) {
    replication::resume();
    server::set_role(is_primary);
    if is_primary {
        awaiters::become_primary();
        alarm::arm_now();
    } else {
        waiters::refuse_everybody("UNBLOCKED this server is a replica now: it grants nothing");
        awaiters::refuse_everybody(awaiters::LINK_DOWN);
        clients::forget_unanswered();
        ephemeral::dissolve();
    }
}

event!(
    /// Those who await an end are answered by the timer: in a promotion the link goes down as well.
    on_link,
    |sub| {
        if sub == raw::REDISMODULE_SUBEVENT_MASTER_LINK_DOWN && !awaiters::is_empty() {
            alarm::arm_now();
        }
    }
);

event!(on_flush, |sub, flush: Option<Flush>| {
    let Some(Flush { db, is_sync }) = flush else { return };
    // Before the values are freed, so that none is taken for one that was replaced.
    let mut index = index().borrow_mut();
    index.flush(db);
    if sub == raw::REDISMODULE_SUBEVENT_FLUSHDB_END {
        if Value::end_freeing_all() {
            index.note_all_freed();
        }
        drop(index);
        waiters::recheck_all(db);
        awaiters::note_flush(db);
    } else if !is_sync {
        index.note_freed_elsewhere();
    } else if db.is_none() && index.is_freed_here() && !server::in_cluster() {
        // In a cluster another thread may free the keys of a slot that has left, which fires no event.
        Value::begin_to_free_all();
    }
});

event!(on_swap, |_sub, swap: Option<Swap>| {
    let Some(Swap([first, second])) = swap else { return };
    index().borrow_mut().swap_databases(first, second);
    for db in [first, second] {
        waiters::recheck_all(Some(db));
        awaiters::recheck_all(Some(db));
    }
});

event!(
    /// A snapshot from the primary was made just now, whatever the two wall clocks say; a file may be old.
    on_loading,
    |sub| {
        arrival::set_from_primary(sub == raw::REDISMODULE_SUBEVENT_LOADING_REPL_START);
        if sub == raw::REDISMODULE_SUBEVENT_LOADING_ENDED {
            server::skip_lost_fences();
        }
        if sub == raw::REDISMODULE_SUBEVENT_LOADING_ENDED || sub == raw::REDISMODULE_SUBEVENT_LOADING_FAILED {
            alarm::arm_now();
            waiters::recheck_all(None);
            awaiters::recheck_all(None);
        }
    }
);

event!(
    /// The old keyspace, or the one that could not be loaded, is freed on another thread.
    on_async_load,
    |sub| {
        let is_loading = sub == raw::REDISMODULE_SUBEVENT_REPL_ASYNC_LOAD_STARTED;
        index().borrow_mut().note_loading_aside(is_loading);
        if !is_loading {
            alarm::arm_now();
        }
    }
);

event!(on_fork, |sub| {
    replication::resume();
    let keeps_aof = Ctx::none().flags() & raw::REDISMODULE_CTX_FLAGS_AOF != 0;
    let has_fence = config::save_last_fence() && server::last_fence() != 0;
    if sub == raw::REDISMODULE_SUBEVENT_FORK_CHILD_BORN && keeps_aof && has_fence {
        replication::send_floor_soon();
    }
});

event!(
    /// Ten times a second: catches up with what no event has said.
    on_cron,
    |_sub| {
        let is_primary = Ctx::none().flags() & raw::REDISMODULE_CTX_FLAGS_MASTER != 0;
        if is_primary != server::is_primary() {
            set_role(is_primary);
        }
        server::follow_clock();
        expiry::check_timer();
        replication::check_recipients();
        replication::check_clock(index().borrow().len() > 0);
    }
);

event!(on_client, |sub, client: Option<Client>| {
    if let Some(Client(number)) = client.filter(|_| sub == raw::REDISMODULE_SUBEVENT_CLIENT_CHANGE_DISCONNECTED) {
        ephemeral::close(number);
    }
});

event!(
    /// A new replica places the deadlines of its leases once it has the clock.
    on_replica,
    |sub| {
        replication::resume();
        if sub == raw::REDISMODULE_SUBEVENT_REPLICA_CHANGE_ONLINE {
            replication::send_clock_soon();
        }
    }
);

event!(on_config, |_sub| {
    replication::resume();
    config::check_soon();
});

callback! {
    /// Called right after an eviction. The key held a lock if one has just left that key.
    fn on_evicted(ctx: Ctx, _kind: c_int, _event: *const c_char, key: Str) -> c_int, else 0;
    {
        let lock = LockName { db: ctx.selected_db(), name: key.bytes() };
        awaiters::note_evicted(lock);
        let mut index = index().borrow_mut();
        if index.was_last_unlinked(lock) {
            counters::count(Count::Evicted);
        }
        index.forget_last_unlinked();
        0
    }
}
