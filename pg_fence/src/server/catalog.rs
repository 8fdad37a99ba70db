//! Names and facts from the system catalogs, looked up by oid or by name. Nothing here writes or checks a right.

use crate::server::callbacks::CatalogId;
use crate::server::locks::RelationLock;
use pgrx::pg_sys::{self, Datum, Oid};
use std::ffi::{CStr, CString};

/// A relation as error texts name it, and as the client finds it in the error's fields.
#[derive(Clone, Debug)]
pub(crate) struct RelationName {
    pub(crate) schema: CString,
    pub(crate) name: CString,
}

/// The schema and the name of a relation; empty when it is gone.
pub(crate) fn relation_name(relation: Oid) -> RelationName {
    // SAFETY: it reads the catalog; a null answer is not read.
    unsafe {
        let found = pg_sys::get_rel_name(relation);
        let name = if found.is_null() { CString::default() } else { CStr::from_ptr(found).to_owned() };
        RelationName { schema: schema_name(pg_sys::get_rel_namespace(relation)), name }
    }
}

/// Whether a column is declared NOT NULL.
pub(crate) fn is_not_null(relation: Oid, column: i16) -> bool {
    // SAFETY: the tuple is checked, read and released; a column's tuple has this layout.
    unsafe {
        let cache = pg_sys::SysCacheIdentifier::ATTNUM as _;
        let tuple = pg_sys::SearchSysCache2(cache, Datum::from(relation), Datum::from(column));
        if tuple.is_null() {
            return false;
        }
        let is_not_null = (*pg_sys::GETSTRUCT(tuple).cast::<pg_sys::FormData_pg_attribute>()).attnotnull;
        pg_sys::ReleaseSysCache(tuple);
        is_not_null
    }
}

/// Whether an oid is that of the function of this name in this schema.
pub(crate) fn is_function(function: Oid, schema: Oid, name: &CStr) -> bool {
    // SAFETY: it reads the catalog; a null answer is not read.
    unsafe {
        let found = pg_sys::get_func_name(function);
        !found.is_null() && CStr::from_ptr(found) == name && pg_sys::get_func_namespace(function) == schema
    }
}

/// The name of a column; empty when it is gone.
pub(crate) fn column_name(relation: Oid, column: i16) -> CString {
    const MISSING_IS_OK: bool = true;
    // SAFETY: it reads the catalog; a null answer is not read.
    unsafe {
        let name = pg_sys::get_attname(relation, column, MISSING_IS_OK);
        if name.is_null() { CString::default() } else { CStr::from_ptr(name).to_owned() }
    }
}

/// The number of the column of this name; 0 where there is none.
pub(crate) fn column_number(relation: Oid, name: &CStr) -> i16 {
    // SAFETY: it reads the catalog alone.
    unsafe { pg_sys::get_attnum(relation, name.as_ptr()) }
}

/// The schema of what the extension keeps and calls itself. Its script makes it, and it cannot be moved.
pub(crate) const INTERNALS: &CStr = c"fence_internals";

/// The oid of [`INTERNALS`]; none where the extension is not created.
pub(crate) fn internals() -> Option<Oid> {
    const MISSING_IS_OK: bool = true;
    // SAFETY: it reads the catalog alone.
    valid(unsafe { pg_sys::get_namespace_oid(INTERNALS.as_ptr(), MISSING_IS_OK) })
}

/// The relation of this name in a schema.
pub(crate) fn relation_in(schema: Oid, name: &CStr) -> Option<Oid> {
    // SAFETY: it reads the catalog alone.
    valid(unsafe { pg_sys::get_relname_relid(name.as_ptr(), schema) })
}

/// The owner of a relation.
pub(crate) fn owner_of(relation: Oid) -> Option<Oid> {
    // SAFETY: the tuple is checked, read and released; a relation's tuple has this layout.
    unsafe {
        let tuple = pg_sys::SearchSysCache1(pg_sys::SysCacheIdentifier::RELOID as _, Datum::from(relation));
        if tuple.is_null() {
            return None;
        }
        let owner = (*pg_sys::GETSTRUCT(tuple).cast::<pg_sys::FormData_pg_class>()).relowner;
        pg_sys::ReleaseSysCache(tuple);
        Some(owner)
    }
}

/// An entry of a tuple descriptor.
///
/// # Safety
///
/// The descriptor is valid and has more than `n` entries.
pub(crate) unsafe fn attribute(descriptor: pg_sys::TupleDesc, n: i32) -> *const pg_sys::FormData_pg_attribute {
    // SAFETY: as the caller promises; the entries lie behind one another, from version 18 on after the compact ones.
    unsafe {
        #[cfg(any(feature = "pg18", feature = "pg19"))]
        let first = {
            let count = usize::try_from((*descriptor).natts).unwrap_or(0);
            (*descriptor).compact_attrs.as_ptr().add(count).cast::<pg_sys::FormData_pg_attribute>()
        };
        #[cfg(not(any(feature = "pg18", feature = "pg19")))]
        let first = (*descriptor).attrs.as_ptr();
        first.add(usize::try_from(n).unwrap_or(0))
    }
}

/// Whether a column has no nulls. A column that is declared NOT NULL can hold them all the same from version 18 on,
/// from before the constraint (NOT VALID).
///
/// # Safety
///
/// The descriptor is that of an open relation and has more than `n` entries.
pub(crate) unsafe fn is_never_null(descriptor: pg_sys::TupleDesc, n: i32) -> bool {
    #[cfg(any(feature = "pg18", feature = "pg19"))]
    {
        const IS_VALID: u8 = b'v';
        let n = usize::try_from(n).unwrap_or(0);
        // SAFETY: as the caller promises.
        unsafe { (*(*descriptor).compact_attrs.as_ptr().add(n)).attnullability as u8 == IS_VALID }
    }
    #[cfg(not(any(feature = "pg18", feature = "pg19")))]
    // SAFETY: as the caller promises.
    unsafe {
        (*attribute(descriptor, n)).attnotnull
    }
}

/// A name from the catalog.
pub(crate) fn name(name: &pg_sys::NameData) -> CString {
    // SAFETY: a name of the catalog always has a NUL within its 64 bytes.
    unsafe { CStr::from_ptr(name.data.as_ptr()) }.to_owned()
}

/// The name of a schema.
pub(crate) fn schema_name(schema: Oid) -> CString {
    // SAFETY: it reads the catalog; a null answer, for a schema that is gone, is not read.
    unsafe {
        let name = pg_sys::get_namespace_name(schema);
        if name.is_null() { CString::default() } else { CStr::from_ptr(name).to_owned() }
    }
}

/// The oid, unless it is the one that stands for none.
pub(crate) fn valid(oid: Oid) -> Option<Oid> {
    (oid != pg_sys::InvalidOid).then_some(oid)
}

/// Whether a table is a temporary one.
pub(crate) fn is_temporary(table: Oid) -> bool {
    persistence(table) == pg_sys::RELPERSISTENCE_TEMP
}

/// As in `pg_class.relpersistence`.
pub(crate) fn persistence(table: Oid) -> u8 {
    // SAFETY: it looks the table up; one that is gone is permanent.
    (unsafe { pg_sys::get_rel_persistence(table) }) as u8
}

/// The schema of a relation.
pub(crate) fn schema_of(relation: Oid) -> Oid {
    // SAFETY: it reads the catalog alone.
    unsafe { pg_sys::get_rel_namespace(relation) }
}

/// A name made of that of a table and a word that no relation of the schema has. Without a schema it is the first that is
/// tried.
pub(crate) fn derived_name(table: &CStr, word: &CStr, schema: Option<Oid>) -> CString {
    const OF_CONSTRAINTS_TOO: bool = false;
    let none = std::ptr::null();
    // SAFETY: both names end with a NUL and are copied; the answer is the server's own, copied before it goes.
    unsafe {
        let name = match schema {
            Some(schema) => pg_sys::ChooseRelationName(table.as_ptr(), none, word.as_ptr(), schema, OF_CONSTRAINTS_TOO),
            None => pg_sys::makeObjectName(table.as_ptr(), none, word.as_ptr()),
        };
        CStr::from_ptr(name).to_owned()
    }
}

/// Whether there is a relation with this oid.
pub(crate) fn relation_exists(relation: Oid) -> bool {
    is_in_cache(pg_sys::SysCacheIdentifier::RELOID as i32, relation)
}

/// Whether there is a database with this oid.
pub(crate) fn database_exists(database: u32) -> bool {
    is_in_cache(pg_sys::SysCacheIdentifier::DATABASEOID as i32, Oid::from(database))
}

fn is_in_cache(cache: i32, oid: Oid) -> bool {
    let no_key = Datum::null();
    // SAFETY: the key of both caches is an oid alone.
    unsafe { pg_sys::SearchSysCacheExists(cache as _, Datum::from(oid), no_key, no_key, no_key) }
}

/// Whether a table is a partition.
pub(crate) fn is_partition(table: Oid) -> bool {
    // SAFETY: it reads the catalog alone.
    unsafe { pg_sys::get_rel_relispartition(table) }
}

/// The partitioned tables above a partition, the nearest first; none for other tables.
pub(crate) fn partition_ancestors(table: Oid) -> Vec<Oid> {
    if !is_partition(table) {
        return Vec::new();
    }
    // SAFETY: the list is one of oids; the function may be asked for partitions alone.
    unsafe { oids(pg_sys::get_partition_ancestors(table)) }
}

/// A table and all that are part of it or inherit from it, the parents first, each locked so.
pub(crate) fn with_descendants(table: Oid, lock: RelationLock) -> Vec<Oid> {
    // SAFETY: the list is one of oids.
    unsafe { oids(pg_sys::find_all_inheritors(table, lock.mode(), std::ptr::null_mut())) }
}

/// As in `pg_class.relkind`; 0 when it is gone.
pub(crate) fn relation_kind(relation: Oid) -> u8 {
    // SAFETY: it reads the catalog alone.
    unsafe { pg_sys::get_rel_relkind(relation) as u8 }
}

/// Whether a relation is one of the system's catalogs.
pub(crate) fn is_system_catalog(relation: Oid) -> bool {
    // SAFETY: it compares the number alone.
    unsafe { pg_sys::IsCatalogRelationOid(relation) }
}

/// The hash by which the server announces a change of a catalog's entry.
pub(crate) fn hash_of_entry(catalog: CatalogId, oid: Oid) -> u32 {
    let no_key = Datum::null();
    // SAFETY: it computes a number from the oid.
    unsafe { pg_sys::GetSysCacheHashValue(catalog as _, Datum::from(oid), no_key, no_key, no_key) }
}

/// The oids of a list.
///
/// # Safety
///
/// The list is null or a valid list of oids.
pub(crate) unsafe fn oids(list: *mut pg_sys::List) -> Vec<Oid> {
    // SAFETY: as the caller promises; the list has as many elements as it says.
    unsafe {
        let count = list.as_ref().map_or(0, |list| usize::try_from(list.length).unwrap_or(0));
        (0..count).map(|n| (*(*list).elements.add(n)).oid_value).collect()
    }
}
