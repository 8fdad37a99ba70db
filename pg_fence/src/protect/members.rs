//! A table together with its partitions and with the tables that inherit from it, and whether they have a trigger.

use crate::server;
use crate::server::text::{Identifier, text};
use pgrx::pg_sys::{self, Oid};
use std::ffi::CStr;

/// Locks a relation as CREATE TRIGGER does.
pub fn lock_for_triggers(relation: Oid) {
    // SAFETY: taking a lock on whatever has this oid, to the end of the transaction.
    unsafe { pg_sys::LockRelationOid(relation, pg_sys::ShareRowExclusiveLock as i32) };
}

/// A table, or one that is part of it or inherits from it.
pub struct Member {
    /// Its oid.
    pub oid: Oid,
    /// What it is.
    pub kind: MemberKind,
}

/// What a [`Member`] is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum MemberKind {
    /// A partitioned table, at the top or below.
    Partitioned,
    /// A partition with rows.
    Partition,
    /// A table of its own, or one that inherits from another.
    Inherits,
}

impl Member {
    /// The table in SQL.
    pub fn qualified_name(&self) -> Vec<u8> {
        let name = server::relation_name(self.oid);
        text![Identifier(&name.schema), ".", Identifier(&name.name)]
    }
}

/// The table and all below it, the parents first, each locked as CREATE TRIGGER does.
pub fn for_triggers(table: Oid) -> Vec<Member> {
    // SAFETY: the list is one of oids; relations that are locked stay.
    unsafe {
        let lock = pg_sys::ShareRowExclusiveLock as i32;
        let list = pg_sys::find_all_inheritors(table, lock, std::ptr::null_mut());
        let kind = |oid| match pg_sys::get_rel_relkind(oid) as u8 {
            pg_sys::RELKIND_PARTITIONED_TABLE => MemberKind::Partitioned,
            _ if pg_sys::get_rel_relispartition(oid) => MemberKind::Partition,
            _ => MemberKind::Inherits,
        };
        oids(list).into_iter().map(|oid| Member { oid, kind: kind(oid) }).collect()
    }
}

/// The partitioned tables above a partition, the nearest first; none for other tables.
pub fn partition_ancestors(table: Oid) -> Vec<Oid> {
    // SAFETY: the list is one of oids; the function may be asked for partitions alone.
    unsafe {
        if pg_sys::get_rel_relispartition(table) { oids(pg_sys::get_partition_ancestors(table)) } else { Vec::new() }
    }
}

/// # Safety
///
/// The list is null or a valid list of oids.
unsafe fn oids(list: *mut pg_sys::List) -> Vec<Oid> {
    if list.is_null() {
        return Vec::new();
    }
    // SAFETY: as the caller promises; the list has as many elements as it says.
    unsafe { (0..(*list).length as usize).map(|n| (*(*list).elements.add(n)).oid_value).collect() }
}

/// Whether a relation has a trigger of this name.
pub fn has_trigger(relation: Oid, name: &CStr) -> bool {
    const MISSING_IS_OK: bool = true;
    // SAFETY: it reads the catalog alone.
    server::valid(unsafe { pg_sys::get_trigger_oid(relation, name.as_ptr(), MISSING_IS_OK) }).is_some()
}
