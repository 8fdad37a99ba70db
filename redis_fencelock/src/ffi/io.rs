//! Values on their way into a snapshot or an append-only file, and out of them.

use std::ffi::{CStr, c_char};
use std::marker::PhantomData;

use redis_module::raw;

use crate::ffi::guard::{FromServer, api};
use crate::ffi::string::Str;

/// The server's stream while it saves or loads a value.
#[derive(Clone, Copy)]
pub(crate) struct Io<'a>(*mut raw::RedisModuleIO, PhantomData<&'a ()>);

// SAFETY: the stream is good during the call.
unsafe impl FromServer for Io<'_> {
    type Raw = *mut raw::RedisModuleIO;

    unsafe fn from_server(raw: Self::Raw) -> Self {
        Io(raw, PhantomData)
    }
}

/// Bytes that the server allocated for us.
pub(crate) struct Loaded {
    start: *mut c_char,
    length: usize,
}

impl Loaded {
    pub(crate) fn bytes(&self) -> &[u8] {
        // SAFETY: the server gave `length` bytes, which are ours until dropped.
        unsafe { std::slice::from_raw_parts(self.start.cast(), self.length) }
    }
}

impl Drop for Loaded {
    fn drop(&mut self) {
        // SAFETY: allocated by the server for us and freed once.
        unsafe { api!(RedisModule_Free)(self.start.cast()) }
    }
}

impl<'a> Io<'a> {
    pub(crate) fn save_bytes(self, bytes: &[u8]) {
        // SAFETY: pointer and length are of one slice, which the server copies.
        unsafe { api!(RedisModule_SaveStringBuffer)(self.0, bytes.as_ptr().cast(), bytes.len()) }
    }

    pub(crate) fn save_number(self, number: u64) {
        // SAFETY: the stream is that of the running call.
        unsafe { api!(RedisModule_SaveUnsigned)(self.0, number) }
    }

    pub(crate) fn load_bytes(self) -> Option<Loaded> {
        let mut length = 0;
        // SAFETY: the stream is that of the running call.
        let start = unsafe { api!(RedisModule_LoadStringBuffer)(self.0, &mut length) };
        if start.is_null() {
            return None;
        }
        let loaded = Loaded { start, length };
        (!self.failed()).then_some(loaded)
    }

    pub(crate) fn load_number(self) -> Option<u64> {
        // SAFETY: the stream is that of the running call.
        let number = unsafe { api!(RedisModule_LoadUnsigned)(self.0) };
        (!self.failed()).then_some(number)
    }

    /// Writes `command key blob` into an append-only file that is being rewritten.
    pub(crate) fn emit_blob(self, command: &CStr, key: Str, blob: &[u8]) {
        let format = c"sb".as_ptr();
        // SAFETY: the format asks for a string and for bytes with their length, which follow.
        unsafe { api!(RedisModule_EmitAOF)(self.0, command.as_ptr(), format, key.0, blob.as_ptr(), blob.len()) }
    }

    /// The name of the key that is loaded; `None` where the server does not know it.
    pub(crate) fn key_name(self) -> Option<Str<'a>> {
        // SAFETY: the stream is that of the running call.
        let name = unsafe { api!(RedisModule_GetKeyNameFromIO)(self.0) };
        // SAFETY: the name is alive during the call.
        (!name.is_null()).then(|| unsafe { Str::from_raw(name.cast_mut()) })
    }

    pub(crate) fn db(self) -> i32 {
        // SAFETY: the stream is that of the running call.
        unsafe { api!(RedisModule_GetDbIdFromIO)(self.0) }
    }

    fn failed(self) -> bool {
        // SAFETY: the stream is that of the running call.
        unsafe { api!(RedisModule_IsIOError)(self.0) != 0 }
    }
}

/// The key that a value is leaving.
pub(crate) struct KeyOrigin<'a>(*mut raw::RedisModuleKeyOptCtx, PhantomData<&'a ()>);

// SAFETY: the context is good during the call.
unsafe impl FromServer for KeyOrigin<'_> {
    type Raw = *mut raw::RedisModuleKeyOptCtx;

    unsafe fn from_server(raw: Self::Raw) -> Self {
        KeyOrigin(raw, PhantomData)
    }
}

impl<'a> KeyOrigin<'a> {
    pub(crate) fn db(&self) -> i32 {
        // SAFETY: the context is that of the running call.
        unsafe { api!(RedisModule_GetDbIdFromOptCtx)(self.0) }
    }

    pub(crate) fn name(&self) -> Option<Str<'a>> {
        // SAFETY: the context is that of the running call, during which the name is alive.
        unsafe {
            let name = api!(RedisModule_GetKeyNameFromOptCtx)(self.0);
            (!name.is_null()).then(|| Str::from_raw(name.cast_mut()))
        }
    }
}

/// A digest of a value, while it is made.
pub(crate) struct Digest(*mut raw::RedisModuleDigest);

// SAFETY: the digest is good during the call.
unsafe impl FromServer for Digest {
    type Raw = *mut raw::RedisModuleDigest;

    unsafe fn from_server(raw: Self::Raw) -> Self {
        Digest(raw)
    }
}

impl Digest {
    /// Adds a sequence of a number and bytes.
    pub(crate) fn add(&self, number: u64, bytes: &[u8]) {
        // SAFETY: the digest is that of the running call; pointer and length are of one slice.
        unsafe {
            api!(RedisModule_DigestAddLongLong)(self.0, number as i64);
            api!(RedisModule_DigestAddStringBuffer)(self.0, bytes.as_ptr().cast(), bytes.len());
            api!(RedisModule_DigestEndSequence)(self.0);
        }
    }
}
