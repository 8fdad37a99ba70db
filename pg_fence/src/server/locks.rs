//! Locks in the server's own lock table: on relations, and on names.
//!
//! Not row locks: this queue is first in, first out, and takes no room in a table.

use crate::server::session;
use crate::server::text;
use pgrx::pg_sys::{self, Oid};

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

/// Whether this transaction holds such a lock on a relation, or a stronger one.
pub(crate) fn is_locked(relation: Oid, lock: RelationLock) -> bool {
    const OR_STRONGER: bool = true;
    // SAFETY: it reads the locks of the backend.
    unsafe { pg_sys::CheckRelationOidLockedByMe(relation, lock.mode(), OR_STRONGER) }
}

/// A lock on a name, in the server's lock table under a kind of its own: no advisory lock of a user is the same. It
/// is held to the end of the transaction, or to ROLLBACK TO a savepoint before it; PREPARE TRANSACTION keeps it.
pub(crate) struct NamedLock(pg_sys::LOCKTAG);

/// How a [`NamedLock`] is held.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum LockMode {
    /// Together with others that share it.
    Shared,
    /// By one transaction alone.
    Alone,
}

impl NamedLock {
    /// The lock of this name in this database. Two names share one by chance of 1 to 2^64, and then only wait longer.
    pub(crate) fn of(name: &[u8]) -> NamedLock {
        let hash = text::hash(name);
        NamedLock(pg_sys::LOCKTAG {
            locktag_field1: session::database(),
            locktag_field2: (hash >> 32) as u32,
            locktag_field3: hash as u32,
            locktag_field4: 0,
            locktag_type: pg_sys::LockTagType::LOCKTAG_USERLOCK as u8,
            locktag_lockmethodid: pg_sys::DEFAULT_LOCKMETHOD as u8,
        })
    }

    /// Takes the lock; waits behind all earlier requests that conflict.
    pub(crate) fn take(&self, mode: LockMode) {
        const OF_THE_SESSION: bool = false;
        const DO_NOT_WAIT: bool = false;
        // SAFETY: the tag is complete. The server raises an error where the wait ends without the lock.
        unsafe { pg_sys::LockAcquire(&self.0, mode.number(), OF_THE_SESSION, DO_NOT_WAIT) };
    }

    /// Releases what one `take` took.
    pub(crate) fn release(&self, mode: LockMode) {
        const OF_THE_SESSION: bool = false;
        // SAFETY: the tag is complete; the caller holds the lock in this mode.
        unsafe { pg_sys::LockRelease(&self.0, mode.number(), OF_THE_SESSION) };
    }
}

impl LockMode {
    fn number(self) -> pg_sys::LOCKMODE {
        (match self {
            LockMode::Shared => pg_sys::ShareLock,
            LockMode::Alone => pg_sys::ExclusiveLock,
        }) as pg_sys::LOCKMODE
    }
}
