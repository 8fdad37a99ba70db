//! Strings of the server.

use std::marker::PhantomData;
use std::ptr;

use redis_module::raw;

use crate::ffi::guard::{FromServer, api};

/// A string of the server, such as the name of a key, that somebody else keeps alive for `'a`.
#[derive(Clone, Copy)]
#[repr(transparent)]
pub(crate) struct Str<'a>(pub(in crate::ffi) *mut raw::RedisModuleString, PhantomData<&'a [u8]>);

impl<'a> Str<'a> {
    /// # Safety
    /// The string is alive for `'a`.
    pub(in crate::ffi) unsafe fn from_raw(string: *mut raw::RedisModuleString) -> Str<'a> {
        Str(string, PhantomData)
    }

    #[inline(always)]
    pub(crate) fn bytes(self) -> &'a [u8] {
        let mut length = 0;
        // SAFETY: the string is alive, and the server returns a pointer to `length` bytes of it.
        unsafe {
            let start = api!(RedisModule_StringPtrLen)(self.0, &mut length);
            if start.is_null() { &[] } else { std::slice::from_raw_parts(start.cast(), length) }
        }
    }
}

// SAFETY: strings that are passed are alive during the call.
unsafe impl FromServer for Str<'_> {
    type Raw = *mut raw::RedisModuleString;

    unsafe fn from_server(raw: Self::Raw) -> Self {
        Str(raw, PhantomData)
    }
}

/// The strings of a command.
///
/// # Safety
/// `argv` has `argc` strings, alive for `'a`.
pub(crate) unsafe fn strings<'a>(argv: *mut *mut raw::RedisModuleString, argc: i32) -> &'a [Str<'a>] {
    // SAFETY: as promised; a `Str` is such a pointer. A load without arguments has no list.
    if argc <= 0 { &[] } else { unsafe { std::slice::from_raw_parts(argv.cast(), argc as usize) } }
}

/// A string made by us, freed when dropped.
pub(crate) struct OwnedStr(pub(in crate::ffi) *mut raw::RedisModuleString);

impl OwnedStr {
    pub(crate) fn new(bytes: &[u8]) -> OwnedStr {
        // SAFETY: the bytes are copied; without a context the string is ours to free.
        OwnedStr(unsafe { api!(RedisModule_CreateString)(ptr::null_mut(), bytes.as_ptr().cast(), bytes.len()) })
    }

    pub(crate) fn as_str(&self) -> Str<'_> {
        Str(self.0, PhantomData)
    }
}

impl Drop for OwnedStr {
    fn drop(&mut self) {
        // SAFETY: made without a context and freed once.
        unsafe { api!(RedisModule_FreeString)(ptr::null_mut(), self.0) }
    }
}
