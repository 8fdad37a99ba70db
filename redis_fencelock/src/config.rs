//! Settings, as arguments of the module and as `fencelock.*` of the server's configuration.
//!
//! Invariant: a setting out of its range is refused by name, and the server does not start with half of them.

use std::cell::Cell;
use std::ffi::{CStr, c_char, c_int, c_longlong};

use fence::lock::args::canonical;
use fence::lock::lease::{LONGEST, Millis};
use redis_module::raw;

use crate::counters;
use crate::ffi::main_thread::MainThread;
use crate::ffi::{Ctx, Position, ServerInfo, Setting, Str, callback, warn};

/// The longest lease unless configured: a day.
const DEFAULT_MAX_TTL: Millis = Millis(24 * 3_600 * 1_000);
/// The most waiters of one lock unless configured: more than a server has connections by default, tenfold.
const DEFAULT_MAX_WAITERS: u64 = 100_000;
/// The most clients that await the end of a hold unless configured: some 400 MB, most of it the server's own.
const DEFAULT_MAX_AWAITERS: u64 = 10_000;

static CONFIG: MainThread<Config> = MainThread::new(Config {
    fence_clock: Cell::new(true),
    save_last_fence: Cell::new(true),
    max_ttl: Cell::new(DEFAULT_MAX_TTL),
    max_waiters: Cell::new(DEFAULT_MAX_WAITERS),
    max_awaiters: Cell::new(DEFAULT_MAX_AWAITERS),
    warned: Cell::new(Warned { evicts: false, loses_fence: false }),
    check_due: Cell::new(false),
});

struct Config {
    fence_clock: Cell<bool>,
    save_last_fence: Cell<bool>,
    max_ttl: Cell<Millis>,
    max_waiters: Cell<u64>,
    max_awaiters: Cell<u64>,
    warned: Cell<Warned>,
    /// The settings of the server are to be checked.
    check_due: Cell<bool>,
}

/// Whether fences follow the clock.
pub(crate) fn fence_clock() -> bool {
    CONFIG.fence_clock.get()
}

pub(crate) fn max_ttl() -> Millis {
    CONFIG.max_ttl.get()
}

/// The most waiters of one lock.
pub(crate) fn max_waiters() -> u64 {
    CONFIG.max_waiters.get()
}

/// The most clients that await the end of a hold, of any lock.
pub(crate) fn max_awaiters() -> u64 {
    CONFIG.max_awaiters.get()
}

/// Whether snapshots and rewritten append-only files carry the last issued fence.
pub(crate) fn save_last_fence() -> bool {
    CONFIG.save_last_fence.get()
}

/// A setting that is yes or no, and fixed once the module is loaded.
struct Switch {
    name: &'static CStr,
    get: fn() -> bool,
    set: fn(bool),
}

const SWITCHES: [Switch; 2] = [
    Switch { name: c"fence-clock", get: fence_clock, set: |yes| CONFIG.fence_clock.set(yes) },
    Switch { name: c"save-last-fence", get: save_last_fence, set: |yes| CONFIG.save_last_fence.set(yes) },
];

/// A setting that is a number.
struct Number {
    name: &'static CStr,
    min: u64,
    max: u64,
    get: fn() -> u64,
    set: fn(u64),
}

const NUMBERS: [Number; 4] = [
    Number {
        name: c"max-ttl-ms",
        min: 1,
        max: LONGEST.0,
        get: || max_ttl().0,
        set: |ms| CONFIG.max_ttl.set(Millis(ms)),
    },
    Number {
        name: c"max-waiters-per-lock",
        min: 0,
        max: 10_000_000,
        get: max_waiters,
        set: |most| CONFIG.max_waiters.set(most),
    },
    Number {
        name: c"max-awaiters",
        min: 0,
        max: 10_000_000,
        get: max_awaiters,
        set: |most| CONFIG.max_awaiters.set(most),
    },
    Number { name: c"stats-names", min: 0, max: counters::NAMES_MAX, get: counters::names, set: counters::set_names },
];

/// Forgets what an earlier load that failed may have set.
pub(crate) fn set_defaults() {
    for Switch { set, .. } in &SWITCHES {
        set(true);
    }
    CONFIG.max_ttl.set(DEFAULT_MAX_TTL);
    CONFIG.max_waiters.set(DEFAULT_MAX_WAITERS);
    CONFIG.max_awaiters.set(DEFAULT_MAX_AWAITERS);
    counters::set_names(counters::DEFAULT_NAMES);
}

/// Reads the arguments of the module: pairs of a name and a value. They become the defaults of the configuration.
pub(crate) fn read_arguments(arguments: &[Str]) -> Result<(), String> {
    for pair in arguments.chunks(2) {
        let name = pair[0].bytes();
        let value = pair.get(1).map(|value| value.bytes());
        let value = value.ok_or_else(|| format!("argument {} has no value", name.escape_ascii()))?;
        read_argument(name, value)?;
    }
    Ok(())
}

fn read_argument(name: &[u8], value: &[u8]) -> Result<(), String> {
    let switch = SWITCHES.iter().find(|switch| name.eq_ignore_ascii_case(switch.name.to_bytes()));
    if let Some(Switch { name, set, .. }) = switch {
        set(yes_or_no(value).ok_or_else(|| format!("{} must be yes or no", name.to_string_lossy()))?);
        return Ok(());
    }
    let number = NUMBERS.iter().find(|number| name.eq_ignore_ascii_case(number.name.to_bytes()));
    let Number { name, min, max, set, .. } =
        number.ok_or_else(|| format!("there is no setting '{}'", name.escape_ascii()))?;
    let value = canonical(value).filter(|value| (min..=max).contains(&value));
    set(value.ok_or_else(|| format!("{} must be an integer from {min} to {max}", name.to_string_lossy()))?);
    Ok(())
}

fn yes_or_no(value: &[u8]) -> Option<bool> {
    if value.eq_ignore_ascii_case(b"yes") {
        return Some(true);
    }
    value.eq_ignore_ascii_case(b"no").then_some(false)
}

/// Registers the settings and reads those of the server's configuration.
pub(crate) fn register(ctx: Ctx) -> bool {
    let registered = SWITCHES.iter().enumerate().all(|(position, &Switch { name, get, .. })| {
        let setting = Setting { name, flags: raw::REDISMODULE_CONFIG_IMMUTABLE, position };
        ctx.register_switch(&setting, get(), get_switch, set_switch)
    });
    registered
        && NUMBERS.iter().enumerate().all(|(position, &Number { name, min, max, get, .. })| {
            let setting = Setting { name, flags: raw::REDISMODULE_CONFIG_DEFAULT, position };
            ctx.register_number(&setting, [get(), min, max], get_number, set_number)
        })
        && ctx.load_settings()
}

/// Whether the settings fit the server.
pub(crate) fn check(in_cluster: bool) -> Result<(), String> {
    if fence_clock() {
        return Ok(());
    }
    if in_cluster {
        return Err("fence-clock no is refused in a cluster: a slot that moves leaves its count behind, and fences would repeat"
            .into());
    }
    if !save_last_fence() {
        return Err("fence-clock no requires save-last-fence yes: a count that is not saved begins again, and fences would repeat"
            .into());
    }
    Ok(())
}

/// What has been warned of, so that a change of something else warns of nothing again.
#[derive(Clone, Copy)]
struct Warned {
    evicts: bool,
    loses_fence: bool,
}

/// Has the settings of the server checked by the next cron. No timer is made for it: it is called when the module is
/// loaded, and while a module holds a timer servers crash if they reject the load after that, for a wrong setting.
pub(crate) fn check_soon() {
    CONFIG.check_due.set(true);
}

pub(crate) fn is_check_due() -> bool {
    CONFIG.check_due.get()
}

/// Warns of settings of the server under which locks are lost, if they are to be checked.
pub(crate) fn warn_if_due(ctx: Ctx) {
    if !CONFIG.check_due.take() {
        return;
    }
    let memory = ServerInfo::of(c"memory");
    let policy = memory.text(c"maxmemory_policy").unwrap_or_default();
    let evicts = memory.number(c"maxmemory") != Some(0) && policy.starts_with("allkeys");
    let has_aof = ServerInfo::of(c"persistence").number(c"aof_enabled") == Some(1);
    // The one setting that INFO does not have; CONFIG may be renamed.
    let loses_fence = has_aof && ctx.setting(c"aof-use-rdb-preamble").is_some_and(|setting| setting == "no");
    let before = CONFIG.warned.replace(Warned { evicts, loses_fence });
    if evicts && !before.evicts {
        warn(&format!(
            "maxmemory-policy {policy} can evict live leases: a second holder is granted early. Fenced resources stay safe"
        ));
    }
    if loses_fence && !before.loses_fence {
        warn(
            "aof-use-rdb-preamble is off: a crash right after a rewrite, with no lock held, can lose the last issued fence",
        );
    }
}

callback! {
    fn get_switch(_name: *const c_char, at: Position) -> c_int, else 1;
    { c_int::from((SWITCHES[at.0].get)()) }
}

callback! {
    fn set_switch(
        _name: *const c_char,
        value: c_int,
        at: Position,
        _error: *mut *mut raw::RedisModuleString,
    ) -> c_int, else raw::REDISMODULE_ERR as c_int;
    {
        (SWITCHES[at.0].set)(value != 0);
        raw::REDISMODULE_OK as c_int
    }
}

callback! {
    fn get_number(_name: *const c_char, at: Position) -> c_longlong, else 0;
    { (NUMBERS[at.0].get)() as c_longlong }
}

callback! {
    fn set_number(
        _name: *const c_char,
        value: c_longlong,
        at: Position,
        _error: *mut *mut raw::RedisModuleString,
    ) -> c_int, else raw::REDISMODULE_ERR as c_int;
    {
        (NUMBERS[at.0].set)(value as u64);
        raw::REDISMODULE_OK as c_int
    }
}
