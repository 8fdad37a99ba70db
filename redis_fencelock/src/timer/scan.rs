//! Finds what the index does not know: locks under another name, by a walk over the keyspace in steps, and values that
//! no key holds, by a sweep over the index.
//!
//! It changes no key. RENAME, MOVE and other commands give a value a new name without a call of the module. Invariant:
//! a key that is there from the first step to the last is seen.

use std::cell::{Cell, RefCell};
use std::ops::ControlFlow::{Break, Continue};

use fence::lock::queue::LockName;

use crate::clock;
use crate::ffi::main_thread::MainThread;
use crate::ffi::{Ctx, Cursor, OwnedStr};
use crate::lock::index::index;
use crate::lock::slot::Slot;
use crate::lock::value::{Stored, Value};
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

/// Frees the cells of values that were freed on another thread.
pub(crate) fn discard_orphans() {
    alarm::for_a_slice(|budget| {
        if index().borrow_mut().discard_orphans(alarm::BATCH) {
            *budget = 0;
        }
        Break(())
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
            return Break(());
        }
        let (next, found) = index().borrow_mut().sweep(from, SWEEP_BATCH);
        forgotten += found;
        is_over = next.is_none();
        from = next.unwrap_or(0);
        *budget = if is_over { *budget } else { 0 };
        if is_over { Break(()) } else { Continue(()) }
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

/// Buckets of the hash table checked in one step: about half a millisecond.
const STEP: usize = 500;

/// Keys with locks that are not where the index thinks.
type Found = Vec<(i32, OwnedStr)>;

struct Walk {
    db: i32,
    cursor: Cursor,
}

impl Walk {
    fn new() -> Walk {
        Walk { db: 0, cursor: Cursor::new() }
    }

    /// Checks the next keys; true when all databases are done.
    fn step(&mut self, ctx: Ctx) -> (Found, bool) {
        let mut found = Vec::new();
        for _ in 0..STEP {
            let db = self.db;
            if !ctx.select_db(db) {
                return (found, true);
            }
            let more = self.cursor.step(ctx, &mut |name, key| {
                if let Stored::Lock(value) = Value::in_key(key)
                    && !index().borrow().knows(&value, LockName { db, name: name.bytes() })
                {
                    found.push((db, OwnedStr::new(name.bytes())));
                }
            });
            if !more {
                self.db += 1;
                self.cursor.restart();
            }
        }
        (found, false)
    }
}
