//! What INFO says, of the server and of the module.

use std::ffi::{CStr, c_int};
use std::ptr;

use redis_module::raw;

use crate::ffi::context::Ctx;
use crate::ffi::guard::{FromServer, api};

/// Whether the server is Valkey. It reports `redis_version` for clients of Redis, and its own version beside it.
pub(crate) fn is_valkey() -> bool {
    ServerInfo::of(c"server").has(c"valkey_version")
}

/// A section of what INFO says, freed when dropped.
pub(crate) struct ServerInfo(*mut raw::RedisModuleServerInfoData);

impl ServerInfo {
    pub(crate) fn of(section: &CStr) -> ServerInfo {
        // SAFETY: the section ends in NUL; without a context the data is ours to free.
        ServerInfo(unsafe { api!(RedisModule_GetServerInfo)(ptr::null_mut(), section.as_ptr()) })
    }

    /// Whether there is such a field.
    pub(crate) fn has(&self, field: &CStr) -> bool {
        // SAFETY: the data is alive and the field ends in NUL; the text belongs to the data.
        !unsafe { api!(RedisModule_ServerInfoGetFieldC)(self.0, field.as_ptr()) }.is_null()
    }

    /// A field that is a number.
    pub(crate) fn number(&self, field: &CStr) -> Option<u64> {
        let mut error = 0;
        // SAFETY: the data is alive and the field ends in NUL.
        let number = unsafe { api!(RedisModule_ServerInfoGetFieldUnsigned)(self.0, field.as_ptr(), &mut error) };
        (error == 0).then_some(number)
    }

    /// A field that is a text.
    pub(crate) fn text(&self, field: &CStr) -> Option<String> {
        // SAFETY: the data is alive and the field ends in NUL; the text ends in NUL and lives as long as the data.
        unsafe {
            let text = api!(RedisModule_ServerInfoGetFieldC)(self.0, field.as_ptr());
            (!text.is_null()).then(|| CStr::from_ptr(text).to_string_lossy().into_owned())
        }
    }
}

impl Drop for ServerInfo {
    fn drop(&mut self) {
        // SAFETY: made by `of` without a context and freed once.
        unsafe { api!(RedisModule_FreeServerInfo)(ptr::null_mut(), self.0) }
    }
}

/// The section of the module in INFO, while it is written.
pub(crate) struct InfoSection(*mut raw::RedisModuleInfoCtx);

// SAFETY: the context is good during the call.
unsafe impl FromServer for InfoSection {
    type Raw = *mut raw::RedisModuleInfoCtx;

    unsafe fn from_server(raw: Self::Raw) -> Self {
        InfoSection(raw)
    }
}

impl InfoSection {
    /// Begins the section, which is named like the module.
    pub(crate) fn begin(&self) {
        // SAFETY: the context is that of the running call; the name ends in NUL.
        unsafe { api!(RedisModule_InfoAddSection)(self.0, c"".as_ptr()) };
    }

    pub(crate) fn add_text(&self, name: &CStr, text: &CStr) {
        // SAFETY: the context is that of the running call; name and text end in NUL.
        unsafe { api!(RedisModule_InfoAddFieldCString)(self.0, name.as_ptr(), text.as_ptr()) };
    }

    pub(crate) fn add_number(&self, name: &CStr, number: u64) {
        // SAFETY: the context is that of the running call; the name ends in NUL.
        unsafe { api!(RedisModule_InfoAddFieldULongLong)(self.0, name.as_ptr(), number) };
    }
}

impl Ctx<'_> {
    /// Has a function write the section of the module; false when the server refuses it.
    pub(crate) fn register_info(self, write: unsafe extern "C" fn(*mut raw::RedisModuleInfoCtx, c_int)) -> bool {
        // SAFETY: the callback is a function of this module, which cannot be unloaded.
        unsafe { api!(RedisModule_RegisterInfoFunc)(self.0, Some(write)) == raw::REDISMODULE_OK as c_int }
    }
}
