//! Replies to the client of the running command.

use std::ffi::{CString, c_int};

use crate::ffi::context::Ctx;
use crate::ffi::guard::api;

impl Ctx<'_> {
    pub(crate) fn reply_integer(self, number: i64) -> c_int {
        // SAFETY: the context is that of a running command.
        unsafe { api!(RedisModule_ReplyWithLongLong)(self.0, number) }
    }

    pub(crate) fn reply_null(self) -> c_int {
        // SAFETY: the context is that of a running command.
        unsafe { api!(RedisModule_ReplyWithNull)(self.0) }
    }

    pub(crate) fn reply_ok(self) -> c_int {
        // SAFETY: the context is that of a running command.
        unsafe { api!(RedisModule_ReplyWithSimpleString)(self.0, c"OK".as_ptr()) }
    }

    pub(crate) fn reply_bytes(self, bytes: &[u8]) -> c_int {
        // SAFETY: pointer and length are of one slice, which the server copies.
        unsafe { api!(RedisModule_ReplyWithStringBuffer)(self.0, bytes.as_ptr().cast(), bytes.len()) }
    }

    /// Starts a map of `pairs` keys and values: flat in RESP2.
    pub(crate) fn reply_map(self, pairs: usize) -> c_int {
        // SAFETY: the context is that of a running command.
        unsafe { api!(RedisModule_ReplyWithMap)(self.0, pairs as i64) }
    }

    /// Starts an array.
    pub(crate) fn reply_array(self, length: usize) -> c_int {
        // SAFETY: the context is that of a running command.
        unsafe { api!(RedisModule_ReplyWithArray)(self.0, length as i64) }
    }

    /// An error reply. `line` begins with its code word.
    pub(crate) fn reply_error(self, line: &str) -> c_int {
        let line = CString::new(line.replace('\0', "\\0")).unwrap_or_default();
        // SAFETY: the line ends in NUL and is copied.
        unsafe { api!(RedisModule_ReplyWithError)(self.0, line.as_ptr()) }
    }

    /// The error reply after a panic.
    pub(crate) fn reply_internal_error(self) -> c_int {
        self.reply_error("ERR internal error, see the log of the server")
    }

    pub(crate) fn wrong_arity(self) -> c_int {
        // SAFETY: the context is that of a running command.
        unsafe { api!(RedisModule_WrongArity)(self.0) }
    }
}
