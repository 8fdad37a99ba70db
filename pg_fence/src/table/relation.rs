//! The facts of a fenced table: its columns, its primary key, and what its statements depend on.
//!
//! Not how they are read (`facts`) and how long they are kept (`tables`). A table is known by its oid, so it is the
//! same when it is renamed or moved, and one that is created again under an old name is another table.

use crate::errors::Refused;
use crate::server::callbacks::CatalogId;
use crate::server::catalog::{self, RelationName};
use crate::server::operators;
use crate::server::types::{self, Input};
use crate::table::fit::Fit;
use crate::table::plan::Plans;
use pg_forms::{Identifier, joined, text};
use pgrx::pg_sys::{self, Oid};
use std::cell::{Cell, OnceCell, RefCell};
use std::ffi::{CStr, CString};

/// The facts of a table, and the plans of its statements.
pub(crate) struct Table {
    pub(crate) oid: Oid,
    pub(crate) name: RelationName,
    pub(crate) row_type: Oid,
    /// The hash of the type, as the server's messages about changes name it.
    pub(crate) row_type_hash: u32,
    /// Whether it is partitioned. Others are addressed with ONLY, without the tables that inherit from them.
    pub(crate) is_partitioned: bool,
    /// Whether a BEFORE trigger or a rule can make something else of a write, so that its result must be checked. A
    /// partition can have triggers of its own.
    pub(crate) can_change_writes: bool,
    /// Whether a change of many rows can be one statement: not where a rule makes something else of it, where another
    /// server runs it, or where it would lock partitions that it does not write.
    pub(crate) takes_many: bool,
    /// Whether it can have the triggers of a protected table; those of a partitioned table may be on partitions alone.
    pub(crate) may_be_protected: bool,
    /// Whether its versions say which transaction has written them, so that it can be asked whether they are of this life
    /// of the server. Those of a distributed table say what transaction of another server.
    pub(crate) has_writers: bool,
    /// Whether its rows have no more fields than it has columns: none was dropped.
    pub(crate) has_all_columns: bool,
    /// Its columns, without those that were dropped.
    pub(crate) columns: Vec<Column>,
    /// The columns of its primary key, in the key's order.
    pub(crate) key: Vec<KeyColumn>,
    /// The index of its primary key, and the name of both.
    pub(crate) key_index: Oid,
    pub(crate) key_index_name: CString,
    /// A name for its row in a statement that none of its columns has.
    pub(crate) alias: CString,
    pub(crate) plans: Plans,
    /// Whether nothing has changed since.
    pub(crate) is_current: Cell<bool>,
    /// The role that was last seen to have a right to change rows; a change of rights makes a new entry.
    pub(crate) writer: Cell<Oid>,
    /// When it was used last, by the clock of `tables`.
    pub(crate) used: Cell<u64>,
    /// The count of column changes at the last change of this table.
    pub(crate) column_changes: Cell<u64>,
    /// The entries of catalogs that the texts of its statements name.
    pub(crate) depends_on: RefCell<Vec<CatalogEntry>>,
}

/// A column of a table.
pub(crate) struct Column {
    pub(crate) number: i16,
    pub(crate) name: CString,
    /// Its type, which may be a domain.
    pub(crate) type_oid: Oid,
    /// Its type, or the one that the domain is over.
    pub(crate) base_type: Oid,
    /// The modifier of its type, such as the precision of a numeric.
    pub(crate) typmod: i32,
    pub(crate) collation: Oid,
    pub(crate) is_generated: bool,
    /// Whether it is GENERATED ALWAYS AS IDENTITY.
    pub(crate) is_identity_always: bool,
    pub(crate) is_key: bool,
    /// Whether no row has a null in it.
    pub(crate) is_never_null: bool,
    /// Where it can hold a fence: the place in [`Table::columns`] of the column that keeps the owner of that, by its name.
    pub(crate) owner: Option<usize>,
    /// The input function of its type, once it was used.
    pub(crate) input: OnceCell<Input>,
}

/// A column of a primary key.
pub(crate) struct KeyColumn {
    /// Its place in [`Table::columns`].
    pub(crate) column: usize,
    /// The operator family of the index.
    pub(crate) operator_family: Oid,
    /// The type that the operator class of the index takes.
    pub(crate) operator_type: Oid,
    /// How values of the types seen so far are compared with it.
    pub(crate) fits: RefCell<Vec<(Oid, Fit)>>,
    /// The input function of the type without a domain, once it was used.
    pub(crate) base_input: OnceCell<Input>,
}

/// An entry of a catalog that a statement's text names, as the server's messages about changes name it.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct CatalogEntry {
    pub(crate) catalog: CatalogId,
    /// The hash of the entry's oid.
    pub(crate) hash: u32,
}

pub(crate) const SCHEMAS: CatalogId = pg_sys::SysCacheIdentifier::NAMESPACEOID as CatalogId;
pub(crate) const OPERATORS: CatalogId = pg_sys::SysCacheIdentifier::OPEROID as CatalogId;
pub(crate) const TYPES: CatalogId = pg_sys::SysCacheIdentifier::TYPEOID as CatalogId;
pub(crate) const COLUMNS: CatalogId = pg_sys::SysCacheIdentifier::ATTNUM as CatalogId;

impl Table {
    /// The fence column of this name. Errors: there is none, or it cannot hold a fence.
    pub(crate) fn fence_column(&self, name: &CStr) -> Result<&Column, Refused> {
        let named = || (self.name.clone(), name.to_owned());
        let Some(column) = self.column(name.to_bytes()) else {
            let (table, column) = named();
            return Err(Refused::NoFenceColumn { table, column });
        };
        if !matches!(column.base_type, pg_sys::INT8OID | pg_sys::INT4OID) {
            let (table, column_name) = named();
            let type_name = types::type_name(column.type_oid);
            return Err(Refused::FenceColumnType { table, column: column_name, type_name });
        }
        let problem = match column {
            Column { is_key: true, .. } => "is part of the primary key",
            Column { is_generated: true, .. } => "is a generated column",
            Column { is_identity_always: true, .. } => "is an identity column",
            _ => return Ok(column),
        };
        let (table, column) = named();
        Err(Refused::FenceColumnUse { table, column, problem })
    }

    /// The column of exactly this name.
    pub(crate) fn column(&self, name: &[u8]) -> Option<&Column> {
        self.columns.iter().find(|column| column.name.as_bytes() == name)
    }

    /// A column of the primary key.
    pub(crate) fn key_column(&self, key: &KeyColumn) -> &Column {
        &self.columns[key.column]
    }

    /// The names of the key's columns as text: `(a, b)`.
    pub(crate) fn key_names(&self) -> Vec<u8> {
        text!["(", joined(self.key.iter().map(|key| &self.key_column(key).name), ", "), ")"]
    }

    /// The table in SQL.
    pub(crate) fn qualified_name(&self) -> Vec<u8> {
        text![Identifier(&self.name.schema), ".", Identifier(&self.name.name)]
    }

    /// Whether another reading found what statements and their answers rely on as this one did.
    pub(crate) fn has_facts_of(&self, other: &Table) -> bool {
        let columns = self.columns.iter().map(Column::facts).eq(other.columns.iter().map(Column::facts));
        let facts_of_key = |key: &KeyColumn| (key.column, key.operator_family, key.operator_type);
        let key = self.key.iter().map(facts_of_key).eq(other.key.iter().map(facts_of_key));
        let flags =
            |of: &Table| (of.can_change_writes, of.may_be_protected, of.has_writers, of.takes_many, of.has_all_columns);
        columns && key && self.row_type == other.row_type && flags(self) == flags(other)
    }

    /// Notes that the text of this table's statements names an operator, and with it the operator's and types' names.
    pub(crate) fn depends_on_operator(&self, operator: Oid, types: &[Oid]) {
        self.depends_on(OPERATORS, operator);
        if let Some(schema) = operators::operator_schema(operator) {
            self.depends_on(SCHEMAS, schema);
        }
        for &type_oid in types {
            self.depends_on(TYPES, type_oid);
        }
    }

    /// Notes that the text of this table's statements names a type.
    pub(crate) fn depends_on_type(&self, type_oid: Oid) {
        self.depends_on(TYPES, type_oid);
        if let Some(schema) = types::schema_of(type_oid) {
            self.depends_on(SCHEMAS, schema);
        }
    }

    /// Notes that the text of this table's statements names an entry of a catalog.
    pub(crate) fn depends_on(&self, catalog: CatalogId, oid: Oid) {
        let entry = CatalogEntry { catalog, hash: catalog::hash_of_entry(catalog, oid) };
        let mut depends_on = self.depends_on.borrow_mut();
        if !depends_on.contains(&entry) {
            depends_on.push(entry);
        }
    }
}

impl Column {
    fn facts(&self) -> impl PartialEq {
        let name = self.name.clone();
        let uses = (self.is_generated, self.is_identity_always, self.is_key, self.is_never_null);
        (self.number, name, self.type_oid, self.typmod, self.collation, uses)
    }

    /// The input function of the column's type, with the checks of a domain.
    pub(crate) fn input(&self) -> &Input {
        self.input.get_or_init(|| Input::of(self.type_oid))
    }
}

impl KeyColumn {
    /// How values of a type are compared with it, if one has been seen before.
    pub(crate) fn known_fit(&self, given: Oid) -> Option<Fit> {
        self.fits.borrow().iter().find(|(known, _)| *known == given).map(|(_, fit)| *fit)
    }

    /// The input function of the type without a domain's checks: a key that no row can have is not an error.
    pub(crate) fn base_input(&self, column: &Column) -> &Input {
        self.base_input.get_or_init(|| Input::of(column.base_type))
    }
}

impl Table {
    /// What the facts take, without the plans: nearly all is for the columns.
    pub(crate) fn bytes(&self) -> usize {
        let names: usize = self.columns.iter().map(|column| column.name.count_bytes() + 1).sum();
        size_of::<Table>() + self.columns.len() * size_of::<Column>() + names
    }
}
