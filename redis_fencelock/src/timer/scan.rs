//! A walk over the whole keyspace, in steps, for locks that the index does not know where they are.
//!
//! Only looks. Values get a new name behind the module's back by RENAME, MOVE and their like.
//! Invariant: a key that is there from the first step to the last is seen.

use std::ffi::c_void;

use fence::lock::queue::LockName;
use redis_module::raw;

use crate::ffi::{Ctx, Name, OwnName, api, callback};
use crate::lock::value::{self, Value};
use crate::server::server;

/// Buckets of the hash table looked at in one step: about half a millisecond.
const STEP: usize = 500;

/// Keys with locks that are not where the index thinks.
pub(crate) type Found = Vec<(i32, OwnName)>;

pub(crate) struct Walk {
    db: i32,
    cursor: Cursor,
}

struct Cursor(*mut raw::RedisModuleScanCursor);

struct Step {
    db: i32,
    found: Found,
}

impl Walk {
    pub fn new() -> Walk {
        // SAFETY: takes no argument; freed when dropped.
        Walk { db: 0, cursor: Cursor(unsafe { api!(RedisModule_ScanCursorCreate)() }) }
    }

    /// Looks at the next keys; true when all databases are done.
    pub fn step(&mut self, ctx: Ctx) -> (Found, bool) {
        let mut step = Step { db: self.db, found: Vec::new() };
        for _ in 0..STEP {
            if !ctx.select_db(self.db) {
                return (step.found, true);
            }
            step.db = self.db;
            let data: *mut Step = &mut step;
            // SAFETY: context and cursor are alive; the callback gets `data` during the call alone.
            let more = unsafe { api!(RedisModule_Scan)(ctx.0, self.cursor.0, Some(on_key), data.cast()) };
            if more == 0 {
                self.db += 1;
                // SAFETY: the cursor is alive.
                unsafe { api!(RedisModule_ScanCursorRestart)(self.cursor.0) };
            }
        }
        (step.found, false)
    }
}

impl Drop for Cursor {
    fn drop(&mut self) {
        // SAFETY: created once and destroyed once.
        unsafe { api!(RedisModule_ScanCursorDestroy)(self.0) }
    }
}

callback! {
    fn on_key(
        _ctx: *mut raw::RedisModuleCtx,
        name: *mut raw::RedisModuleString,
        key: *mut raw::RedisModuleKey,
        data: *mut c_void,
    ) -> (), else ();
    {
        // SAFETY: `step` passes a pointer to its own variable, and nobody else uses it during the scan.
        let step = unsafe { &mut *data.cast::<Step>() };
        let Some(value) = lock_in(key) else { return };
        let name = Name(name).bytes();
        if !server().index.borrow().knows(value, LockName { db: step.db, name }) {
            step.found.push((step.db, OwnName::new(name)));
        }
    }
}

fn lock_in(key: *mut raw::RedisModuleKey) -> Option<Value> {
    // SAFETY: the server passes an open key or null; the value is of our type when the type says so.
    unsafe {
        if key.is_null() || api!(RedisModule_ModuleTypeGetType)(key) != value::lock_type() {
            return None;
        }
        Value::from_raw(api!(RedisModule_ModuleTypeGetValue)(key))
    }
}
