//! The command that makes a callback panic. Only in builds with the feature `drill`.

use std::ffi::c_int;

use redis_module::raw;

use crate::ffi::{Ctx, INTERNAL_ERROR, Str, callback, drill};

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
        drill::set_target(unsafe { Str::from_raw(*argv.add(1)) }.bytes());
        Ctx(ctx).reply_ok()
    }
}
