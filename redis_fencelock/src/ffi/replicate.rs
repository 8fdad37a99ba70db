//! Commands that are propagated to the replicas and the append-only file.

use std::ffi::{CStr, c_int, c_longlong};

use redis_module::raw;

use crate::ffi::context::Ctx;
#[cfg(feature = "drill")]
use crate::ffi::drill;
use crate::ffi::guard::{api, warn};
use crate::ffi::string::Str;

impl Ctx<'_> {
    /// Sends `command name blob` to the replicas and the append-only file.
    pub(crate) fn replicate_blob(self, command: &CStr, name: Str, blob: &[u8]) -> Result<(), NotPropagated> {
        let format = c"sb".as_ptr();
        // SAFETY: the format asks for a string and for bytes with their length, which follow.
        propagated(command, || unsafe {
            api!(RedisModule_Replicate)(self.0, command.as_ptr(), format, name.0, blob.as_ptr(), blob.len())
        })
    }

    /// Sends `command name number text` to the replicas and the append-only file.
    pub(crate) fn replicate_end(self, command: &CStr, name: Str, number: u64, text: &str) -> Result<(), NotPropagated> {
        let format = c"slb".as_ptr();
        let number = number as c_longlong;
        // SAFETY: the format asks for a string, a long long, and bytes with their length, which follow.
        propagated(command, || unsafe {
            api!(RedisModule_Replicate)(self.0, command.as_ptr(), format, name.0, number, text.as_ptr(), text.len())
        })
    }

    /// Sends `command number` to the replicas and the append-only file.
    pub(crate) fn replicate_number(self, command: &CStr, number: u64) -> Result<(), NotPropagated> {
        // SAFETY: the format asks for one long long, which follows.
        propagated(command, || unsafe {
            api!(RedisModule_Replicate)(self.0, command.as_ptr(), c"l".as_ptr(), number as c_longlong)
        })
    }

    /// Sends `command number` to the append-only file alone.
    pub(crate) fn replicate_to_file(self, command: &CStr, number: u64) -> Result<(), NotPropagated> {
        // SAFETY: the format asks for one long long, which follows.
        propagated(command, || unsafe {
            api!(RedisModule_Replicate)(self.0, command.as_ptr(), c"Rl".as_ptr(), number as c_longlong)
        })
    }

    /// Sends `command numbers...` to the replicas alone.
    pub(crate) fn replicate_to_replicas(self, command: &CStr, numbers: [u64; 4]) -> Result<(), NotPropagated> {
        let format = c"Allll".as_ptr();
        let [one, two, three, four] = numbers.map(|number| number as c_longlong);
        // SAFETY: the format asks for four long longs, which follow.
        propagated(command, || unsafe {
            api!(RedisModule_Replicate)(self.0, command.as_ptr(), format, one, two, three, four)
        })
    }

    /// Sends `command name strings...` to the replicas and the append-only file.
    pub(crate) fn replicate_strings(self, command: &CStr, name: Str, strings: &[Str]) -> Result<(), NotPropagated> {
        let format = c"sv".as_ptr();
        // SAFETY: the format asks for a string and for an array of strings with its length, which follow.
        propagated(command, || unsafe {
            api!(RedisModule_Replicate)(self.0, command.as_ptr(), format, name.0, strings.as_ptr(), strings.len())
        })
    }

    /// Sends the running command on as it came, and counts one change for the next snapshot.
    pub(crate) fn replicate_verbatim(self) {
        // SAFETY: the context is that of a running command.
        unsafe { api!(RedisModule_ReplicateVerbatim)(self.0) };
    }
}

/// The server has refused to propagate a write, which then must not be made.
#[derive(Debug)]
pub(crate) struct NotPropagated;

fn propagated(command: &CStr, propagate: impl FnOnce() -> c_int) -> Result<(), NotPropagated> {
    #[cfg(feature = "drill")]
    let propagate = || if drill::take_target("propagate") { raw::REDISMODULE_ERR as c_int } else { propagate() };
    if propagate() == raw::REDISMODULE_OK as c_int {
        return Ok(());
    }
    warn(&format!("{} cannot be propagated, so the write is refused; is it renamed?", command.to_string_lossy()));
    Err(NotPropagated)
}
