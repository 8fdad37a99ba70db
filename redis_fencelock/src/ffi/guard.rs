//! Every function that the server calls, and the way to every function of the server.
//!
//! Invariant: no panic crosses into the server. Every callback is made by [`callback!`], which catches it.

use std::ffi::{CString, c_char, c_int, c_longlong, c_void};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::ptr;

use redis_module::raw;

#[cfg(feature = "drill")]
use crate::ffi::drill;

/// A function of the module API, or a panic that names the one that the server lacks. For use in an unsafe block:
/// reading the pointer is sound, because the server fills it while the module loads and never changes it.
macro_rules! api {
    ($name:ident) => {
        match ::redis_module::raw::$name {
            Some(function) => function,
            None => $crate::ffi::guard::missing(stringify!($name)),
        }
    };
}
pub(in crate::ffi) use api;

#[cold]
pub(in crate::ffi) fn missing(name: &'static str) -> ! {
    panic!("the server has no {name}")
}

/// What a callback gets from the server, as a type of its own.
///
/// # Safety
/// The type holds what the server passes at that position, and no longer than the call.
pub(crate) unsafe trait FromServer {
    /// The type in the server's signature.
    type Raw;

    /// # Safety
    /// `raw` is what the server has passed to the running call.
    unsafe fn from_server(raw: Self::Raw) -> Self;
}

macro_rules! passed_as_it_is {
    ($($type:ty),*) => {$(
        // SAFETY: numbers and pointers that nobody follows.
        unsafe impl FromServer for $type {
            type Raw = $type;

            unsafe fn from_server(raw: $type) -> $type {
                raw
            }
        }
    )*};
}
passed_as_it_is!(
    c_int,
    c_longlong,
    u64,
    *mut c_void,
    *const c_char,
    *mut *mut raw::RedisModuleString,
    raw::RedisModuleEvent
);

/// Defines a function that the server calls. A panic in it is logged and the value after `else` returned.
macro_rules! callback {
    ($(#[$meta:meta])* $visibility:vis fn $name:ident($($arg:ident: $type:ty),* $(,)?) -> $result:ty, else $fallback:expr;
     $body:block) => {
        $(#[$meta])*
        $visibility unsafe extern "C" fn $name($($arg: <$type as $crate::ffi::guard::FromServer>::Raw),*) -> $result {
            // A function of its own, so that nothing outlives the call.
            fn body($($arg: $type),*) -> $result $body
            // SAFETY: the server calls this function as it was registered.
            let ($($arg,)*) = unsafe { ($(<$type as $crate::ffi::guard::FromServer>::from_server($arg),)*) };
            $crate::ffi::guard::guarded(stringify!($name), || body($($arg),*), || $fallback)
        }
    };
}
pub(crate) use callback;

/// Runs `body`; after a panic, logs it and runs `fallback`.
pub(crate) fn guarded<R>(name: &'static str, body: impl FnOnce() -> R, fallback: impl FnOnce() -> R) -> R {
    let outcome = catch_unwind(AssertUnwindSafe(|| {
        #[cfg(feature = "drill")]
        drill::panic_if_target(name);
        body()
    }));
    outcome.unwrap_or_else(|_| {
        warn(&format!("a panic in {name} was caught; the server goes on"));
        fallback()
    })
}

/// Makes panics write one log line and nothing else: the default hook prints a backtrace through the C library, whose
/// memory must not be freed by the allocator of a server that loads modules with RTLD_DEEPBIND.
pub(in crate::ffi) fn install_panic_hook() {
    std::panic::set_hook(Box::new(|info| warn(&format!("internal error: {info}"))));
}

/// Writes a warning to the log of the server.
pub(crate) fn warn(line: &str) {
    let line = CString::new(format!("fencelock: {line}").replace('\0', "\\0")).unwrap_or_default();
    // SAFETY: strings that end in NUL; a null context is allowed.
    unsafe { api!(RedisModule_Log)(ptr::null_mut(), c"warning".as_ptr(), c"%s".as_ptr(), line.as_ptr()) }
}
