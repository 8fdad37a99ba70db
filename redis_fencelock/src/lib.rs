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

use crate::commands::docs::{self, Docs};
use crate::ffi::{Ctx, Str, api, warn};

/// The server counts what the module allocates. Unit tests run without a server.
#[cfg(not(test))]
#[global_allocator]
static ALLOCATOR: redis_module::alloc::RedisAlloc = redis_module::alloc::RedisAlloc;

type Handler = unsafe extern "C" fn(*mut raw::RedisModuleCtx, *mut *mut raw::RedisModuleString, c_int) -> c_int;

/// A command: its name, its flags, and the position of its one key (0: none).
struct Command {
    name: &'static CStr,
    handler: Handler,
    flags: &'static CStr,
    key: c_int,
}

const COMMANDS: &[(Command, Docs)] = &[
    (
        Command {
            name: c"fencelock.acquire",
            handler: commands::lock::on_acquire,
            flags: c"write deny-oom fast blocking",
            key: 1,
        },
        Docs {
            summary: c"Grants a lock for a number of milliseconds and issues a fence",
            complexity: c"O(log N) with N locks that somebody waits for",
            arity: -4,
            args: docs::ACQUIRE,
            key: docs::CHANGED,
            categories: c"write fast blocking",
        },
    ),
    (
        Command { name: c"fencelock.extend", handler: commands::lock::on_extend, flags: c"write fast", key: 1 },
        Docs {
            summary: c"Sets the lease to a number of milliseconds from now, if it is still the caller's",
            complexity: c"O(1)",
            arity: -4,
            args: docs::EXTEND,
            key: docs::CHANGED,
            categories: c"write fast",
        },
    ),
    (
        Command { name: c"fencelock.release", handler: commands::lock::on_release, flags: c"write fast", key: 1 },
        Docs {
            summary: c"Ends the lease, if it is still the caller's, and hands the lock on",
            complexity: c"O(log N) with N locks that somebody waits for; with QUEUED O(M) with M places in the queue",
            arity: -3,
            args: docs::RELEASE,
            key: docs::REMOVED,
            categories: c"write fast",
        },
    ),
    (
        Command { name: c"fencelock.check", handler: commands::lock::on_check, flags: c"readonly fast", key: 1 },
        Docs {
            summary: c"Tells whether a fence is the live hold of a lock",
            complexity: c"O(1)",
            arity: 3,
            args: docs::CHECK,
            key: docs::LOOKED_AT,
            categories: c"read fast",
        },
    ),
    (
        Command { name: c"fencelock.inspect", handler: commands::lock::on_inspect, flags: c"readonly fast", key: 1 },
        Docs {
            summary: c"Tells who holds a lock and for how long",
            complexity: c"O(1)",
            arity: 2,
            args: docs::INSPECT,
            key: docs::LOOKED_AT,
            categories: c"read fast",
        },
    ),
    (
        Command { name: c"fencelock.claim", handler: commands::resource::on_claim, flags: c"write deny-oom", key: 1 },
        Docs {
            summary: c"Stamps a fence on a hash and returns its fields, unless a newer fence is stored",
            complexity: c"O(N) with N fields",
            arity: 3,
            args: docs::CLAIM,
            key: docs::CHANGED,
            categories: c"write",
        },
    ),
    (
        Command {
            name: c"fencelock.write",
            handler: commands::resource::on_write,
            flags: c"write deny-oom fast",
            key: 1,
        },
        Docs {
            summary: c"Sets fields of a hash while its stamp is the caller's",
            complexity: c"O(N) with N fields written",
            arity: -5,
            args: docs::WRITE,
            key: docs::CHANGED,
            categories: c"write fast",
        },
    ),
    (
        Command { name: c"fencelock.stats", handler: commands::info::on_stats, flags: c"readonly fast", key: 1 },
        Docs {
            summary: c"Counters of the server, or of one busy lock",
            complexity: c"O(1)",
            arity: -1,
            args: docs::STATS,
            key: docs::LOOKED_AT,
            categories: c"read fast",
        },
    ),
    (
        // Its names are no keys of the caller: a lock that is named TOP is asked for with STATS.
        Command { name: c"fencelock.top", handler: commands::info::on_top, flags: c"readonly", key: 0 },
        Docs {
            summary: c"Lists the busiest locks",
            complexity: c"O(N) with N names in the table of STATS",
            arity: -2,
            args: docs::TOP,
            key: 0,
            categories: c"read",
        },
    ),
    (
        Command { name: c"fencelock.raise", handler: commands::lock::on_raise, flags: c"write admin fast", key: 0 },
        Docs {
            summary: c"Issues no fence at or below a given one from now on",
            complexity: c"O(1)",
            arity: 2,
            args: docs::RAISE,
            key: 0,
            categories: c"write fast admin dangerous",
        },
    ),
    (
        Command {
            name: c"fencelock.help",
            handler: commands::info::on_help,
            flags: c"allow-loading allow-stale fast",
            key: 0,
        },
        Docs {
            summary: c"Describes the commands",
            complexity: c"O(1)",
            arity: 1,
            args: &[],
            key: 0,
            categories: c"fast",
        },
    ),
];

#[cfg(feature = "drill")]
const DRILL: Command =
    Command { name: c"fencelock._drill", handler: commands::drill::on_drill, flags: c"fast", key: 0 };

/// Run by replication and loading alone. Redis 8 hides them; elsewhere they are refused to clients.
const INTERNAL_COMMANDS: &[Command] = &[
    Command { name: replication::APPLY, handler: commands::internal::on_apply, flags: c"write", key: 1 },
    Command { name: replication::END, handler: commands::internal::on_end, flags: c"write", key: 1 },
    Command { name: replication::CLOCK, handler: commands::internal::on_clock, flags: c"write", key: 0 },
    Command { name: replication::FLOOR, handler: commands::internal::on_floor, flags: c"write", key: 0 },
];

/// Run by calls of this module alone.
const PROBE: Command = Command { name: cluster::PROBE, handler: cluster::on_probe, flags: c"write admin fast", key: 1 };

/// Not in the header of the bindings: Valkey moves slots with locks only if the module says that it is ready.
const VALKEY_OPTIONS_HANDLE_ATOMIC_SLOT_MIGRATION: u32 = 1 << 5;

const OPTIONS: u32 = raw::REDISMODULE_OPTIONS_HANDLE_IO_ERRORS
    | raw::REDISMODULE_OPTION_NO_IMPLICIT_SIGNAL_MODIFIED
    | raw::REDISMODULE_OPTIONS_HANDLE_REPL_ASYNC_LOAD;

/// What the server is told of the module. The same bit may come to mean something else to Redis.
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
    let api_version = raw::REDISMODULE_APIVER_1 as c_int;
    // SAFETY: the first call of all, as the server asks; it fills the pointers to every other function.
    let ready = unsafe { raw::Export_RedisModule_Init(ctx, c"fencelock".as_ptr(), MODULE_VERSION, api_version) };
    if ready != raw::REDISMODULE_OK as c_int {
        return raw::REDISMODULE_ERR as c_int;
    }
    ffi::main_thread::begin();
    ffi::install_panic_hook();
    let arguments: Vec<Str> = (0..argc as usize)
        // SAFETY: the server passes `argc` strings, alive until this function returns.
        .map(|position| unsafe { Str::from_raw(*argv.add(position)) })
        .collect();
    let loaded = ffi::guarded("RedisModule_OnLoad", || load(Ctx(ctx), &arguments), || Err("it panicked".into()));
    match loaded {
        Ok(()) => raw::REDISMODULE_OK as c_int,
        Err(reason) => {
            warn(&format!("the module is not loaded: {reason}"));
            raw::REDISMODULE_ERR as c_int
        }
    }
}

/// Registers everything. What may fail comes before what the server does not take back when a load fails: the events.
fn load(ctx: Ctx, arguments: &[Str]) -> Result<(), String> {
    server::begin(ctx.flags());
    config::set_defaults();
    config::read_arguments(arguments)?;
    let check = |ok: bool, what: &str| if ok { Ok(()) } else { Err(what.to_string()) };
    check(config::register(ctx), "the server refuses a setting")?;
    config::check(server::in_cluster())?;
    // SAFETY: the context is that of the load.
    unsafe { api!(RedisModule_SetModuleOptions)(ctx.0, options(ffi::is_valkey()) as c_int) };
    check(lock::data_type::register(ctx), "the server refuses the data type")?;
    docs::add_category(ctx);
    for (command, docs) in COMMANDS {
        let made = create(ctx, command, command.flags) && docs::describe(ctx, command.name, docs);
        check(made, "the server refuses a command")?;
    }
    #[cfg(feature = "drill")]
    check(create(ctx, &DRILL, DRILL.flags), "the server refuses a command")?;
    for command in INTERNAL_COMMANDS {
        let with = |more: &str| CString::new([command.flags.to_bytes(), more.as_bytes()].concat()).unwrap_or_default();
        // Servers before Redis 8 do not know internal commands.
        let created = create(ctx, command, &with(" internal")) || create(ctx, command, &with(" admin"));
        check(created, "the server refuses an internal command")?;
    }
    check(create(ctx, &PROBE, PROBE.flags), "the server refuses an internal command")?;
    check(commands::info::register(ctx), "the server refuses an INFO section")?;
    check(events::subscribe(ctx), "the server lacks an event")?;
    ctx.make_detached();
    timer::alarm::set_handler(timer::expiry::on_timer);
    config::check_soon();
    Ok(())
}

fn create(ctx: Ctx, command: &Command, flags: &CStr) -> bool {
    let (name, key) = (command.name.as_ptr(), command.key);
    // SAFETY: name and flags end in NUL; the handler is a function of this module, which cannot be unloaded.
    let created =
        unsafe { api!(RedisModule_CreateCommand)(ctx.0, name, Some(command.handler), flags.as_ptr(), key, key, key) };
    created == raw::REDISMODULE_OK as c_int
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_version_is_one_number_that_grows() {
        let told = ["0.1.0", "0.1.9", "0.2.0", "1.2.3", "12.34.56"].map(module_version);
        assert_eq!(told, [100, 109, 200, 10_203, 123_456]);
    }

    #[test]
    fn redis_is_told_nothing_that_only_valkey_knows() {
        assert_eq!(options(false) & VALKEY_OPTIONS_HANDLE_ATOMIC_SLOT_MIGRATION, 0);
        assert_eq!(options(true), options(false) | VALKEY_OPTIONS_HANDLE_ATOMIC_SLOT_MIGRATION);
    }
}
