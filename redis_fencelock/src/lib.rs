//! The Redis module `fencelock`: leases and fences, granted in the server in one atomic step.
//!
//! This file is the table of contents: what is registered, in which order. The rule is in the crate `fence`.
//! Invariant: one file serves Redis 7.0 and later and Valkey 8 and later.

mod clock;
mod cluster;
mod commands;
mod config;
mod counters;
mod events;
mod ffi;
mod lock;
mod queue;
mod replication;
mod server;
mod timer;

use std::ffi::{CStr, CString, c_int};

use redis_module::raw;

use crate::commands::docs;
use crate::ffi::describe::{self, Docs};
use crate::ffi::{CommandProc, Ctx, Str};

/// The server counts what the module allocates. Unit tests run without a server.
#[cfg(not(test))]
#[global_allocator]
static ALLOCATOR: redis_module::alloc::RedisAlloc = redis_module::alloc::RedisAlloc;

/// The position of the key of a command.
const KEY: c_int = 1;
const NO_KEY: c_int = 0;

/// A command: its name, its function, its flags, the position of its key.
type Command = (&'static CStr, CommandProc, &'static CStr, c_int);

const COMMANDS: &[(Command, Docs)] = &[
    ((c"fencelock.acquire", commands::lock::on_acquire, c"write deny-oom fast blocking", KEY), docs::ACQUIRE),
    ((c"fencelock.steal", commands::lock::on_steal, c"write deny-oom fast", KEY), docs::STEAL),
    ((c"fencelock.extend", commands::lock::on_extend, c"write fast", KEY), docs::EXTEND),
    ((c"fencelock.release", commands::lock::on_release, c"write fast", KEY), docs::RELEASE),
    ((c"fencelock.check", commands::lock::on_check, c"readonly fast", KEY), docs::CHECK),
    ((c"fencelock.inspect", commands::lock::on_inspect, c"readonly fast", KEY), docs::INSPECT),
    ((c"fencelock.await", commands::lock::on_await, c"readonly fast blocking", KEY), docs::AWAIT),
    ((c"fencelock.claim", commands::resource::on_claim, c"write deny-oom", KEY), docs::CLAIM),
    ((c"fencelock.write", commands::resource::on_write, c"write deny-oom fast", KEY), docs::WRITE),
    ((c"fencelock.stats", commands::info::on_stats, c"readonly fast", KEY), docs::STATS),
    // Its names are not keys of the caller: a lock that is named TOP is asked for with STATS.
    ((c"fencelock.top", commands::info::on_top, c"readonly", NO_KEY), docs::TOP),
    ((c"fencelock.raise", commands::lock::on_raise, c"write admin fast", NO_KEY), docs::RAISE),
    ((c"fencelock.help", commands::info::on_help, c"allow-loading allow-stale fast", NO_KEY), docs::HELP),
];

#[cfg(feature = "drill")]
const DRILL: Command = (c"fencelock._drill", commands::drill::on_drill, c"fast", NO_KEY);

/// Run by replication and loading alone. Redis 8 hides them; elsewhere they are refused to clients.
const INTERNAL_COMMANDS: &[Command] = &[
    (replication::APPLY, commands::internal::on_apply, c"write", KEY),
    (replication::END, commands::internal::on_end, c"write", KEY),
    (replication::CLOCK, commands::internal::on_clock, c"write", NO_KEY),
    (replication::FLOOR, commands::internal::on_floor, c"write", NO_KEY),
];

/// Run by calls of this module alone.
const PROBE: Command = (cluster::PROBE, cluster::on_probe, c"write admin fast", KEY);

/// The ACL category of the commands.
const CATEGORY: &CStr = c"fencelock";

/// Not in the header of the bindings: Valkey moves slots with locks only if the module says that it is ready.
const VALKEY_OPTIONS_HANDLE_ATOMIC_SLOT_MIGRATION: u32 = 1 << 5;

const OPTIONS: u32 = raw::REDISMODULE_OPTIONS_HANDLE_IO_ERRORS
    | raw::REDISMODULE_OPTION_NO_IMPLICIT_SIGNAL_MODIFIED
    | raw::REDISMODULE_OPTIONS_HANDLE_REPL_ASYNC_LOAD;

/// The options of the module. Redis may give the same bit another meaning one day.
fn options(is_valkey: bool) -> u32 {
    if is_valkey { OPTIONS | VALKEY_OPTIONS_HANDLE_ATOMIC_SLOT_MIGRATION } else { OPTIONS }
}

/// What MODULE LIST shows, in the manner of the servers' other modules: 10203 for 1.2.3.
const MODULE_VERSION: c_int = module_version(env!("CARGO_PKG_VERSION"));

const fn module_version(version: &str) -> c_int {
    let (digits, mut at, mut number, mut part) = (version.as_bytes(), 0, 0, 0);
    while at < digits.len() {
        if digits[at] == b'.' {
            (number, part) = ((number + part) * 100, 0);
        } else {
            part = part * 10 + (digits[at] - b'0') as c_int;
        }
        at += 1;
    }
    number + part
}

/// Called by the server when it loads the module.
///
/// # Safety
/// The server passes its context and `argc` strings.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn RedisModule_OnLoad(
    ctx: *mut raw::RedisModuleCtx,
    argv: *mut *mut raw::RedisModuleString,
    argc: c_int,
) -> c_int {
    // SAFETY: as promised.
    unsafe { ffi::on_load(ctx, argv, argc, (c"fencelock", MODULE_VERSION), load) }
}

/// Registers everything. The events come last, because the server keeps them when a load fails.
fn load(ctx: Ctx, arguments: &[Str]) -> Result<(), String> {
    server::begin(ctx.flags());
    config::set_defaults();
    config::read_arguments(arguments)?;
    check(config::register(ctx), "the server refuses a setting")?;
    config::check(server::in_cluster())?;
    ctx.set_options(options(ffi::is_valkey()));
    check(lock::data_type::register(ctx), "the server refuses the data type")?;
    create_commands(ctx)?;
    check(commands::info::register(ctx), "the server refuses an INFO section")?;
    check(events::subscribe(ctx), "the server lacks an event")?;
    ctx.make_detached();
    timer::alarm::set_handler(timer::expiry::on_timer);
    config::check_soon();
    Ok(())
}

fn check(ok: bool, what: &str) -> Result<(), String> {
    if ok { Ok(()) } else { Err(what.to_string()) }
}

fn create_commands(ctx: Ctx) -> Result<(), String> {
    describe::add_category(ctx, CATEGORY);
    for &(command, ref docs) in COMMANDS {
        let created = create(ctx, command) && describe::describe(ctx, command.0, CATEGORY, docs);
        check(created, "the server refuses a command")?;
    }
    #[cfg(feature = "drill")]
    check(create(ctx, DRILL), "the server refuses a command")?;
    for &(name, function, flags, key) in INTERNAL_COMMANDS {
        let with = |more: &str| CString::new([flags.to_bytes(), more.as_bytes()].concat()).unwrap_or_default();
        let create = |more| ctx.create_command(name, function, &with(more), key);
        // Servers before Redis 8 do not know internal commands.
        check(create(" internal") || create(" admin"), "the server refuses an internal command")?;
    }
    check(create(ctx, PROBE), "the server refuses an internal command")
}

fn create(ctx: Ctx, (name, function, flags, key): Command) -> bool {
    ctx.create_command(name, function, flags, key)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_version_is_one_number_that_grows() {
        let versions = ["0.1.0", "0.1.9", "0.2.0", "1.2.3", "12.34.56"].map(module_version);
        assert_eq!(versions, [100, 109, 200, 10_203, 123_456]);
    }

    #[test]
    fn redis_gets_no_option_that_only_valkey_knows() {
        assert_eq!(options(false) & VALKEY_OPTIONS_HANDLE_ATOMIC_SLOT_MIGRATION, 0);
        assert_eq!(options(true), options(false) | VALKEY_OPTIONS_HANDLE_ATOMIC_SLOT_MIGRATION);
    }
}
