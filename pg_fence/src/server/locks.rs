//! Locks in the server's own lock table: on relations, and on names.
//!
//! Not row locks: this queue is first in, first out, and takes no room in a table.

use crate::server::raw;
use crate::server::session;
use crate::server::sleep::Sleeper;
use crate::server::subtransaction;
use crate::server::text;
use pgrx::pg_sys::{self, Oid};
use std::ffi::c_int;

/// How a relation is locked, to the end of the transaction.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum RelationLock {
    /// Not here.
    None,
    /// As a SELECT does.
    Reads,
    /// As an UPDATE does.
    Writes,
    /// As CREATE TRIGGER does.
    Triggers,
}

impl RelationLock {
    /// As the server numbers it.
    pub(crate) fn mode(self) -> pg_sys::LOCKMODE {
        (match self {
            RelationLock::None => pg_sys::NoLock,
            RelationLock::Reads => pg_sys::AccessShareLock,
            RelationLock::Writes => pg_sys::RowExclusiveLock,
            RelationLock::Triggers => pg_sys::ShareRowExclusiveLock,
        }) as pg_sys::LOCKMODE
    }
}

/// Locks whatever relation has this oid. Brings in the news of all changes.
pub(crate) fn lock_relation(relation: Oid, lock: RelationLock) {
    // SAFETY: taking a lock, or raising the server's error where the wait ends without it.
    unsafe { pg_sys::LockRelationOid(relation, lock.mode()) };
}

/// Gives back such a lock on a relation, which nothing was done under.
pub(crate) fn unlock_relation(relation: Oid, lock: RelationLock) {
    // SAFETY: the caller has taken it once, and for the owner of resources that is current now.
    unsafe { pg_sys::UnlockRelationOid(relation, lock.mode()) };
}

/// Whether this transaction holds such a lock on a relation, or a stronger one.
pub(crate) fn is_locked(relation: Oid, lock: RelationLock) -> bool {
    // The server's own function for this is not in every minor version.
    let tag = pg_sys::LOCKTAG {
        locktag_field1: session::database(),
        locktag_field2: relation.to_u32(),
        locktag_type: pg_sys::LockTagType::LOCKTAG_RELATION as u8,
        locktag_lockmethodid: pg_sys::DEFAULT_LOCKMETHOD as u8,
        ..Default::default()
    };
    (lock.mode()..=pg_sys::AccessExclusiveLock as pg_sys::LOCKMODE).any(|mode| is_held(&tag, mode))
}

/// Whether this transaction holds a lock in exactly this mode.
fn is_held(tag: &pg_sys::LOCKTAG, mode: pg_sys::LOCKMODE) -> bool {
    // SAFETY: it reads the locks of the backend.
    #[cfg(any(feature = "pg15", feature = "pg16"))]
    return unsafe { pg_sys::LockHeldByMe(tag, mode) };
    // SAFETY: as above.
    #[cfg(not(any(feature = "pg15", feature = "pg16")))]
    return unsafe { pg_sys::LockHeldByMe(tag, mode, false) };
}

/// A lock on a name, in the server's lock table under a kind of its own: no advisory lock of a user is the same. It
/// is held to the end of the transaction, or to ROLLBACK TO a savepoint before it; PREPARE TRANSACTION keeps it.
pub(crate) struct NamedLock(pg_sys::LOCKTAG);

/// How a [`NamedLock`] is held.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum LockMode {
    /// As one that shares it, but not yet known to be one: to look whether it may.
    Asking,
    /// Together with others that share it or ask.
    Shared,
    /// By one transaction alone.
    Alone,
}

/// What a lock on a name is for. One name has one of each.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u16)]
pub(crate) enum Purpose {
    /// The guard of this name.
    Guard = 0,
    /// The row of this lock's lease.
    Lease = 1,
    /// The queue of those who wait for this lock.
    Queue = 2,
    /// The last fence that was issued.
    Fences = 3,
}

const OF_THE_SESSION: bool = false;

impl NamedLock {
    /// The lock of this name in this database. Two names share one by chance of 1 to 2^64, and then only wait longer.
    pub(crate) fn of(purpose: Purpose, name: &[u8]) -> NamedLock {
        NamedLock::of_hash(purpose, text::hash(name))
    }

    /// The lock of the name with this hash.
    pub(crate) fn of_hash(purpose: Purpose, hash: u64) -> NamedLock {
        NamedLock(pg_sys::LOCKTAG {
            locktag_field1: session::database(),
            locktag_field2: (hash >> 32) as u32,
            locktag_field3: hash as u32,
            locktag_field4: purpose as u16,
            locktag_type: pg_sys::LockTagType::LOCKTAG_USERLOCK as u8,
            locktag_lockmethodid: pg_sys::DEFAULT_LOCKMETHOD as u8,
        })
    }

    /// Takes the lock; waits behind all earlier requests that conflict.
    pub(crate) fn take(&self, mode: LockMode) {
        self.acquire(mode, false);
    }

    /// Takes the lock if nobody has it in a way that conflicts. Answers whether.
    pub(crate) fn try_take(&self, mode: LockMode) -> bool {
        self.acquire(mode, true)
    }

    /// The same; where it has to wait, `wait` is asked first, and what it gives lives as long as the wait.
    pub(crate) fn take_or_wait<W>(&self, mode: LockMode, wait: impl FnOnce() -> W) {
        if !self.try_take(mode) {
            let _wait = wait();
            self.take(mode);
        }
    }

    /// Takes the lock alone, and waits for it for so many milliseconds at most. Answers whether.
    pub(crate) fn take_within(&self, ms: i32) -> bool {
        subtransaction::or_lock_timeout(ms, || self.take(LockMode::Alone))
    }

    /// Releases what one `take` took.
    pub(crate) fn release(&self, mode: LockMode) {
        // SAFETY: the tag is complete; the caller holds the lock in this mode.
        of_the_transaction(|| unsafe { raw::LockRelease(&self.0, mode.number(), OF_THE_SESSION) });
    }

    /// Whether this transaction has it alone.
    pub(crate) fn is_mine(&self) -> bool {
        is_held(&self.0, LockMode::Alone.number())
    }

    /// How many have it or wait for it.
    pub(crate) fn requests(&self) -> usize {
        // SAFETY: it reads the lock table.
        usize::try_from(unsafe { raw::LockWaiterCount(&self.0) }).unwrap_or(0)
    }

    /// The others who have it.
    pub(crate) fn holders(&self) -> Vec<Sleeper> {
        let mut count = 0;
        // SAFETY: the server gives an array of so many entries.
        unsafe {
            let found = pg_sys::GetLockConflicts(&self.0, LockMode::Alone.number(), &mut count);
            let count = usize::try_from(count).unwrap_or(0);
            (0..count).filter_map(|n| Sleeper::of(&*found.add(n))).collect()
        }
    }

    /// The hash of the name, if a tag is that of a lock for this in this database.
    pub(crate) fn hash_of(tag: &pg_sys::LOCKTAG, purpose: Purpose, database: u32) -> Option<u64> {
        let is_one = tag.locktag_type == pg_sys::LockTagType::LOCKTAG_USERLOCK as u8
            && tag.locktag_lockmethodid == pg_sys::DEFAULT_LOCKMETHOD as u8
            && (tag.locktag_field1, tag.locktag_field4) == (database, purpose as u16);
        is_one.then_some(u64::from(tag.locktag_field2) << 32 | u64::from(tag.locktag_field3))
    }

    /// What distinguishes it in `pg_locks`: classid and objid.
    pub(crate) fn numbers(&self) -> [u32; 2] {
        [self.0.locktag_field2, self.0.locktag_field3]
    }

    fn acquire(&self, mode: LockMode, at_once: bool) -> bool {
        // SAFETY: the tag is complete. The server raises an error where the wait ends without the lock.
        let answer =
            of_the_transaction(|| unsafe { pg_sys::LockAcquire(&self.0, mode.number(), OF_THE_SESSION, at_once) });
        answer != pg_sys::LockAcquireResult::LOCKACQUIRE_NOT_AVAIL
    }
}

/// Runs what takes or releases a lock for the transaction and not for the query: there lie the locks of a subtransaction that
/// ended, and under another owner they cannot be released.
fn of_the_transaction<T>(act: impl FnOnce() -> T) -> T {
    // Put back also where an error unwinds: what the callers have open belongs to the owner of before, and is closed then.
    // SAFETY: reading a variable of the backend.
    let _before = Before(unsafe { pg_sys::CurrentResourceOwner });
    // SAFETY: the owner is the one that the transaction has.
    unsafe { pg_sys::CurrentResourceOwner = pg_sys::CurTransactionResourceOwner };
    act()
}

/// The owner of resources that was the current one.
struct Before(pg_sys::ResourceOwner);

impl Drop for Before {
    fn drop(&mut self) {
        // SAFETY: the owner is still there: no subtransaction has ended since.
        unsafe { pg_sys::CurrentResourceOwner = self.0 };
    }
}

/// When the session last began to wait for a lock of whatever kind, in the server's own time. It notes that for the timer that
/// looks for deadlocks.
pub(crate) fn last_wait() -> i64 {
    const DEADLOCK_TIMEOUT: c_int = 1;
    // SAFETY: it reads a number of the backend.
    unsafe { get_timeout_start_time(DEADLOCK_TIMEOUT) }
}

unsafe extern "C-unwind" {
    /// The bindings lack it: `utils/timeout.h` declares it so. Raises no error.
    fn get_timeout_start_time(timeout: c_int) -> pg_sys::TimestampTz;
}

impl LockMode {
    /// As the server numbers it. The first two conflict with the last alone, and with each other not.
    pub(crate) const fn number(self) -> pg_sys::LOCKMODE {
        (match self {
            LockMode::Asking => pg_sys::RowShareLock,
            LockMode::Shared => pg_sys::ShareLock,
            LockMode::Alone => pg_sys::ExclusiveLock,
        }) as pg_sys::LOCKMODE
    }
}
