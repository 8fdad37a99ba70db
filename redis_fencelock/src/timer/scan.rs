//! A walk over the whole keyspace, in steps, for locks that the index does not know where they are.
//!
//! Only looks. Values get a new name behind the module's back by RENAME, MOVE and their like.
//! Invariant: a key that is there from the first step to the last is seen.

use std::cell::{Cell, RefCell};
use std::ffi::c_void;

use fence::lock::queue::LockName;
use redis_module::raw;

use crate::clock;
use crate::ffi::main_thread::MainThread;
use crate::ffi::{Ctx, OwnedStr, Str, api, callback};
use crate::lock::index::index;
use crate::lock::slot::Slot;
use crate::lock::value::{self, Value};
use crate::replication::Cause;
use crate::timer::alarm;

/// How long a walk over the keyspace rests between slices: it is in no hurry.
const WALK_REST_MS: u64 = 10;
/// Cells that a sweep checks between two readings of the clock.
const SWEEP_BATCH: usize = 500;
/// How long a sweep that has found nothing rests before it begins again: keys are freed on another thread.
const SWEEP_REST_MS: u64 = 100;

static SCANS: MainThread<Scans> = MainThread::new(Scans {
    walk: RefCell::new(None),
    walk_due_us: Cell::new(0),
    sweep: Cell::new(Sweep { from: 0, due_us: 0, forgotten: 0 }),
});

struct Scans {
    walk: RefCell<Option<Walk>>,
    /// When the walk goes on.
    walk_due_us: Cell<u64>,
    sweep: Cell<Sweep>,
}

/// A pass over the index for values that no key holds any more.
#[derive(Clone, Copy)]
struct Sweep {
    from: usize,
    due_us: u64,
    forgotten: usize,
}

/// Gives back the places of values that were freed on another thread.
pub(crate) fn discard_orphans() {
    alarm::for_a_slice(|budget| {
        if index().borrow_mut().discard_orphans(alarm::BATCH) {
            *budget = 0;
        }
        false
    });
    if index().borrow().has_orphans() {
        alarm::arm_in(1);
    }
}

/// Forgets values that no key holds any more: those of flushed databases, and those that another thread has freed.
pub(crate) fn sweep() {
    if !index().borrow().has_remains() {
        return;
    }
    let Sweep { mut from, due_us, mut forgotten } = SCANS.sweep.get();
    let now_us = clock::steady_us();
    if now_us < due_us {
        return alarm::arm(due_us);
    }
    let mut is_over = false;
    alarm::for_a_slice(|budget| {
        if is_over || *budget == 0 {
            return false;
        }
        let (next, found) = index().borrow_mut().sweep(from, SWEEP_BATCH);
        forgotten += found;
        is_over = next.is_none();
        from = next.unwrap_or(0);
        *budget = if is_over { *budget } else { 0 };
        !is_over
    });
    // The other thread may not have come far: a pass that has found nothing is not repeated at once.
    let rest_us = if is_over && forgotten == 0 { SWEEP_REST_MS * 1_000 } else { 0 };
    SCANS.sweep.set(Sweep { from, due_us: now_us + rest_us, forgotten: if is_over { 0 } else { forgotten } });
    if index().borrow().has_remains() {
        alarm::arm(now_us + rest_us);
    }
}

/// Finds values that were renamed or moved, and files them under their new name.
pub(crate) fn walk(ctx: Ctx) {
    let mut running = SCANS.walk.borrow_mut();
    if running.is_none() && std::mem::take(&mut index().borrow_mut().has_strays) {
        *running = Some(Walk::new());
    }
    let Some(walk) = running.as_mut() else { return };
    let now_us = clock::steady_us();
    if now_us < SCANS.walk_due_us.get() {
        return alarm::arm(SCANS.walk_due_us.get());
    }
    SCANS.walk_due_us.set(now_us + WALK_REST_MS * 1_000);
    let (found, done) = walk.step(ctx);
    for (db, name) in &found {
        if ctx.select_db(*db)
            && let Ok(mut slot) = Slot::open(ctx, name.as_str(), Cause::Other)
        {
            slot.refile_if_moved();
        }
    }
    if done {
        *running = None;
    }
    if !done || index().borrow().has_strays {
        alarm::arm(SCANS.walk_due_us.get());
    }
}

/// Buckets of the hash table looked at in one step: about half a millisecond.
const STEP: usize = 500;

/// Keys with locks that are not where the index thinks.
type Found = Vec<(i32, OwnedStr)>;

struct Walk {
    db: i32,
    cursor: Cursor,
}

struct Cursor(*mut raw::RedisModuleScanCursor);

struct Step {
    db: i32,
    found: Found,
}

impl Walk {
    fn new() -> Walk {
        // SAFETY: takes no argument; freed when dropped.
        Walk { db: 0, cursor: Cursor(unsafe { api!(RedisModule_ScanCursorCreate)() }) }
    }

    /// Looks at the next keys; true when all databases are done.
    fn step(&mut self, ctx: Ctx) -> (Found, bool) {
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
        // SAFETY: the server passes the name of the key, alive during the call.
        let name = unsafe { Str::from_raw(name) }.bytes();
        if !index().borrow().knows(value, LockName { db: step.db, name }) {
            step.found.push((step.db, OwnedStr::new(name)));
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
