//! Reads the facts of a table from the server's description of it.

use crate::errors::Refused;
use crate::server::catalog::{self, RelationName};
use crate::server::locks::RelationLock;
use crate::server::relation::{OpenRelation, PrimaryKey};
use crate::server::types;
use crate::table::distributed;
use crate::table::owner;
use crate::table::plan::Plans;
use crate::table::relation::{Column, KeyColumn, SCHEMAS, TYPES, Table};
use pg_forms::c_string;
use pgrx::pg_sys::{self, Oid};
use std::cell::{Cell, OnceCell, RefCell};

/// Reads the facts of a relation that is locked. Errors: it is gone, not a table, or has no primary key that picks one
/// row.
pub(crate) fn read(oid: Oid) -> Result<Table, Refused> {
    let relation = OpenRelation::open(oid, RelationLock::None).ok_or(Refused::NoRelation(oid))?;
    let name = relation.name();
    refuse_other_kinds(oid, relation.kind(), &name)?;
    let mut columns = columns_of(&relation);
    let (index, key) = primary_key(&relation, &columns, &name)?;
    for key in &key {
        columns[key.column].is_key = true;
    }
    for n in 0..columns.len() {
        columns[n].owner = owner::place(&columns, &columns[n]);
    }
    let mut alias = b"fenced".to_vec();
    while columns.iter().any(|column| column.name.as_bytes() == alias) {
        alias.push(b'_');
    }
    let is_partitioned = relation.kind() == pg_sys::RELKIND_PARTITIONED_TABLE;
    let is_distributed = distributed::is_distributed(oid)?;
    let table = Table {
        oid,
        name,
        row_type: relation.row_type(),
        row_type_hash: catalog::hash_of_entry(TYPES, relation.row_type()),
        is_partitioned,
        can_change_writes: is_partitioned || relation.has_rules() || relation.has_triggers_before_updates(),
        may_be_protected: is_partitioned || relation.has_triggers_after_writes(),
        has_writers: (is_partitioned || relation.is_heap()) && !is_distributed,
        takes_many: !is_partitioned && !relation.has_rules() && !is_distributed,
        has_all_columns: columns.len() == relation.column_count(),
        columns,
        key,
        key_index: index.oid,
        key_index_name: index.name,
        alias: c_string(alias),
        plans: Plans::default(),
        is_current: Cell::new(true),
        writer: Cell::new(pg_sys::InvalidOid),
        used: Cell::new(0),
        column_changes: Cell::new(0),
        depends_on: RefCell::default(),
    };
    table.depends_on(SCHEMAS, relation.schema());
    Ok(table)
}

fn refuse_other_kinds(oid: Oid, kind: u8, name: &RelationName) -> Result<(), Refused> {
    let (kind, hint) = match kind {
        pg_sys::RELKIND_RELATION | pg_sys::RELKIND_PARTITIONED_TABLE if !catalog::is_system_catalog(oid) => {
            return Ok(());
        }
        pg_sys::RELKIND_RELATION => ("a system catalog", "Use a table of your own."),
        pg_sys::RELKIND_VIEW => ("a view", "Name the table that the view shows."),
        pg_sys::RELKIND_MATVIEW => ("a materialized view", "Name the table that the view shows."),
        pg_sys::RELKIND_FOREIGN_TABLE => ("a foreign table", "Fence the table in the database that holds it."),
        pg_sys::RELKIND_COMPOSITE_TYPE => ("a composite type", "Pass a null of a table's row type."),
        pg_sys::RELKIND_INDEX | pg_sys::RELKIND_PARTITIONED_INDEX => ("an index", "Name its table."),
        pg_sys::RELKIND_SEQUENCE => ("a sequence", "Use a table."),
        _ => ("not a table", "Use a table."),
    };
    Err(Refused::NotATable { relation: name.clone(), kind, hint })
}

fn columns_of(relation: &OpenRelation) -> Vec<Column> {
    const GENERATED_ALWAYS: u8 = b'a';
    let columns = relation.columns().map(|attribute| Column {
        number: attribute.form.attnum,
        name: catalog::name(&attribute.form.attname),
        type_oid: attribute.form.atttypid,
        base_type: types::base_type(attribute.form.atttypid),
        typmod: attribute.form.atttypmod,
        collation: attribute.form.attcollation,
        is_generated: attribute.form.attgenerated != 0,
        is_identity_always: attribute.form.attidentity as u8 == GENERATED_ALWAYS,
        is_key: false,
        is_never_null: attribute.is_never_null,
        owner: None,
        input: OnceCell::new(),
    });
    columns.collect()
}

/// The primary key and its columns, if it picks one row at any time.
fn primary_key(
    relation: &OpenRelation,
    columns: &[Column],
    name: &RelationName,
) -> Result<(PrimaryKey, Vec<KeyColumn>), Refused> {
    let refused = |problem, hint| Err(Refused::PrimaryKey { table: name.clone(), problem, hint });
    let Some(key) = relation.primary_key() else {
        return refused("has no primary key", "Add one with ALTER TABLE ... ADD PRIMARY KEY.");
    };
    if !key.is_immediate {
        return refused(
            "has a deferrable primary key",
            "Make it NOT DEFERRABLE: until the end of a transaction two rows can have one key.",
        );
    }
    if key.is_exclusion {
        return refused(
            "has a primary key WITHOUT OVERLAPS",
            "Add a plain primary key: this one picks rows by a period.",
        );
    }
    let found = key.columns.iter().map(|indexed| {
        let column = columns.iter().position(|column| column.number == indexed.number)?;
        let (operator_family, operator_type) = (indexed.operator_family, indexed.operator_type);
        Some(KeyColumn {
            column,
            operator_family,
            operator_type,
            fits: RefCell::default(),
            base_input: OnceCell::new(),
        })
    });
    match found.collect::<Option<Vec<_>>>() {
        Some(found) if key.is_valid => Ok((key, found)),
        _ => refused("has a primary key whose index is not valid", "Rebuild the index with REINDEX."),
    }
}
