//! Whose rights apply, and what they allow.

use crate::server::catalog::{owner_of, relation_exists, relation_name};
use crate::server::raw;
use pgrx::pg_sys::{self, Oid};
use std::ffi::CStr;

/// Whether a role may read a column, and no policy hides rows of the table from it.
pub(crate) fn reads_all_rows(relation: Oid, column: i16, role: Oid) -> bool {
    const WITHOUT_ERROR: bool = true;
    // SAFETY: it reads the catalog alone; the column is looked up where its number stands for one.
    unsafe {
        let select = pg_sys::ACL_SELECT as pg_sys::AclMode;
        let reads = may_read_table(relation, role)
            || (column > 0
                && pg_sys::pg_attribute_aclcheck(relation, column, role, select) == pg_sys::AclResult::ACLCHECK_OK);
        reads
            && pg_sys::check_enable_rls(relation, role, WITHOUT_ERROR)
                != pg_sys::CheckEnableRlsResult::RLS_ENABLED as i32
    }
}

/// Raises the server's error unless the caller may change some row of a relation, that is, unless it may wait for the
/// lock of a writer. Which columns it may read and write is for the statement to say. Answers whether there is such a
/// relation.
pub(crate) fn require_some_writing(relation: Oid) -> bool {
    // SAFETY: it reads the catalog, and raises an error or does nothing.
    unsafe {
        if !relation_exists(relation) {
            return false;
        }
        let (role, any) = (current_user(), pg_sys::AclMaskHow::ACLMASK_ANY);
        let (update, delete) = (pg_sys::ACL_UPDATE as pg_sys::AclMode, pg_sys::ACL_DELETE as pg_sys::AclMode);
        if pg_sys::pg_class_aclmask(relation, role, update | delete, any) == 0
            && pg_sys::pg_attribute_aclcheck_all(relation, role, update, any) != pg_sys::AclResult::ACLCHECK_OK
        {
            deny(relation);
        }
        true
    }
}

/// Raises the server's error unless the caller may read a table and update one of its columns.
pub(crate) fn require_claiming(relation: Oid, column: i16) {
    // SAFETY: it reads the catalog, and raises an error or does nothing.
    unsafe {
        let (role, all) = (current_user(), pg_sys::AclMaskHow::ACLMASK_ALL);
        let (select, update) = (pg_sys::ACL_SELECT as pg_sys::AclMode, pg_sys::ACL_UPDATE as pg_sys::AclMode);
        let is_ok = |result| result == pg_sys::AclResult::ACLCHECK_OK;
        let reads =
            may_read_table(relation, role) || is_ok(pg_sys::pg_attribute_aclcheck_all(relation, role, select, all));
        let writes = is_ok(pg_sys::pg_class_aclcheck(relation, role, update))
            || is_ok(pg_sys::pg_attribute_aclcheck(relation, column, role, update));
        if !reads || !writes {
            deny(relation);
        }
    }
}

/// Whether the current role may insert this column, as each INSERT of it needs.
pub(crate) fn may_insert(relation: Oid, column: i16) -> bool {
    // SAFETY: it reads the catalog alone.
    unsafe {
        let (role, insert) = (current_user(), pg_sys::ACL_INSERT as pg_sys::AclMode);
        let is_ok = |result| result == pg_sys::AclResult::ACLCHECK_OK;
        is_ok(pg_sys::pg_class_aclcheck(relation, role, insert))
            || is_ok(pg_sys::pg_attribute_aclcheck(relation, column, role, insert))
    }
}

/// Raises the server's error unless the caller may make triggers on a table.
pub(crate) fn require_trigger_right(relation: Oid) {
    // SAFETY: it reads the catalog, and raises an error or does nothing.
    unsafe {
        let trigger = pg_sys::ACL_TRIGGER as pg_sys::AclMode;
        if pg_sys::pg_class_aclcheck(relation, current_user(), trigger) != pg_sys::AclResult::ACLCHECK_OK {
            deny(relation);
        }
    }
}

fn deny(relation: Oid) {
    let name = relation_name(relation).name;
    // SAFETY: it raises the server's error for want of a right.
    unsafe {
        let kind = pg_sys::get_relkind_objtype(pg_sys::get_rel_relkind(relation));
        pg_sys::aclcheck_error(pg_sys::AclResult::ACLCHECK_NO_PRIV, kind, name.as_ptr());
    }
}

/// The role of the client (its own, or that of SET ROLE), even inside a SECURITY DEFINER function.
pub(crate) fn client_user() -> Oid {
    // SAFETY: reading a number of the backend.
    unsafe { pg_sys::GetOuterUserId() }
}

/// The role whose rights apply now.
pub(crate) fn current_user() -> Oid {
    // SAFETY: reading a number of the backend.
    unsafe { raw::GetUserId() }
}

/// Whether a role may read the whole table.
pub(crate) fn may_read_table(table: Oid, role: Oid) -> bool {
    // SAFETY: it reads the catalog alone.
    unsafe {
        pg_sys::pg_class_aclcheck(table, role, pg_sys::ACL_SELECT as pg_sys::AclMode) == pg_sys::AclResult::ACLCHECK_OK
    }
}

/// The rights of a relation's owner instead of the caller's, as long as this lives. What is run meanwhile must be
/// statements of this library on tables of this library alone.
pub(crate) struct AsOwner {
    user: Oid,
    context: i32,
}

impl AsOwner {
    /// Takes the rights of this relation's owner.
    pub(crate) fn of(relation: Oid) -> AsOwner {
        AsOwner::with(relation, 0)
    }

    /// The same, and no policy of a table of the owner's applies, not even one that is forced.
    pub(crate) fn past_policies(relation: Oid) -> AsOwner {
        AsOwner::with(relation, pg_sys::SECURITY_NOFORCE_RLS as i32)
    }

    fn with(relation: Oid, more: i32) -> AsOwner {
        let mut caller = AsOwner { user: pg_sys::InvalidOid, context: 0 };
        // SAFETY: what was in force is kept to be restored; the server also restores it where a transaction or a
        // subtransaction aborts.
        unsafe {
            pg_sys::GetUserIdAndSecContext(&mut caller.user, &mut caller.context);
            let owner = owner_of(relation).unwrap_or(caller.user);
            let context = caller.context | pg_sys::SECURITY_LOCAL_USERID_CHANGE as i32 | more;
            pg_sys::SetUserIdAndSecContext(owner, context);
        }
        caller
    }
}

impl Drop for AsOwner {
    fn drop(&mut self) {
        // SAFETY: both were in force before.
        unsafe { pg_sys::SetUserIdAndSecContext(self.user, self.context) };
    }
}

/// Raises the server's error unless the caller owns the table.
pub(crate) fn require_owner(table: Oid, table_name: &CStr) {
    // SAFETY: it reads the catalog, and raises an error or does nothing.
    unsafe {
        #[cfg(feature = "pg15")]
        let owns = pg_sys::pg_class_ownercheck(table, pg_sys::GetUserId());
        #[cfg(not(feature = "pg15"))]
        let owns = pg_sys::object_ownercheck(pg_sys::RelationRelationId, table, pg_sys::GetUserId());
        if !owns {
            pg_sys::aclcheck_error(
                pg_sys::AclResult::ACLCHECK_NOT_OWNER,
                pg_sys::ObjectType::OBJECT_TABLE,
                table_name.as_ptr(),
            );
        }
    }
}
