//! What the module tells of itself: STATS, HELP and the section of INFO.
//!
//! Reads only.

use std::ffi::{CStr, c_int};

use fence::lock::args;
use fence::lock::queue::LockName;
use redis_module::raw;

use crate::commands::lock::{Answer, Reply, Words};
use crate::counters::{COUNTS, HOW_BUSY, NAME_FIELDS};
use crate::ffi::{Ctx, api, callback};
use crate::server::server;

/// The version as INFO has it.
const VERSION: &str = concat!(env!("CARGO_PKG_VERSION"), "\0");

/// Gauges beside the counters: the name in STATS, the name in INFO.
const GAUGES: [(&str, &CStr); 4] = [
    ("live-leases", c"live_leases"),
    ("waiters", c"waiters"),
    ("last-fence", c"last_fence"),
    ("index-bytes", c"index_bytes"),
];

fn gauges() -> [u64; 4] {
    let server = server();
    let index = server.index.borrow();
    let waiters = server.queues.borrow().len();
    [index.len() as u64, waiters as u64, server.issuer().last(), index.allocated() as u64]
}

/// `FENCELOCK.STATS [key]`
pub(crate) fn stats(ctx: Ctx, words: &Words) -> Reply {
    if words.from(1).is_empty() {
        let counted = COUNTS.iter().enumerate().map(|(at, count)| (count.0, server().stats.get(at)));
        let gauged = GAUGES.iter().zip(gauges()).map(|(gauge, value)| (gauge.0, value));
        return Ok(Answer::Numbers(counted.chain(gauged).collect()));
    }
    let lock = LockName { db: ctx.selected_db(), name: words.at(1) };
    let Some(stats) = server().stats.of_name(lock) else { return Ok(Answer::Null) };
    let waiters = server().queues.borrow().waiting(lock);
    Ok(Answer::Numbers(NAME_FIELDS.into_iter().zip(stats.fields(waiters)).collect()))
}

/// `FENCELOCK.TOP n [BY counter]`
pub(crate) fn top(_ctx: Ctx, words: &Words) -> Reply {
    let args::Top { most, by } = args::top(words.at(1), words.from(2), &NAME_FIELDS)?;
    let waiting = |lock: LockName| server().queues.borrow().waiting(lock);
    let busiest = server().stats.top(most, by.unwrap_or(HOW_BUSY), waiting);
    Ok(Answer::Busiest(busiest.into_iter().map(|stats| (waiting(stats.lock()), stats)).collect()))
}

const HELP: &[&str] = &[
    "FENCELOCK.ACQUIRE key owner ttl-ms [WAIT ms] [RETRY] [MAXHOLD ms] [DELAY ms] [EPHEMERAL]",
    "    Grant the lock for ttl-ms milliseconds; WAIT, MAXHOLD and DELAY are milliseconds too. Replies the fence, or null",
    "    when it is busy or the wait ran out.",
    "FENCELOCK.EXTEND key owner ttl-ms [FENCE fence]",
    "    Set the lease to ttl-ms milliseconds from now. Replies the milliseconds left, or 0: the lease is no longer yours.",
    "FENCELOCK.RELEASE key owner [FENCE fence | QUEUED]",
    "    End the lease. Replies 1, or 0: it is not yours. QUEUED: end the owner's waits too, after a call was given up.",
    "FENCELOCK.CHECK key fence",
    "    Replies 1 if that fence is the live hold of the lock now, else 0. A hint, not a guard.",
    "FENCELOCK.INSPECT key",
    "    Replies owner, fence, ttl-ms, held-ms, maxhold-left-ms, waiters and state, or null when it is free.",
    "FENCELOCK.CLAIM resource fence",
    "    Stamp the fence on a hash before you read it. Replies all fields, or null: you are stale.",
    "FENCELOCK.WRITE resource fence field value [field value ...]",
    "    Set fields while the stamp is yours. Replies 1, or 0: you are stale.",
    "FENCELOCK.STATS [key]",
    "    Replies the counters of the server, or of one busy lock.",
    "FENCELOCK.TOP n [BY counter]",
    "    Replies the n busiest locks and their counters: those with the most contended calls, or the most of a counter.",
    "FENCELOCK.RAISE fence",
    "    Issue no fence at or below this one from now on. Replies the last issued.",
    "FENCELOCK.HELP",
    "    Replies these lines.",
];

/// `FENCELOCK.HELP`
pub(crate) fn help(_ctx: Ctx, _words: &Words) -> Reply {
    Ok(Answer::Lines(HELP))
}

pub(crate) fn register(ctx: Ctx) -> bool {
    // SAFETY: the callback is a function of this module, which cannot be unloaded.
    unsafe { api!(RedisModule_RegisterInfoFunc)(ctx.0, Some(on_info)) == raw::REDISMODULE_OK as c_int }
}

callback! {
    fn on_info(info: *mut raw::RedisModuleInfoCtx, for_crash_report: c_int) -> (), else ();
    {
        // A crash may have come in the middle of our own work.
        if for_crash_report != 0 {
            return;
        }
        // SAFETY: the context is that of the running call; names end in NUL.
        unsafe {
            api!(RedisModule_InfoAddSection)(info, c"".as_ptr());
            api!(RedisModule_InfoAddFieldCString)(info, c"version".as_ptr(), VERSION.as_ptr().cast());
        }
        let counted = COUNTS.iter().enumerate().map(|(at, count)| (count.1, server().stats.get(at)));
        let gauged = GAUGES.iter().zip(gauges()).map(|(gauge, value)| (gauge.1, value));
        for (name, value) in counted.chain(gauged) {
            // SAFETY: as above.
            unsafe { api!(RedisModule_InfoAddFieldULongLong)(info, name.as_ptr(), value) };
        }
    }
}
