//! Settings, as arguments of the module and as `fencelock.*` of the server's configuration.
//!
//! Invariant: a setting out of its range is refused by name, and the server does not start with half of them.

use std::ffi::{CStr, c_char, c_int, c_longlong, c_void};
use std::ptr;

use fence::args::canonical;
use fence::lease::{LONGEST, Millis};
use redis_module::raw;

use crate::ffi::{Ctx, Name, api, callback, warn};
use crate::server::server;

const FENCE_CLOCK: &CStr = c"fence-clock";
const MAX_TTL: &CStr = c"max-ttl-ms";

/// Reads the arguments of the module: pairs of a name and a value. They become the defaults of the configuration.
pub(crate) fn read_arguments(arguments: &[Name]) -> Result<(), String> {
    for pair in arguments.chunks(2) {
        let name = pair[0].bytes();
        let shown = name.escape_ascii();
        let value = pair.get(1).ok_or_else(|| format!("argument {shown} has no value"))?.bytes();
        if name.eq_ignore_ascii_case(FENCE_CLOCK.to_bytes()) {
            server().fence_clock.set(yes_or_no(value).ok_or("fence-clock must be yes or no")?);
        } else if name.eq_ignore_ascii_case(MAX_TTL.to_bytes()) {
            let max_ttl = canonical(value).filter(|ms| (1..=LONGEST.0).contains(ms));
            let max_ttl = max_ttl.ok_or_else(|| format!("max-ttl-ms must be an integer from 1 to {}", LONGEST.0))?;
            server().max_ttl.set(Millis(max_ttl));
        } else {
            return Err(format!("unknown argument '{shown}': known are fence-clock and max-ttl-ms"));
        }
    }
    Ok(())
}

fn yes_or_no(word: &[u8]) -> Option<bool> {
    if word.eq_ignore_ascii_case(b"yes") {
        return Some(true);
    }
    word.eq_ignore_ascii_case(b"no").then_some(false)
}

/// Registers the settings and reads those of the server's configuration.
pub(crate) fn register(ctx: Ctx) -> bool {
    let fence_clock = c_int::from(server().fence_clock.get());
    let max_ttl = server().max_ttl.get().0 as c_longlong;
    let ok = raw::REDISMODULE_OK as c_int;
    // SAFETY: names end in NUL, the functions are of this module, which cannot be unloaded.
    unsafe {
        api!(RedisModule_RegisterBoolConfig)(
            ctx.0,
            FENCE_CLOCK.as_ptr(),
            fence_clock,
            raw::REDISMODULE_CONFIG_IMMUTABLE,
            Some(get_fence_clock),
            Some(set_fence_clock),
            None,
            ptr::null_mut(),
        ) == ok
            && api!(RedisModule_RegisterNumericConfig)(
                ctx.0,
                MAX_TTL.as_ptr(),
                max_ttl,
                raw::REDISMODULE_CONFIG_DEFAULT,
                1,
                LONGEST.0 as c_longlong,
                Some(get_max_ttl),
                Some(set_max_ttl),
                None,
                ptr::null_mut(),
            ) == ok
            && api!(RedisModule_LoadConfigs)(ctx.0) == ok
    }
}

/// Whether the settings fit the server.
pub(crate) fn check() -> bool {
    let fits = server().fence_clock.get() || !server().in_cluster.get();
    if !fits {
        warn(
            "fence-clock no is refused in a cluster: a slot that moves would leave its count behind, and fences would repeat",
        );
    }
    fits
}

callback! {
    fn get_fence_clock(_name: *const c_char, _data: *mut c_void) -> c_int, else 1;
    { c_int::from(server().fence_clock.get()) }
}

callback! {
    fn set_fence_clock(
        _name: *const c_char,
        value: c_int,
        _data: *mut c_void,
        _error: *mut *mut raw::RedisModuleString,
    ) -> c_int, else raw::REDISMODULE_ERR as c_int;
    {
        server().fence_clock.set(value != 0);
        raw::REDISMODULE_OK as c_int
    }
}

callback! {
    fn get_max_ttl(_name: *const c_char, _data: *mut c_void) -> c_longlong, else 0;
    { server().max_ttl.get().0 as c_longlong }
}

callback! {
    fn set_max_ttl(
        _name: *const c_char,
        value: c_longlong,
        _data: *mut c_void,
        _error: *mut *mut raw::RedisModuleString,
    ) -> c_int, else raw::REDISMODULE_ERR as c_int;
    {
        server().max_ttl.set(Millis(value as u64));
        raw::REDISMODULE_OK as c_int
    }
}
