//! A table together with its partitions and with the tables that inherit from it, and whether they have a trigger.

use crate::protect::condition;
use crate::server::catalog;
use crate::server::rights;
use pg_forms::{Identifier, text};
use pgrx::pg_sys::{self, Oid};
use std::ffi::{CStr, CString};

/// The function of the triggers, in the extension's schema of its own.
pub(crate) const FUNCTION: &CStr = c"refuse";

/// Locks a relation as CREATE TRIGGER does.
pub(crate) fn lock_for_triggers(relation: Oid) {
    // SAFETY: taking a lock on whatever has this oid, to the end of the transaction.
    unsafe { pg_sys::LockRelationOid(relation, pg_sys::ShareRowExclusiveLock as i32) };
}

/// A table, or one that is part of it or inherits from it.
pub(crate) struct Member {
    pub(crate) oid: Oid,
    pub(crate) kind: MemberKind,
}

/// What a [`Member`] is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum MemberKind {
    /// A partitioned table, at the top or below.
    Partitioned,
    /// A partition with rows.
    Partition,
    /// A table of its own, or one that inherits from another.
    Inherits,
}

impl Member {
    /// The table in SQL.
    pub(crate) fn qualified_name(&self) -> Vec<u8> {
        let name = catalog::relation_name(self.oid);
        text![Identifier(&name.schema), ".", Identifier(&name.name)]
    }
}

/// Leaves the members of a table unlocked.
pub(crate) const NO_LOCK: pg_sys::LOCKMODE = pg_sys::NoLock as i32;
/// Locks the members of a table as CREATE TRIGGER does.
pub(crate) const FOR_TRIGGERS: pg_sys::LOCKMODE = pg_sys::ShareRowExclusiveLock as i32;

/// The table and all below it, the parents first, each locked so.
pub(crate) fn all(table: Oid, lock: pg_sys::LOCKMODE) -> Vec<Member> {
    // SAFETY: the list is one of oids; relations that are locked stay.
    unsafe {
        let list = pg_sys::find_all_inheritors(table, lock, std::ptr::null_mut());
        let kind = |oid| match pg_sys::get_rel_relkind(oid) as u8 {
            pg_sys::RELKIND_PARTITIONED_TABLE => MemberKind::Partitioned,
            _ if pg_sys::get_rel_relispartition(oid) => MemberKind::Partition,
            _ => MemberKind::Inherits,
        };
        oids(list).into_iter().map(|oid| Member { oid, kind: kind(oid) }).collect()
    }
}

/// Whether an error may tell what a column of a row of this table holds: whether both the role whose rights count and the
/// one that the client has chosen may read the column, of the table or of a parent that it is a partition of, without a
/// policy that could hide the row. The rights are those of the table's owner in a cascade, the client is who is told.
pub(crate) fn may_disclose(table: Oid, column: i16) -> bool {
    reads_all_rows(table, column, rights::current_user()) && reads_all_rows(table, column, rights::client_user())
}

/// The same where the role whose rights count has just read the row: it is the client's own, or the client too reads all
/// rows. In a SECURITY DEFINER function it is the definer's.
pub(crate) fn may_disclose_what_is_read(table: Oid, column: i16) -> bool {
    let client = rights::client_user();
    client == rights::current_user() || reads_all_rows(table, column, client)
}

fn reads_all_rows(table: Oid, column: i16, role: Oid) -> bool {
    let in_parent = |parent| catalog::column_number(parent, &catalog::column_name(table, column));
    rights::reads_all_rows(table, column, role)
        || partition_ancestors(table).into_iter().any(|parent| rights::reads_all_rows(parent, in_parent(parent), role))
}

/// Whether a table is a partition.
pub(crate) fn is_partition(table: Oid) -> bool {
    // SAFETY: it reads the catalog alone.
    unsafe { pg_sys::get_rel_relispartition(table) }
}

/// The partitioned tables above a partition, the nearest first; none for other tables.
pub(crate) fn partition_ancestors(table: Oid) -> Vec<Oid> {
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

/// A trigger that calls the function `refuse`, whatever its name and its condition.
pub(crate) struct Made {
    pub(crate) name: CString,
    /// The fence column in its condition, where that is as fence_protect() makes it.
    pub(crate) fence_column: Option<i16>,
    /// Whether it is one of a partition that follows its parent's.
    pub(crate) is_clone: bool,
    pub(crate) is_on_insert: bool,
    /// Whether it fires where nobody has changed `session_replication_role`.
    pub(crate) is_enabled: bool,
}

/// The triggers of a relation that fence_protect() made. The relation is locked to the end of the transaction: by the caller
/// already, or, a parent of its table, here.
pub(crate) fn made_triggers(relation: Oid) -> Vec<Made> {
    // SAFETY: the relation is opened and closed again; its lock stays.
    unsafe {
        let open = pg_sys::try_relation_open(relation, pg_sys::AccessShareLock as i32);
        if open.is_null() {
            return Vec::new();
        }
        let made = made_of(&*open);
        pg_sys::relation_close(open, pg_sys::NoLock as i32);
        made
    }
}

/// A partition into which a row of this partition could move although no trigger asks there for the fence that it brings:
/// one that was attached since the partitioned table was protected.
///
/// Nothing is locked for it, as the maintenance of a partition would hold up the moves between others.
pub(crate) fn open_to_moves(partition: Oid) -> Option<Oid> {
    let made = |relation| {
        // SAFETY: the server keeps the description of a relation as long as it is in use, whatever is locked.
        unsafe {
            let open = pg_sys::RelationIdGetRelation(relation);
            if open.is_null() {
                return Vec::new();
            }
            let made = made_of(&*open);
            pg_sys::RelationClose(open);
            made
        }
    };
    let protected = partition_ancestors(partition).into_iter().rev().find(|&ancestor| !made(ancestor).is_empty())?;
    let asks = |trigger: &Made| trigger.is_on_insert && trigger.is_enabled && trigger.fence_column.is_some();
    let members = all(protected, NO_LOCK).into_iter();
    let mut partitions = members.filter(|member| member.kind == MemberKind::Partition).map(|member| member.oid);
    partitions.find(|&partition| !made(partition).iter().any(asks))
}

fn made_of(relation: &pg_sys::RelationData) -> Vec<Made> {
    let Some(schema) = catalog::internals() else { return Vec::new() };
    // SAFETY: an open relation's triggers are null or as many as it says, each with a name, and with a condition or null.
    unsafe {
        let triggers = relation.trigdesc.as_ref().map_or(&[][..], |all| {
            std::slice::from_raw_parts(all.triggers, usize::try_from(all.numtriggers).unwrap_or(0))
        });
        let made = triggers.iter().filter(|trigger| catalog::is_function(trigger.tgfoid, schema, FUNCTION));
        made.map(|trigger| Made {
            name: CStr::from_ptr(trigger.tgname).to_owned(),
            fence_column: (!trigger.tgqual.is_null())
                .then(|| condition::fence_column(CStr::from_ptr(trigger.tgqual), trigger.tgtype))
                .flatten(),
            is_clone: trigger.tgisclone,
            is_on_insert: condition::is_on_insert(trigger.tgtype),
            is_enabled: matches!(trigger.tgenabled as u8, b'O' | b'A'),
        })
        .collect()
    }
}
