//! What the server drops together.

use pgrx::pg_sys::{self, Oid};
use std::ffi::c_char;

/// Has a table dropped together with another one. Noted once, however often it is called. No dump carries it.
pub(crate) fn drop_with(table: Oid, other: Oid) {
    const AUTO: pg_sys::DependencyType::Type = pg_sys::DependencyType::DEPENDENCY_AUTO;
    let address = |oid| pg_sys::ObjectAddress { classId: pg_sys::RelationRelationId, objectId: oid, objectSubId: 0 };
    // SAFETY: both are relations that the caller has locked; the entries are those of the catalog alone.
    unsafe {
        pg_sys::deleteDependencyRecordsForSpecific(
            pg_sys::RelationRelationId,
            table,
            AUTO as c_char,
            pg_sys::RelationRelationId,
            other,
        );
        pg_sys::recordDependencyOn(&address(table), &address(other), AUTO);
        pg_sys::CommandCounterIncrement();
    }
}
