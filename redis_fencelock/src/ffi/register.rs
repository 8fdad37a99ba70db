//! What a module registers when it is loaded.

use std::ffi::{CStr, c_char, c_int, c_longlong, c_void};

use redis_module::raw;

use crate::ffi::context::Ctx;
use crate::ffi::guard::{self, FromServer, api, guarded, warn};
use crate::ffi::main_thread;
use crate::ffi::string::{Str, strings};

/// What the server calls for a command.
pub(crate) type CommandProc =
    unsafe extern "C" fn(*mut raw::RedisModuleCtx, *mut *mut raw::RedisModuleString, c_int) -> c_int;

/// Defines the function that the server calls for a command, of its context and strings.
macro_rules! command_callback {
    ($(#[$meta:meta])* $name:ident, |$ctx:ident, $strings:ident| $body:expr) => {
        $crate::ffi::guard::callback! {
            $(#[$meta])*
            pub(crate) fn $name(
                ctx: $crate::ffi::context::Ctx,
                argv: *mut *mut ::redis_module::raw::RedisModuleString,
                argc: ::std::ffi::c_int,
            ) -> ::std::ffi::c_int, else ctx.reply_internal_error();
            {
                let $ctx = ctx;
                // SAFETY: the server passes `argc` strings, alive until the command returns.
                let $strings = unsafe { $crate::ffi::string::strings(argv, argc) };
                $body
            }
        }
    };
}
pub(crate) use command_callback;

const OK: c_int = raw::REDISMODULE_OK as c_int;

/// What the server's call of `RedisModule_OnLoad` does: `load` registers everything, or says why it cannot.
///
/// # Safety
/// The server passes its context and `argc` strings, and calls no other function of the module yet.
pub(crate) unsafe fn on_load(
    ctx: *mut raw::RedisModuleCtx,
    argv: *mut *mut raw::RedisModuleString,
    argc: c_int,
    (name, version): (&CStr, c_int),
    load: fn(Ctx, &[Str]) -> Result<(), String>,
) -> c_int {
    // SAFETY: the first call of all, as the server asks; it fills the pointers to every other function.
    let ready =
        unsafe { raw::Export_RedisModule_Init(ctx, name.as_ptr(), version, raw::REDISMODULE_APIVER_1 as c_int) };
    if ready != OK {
        return raw::REDISMODULE_ERR as c_int;
    }
    main_thread::begin();
    guard::install_panic_hook();
    // SAFETY: as promised.
    let (ctx, arguments) = unsafe { (Ctx::from_server(ctx), strings(argv, argc)) };
    match guarded("RedisModule_OnLoad", || load(ctx, arguments), || Err("it panicked".into())) {
        Ok(()) => OK,
        Err(reason) => {
            warn(&format!("the module is not loaded: {reason}"));
            raw::REDISMODULE_ERR as c_int
        }
    }
}

/// A setting of the module: its name, and its position among the others, which callbacks get.
pub(crate) struct Setting {
    pub(crate) name: &'static CStr,
    pub(crate) flags: u32,
    pub(crate) position: usize,
}

/// The position of a setting, as a callback gets it.
#[derive(Clone, Copy)]
pub(crate) struct Position(pub usize);

// SAFETY: a number that nobody follows.
unsafe impl FromServer for Position {
    type Raw = *mut c_void;

    unsafe fn from_server(raw: *mut c_void) -> Position {
        Position(raw as usize)
    }
}

type Get<T> = unsafe extern "C" fn(*const c_char, *mut c_void) -> T;
type Set<T> = unsafe extern "C" fn(*const c_char, T, *mut c_void, *mut *mut raw::RedisModuleString) -> c_int;

impl Ctx<'_> {
    /// Creates a command with at most one key.
    pub(crate) fn create_command(self, name: &CStr, handler: CommandProc, flags: &CStr, key: c_int) -> bool {
        let (name, handler, flags) = (name.as_ptr(), Some(handler), flags.as_ptr());
        // SAFETY: name and flags end in NUL; the handler is a function of this module, which cannot be unloaded.
        unsafe { api!(RedisModule_CreateCommand)(self.0, name, handler, flags, key, key, key) == OK }
    }

    pub(crate) fn set_options(self, options: u32) {
        // SAFETY: the context is that of the load.
        unsafe { api!(RedisModule_SetModuleOptions)(self.0, options as c_int) };
    }

    /// Registers a type; null when the server refuses it.
    pub(crate) fn create_type(
        self,
        name: &CStr,
        encoding: c_int,
        methods: &mut raw::RedisModuleTypeMethods,
    ) -> *mut raw::RedisModuleType {
        // SAFETY: the name ends in NUL and the server copies the methods, which are functions of this module.
        unsafe { api!(RedisModule_CreateDataType)(self.0, name.as_ptr(), encoding, methods) }
    }

    pub(crate) fn register_switch(self, setting: &Setting, default: bool, get: Get<c_int>, set: Set<c_int>) -> bool {
        let (name, default, data) = (setting.name.as_ptr(), c_int::from(default), setting.position as *mut c_void);
        // SAFETY: the name ends in NUL, the functions are of this module; the data is a position and not a pointer.
        unsafe {
            let register = api!(RedisModule_RegisterBoolConfig);
            register(self.0, name, default, setting.flags, Some(get), Some(set), None, data) == OK
        }
    }

    pub(crate) fn register_number(
        self,
        setting: &Setting,
        [default, min, max]: [u64; 3],
        get: Get<c_longlong>,
        set: Set<c_longlong>,
    ) -> bool {
        let (name, data) = (setting.name.as_ptr(), setting.position as *mut c_void);
        let [default, min, max] = [default, min, max].map(|number| number as c_longlong);
        // SAFETY: the name ends in NUL, the functions are of this module; the data is a position and not a pointer.
        unsafe {
            let register = api!(RedisModule_RegisterNumericConfig);
            register(self.0, name, default, setting.flags, min, max, Some(get), Some(set), None, data) == OK
        }
    }

    /// Reads the settings of the server's configuration.
    pub(crate) fn load_settings(self) -> bool {
        // SAFETY: the context is that of the load.
        unsafe { api!(RedisModule_LoadConfigs)(self.0) == OK }
    }
}
