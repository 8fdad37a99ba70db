//! Rows of a table of the extension, found by their name and changed without a statement.
//!
//! Not for tables of users: no trigger, rule, policy or right of the table applies. Whoever uses it holds a lock on the name,
//! so that no two change one row. Invariant: a row is read as it is now, by whatever snapshot the caller reads.

use crate::server::raw;
use crate::server::relation::OpenRelation;
use crate::server::stored::{Tid, block, is_same, is_tid};
use crate::server::text::Bytes;
use pgrx::pg_sys::{self, Datum, Oid, ffi::pg_guard_ffi_boundary};

/// The columns of a row, as many as the table has: texts and bigints.
pub(crate) struct Fields<const N: usize> {
    values: [Datum; N],
    are_null: [bool; N],
}

impl<const N: usize> Default for Fields<N> {
    /// All null.
    fn default() -> Fields<N> {
        Fields { values: [Datum::null(); N], are_null: [true; N] }
    }
}

impl<const N: usize> Fields<N> {
    /// A column that is a bigint; 0 where it is null.
    pub(crate) fn number(&self, column: usize) -> i64 {
        if self.are_null[column] { 0 } else { self.values[column].value() as i64 }
    }

    /// A column that is a text.
    pub(crate) fn text(&self, column: usize) -> Option<Bytes<'_>> {
        // SAFETY: the table is one of these columns. The row is pinned as long as its fields are there.
        (!self.are_null[column]).then(|| unsafe { Bytes::of(self.values[column]) })
    }

    pub(crate) fn set_number(&mut self, column: usize, number: i64) {
        (self.values[column], self.are_null[column]) = (Datum::from(number), false);
    }

    pub(crate) fn set_text(&mut self, column: usize, text: Bytes) {
        (self.values[column], self.are_null[column]) = (text.datum(), false);
    }
}

/// The open table and the unique index of its first column, a text of collation "C".
pub(crate) struct NamedRows<'r> {
    pub(crate) relation: &'r OpenRelation,
    pub(crate) index: Oid,
}

/// A version of a row.
pub(crate) struct Version<T> {
    pub(crate) tid: Tid,
    pub(crate) row: T,
}

impl NamedRows<'_> {
    /// Searches the row of this name, by what `read` takes from it. `read` gives nothing for a row of another name. `hint` is
    /// where a version of it was once: from there the server leads to the newest, without those that came between.
    pub(crate) fn find<const N: usize, T>(
        &self,
        name: Datum,
        hint: Option<Tid>,
        read: impl Fn(&Fields<N>) -> Option<T>,
    ) -> Option<Version<T>> {
        hint.and_then(|hint| self.follow(hint, &read)).or_else(|| self.search(name, newest(), &read))
    }

    /// The same as a snapshot of now reads it: for whoever holds no lock on the name.
    pub(crate) fn find_committed<const N: usize, T>(
        &self,
        name: Datum,
        read: impl Fn(&Fields<N>) -> Option<T>,
    ) -> Option<T> {
        let snapshot = Latest::take();
        self.search(name, snapshot.0, &read).map(|version| version.row)
    }

    /// What `read` takes from every row, as a snapshot of now reads them.
    pub(crate) fn all_committed<const N: usize, T>(&self, read: impl Fn(&Fields<N>) -> Option<T>) -> Vec<T> {
        let snapshot = Latest::take();
        let mut rows = Vec::new();
        self.scan(None, snapshot.0, |fields, _| rows.extend(read(fields)));
        rows
    }

    /// Inserts a row.
    pub(crate) fn insert<const N: usize>(&self, fields: &Fields<N>) -> Tid {
        // SAFETY: there is a value of the column's type for each column of the open table.
        unsafe {
            let tuple = self.form(fields);
            pg_sys::CatalogTupleInsert(self.relation.as_ptr(), tuple);
            pg_guard_ffi_boundary(|| finish(tuple))
        }
    }

    /// Replaces a version that was found under the lock on its name. The name stays.
    pub(crate) fn update<const N: usize>(&self, mut tid: Tid, fields: &Fields<N>) -> Tid {
        // SAFETY: as above; the version is the newest, which is checked by the server.
        unsafe {
            let tuple = self.form(fields);
            let tid = pg_guard_ffi_boundary(|| {
                replace(self.relation.as_ptr(), &mut tid, tuple);
                // The index leads to a new version on the same page by way of the old one.
                if (*(*tuple).t_data).t_infomask2 & pg_sys::HEAP_ONLY_TUPLE as u16 != 0 {
                    return Some(finish(tuple));
                }
                None
            });
            tid.unwrap_or_else(|| {
                self.index(fields, tuple);
                pg_guard_ffi_boundary(|| finish(tuple))
            })
        }
    }

    /// Adds a new version to each index that takes new versions.
    ///
    /// # Safety
    ///
    /// The tuple is stored, with these fields.
    unsafe fn index<const N: usize>(&self, fields: &Fields<N>, tuple: pg_sys::HeapTuple) {
        const IS_UNCHANGED: bool = true;
        let (mut value, mut is_null) = (fields.values[0], fields.are_null[0]);
        for oid in self.relation.indexes() {
            // SAFETY: as the caller promises; each index is one of the first column alone, and is closed again.
            unsafe {
                let index = pg_sys::index_open(oid, pg_sys::RowExclusiveLock as i32);
                let info = pg_sys::BuildIndexInfo(index);
                let check = match (*(*index).rd_index).indisunique {
                    true => pg_sys::IndexUniqueCheck::UNIQUE_CHECK_YES,
                    false => pg_sys::IndexUniqueCheck::UNIQUE_CHECK_NO,
                };
                if (*info).ii_ReadyForInserts {
                    let (relation, tid) = (self.relation.as_ptr(), &mut (*tuple).t_self);
                    pg_sys::index_insert(index, &mut value, &mut is_null, tid, relation, check, IS_UNCHANGED, info);
                }
                pg_sys::index_close(index, pg_sys::NoLock as i32);
            }
        }
    }

    /// Deletes a version that was found under the lock on its name.
    pub(crate) fn delete(&self, mut tid: Tid) {
        // SAFETY: as above.
        unsafe {
            pg_sys::CatalogTupleDelete(self.relation.as_ptr(), &mut tid);
            pg_sys::CommandCounterIncrement();
        }
    }

    /// # Safety
    ///
    /// There is a value of the column's type for each column of the open table.
    unsafe fn form<const N: usize>(&self, fields: &Fields<N>) -> pg_sys::HeapTuple {
        let (values, are_null) = (fields.values.as_ptr(), fields.are_null.as_ptr());
        // SAFETY: as the caller promises; neither array is changed.
        unsafe {
            pg_guard_ffi_boundary(|| {
                raw::heap_form_tuple(self.relation.descriptor(), values.cast_mut(), are_null.cast_mut())
            })
        }
    }

    /// From a version to the newest of its row, over the versions that replaced it.
    fn follow<const N: usize, T>(&self, from: Tid, read: &impl Fn(&Fields<N>) -> Option<T>) -> Option<Version<T>> {
        /// More than a table has room for between two prunings; a circle in a damaged one ends.
        const MAX_VERSIONS: usize = 1 << 20;
        let relation = self.relation.as_ptr();
        // SAFETY: the relation is open, and its tuples are those of a heap. A block is only read where there is one. Each
        // buffer is released. Only whoever holds the lock on the name changes where a version leads to.
        let found = || unsafe {
            let blocks = raw::RelationGetNumberOfBlocksInFork(relation, pg_sys::ForkNumber::MAIN_FORKNUM);
            if block(&from) >= blocks {
                return None;
            }
            let first = raw::ReadBuffer(relation, block(&from));
            prune(relation, first);
            let mut tid = from;
            let mut found = None;
            for _ in 0..MAX_VERSIONS {
                let mut tuple = pg_sys::HeapTupleData { t_self: tid, ..Default::default() };
                let mut buffer: pg_sys::Buffer = 0;
                let is_visible = raw::heap_fetch(relation, newest(), &mut tuple, &mut buffer, true);
                if tuple.t_data.is_null() {
                    release(buffer);
                    break;
                }
                let row = read(&self.deform(&mut tuple));
                let next = (*tuple.t_data).t_ctid;
                release(buffer);
                match row {
                    Some(row) if is_visible => found = Some(Version { tid, row }),
                    Some(_) if !is_same(&next, &tid) && is_tid(&next) && block(&next) < blocks => {
                        tid = next;
                        continue;
                    }
                    _ => {}
                }
                break;
            }
            release(first);
            found
        };
        // SAFETY: one guard around all of it.
        unsafe { pg_guard_ffi_boundary(found) }
    }

    /// By the index.
    fn search<const N: usize, T>(
        &self,
        name: Datum,
        snapshot: pg_sys::Snapshot,
        read: &impl Fn(&Fields<N>) -> Option<T>,
    ) -> Option<Version<T>> {
        let mut found = None;
        self.scan(Some(name), snapshot, |fields, tuple| {
            if found.is_none() {
                // SAFETY: the scan has just given it.
                let tid = unsafe { (*tuple).t_self };
                found = read(fields).map(|row| Version { tid, row });
            }
        });
        found
    }

    /// Calls `each` with the versions that a snapshot gives of the row of this name, or of all rows. They are pinned meanwhile.
    pub(crate) fn scan<const N: usize>(
        &self,
        name: Option<Datum>,
        snapshot: pg_sys::Snapshot,
        mut each: impl FnMut(&Fields<N>, pg_sys::HeapTuple),
    ) {
        let mut key = pg_sys::ScanKeyData::default();
        // SAFETY: the key is a text, as is the column. The scan is ended, and a tuple of it is read before the next.
        unsafe {
            if let Some(name) = name {
                let equal = pg_sys::BTEqualStrategyNumber as u16;
                pg_sys::ScanKeyInit(&mut key, 1, equal, pg_sys::Oid::from(pg_sys::F_TEXTEQ), name);
            }
            let keys = i32::from(name.is_some());
            let relation = self.relation.as_ptr();
            let scan = pg_sys::systable_beginscan(relation, self.index, name.is_some(), snapshot, keys, &mut key);
            loop {
                let tuple = pg_sys::systable_getnext(scan);
                if tuple.is_null() {
                    break;
                }
                each(&self.deform(tuple), tuple);
            }
            pg_sys::systable_endscan(scan);
        }
    }

    /// # Safety
    ///
    /// The tuple is one of the table, which has so many columns, and its buffer is pinned.
    unsafe fn deform<const N: usize>(&self, tuple: pg_sys::HeapTuple) -> Fields<N> {
        let mut fields = Fields::default();
        let (values, are_null) = (fields.values.as_mut_ptr(), fields.are_null.as_mut_ptr());
        // SAFETY: as the caller promises.
        unsafe { raw::heap_deform_tuple(tuple, self.relation.descriptor(), values, are_null) };
        fields
    }
}

/// A snapshot of now, whatever the transaction reads by.
struct Latest(pg_sys::Snapshot);

impl Latest {
    fn take() -> Latest {
        // SAFETY: it is kept as long as this lives.
        Latest(unsafe { pg_sys::RegisterSnapshot(pg_sys::GetLatestSnapshot()) })
    }
}

impl Drop for Latest {
    fn drop(&mut self) {
        // Where an error unwinds, the server gives it back itself.
        if !std::thread::panicking() {
            // SAFETY: it was registered.
            unsafe { pg_sys::UnregisterSnapshot(self.0) };
        }
    }
}

/// What is committed now, and what this transaction has changed.
fn newest() -> pg_sys::Snapshot {
    &raw mut pg_sys::SnapshotSelfData
}

/// Removes the versions of a page that nobody reads any more, which a fetch by tid does not.
///
/// # Safety
///
/// The buffer is one of the relation, and pinned. Errors are for the caller's guard.
unsafe fn prune(relation: pg_sys::Relation, buffer: pg_sys::Buffer) {
    // SAFETY: as the caller promises.
    unsafe {
        #[cfg(not(feature = "pg19"))]
        raw::heap_page_prune_opt(relation, buffer);
        #[cfg(feature = "pg19")]
        {
            let mut map: pg_sys::Buffer = 0;
            raw::heap_page_prune_opt(relation, buffer, &mut map, false);
            release(map);
        }
    }
}

/// # Safety
///
/// The buffer is pinned, or none.
unsafe fn release(buffer: pg_sys::Buffer) {
    if buffer != 0 {
        // SAFETY: as the caller promises.
        unsafe { raw::ReleaseBuffer(buffer) };
    }
}

/// # Safety
///
/// The relation is open, and the version one of it. Errors are for the caller's guard.
unsafe fn replace(relation: pg_sys::Relation, old: *mut Tid, new: pg_sys::HeapTuple) {
    // SAFETY: as the caller promises.
    unsafe {
        #[cfg(feature = "pg15")]
        raw::simple_heap_update(relation, old, new);
        #[cfg(not(feature = "pg15"))]
        {
            let mut indexes = pg_sys::TU_UpdateIndexes::TU_None;
            raw::simple_heap_update(relation, old, new, &mut indexes);
        }
    }
}

/// Lets what follows see the change.
///
/// # Safety
///
/// The tuple was formed here and is stored now. Errors are for the caller's guard.
unsafe fn finish(tuple: pg_sys::HeapTuple) -> Tid {
    // SAFETY: as the caller promises.
    unsafe {
        raw::CommandCounterIncrement();
        let tid = (*tuple).t_self;
        raw::heap_freetuple(tuple);
        tid
    }
}
