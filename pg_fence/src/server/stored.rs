//! One stored version of a row, read by its tid whatever a snapshot says of it.
//!
//! For triggers, which are given the tid of the version that a statement has just replaced. Invariant: only a table
//! that the transaction has locked for writing is read, so a call by hand reads nothing that the caller could not.

use crate::server::catalog;
use crate::server::locks::{self, RelationLock};
use crate::server::relation::OpenRelation;
use crate::server::types::Value;
use pgrx::pg_sys::{self, Oid};
use std::ffi::CStr;

/// Where a version lies in its table.
pub(crate) type Tid = pg_sys::ItemPointerData;

/// A version of a row, pinned as long as this lives.
pub(crate) struct Stored {
    relation: OpenRelation,
    tuple: pg_sys::HeapTupleData,
    buffer: pg_sys::Buffer,
}

impl Stored {
    /// The version at this tid; none where the table is not a heap that this transaction writes, or nothing is there.
    pub(crate) fn at(table: Oid, tid: Tid) -> Option<Stored> {
        const KEEP_BUFFER: bool = false;
        if catalog::valid(table).is_none() || !is_tid(&tid) || !locks::is_locked(table, RelationLock::Writes) {
            return None;
        }
        let relation = OpenRelation::open(table, RelationLock::None).filter(OpenRelation::is_heap)?;
        let mut stored = Stored { relation, tuple: Default::default(), buffer: 0 };
        stored.tuple.t_self = tid;
        // SAFETY: the relation is locked, and its tuples are those of a heap. The tid was checked to have the form of
        // one, as a block number that stands for none would add a block to the table. The buffer is released with the
        // answer, and is not there where nothing is found.
        unsafe {
            let snapshot = &raw mut pg_sys::SnapshotAnyData;
            let relation = stored.relation.as_ptr();
            pg_sys::heap_fetch(relation, snapshot, &mut stored.tuple, &mut stored.buffer, KEEP_BUFFER).then_some(stored)
        }
    }

    /// Whether the version was deleted because its row moved to another partition.
    pub(crate) fn has_moved(&self) -> bool {
        // SAFETY: the tuple is one of the buffer that is pinned.
        leads_elsewhere(unsafe { &(*self.tuple.t_data).t_ctid })
    }

    /// The value of the column of this name; none where it is null or there is no such column.
    pub(crate) fn field(&self, column: &CStr) -> Option<Value> {
        let number = catalog::column_number(self.relation.oid(), column);
        if number <= 0 {
            return None;
        }
        let (mut tuple, mut is_null, columns) = (self.tuple, false, self.relation.descriptor());
        // SAFETY: the number is that of a column of the open relation, and the datum is of the column's type.
        unsafe {
            let datum = pg_sys::htup::heap_getattr(&mut tuple, i32::from(number), columns, &mut is_null);
            let type_oid = (*catalog::attribute(columns, i32::from(number) - 1)).atttypid;
            (!is_null).then(|| Value::new(datum, type_oid))
        }
    }
}

impl Drop for Stored {
    fn drop(&mut self) {
        if self.buffer != 0 {
            // SAFETY: it is still held.
            unsafe { pg_sys::ReleaseBuffer(self.buffer) };
        }
    }
}

/// Whether the place of the next version, as a version names it, says that its row moved to another partition.
fn leads_elsewhere(next: &Tid) -> bool {
    const MOVED: u16 = 0xFFFD;
    next.ip_posid == MOVED && block(next) == pg_sys::InvalidBlockNumber
}

/// The number of its block.
pub(crate) fn block(tid: &Tid) -> u32 {
    u32::from(tid.ip_blkid.bi_hi) << 16 | u32::from(tid.ip_blkid.bi_lo)
}

/// Whether it can be the place of a version: what stands for none, and what a row that moved away is left with, is not.
pub(crate) fn is_tid(tid: &Tid) -> bool {
    tid.ip_posid != 0 && block(tid) != pg_sys::InvalidBlockNumber
}

/// Whether both are the same place.
pub(crate) fn is_same(one: &Tid, other: &Tid) -> bool {
    block(one) == block(other) && one.ip_posid == other.ip_posid
}
