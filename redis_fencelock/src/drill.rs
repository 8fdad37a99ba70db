//! Panics and failures on request, to prove what becomes of them. Only in builds with the feature `drill`.

use std::ffi::c_int;
use std::sync::Mutex;

use redis_module::raw;

use crate::ffi::{Ctx, INTERNAL_ERROR, Name, callback};

/// The callback that is to panic at its next call.
static TARGET: Mutex<Option<String>> = Mutex::new(None);

callback! {
    /// `FENCELOCK._DRILL callback`: the callback of that name panics once, at its next call; `propagate` fails once.
    pub(crate) fn on_drill(
        ctx: *mut raw::RedisModuleCtx,
        argv: *mut *mut raw::RedisModuleString,
        argc: c_int,
    ) -> c_int, else Ctx(ctx).reply_error(INTERNAL_ERROR);
    {
        if argc != 2 {
            return Ctx(ctx).wrong_arity();
        }
        // SAFETY: the server passes `argc` strings, alive until the command returns.
        let target = Name(unsafe { *argv.add(1) }).bytes();
        *TARGET.lock().unwrap() = Some(String::from_utf8_lossy(target).into_owned());
        Ctx(ctx).reply_ok()
    }
}

/// Panics when `name` is the target.
pub(crate) fn maybe_panic(name: &str) {
    assert!(!is_target(name), "drill in {name}");
}

/// Whether this is the target, which it is once.
pub(crate) fn is_target(name: &str) -> bool {
    TARGET.lock().unwrap().take_if(|target| target == name).is_some()
}
