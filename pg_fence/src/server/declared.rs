//! How a column, a table or a role is written in SQL that declares another table like it.

use crate::server::catalog;
use pg_forms::{Identifier, text};
use pgrx::pg_sys::{self, Oid};
use std::ffi::CStr;

/// A type, with its schema unless that is the catalog, and without a limit such as that of varchar(3).
pub(crate) fn unlimited_type(type_oid: Oid) -> Vec<u8> {
    const NO_MODIFIER: i32 = -1;
    // With the flag, `bit` is written so that it does not mean bit(1).
    let flags = (pg_sys::FORMAT_TYPE_TYPEMOD_GIVEN | pg_sys::FORMAT_TYPE_FORCE_QUALIFY) as u16;
    // SAFETY: the function gives a name to any oid.
    unsafe { CStr::from_ptr(pg_sys::format_type_extended(type_oid, NO_MODIFIER, flags)) }.to_bytes().to_vec()
}

/// The clause for a collation; empty for a type that has none.
pub(crate) fn collate(collation: Oid) -> Vec<u8> {
    // SAFETY: it reads the catalog; a null answer is not read, and the tuple is checked, read and released.
    unsafe {
        let cache = pg_sys::SysCacheIdentifier::COLLOID as _;
        let tuple = pg_sys::SearchSysCache1(cache, pg_sys::Datum::from(collation));
        if tuple.is_null() {
            return Vec::new();
        }
        let form = &*pg_sys::GETSTRUCT(tuple).cast::<pg_sys::FormData_pg_collation>();
        let (schema, name) = (catalog::schema_name(form.collnamespace), catalog::name(&form.collname));
        pg_sys::ReleaseSysCache(tuple);
        text![" COLLATE ", Identifier(&schema), ".", Identifier(&name)]
    }
}

/// The name of a role, in quotes.
pub(crate) fn role(role: Oid) -> Vec<u8> {
    const MISSING_IS_AN_ERROR: bool = false;
    // SAFETY: the server gives a name, or raises its error.
    let name = unsafe { CStr::from_ptr(pg_sys::GetUserNameFromId(role, MISSING_IS_AN_ERROR)) };
    text![Identifier(name)]
}

/// A table, with its schema.
pub(crate) fn relation(relation: Oid) -> Vec<u8> {
    let name = catalog::relation_name(relation);
    text![Identifier(&name.schema), ".", Identifier(&name.name)]
}
