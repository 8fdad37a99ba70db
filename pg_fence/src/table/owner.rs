//! Where a table keeps whose a fence is: the column beside the fence column, and what a call says of it.
//!
//! Not the rule, which is in `fence`. Owners are compared byte for byte, whatever the collation. Where nobody owns the fence
//! the column is NULL or an empty text, whichever it can be. Invariant: a column is used only if it gives back what was stored,
//! and nothing else that is equal to it.

use crate::errors::{OwnerProblem, Refused};
use crate::server::text::Bytes;
use crate::server::types;
use crate::table::relation::{Column, Table};
use pg_forms::{c_string, text};
use pgrx::pg_sys;
use std::ffi::{CStr, CString};

/// The column that keeps the owner of a fence, and the owner that the caller says, if it says one.
#[derive(Clone, Copy)]
pub(crate) struct Owner<'a> {
    pub(crate) column: &'a Column,
    pub(crate) given: Option<Bytes<'a>>,
}

impl Owner<'_> {
    /// How the column is told that nobody owns the fence.
    pub(crate) fn nobody(self) -> &'static str {
        if self.column.is_never_null { "''" } else { "NULL" }
    }
}

/// Whether a text that a column holds is somebody.
pub(crate) fn is_somebody(stored: &[u8]) -> bool {
    !stored.is_empty()
}

/// What a call says of owners.
#[derive(Clone, Copy, Default)]
pub(crate) struct OwnerArguments<'c> {
    pub(crate) owner: Option<Bytes<'c>>,
    /// Where it is kept; `None` leaves that to the name of the fence column.
    pub(crate) column: Option<&'c CStr>,
}

impl<'c> OwnerArguments<'c> {
    /// Where the table keeps the owner of this fence column; `None` where it does not and the call says nothing of it.
    /// Errors: the call says something, and there is no such column, or none that keeps this owner as it is.
    pub(crate) fn of<'a>(self, table: &'a Table, fence: &'a Column) -> Result<Option<Owner<'a>>, Refused>
    where
        'c: 'a,
    {
        let column = match self.column {
            None => match fence.owner.map(|owner| &table.columns[owner]) {
                None if self.owner.is_none() => return Ok(None),
                None => named(table, &default_name(&fence.name))?,
                Some(column) => column,
            },
            Some(name) => named(table, name)?,
        };
        if let Some(owner) = self.owner {
            require_room(table, column, owner)?;
        }
        Ok(Some(Owner { column, given: self.owner }))
    }
}

/// The name of the column that keeps the owner of a fence column, where a call names no other.
fn default_name(fence: &CStr) -> CString {
    c_string(text![fence, "_owner"])
}

/// The place of the column that keeps the owner of a fence column by its name, where it is one that can.
pub(crate) fn place(columns: &[Column], fence: &Column) -> Option<usize> {
    if !matches!(fence.base_type, pg_sys::INT8OID | pg_sys::INT4OID) {
        return None;
    }
    let name = default_name(&fence.name);
    columns.iter().position(|column| column.name == name && problem(column).is_none())
}

fn named<'a>(table: &'a Table, name: &CStr) -> Result<&'a Column, Refused> {
    let refused = |problem| Err(Refused::OwnerColumn { table: table.name.clone(), column: name.to_owned(), problem });
    let Some(column) = table.column(name.to_bytes()) else {
        return refused(OwnerProblem::Missing);
    };
    match problem(column) {
        Some(problem) => refused(problem),
        None => Ok(column),
    }
}

/// Why a column cannot keep an owner.
fn problem(column: &Column) -> Option<OwnerProblem> {
    // Types that pad, fold or rewrite a value would make one owner of two.
    if !matches!(column.base_type, pg_sys::TEXTOID | pg_sys::VARCHAROID) {
        return Some(OwnerProblem::Type(types::type_name(column.type_oid)));
    }
    match column {
        Column { is_key: true, .. } => Some(OwnerProblem::Use("is part of the primary key")),
        Column { is_generated: true, .. } => Some(OwnerProblem::Use("is a generated column")),
        _ => None,
    }
}

/// Spaces that a varchar has no room for are cut without an error.
fn require_room(table: &Table, column: &Column, owner: Bytes) -> Result<(), Refused> {
    if column.base_type != pg_sys::VARCHAROID {
        return Ok(());
    }
    match types::max_characters(column.type_oid, column.typmod) {
        Some(max) if owner.characters() > max => Err(Refused::OwnerColumn {
            table: table.name.clone(),
            column: column.name.clone(),
            problem: OwnerProblem::Room { characters: owner.characters(), max },
        }),
        _ => Ok(()),
    }
}
