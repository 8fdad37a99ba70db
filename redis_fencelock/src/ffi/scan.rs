//! The walk over the keyspace.

use std::ffi::c_void;
use std::mem::ManuallyDrop;

use redis_module::raw;

use crate::ffi::context::Ctx;
use crate::ffi::guard::{FromServer, api, callback};
use crate::ffi::key::Key;
use crate::ffi::string::Str;

/// Where a walk over the keys of a database is.
pub(crate) struct Cursor(*mut raw::RedisModuleScanCursor);

type Visit<'v> = &'v mut dyn FnMut(Str, &Key);

impl Cursor {
    pub(crate) fn new() -> Cursor {
        // SAFETY: takes no argument; freed when dropped.
        Cursor(unsafe { api!(RedisModule_ScanCursorCreate)() })
    }

    /// Calls `visit` with the next keys of the selected database, open for reading; false at the end.
    pub(crate) fn step(&mut self, ctx: Ctx, mut visit: Visit) -> bool {
        let data: *mut Visit = &mut visit;
        // SAFETY: context and cursor are alive; the callback gets `data` during the call alone.
        unsafe { api!(RedisModule_Scan)(ctx.0, self.0, Some(on_key), data.cast()) != 0 }
    }

    /// Begins with another database.
    pub(crate) fn restart(&mut self) {
        // SAFETY: the cursor is alive.
        unsafe { api!(RedisModule_ScanCursorRestart)(self.0) };
    }
}

impl Drop for Cursor {
    fn drop(&mut self) {
        // SAFETY: created once and destroyed once.
        unsafe { api!(RedisModule_ScanCursorDestroy)(self.0) }
    }
}

/// What `step` has passed to itself.
struct Data(*mut c_void);

// SAFETY: `on_key` is called by `step` alone.
unsafe impl FromServer for Data {
    type Raw = *mut c_void;

    unsafe fn from_server(raw: *mut c_void) -> Data {
        Data(raw)
    }
}

/// A key that the server closes; null where it has not opened it.
struct Lent(ManuallyDrop<Key>);

// SAFETY: the key is open during the call.
unsafe impl FromServer for Lent {
    type Raw = *mut raw::RedisModuleKey;

    unsafe fn from_server(raw: Self::Raw) -> Lent {
        Lent(ManuallyDrop::new(Key(raw)))
    }
}

callback! {
    fn on_key(_ctx: Ctx, name: Str, key: Lent, data: Data) -> (), else ();
    {
        // SAFETY: `step` passes a pointer to its own variable, and nobody else uses it during the scan.
        let visit = unsafe { &mut *data.0.cast::<Visit>() };
        visit(name, &key.0);
    }
}
