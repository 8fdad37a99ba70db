//! Reads the facts of a table from the server's description of an open relation.
//!
//! Invariant: the relation is locked, and open only here.

use crate::errors::Refused;
use crate::server::catalog::{self, RelationName};
use crate::server::types;
use crate::table::plan::Plans;
use crate::table::relation::{Column, KeyColumn, SCHEMAS, TYPES, Table, hash_of};
use pg_forms::c_string;
use pgrx::pg_sys::{self, Datum, Oid};
use std::cell::{Cell, OnceCell, RefCell};

/// Reads the facts of a relation that is locked. Errors: it is gone, not a table, or has no primary key that picks one row.
pub(crate) fn read(oid: Oid) -> Result<Table, Refused> {
    // SAFETY: the relation is locked. A null answer says that it does not exist. It is closed again; its lock stays.
    unsafe {
        let relation = pg_sys::try_relation_open(oid, pg_sys::NoLock as i32);
        if relation.is_null() {
            return Err(Refused::NoRelation(oid));
        }
        let facts = facts_of(&*relation);
        pg_sys::relation_close(relation, pg_sys::NoLock as i32);
        let (table, schema) = facts?;
        table.depends_on(SCHEMAS, schema);
        Ok(table)
    }
}

/// The facts of an open relation, and the oid of its schema.
fn facts_of(relation: &pg_sys::RelationData) -> Result<(Table, Oid), Refused> {
    // SAFETY: an open relation has its row of the catalog.
    let form = unsafe { &*relation.rd_rel };
    let name = RelationName { schema: catalog::schema_name(form.relnamespace), name: catalog::name(&form.relname) };
    refuse_other_kinds(relation.rd_id, form.relkind as u8, &name)?;
    let mut columns = columns_of(relation.rd_att);
    let key = primary_key(relation, &columns, &name)?;
    for key in &key {
        columns[key.column].is_key = true;
    }
    let mut alias = b"fenced".to_vec();
    while columns.iter().any(|column| column.name.as_bytes() == alias) {
        alias.push(b'_');
    }
    let is_partitioned = form.relkind as u8 == pg_sys::RELKIND_PARTITIONED_TABLE;
    let table = Table {
        oid: relation.rd_id,
        name,
        row_type: form.reltype,
        row_type_hash: hash_of(TYPES, form.reltype),
        is_partitioned,
        can_change_writes: is_partitioned || has_rules_or_triggers(relation),
        may_be_protected: is_partitioned || has_triggers_after_writes(relation),
        has_all_columns: columns.len() == form.relnatts as usize,
        columns,
        key,
        alias: c_string(alias),
        plans: Plans::default(),
        is_current: Cell::new(true),
        writer: Cell::new(pg_sys::InvalidOid),
        used: Cell::new(0),
        column_changes: Cell::new(0),
        depends_on: RefCell::default(),
    };
    Ok((table, form.relnamespace))
}

fn has_rules_or_triggers(relation: &pg_sys::RelationData) -> bool {
    // SAFETY: an open relation's description of its triggers is null or valid.
    let triggers = unsafe { relation.trigdesc.as_ref() };
    !relation.rd_rules.is_null() || triggers.is_some_and(|triggers| triggers.trig_update_before_row)
}

fn has_triggers_after_writes(relation: &pg_sys::RelationData) -> bool {
    // SAFETY: an open relation's description of its triggers is null or valid.
    let triggers = unsafe { relation.trigdesc.as_ref() };
    triggers.is_some_and(|triggers| triggers.trig_update_after_row || triggers.trig_delete_after_row)
}

fn refuse_other_kinds(oid: Oid, kind: u8, name: &RelationName) -> Result<(), Refused> {
    let (kind, hint) = match kind {
        pg_sys::RELKIND_RELATION | pg_sys::RELKIND_PARTITIONED_TABLE => {
            // SAFETY: it looks at the number alone.
            if !unsafe { pg_sys::IsCatalogRelationOid(oid) } {
                return Ok(());
            }
            ("a system catalog", "Use a table of your own.")
        }
        pg_sys::RELKIND_VIEW => ("a view", "Name the table that the view shows."),
        pg_sys::RELKIND_MATVIEW => ("a materialized view", "Name the table that the view shows."),
        pg_sys::RELKIND_FOREIGN_TABLE => ("a foreign table", "Fence the table in the database that holds it."),
        pg_sys::RELKIND_COMPOSITE_TYPE => ("a composite type", "Pass a null of a table's row type."),
        pg_sys::RELKIND_INDEX | pg_sys::RELKIND_PARTITIONED_INDEX => ("an index", "Name its table."),
        pg_sys::RELKIND_SEQUENCE => ("a sequence", "Use a table."),
        _ => ("no table", "Use a table."),
    };
    Err(Refused::NotATable { relation: name.clone(), kind, hint })
}

fn columns_of(descriptor: pg_sys::TupleDesc) -> Vec<Column> {
    const GENERATED_ALWAYS: u8 = b'a';
    // SAFETY: the descriptor of an open relation has as many entries as it says.
    let attributes = unsafe { (0..(*descriptor).natts).map(|n| (n, &*catalog::attribute(descriptor, n))) };
    attributes
        .filter(|(_, attribute)| !attribute.attisdropped)
        .map(|(n, attribute)| Column {
            number: attribute.attnum,
            name: catalog::name(&attribute.attname),
            type_oid: attribute.atttypid,
            base_type: types::base_type(attribute.atttypid),
            typmod: attribute.atttypmod,
            collation: attribute.attcollation,
            is_generated: attribute.attgenerated != 0,
            is_identity_always: attribute.attidentity as u8 == GENERATED_ALWAYS,
            is_key: false,
            // SAFETY: the descriptor of an open relation, as above.
            is_never_null: unsafe { catalog::is_never_null(descriptor, n) },
            input: OnceCell::new(),
        })
        .collect()
}

/// The columns of the primary key, if it picks one row at any time.
fn primary_key(
    relation: &pg_sys::RelationData,
    columns: &[Column],
    name: &RelationName,
) -> Result<Vec<KeyColumn>, Refused> {
    let refused = |problem, hint| Err(Refused::PrimaryKey { table: name.clone(), problem, hint });
    let Some(index_oid) = primary_key_index(relation) else {
        return refused("has no primary key", "Add one with ALTER TABLE ... ADD PRIMARY KEY.");
    };
    // SAFETY: the index belongs to a locked table, so it stays. It has an entry per key column in each array. It is
    // closed again.
    unsafe {
        let index = pg_sys::index_open(index_oid, pg_sys::AccessShareLock as i32);
        let form = &*(*index).rd_index;
        let (is_immediate, is_exclusion, is_valid) = (form.indimmediate, form.indisexclusion, form.indisvalid);
        let key = (0..form.indnkeyatts as usize)
            .map(|n| {
                let number = *form.indkey.values.as_ptr().add(n);
                KeyColumn {
                    column: columns.iter().position(|column| column.number == number).unwrap_or(usize::MAX),
                    operator_family: *(*index).rd_opfamily.add(n),
                    operator_type: *(*index).rd_opcintype.add(n),
                    fits: RefCell::default(),
                    base_input: OnceCell::new(),
                }
            })
            .collect::<Vec<_>>();
        pg_sys::index_close(index, pg_sys::AccessShareLock as i32);
        if !is_immediate {
            return refused(
                "has a deferrable primary key",
                "Make it NOT DEFERRABLE: until the end of a transaction two rows can have one key.",
            );
        }
        if is_exclusion {
            return refused(
                "has a primary key WITHOUT OVERLAPS",
                "Add a plain primary key: this one picks rows by a period.",
            );
        }
        if !is_valid || key.iter().any(|key| key.column >= columns.len()) {
            return refused("has a primary key whose index is not valid", "Rebuild the index with REINDEX.");
        }
        Ok(key)
    }
}

fn primary_key_index(relation: &pg_sys::RelationData) -> Option<Oid> {
    // SAFETY: the relation is open and locked, so its indexes stay. The list is the caller's to free. The row of the
    // catalog is read before it is released.
    unsafe {
        let list = pg_sys::RelationGetIndexList((&raw const *relation).cast_mut());
        if list.is_null() {
            return None;
        }
        let found = (0..(*list).length as usize).map(|n| (*(*list).elements.add(n)).oid_value).find(|&index| {
            let tuple = pg_sys::SearchSysCache1(pg_sys::SysCacheIdentifier::INDEXRELID as _, Datum::from(index));
            if tuple.is_null() {
                return false;
            }
            let is_primary = (*pg_sys::GETSTRUCT(tuple).cast::<pg_sys::FormData_pg_index>()).indisprimary;
            pg_sys::ReleaseSysCache(tuple);
            is_primary
        });
        pg_sys::list_free(list);
        found
    }
}
