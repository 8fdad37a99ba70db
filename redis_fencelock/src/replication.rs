//! The internal commands: what a primary did, told to replicas and append-only files as effects.
//!
//! Nothing is decided here, least of all by a clock: a replica and a file that is read back store what they are told.
//! Invariant: a user cannot run them; and what is not told is nothing that a replica or a file could miss.
//!
//! A file with a command that its reader does not know is not loaded, so there are no others in a version to come: it
//! adds words behind those of today, which are ignored, and fields and flags to the record.

use std::ffi::{CStr, c_int};

use fence::lock::args;
use fence::lock::codec::{self, Reading, Route};
use fence::lock::ending::Ending;
use redis_module::raw;

use crate::ffi::{Ctx, INTERNAL_ERROR, Name, ServerInfo, callback, warn};
use crate::lock::slot::Slot;
use crate::server::server;
use crate::timer::reaper;

/// Carries a hold to replicas and append-only files.
pub(crate) const APPLY: &CStr = c"FENCELOCK._APPLY";
/// Carries the end of a hold.
pub(crate) const END: &CStr = c"FENCELOCK._END";
/// Carries a reading of the clock of leases.
pub(crate) const CLOCK: &CStr = c"FENCELOCK._CLOCK";
/// Carries the last issued fence.
pub(crate) const FLOOR: &CStr = c"FENCELOCK._FLOOR";

/// What a client that is no primary gets.
const INTERNAL: &str = "ERR this command is internal: it is run by replication and by loading alone";

callback! {
    /// `FENCELOCK._APPLY key record`: stores a hold.
    pub(crate) fn on_apply(
        ctx: *mut raw::RedisModuleCtx,
        argv: *mut *mut raw::RedisModuleString,
        argc: c_int,
    ) -> c_int, else Ctx(ctx).reply_error(INTERNAL_ERROR);
    {
        let ctx = Ctx(ctx);
        let Some([_, key, record]) = words(argv, argc) else { return ctx.wrong_arity() };
        let Some(route) = route(ctx) else { return ctx.reply_error(INTERNAL) };
        let record = match codec::decode(record.bytes()) {
            Ok(record) => record,
            Err(corrupt) => {
                let line = format!("a replicated lock cannot be read: {corrupt:?}; is the primary's module newer?");
                warn(&line);
                return ctx.reply_error(&format!("ERR {line}"));
            }
        };
        Slot::apply(ctx, key, &record, route);
        ctx.reply_ok()
    }
}

callback! {
    /// `FENCELOCK._END key fence reason`: removes the hold with that fence. Another hold, or another type, stays.
    pub(crate) fn on_end(
        ctx: *mut raw::RedisModuleCtx,
        argv: *mut *mut raw::RedisModuleString,
        argc: c_int,
    ) -> c_int, else Ctx(ctx).reply_error(INTERNAL_ERROR);
    {
        let ctx = Ctx(ctx);
        let Some([_, key, fence, reason]) = words(argv, argc) else { return ctx.wrong_arity() };
        if route(ctx).is_none() {
            return ctx.reply_error(INTERNAL);
        }
        match args::fence(fence.bytes()) {
            Ok(fence) => Slot::end(ctx, key, fence, Ending::named(reason.bytes())),
            Err(bad) => return ctx.reply_error(&format!("ERR {bad}")),
        }
        ctx.replicate_verbatim();
        ctx.reply_ok()
    }
}

callback! {
    /// `FENCELOCK._CLOCK incarnation microseconds [incarnation microseconds]`: what the primary reads on its clock of leases,
    /// and what the clock reads of the primary that it followed. It is not in files: those are read later.
    pub(crate) fn on_clock(
        ctx: *mut raw::RedisModuleCtx,
        argv: *mut *mut raw::RedisModuleString,
        argc: c_int,
    ) -> c_int, else Ctx(ctx).reply_error(INTERNAL_ERROR);
    {
        let ctx = Ctx(ctx);
        let Some([_, incarnation, steady_us]) = words(argv, argc) else { return ctx.wrong_arity() };
        let Some(route) = route(ctx) else { return ctx.reply_error(INTERNAL) };
        let Some(reading) = reading(incarnation, steady_us) else { return ctx.reply_error(NO_READING) };
        let before = words(argv, argc).and_then(|[_, _, _, incarnation, steady_us]| reading_before(incarnation, steady_us));
        // A primary that takes a slot over is sent the words of another.
        if route == Route::Stream && !server().is_primary.get() {
            server().receive(reading, before);
        }
        ctx.reply_ok()
    }
}

callback! {
    /// `FENCELOCK._FLOOR fence`: no fence at or below this one is issued from now on.
    pub(crate) fn on_floor(
        ctx: *mut raw::RedisModuleCtx,
        argv: *mut *mut raw::RedisModuleString,
        argc: c_int,
    ) -> c_int, else Ctx(ctx).reply_error(INTERNAL_ERROR);
    {
        let ctx = Ctx(ctx);
        let Some([_, fence]) = words(argv, argc) else { return ctx.wrong_arity() };
        if route(ctx).is_none() {
            return ctx.reply_error(INTERNAL);
        }
        match args::fence(fence.bytes()) {
            Ok(fence) => server().observe(fence.get()),
            Err(bad) => return ctx.reply_error(&format!("ERR {bad}")),
        }
        ctx.replicate_verbatim();
        ctx.reply_ok()
    }
}

const NO_READING: &str = "ERR a reading of a clock must be two integers";

fn reading(incarnation: Name, steady_us: Name) -> Option<Reading> {
    let number = |word: Name| args::canonical(word.bytes());
    Some(Reading { incarnation: number(incarnation)?, steady_us: number(steady_us)? })
}

/// The same of the primary before; 0 stands for none.
fn reading_before(incarnation: Name, steady_us: Name) -> Option<Reading> {
    reading(incarnation, steady_us).filter(|before| before.incarnation != 0)
}

/// How often replicas are sent the clock.
const CLOCK_US: u64 = 1_000_000;

/// Has the clock sent with the next run of the server's cron.
pub(crate) fn send_clock_soon() {
    server().clock_due_us.set(0);
}

/// Called by the server's cron: while a lease and a replica exist, replicas are sent the clock once a second.
pub(crate) fn look_at_the_clock() {
    let server = server();
    let now_us = server.steady_us();
    if !server.is_primary.get() || now_us < server.clock_due_us.get() || server.index.borrow().len() == 0 {
        return;
    }
    server.clock_due_us.set(now_us + CLOCK_US);
    if ServerInfo::of(c"replication").number(c"connected_slaves").is_some_and(|replicas| replicas > 0) {
        reaper::send_clock();
    }
}

/// Sends the clock to the replicas, which learn from it how late the stream is. What is not propagated has been logged.
pub(crate) fn send_clock(ctx: Ctx) {
    let server = server();
    let now_us = server.steady_us();
    let before = server.predecessor(now_us).unwrap_or(Reading { incarnation: 0, steady_us: 0 });
    let numbers = [server.incarnation.get(), now_us, before.incarnation, before.steady_us];
    if ctx.replicate_to_replicas(CLOCK, numbers).is_ok() {
        server.clock_is_new.set(false);
    }
}

/// How often to look whether anybody listens, while somebody may.
const LOOK_US: u64 = 1_000_000;

/// Has everything told from now on.
///
/// Whoever begins to listen gets a snapshot first, and the server forks to make one: it says so before the next command.
/// A change of the role or of the settings is taken for one too. Between the arrival of a first replica and that fork a
/// backlog may be there already: what comes into it is before the offset at which the snapshot begins, so nobody reads it.
pub(crate) fn somebody_may_listen() {
    server().is_heard.set(true);
}

/// Called by the server's cron: telling costs as much as a whole command of the server's own, so nothing is told while
/// there is no replica, no backlog for one that may come back, and no append-only file. In a cluster slots move, too.
pub(crate) fn look_for_listeners() {
    let server = server();
    let now_us = server.steady_us();
    if !server.is_heard.get() || server.in_cluster.get() || now_us < server.listeners_due_us.get() {
        return;
    }
    server.listeners_due_us.set(now_us + LOOK_US);
    let is_zero = |section, field| ServerInfo::of(section).number(field) == Some(0);
    let nobody = server.is_primary.get()
        && is_zero(c"persistence", c"aof_enabled")
        && is_zero(c"replication", c"connected_slaves")
        && is_zero(c"replication", c"repl_backlog_active");
    server.is_heard.set(!nobody);
}

/// How the running command came here; `None` when an ordinary client sent it.
fn route(ctx: Ctx) -> Option<Route> {
    let flags = ctx.flags();
    if flags & raw::REDISMODULE_CTX_FLAGS_LOADING != 0 {
        Some(Route::File)
    } else {
        (flags & raw::REDISMODULE_CTX_FLAGS_REPLICATED != 0).then_some(Route::Stream)
    }
}

/// The first words of a command. What a later version has behind them is ignored.
fn words<const N: usize>(argv: *mut *mut raw::RedisModuleString, argc: c_int) -> Option<[Name; N]> {
    // SAFETY: the server passes `argc` strings, alive until the command returns.
    (argc as usize >= N).then(|| std::array::from_fn(|position| Name(unsafe { *argv.add(position) })))
}
