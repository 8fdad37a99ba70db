//! What the holder of a lock does with it: extends its lease, or releases it.
//!
//! Both wait for another transaction that is changing the same lock, as an UPDATE waits for a row. Invariant: who is not the
//! holder changes nothing, and keeps no lock on the name.

use crate::errors::Refused;
use crate::lease::acquire::refuse_here;
use crate::lease::arguments::Held;
use crate::lease::names::{Names, give_back};
use crate::lease::row::Row;
use crate::lease::store::Store;
use crate::lease::wake;
use crate::server::boot::{self, Moment};
use crate::server::call::{Call, Reply};
use crate::server::heap::Version;
use crate::server::locks::{LockMode, RelationLock};
use crate::server::text::Bytes;
use crate::stats::Subject;
use crate::stats::memory::Counter;
use fence::lock::lease::{self, Caller, Extended, Hold, Lease, Lost};

/// `fencelock_extend(lock text, owner text, ttl_ms bigint[, fence bigint])`: the milliseconds now left; 0 where the lease is
/// not the caller's.
pub(crate) fn fencelock_extend(call: &Call) -> Result<Reply, Refused> {
    refuse_here("fencelock_extend()", c"fencelock_extend()")?;
    let (held, extension) = Held::read_extending(call)?;
    let lock = OpenLock::of(held.lock)?;
    let now_us = lock.moment.now.steady_us;
    let hold = lock.found.as_ref().and_then(|version| version.row.hold());
    let Ok(extended) = lease::extend(hold, held.caller(), extension, now_us) else {
        lock.leave();
        return Ok(Reply::from(0_i64));
    };
    let left = match extended {
        Extended::Moved(lease) => {
            lock.write(Some(held.owner), &lease);
            if hold.is_some_and(|hold| lease.deadline_us < hold.lease.deadline_us) {
                wake::head_of(&lock.names);
            }
            lease.left(now_us)
        }
        Extended::Kept(lease) => {
            lock.leave();
            lease.left(now_us)
        }
    };
    Ok(Reply::from(left.0 as i64))
}

/// `fencelock_release(lock text, owner text[, fence bigint])`: whether the lock was the caller's. It is free at COMMIT.
pub(crate) fn fencelock_release(call: &Call) -> Result<Reply, Refused> {
    refuse_here("fencelock_release()", c"fencelock_release()")?;
    let held = Held::read_releasing(call)?;
    let lock = OpenLock::of(held.lock)?;
    let hold = lock.found.as_ref().and_then(|version| version.row.hold());
    match lease::release(hold, held.caller(), lock.moment.now.steady_us) {
        Ok(lease) => {
            lock.free(lease);
            Ok(Reply::from(true))
        }
        Err(lost) => {
            if is_late(lost, hold, held.caller()) {
                Subject::Lock(held.lock.bytes()).count(Counter::LateReleases);
            }
            lock.leave();
            Ok(Reply::from(false))
        }
    }
}

/// Whether the caller has held the lock, as far as what is stored shows it: its lease has expired, or its fence is older.
fn is_late(lost: Lost, hold: Option<Hold>, caller: Caller) -> bool {
    let is_older = |hold: Hold| caller.fence.is_some_and(|fence| fence < hold.lease.fence);
    matches!(lost, Lost::Expired(_)) || (lost == Lost::Another && hold.is_some_and(is_older))
}

/// A lock that nobody else can change as long as the transaction runs.
pub(crate) struct OpenLock<'c> {
    name: Bytes<'c>,
    names: Names,
    store: Store,
    pub(crate) moment: Moment,
    pub(crate) found: Option<Version<Row>>,
}

impl<'c> OpenLock<'c> {
    /// Waits for a transaction that is changing it.
    pub(crate) fn of(name: Bytes<'c>) -> Result<OpenLock<'c>, Refused> {
        let names = Names::of(name.bytes());
        names.row.take(LockMode::Alone);
        let store = Store::open(RelationLock::Writes)?;
        let moment = boot::moment();
        let found = store.find(name, &moment);
        Ok(OpenLock { name, names, store, moment, found })
    }

    /// Leaves it as it is.
    pub(crate) fn leave(self) {
        give_back(&self.names.row);
    }

    /// Frees it at COMMIT. The fence of the lease that ends stays.
    pub(crate) fn free(&self, lease: Lease) {
        let ended = Lease { delay_us: 0, ..lease.expire(self.moment.now.steady_us) };
        self.write(None, &ended);
        wake::head_of(&self.names);
    }

    /// Removes all that is stored of it.
    pub(crate) fn remove(&self) {
        if let Some(found) = &self.found {
            self.store.delete(found);
            wake::head_of(&self.names);
        }
    }

    fn write(&self, owner: Option<Bytes>, lease: &Lease) {
        self.store.write(self.found.as_ref(), self.name, owner, lease, &self.moment);
    }
}
