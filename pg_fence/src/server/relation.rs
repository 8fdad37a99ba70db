//! An open relation as the server describes it: its names, columns, primary key and triggers.

use crate::server::catalog::{self, RelationName};
use crate::server::locks::RelationLock;
use pgrx::pg_sys::{self, Datum, Oid};
use std::ffi::{CStr, CString};

/// A relation that is open as long as this lives. Its lock stays to the end of the transaction.
pub(crate) struct OpenRelation {
    relation: pg_sys::Relation,
    is_locked: bool,
}

/// A column that was not dropped.
pub(crate) struct Attribute<'r> {
    pub(crate) form: &'r pg_sys::FormData_pg_attribute,
    /// Whether no row has a null in it.
    pub(crate) is_never_null: bool,
}

/// The index of a primary key.
pub(crate) struct PrimaryKey {
    pub(crate) oid: Oid,
    pub(crate) name: CString,
    pub(crate) is_immediate: bool,
    pub(crate) is_exclusion: bool,
    pub(crate) is_valid: bool,
    pub(crate) columns: Vec<IndexColumn>,
}

/// A column of an index.
pub(crate) struct IndexColumn {
    /// Its number in the table.
    pub(crate) number: i16,
    pub(crate) operator_family: Oid,
    /// The type that the operator class takes.
    pub(crate) operator_type: Oid,
}

/// A CHECK constraint of an open relation.
pub(crate) struct Check<'r> {
    pub(crate) name: &'r CStr,
    /// As the text of a node tree.
    pub(crate) condition: &'r CStr,
}

/// A trigger of an open relation.
pub(crate) struct Trigger<'r>(&'r pg_sys::Trigger);

impl OpenRelation {
    /// Opens a relation under a lock; `None` where it does not exist. Without a lock to take, it must be locked
    /// already.
    pub(crate) fn open(oid: Oid, lock: RelationLock) -> Option<OpenRelation> {
        // SAFETY: a null answer says that there is no such relation.
        let relation = unsafe { pg_sys::try_relation_open(oid, lock.mode()) };
        Self::opened(relation, true)
    }

    /// Opens a relation that is perhaps not locked: its description stays as it is while it is open, whatever changes.
    pub(crate) fn description(oid: Oid) -> Option<OpenRelation> {
        // SAFETY: a null answer says that there is no such relation.
        let relation = unsafe { pg_sys::RelationIdGetRelation(oid) };
        Self::opened(relation, false)
    }

    /// Not with `then_some`, which would make one of a null pointer, and close that.
    fn opened(relation: pg_sys::Relation, is_locked: bool) -> Option<OpenRelation> {
        if relation.is_null() { None } else { Some(OpenRelation { relation, is_locked }) }
    }

    /// As the server takes it, as long as this lives.
    pub(crate) fn as_ptr(&self) -> pg_sys::Relation {
        self.relation
    }

    pub(crate) fn oid(&self) -> Oid {
        self.data().rd_id
    }

    pub(crate) fn name(&self) -> RelationName {
        RelationName { schema: catalog::schema_name(self.schema()), name: catalog::name(&self.form().relname) }
    }

    pub(crate) fn schema(&self) -> Oid {
        self.form().relnamespace
    }

    /// As in `pg_class.relkind`.
    pub(crate) fn kind(&self) -> u8 {
        self.form().relkind as u8
    }

    pub(crate) fn row_type(&self) -> Oid {
        self.form().reltype
    }

    pub(crate) fn is_heap(&self) -> bool {
        self.kind() == pg_sys::RELKIND_RELATION && self.form().relam == pg_sys::HEAP_TABLE_AM_OID
    }

    pub(crate) fn descriptor(&self) -> pg_sys::TupleDesc {
        self.data().rd_att
    }

    /// How many columns it has, with those that were dropped.
    pub(crate) fn column_count(&self) -> usize {
        usize::try_from(self.form().relnatts).unwrap_or(0)
    }

    /// Its columns, without those that were dropped.
    pub(crate) fn columns(&self) -> impl Iterator<Item = Attribute<'_>> {
        let (descriptor, count) = (self.descriptor(), self.form().relnatts);
        // SAFETY: the descriptor of an open relation has an entry for each of its columns.
        let attributes = (0..i32::from(count)).map(move |n| unsafe {
            Attribute {
                form: &*catalog::attribute(descriptor, n),
                is_never_null: catalog::is_never_null(descriptor, n),
            }
        });
        attributes.filter(|attribute| !attribute.form.attisdropped)
    }

    pub(crate) fn has_rules(&self) -> bool {
        !self.data().rd_rules.is_null()
    }

    pub(crate) fn has_triggers_before_updates(&self) -> bool {
        self.trigger_description().is_some_and(|all| all.trig_update_before_row)
    }

    pub(crate) fn has_triggers_after_writes(&self) -> bool {
        self.trigger_description()
            .is_some_and(|all| all.trig_update_after_row || all.trig_delete_after_row || all.trig_insert_after_row)
    }

    pub(crate) fn triggers(&self) -> impl Iterator<Item = Trigger<'_>> {
        let triggers = self.trigger_description().map_or(&[][..], |all| {
            // SAFETY: there are as many triggers as the description says.
            unsafe { std::slice::from_raw_parts(all.triggers, usize::try_from(all.numtriggers).unwrap_or(0)) }
        });
        triggers.iter().map(Trigger)
    }

    pub(crate) fn checks(&self) -> impl Iterator<Item = Check<'_>> {
        // SAFETY: the constraints of an open relation are none, or as many as it says; each has both texts where it is not
        // null, and they live as long as the description of the relation.
        unsafe {
            let constraints = (*self.descriptor()).constr.as_ref();
            let checks = constraints.filter(|all| !all.check.is_null() && all.num_check > 0);
            let checks =
                checks.map_or(&[][..], |all| std::slice::from_raw_parts(all.check, usize::from(all.num_check)));
            let checks = checks.iter().filter(|check| !check.ccname.is_null() && !check.ccbin.is_null());
            checks.map(|check| Check { name: CStr::from_ptr(check.ccname), condition: CStr::from_ptr(check.ccbin) })
        }
    }

    /// Its primary key; `None` where it has none. The relation is locked, so its indexes stay.
    pub(crate) fn primary_key(&self) -> Option<PrimaryKey> {
        let oid = self.indexes().into_iter().find(|&index| is_primary(index))?;
        // SAFETY: the index stays. It has an entry for each column of the key in each array, and is closed again.
        unsafe {
            let index = pg_sys::index_open(oid, pg_sys::AccessShareLock as i32);
            let form = &*(*index).rd_index;
            let columns = (0..usize::try_from(form.indnkeyatts).unwrap_or(0)).map(|n| IndexColumn {
                number: *form.indkey.values.as_ptr().add(n),
                operator_family: *(*index).rd_opfamily.add(n),
                operator_type: *(*index).rd_opcintype.add(n),
            });
            let key = PrimaryKey {
                oid,
                name: catalog::name(&(*(*index).rd_rel).relname),
                is_immediate: form.indimmediate,
                is_exclusion: form.indisexclusion,
                is_valid: form.indisvalid,
                columns: columns.collect(),
            };
            pg_sys::index_close(index, pg_sys::AccessShareLock as i32);
            Some(key)
        }
    }

    /// The index of its primary key, if that is its first column, a text that is compared byte for byte, and no index is of
    /// anything else. There are two of that kind while one is built anew. The relation is locked, so its indexes stay.
    pub(crate) fn key_of_first_text(&self) -> Option<Oid> {
        let mut key = None;
        for oid in self.indexes() {
            // SAFETY: the index stays; it has an entry for each column, and is closed again.
            unsafe {
                let index = pg_sys::index_open(oid, pg_sys::AccessShareLock as i32);
                let (form, class) = (&*(*index).rd_index, &*(*index).rd_rel);
                let is_on_first = form.indnatts == 1 && *form.indkey.values.as_ptr() == 1 && !form.indisexclusion;
                let is_of_all = pg_sys::RelationGetIndexPredicate(index).is_null();
                let is_of_bytes =
                    *(*index).rd_opcintype == pg_sys::TEXTOID && *(*index).rd_indcollation == pg_sys::C_COLLATION_OID;
                let is_b_tree = class.relam == pg_sys::BTREE_AM_OID;
                if form.indisprimary && form.indimmediate && form.indisvalid {
                    key = Some(oid);
                }
                pg_sys::index_close(index, pg_sys::AccessShareLock as i32);
                if !(is_on_first && is_of_all && is_of_bytes && is_b_tree) {
                    return None;
                }
            }
        }
        key
    }

    pub(crate) fn indexes(&self) -> Vec<Oid> {
        // SAFETY: the list is one of oids, and the caller's to free.
        unsafe {
            let list = pg_sys::RelationGetIndexList(self.relation);
            let indexes = catalog::oids(list);
            pg_sys::list_free(list);
            indexes
        }
    }

    fn data(&self) -> &pg_sys::RelationData {
        // SAFETY: the relation is open.
        unsafe { &*self.relation }
    }

    fn form(&self) -> &pg_sys::FormData_pg_class {
        // SAFETY: an open relation has its row of the catalog.
        unsafe { &*self.data().rd_rel }
    }

    fn trigger_description(&self) -> Option<&pg_sys::TriggerDesc> {
        // SAFETY: an open relation's description of its triggers is null or valid.
        unsafe { self.data().trigdesc.as_ref() }
    }
}

impl Drop for OpenRelation {
    fn drop(&mut self) {
        // SAFETY: it is open, and is closed as it was opened.
        unsafe {
            match self.is_locked {
                true => pg_sys::relation_close(self.relation, pg_sys::NoLock as i32),
                false => pg_sys::RelationClose(self.relation),
            }
        }
    }
}

impl<'r> Trigger<'r> {
    pub(crate) fn name(&self) -> &'r CStr {
        // SAFETY: a trigger of an open relation has a name.
        unsafe { CStr::from_ptr(self.0.tgname) }
    }

    pub(crate) fn function(&self) -> Oid {
        self.0.tgfoid
    }

    /// Its WHEN condition, as the text of a node tree.
    pub(crate) fn condition(&self) -> Option<&'r CStr> {
        // SAFETY: the condition is null or a text that lives as long as the description of the relation.
        (!self.0.tgqual.is_null()).then(|| unsafe { CStr::from_ptr(self.0.tgqual) })
    }

    /// As in `pg_trigger.tgtype`.
    pub(crate) fn kind(&self) -> i16 {
        self.0.tgtype
    }

    /// Whether it is one of a partition that follows its parent's.
    pub(crate) fn is_clone(&self) -> bool {
        self.0.tgisclone
    }

    /// Whether it fires where nobody has changed `session_replication_role`.
    pub(crate) fn is_enabled(&self) -> bool {
        matches!(self.0.tgenabled as u8, b'O' | b'A')
    }
}

fn is_primary(index: Oid) -> bool {
    // SAFETY: the tuple is checked, read and released; an index's tuple has this layout.
    unsafe {
        let tuple = pg_sys::SearchSysCache1(pg_sys::SysCacheIdentifier::INDEXRELID as _, Datum::from(index));
        if tuple.is_null() {
            return false;
        }
        let is_primary = (*pg_sys::GETSTRUCT(tuple).cast::<pg_sys::FormData_pg_index>()).indisprimary;
        pg_sys::ReleaseSysCache(tuple);
        is_primary
    }
}
