//! Locks that arrive as records: from the primary, from a file, or from a dump that somebody restores.
//!
//! The commands of the stream and the callbacks of the type call this one way in.
//! Invariant: no dump brings the last issued fence far ahead of the clock.

use std::cell::RefCell;
use std::collections::VecDeque;

use fence::Brought;
use fence::lock::codec::{self, Record, Route};
use fence::lock::lease::Hold;
use fence::lock::queue::LockName;

use std::cell::Cell;

use crate::ffi::main_thread::MainThread;
use crate::ffi::{Ctx, OwnedStr};
use crate::lock::index::index;
use crate::lock::value::Value;
use crate::queue::awaiters;
use crate::timer::alarm;
use crate::{clock, cluster, server};

static ARRIVALS: MainThread<Arrivals> =
    MainThread::new(Arrivals { from_primary: Cell::new(false), restored: RefCell::new(VecDeque::new()) });

struct Arrivals {
    /// What is loaded comes from the primary, just now.
    from_primary: Cell<bool>,
    /// Locks that were restored here, whose own record is to be propagated.
    restored: RefCell<VecDeque<Restored>>,
}

/// A lock that was restored: its database and name.
pub(crate) struct Restored {
    pub(crate) db: i32,
    pub(crate) name: Box<[u8]>,
}

/// Notes where what is loaded from now on comes from: a snapshot from the primary was made just now, whatever the two
/// wall clocks say; a file may be old.
pub(crate) fn set_from_primary(from_primary: bool) {
    ARRIVALS.from_primary.set(from_primary);
}

/// Makes the value of a record that the keyspace is about to store under `lock`, and indexes it.
pub(crate) fn take_in(record: &[u8], lock: LockName) -> Result<Value, String> {
    let record = codec::decode(record).map_err(|corrupt| format!("{corrupt:?}"))?;
    if server::is_loading() {
        let route = if ARRIVALS.from_primary.get() { Route::Stream } else { Route::File };
        return Ok(apply(&record, route, lock));
    }
    if !server::is_primary() {
        // Whoever comes from the link was judged by its primary, whose own record follows. Anybody else is a client of
        // a replica that lets clients write, and must not raise the fences of a primary to be.
        return Ok(store(&record, Route::Travel, lock));
    }
    let fence = record.fence();
    // One dump must not raise a server that counts without the clock to the height of the clock.
    let wall_us = server::now(clock::clocks()).wall_us;
    let is_near = server::accepts(fence, Brought::ByRestore, wall_us);
    if !is_near && !is_imported(lock) {
        return Err(format!("fence {fence} is more than {} ahead of the clock", Brought::ByRestore.ahead_in_words()));
    }
    // A slot leaves no lock behind. One whose fence is too far ahead stays locked out and raises nothing.
    if is_near || server::accepts(fence, Brought::ByMove, wall_us) {
        server::observe(fence.get());
    }
    put_back(Restored { db: lock.db, name: lock.name.into() });
    alarm::arm_now();
    // Not every server says that a value leaves its key before it is replaced.
    awaiters::recheck(lock);
    Ok(store(&record, Route::Travel, lock))
}

/// Whether the slot of a key that is restored is served elsewhere: so it comes from the server that serves it, or from
/// a client that says ASKING as that one does.
fn is_imported(lock: LockName) -> bool {
    let ctx = Ctx::detached();
    server::in_cluster() && ctx.select_db(lock.db) && cluster::is_elsewhere(ctx, OwnedStr::new(lock.name).as_str())
}

/// Makes the value of a record that came by `route`, and indexes it.
pub(crate) fn apply(record: &Record, route: Route, lock: LockName) -> Value {
    if !record.notes.unjudged {
        server::observe(record.fence().get());
    }
    store(record, route, lock)
}

fn store(record: &Record, route: Route, lock: LockName) -> Value {
    let lease = clock::lease_of(record, route, server::is_primary());
    let value = add(&Hold { lease, owner: record.owner }, lock);
    if record.has_ended() {
        value.mark_over();
    }
    value
}

/// Makes a value for the keyspace and indexes it.
pub(crate) fn add(hold: &Hold, lock: LockName) -> Value {
    // By its deadline even when that has passed: then it is checked at once.
    let value = index().borrow_mut().add(hold, lock.db, lock.name);
    if server::is_primary() {
        alarm::arm(hold.lease.deadline_us);
    }
    value
}

/// The next restored lock whose own record is to be propagated: what was restored was written elsewhere, by another
/// wall clock, and replicas and files get no other.
pub(crate) fn pop_restored() -> Option<Restored> {
    ARRIVALS.restored.borrow_mut().pop_front()
}

/// Has a restored lock propagated later.
pub(crate) fn put_back(restored: Restored) {
    ARRIVALS.restored.borrow_mut().push_back(restored);
}

pub(crate) fn has_restored() -> bool {
    restored() > 0
}

/// How many of them there are.
pub(crate) fn restored() -> usize {
    ARRIVALS.restored.borrow().len()
}
