//! The arguments of the functions on rows: read once, then checked against the table.

use crate::errors::Refused;
use crate::row::change::Change;
use crate::row::key::Key;
use crate::row::patch::Patch;
use crate::server::call::{Arguments, Call};
use crate::server::json::Document;
use crate::server::types::Value;
use crate::settings::accepted_fence;
use crate::table::relation::{Column, Table};
use crate::table::tables;
use crate::table::verb::{Answer, Verb};
use fence::Fence;
use pgrx::pg_sys::Oid;
use std::ffi::CStr;

/// What the SQL of a function on one row says.
pub(crate) struct RowArguments<'c> {
    pub(crate) table: Oid,
    key: Value,
    fence: Option<i64>,
    patch: Option<Document>,
    initial: Option<Document>,
    fence_column: &'c CStr,
}

/// A row and the fence that it is changed under, as the table takes them.
pub(crate) struct Row<'t> {
    table: &'t Table,
    fence_column: &'t Column,
    fence: Fence,
    key: Key,
    patch: Option<Patch<'t>>,
    initial: Option<Patch<'t>>,
}

/// The table whose row type the argument has; its value does not matter.
pub(crate) fn target_of_row_type(arguments: &mut Arguments) -> Result<Oid, Refused> {
    tables::of_row_type(arguments.type_only())
}

/// The table that the argument names.
pub(crate) fn target(arguments: &mut Arguments) -> Result<Oid, Refused> {
    arguments.table("target")
}

impl<'c> RowArguments<'c> {
    /// `(target, key, fence[, fence_column])`
    pub(crate) fn plain(
        call: &'c Call,
        target: fn(&mut Arguments) -> Result<Oid, Refused>,
    ) -> Result<RowArguments<'c>, Refused> {
        let mut given = call.arguments();
        Ok(RowArguments {
            table: target(&mut given)?,
            key: given.value("key")?,
            fence: given.number(),
            patch: None,
            initial: None,
            fence_column: given.fence_column()?,
        })
    }

    /// `(target, key, fence, patch[, fence_column])`
    pub(crate) fn patched(
        call: &'c Call,
        target: fn(&mut Arguments) -> Result<Oid, Refused>,
    ) -> Result<RowArguments<'c>, Refused> {
        let mut given = call.arguments();
        Ok(RowArguments {
            table: target(&mut given)?,
            key: given.value("key")?,
            fence: given.number(),
            patch: Some(given.document("patch")?),
            initial: None,
            fence_column: given.fence_column()?,
        })
    }

    /// `(target, key, fence, initial[, fence_column])`
    pub(crate) fn with_initial(
        call: &'c Call,
        target: fn(&mut Arguments) -> Result<Oid, Refused>,
    ) -> Result<RowArguments<'c>, Refused> {
        let mut given = call.arguments();
        Ok(RowArguments {
            table: target(&mut given)?,
            key: given.value("key")?,
            fence: given.number(),
            patch: None,
            initial: Some(given.document("initial")?),
            fence_column: given.fence_column()?,
        })
    }

    /// The row in its table. Errors: the table has no such fence column, or an argument does not fit it.
    pub(crate) fn of<'t>(&self, table: &'t Table) -> Result<Row<'t>, Refused> {
        let fence_column = table.fence_column(self.fence_column)?;
        let fence = accepted_fence(table, fence_column, self.fence)?;
        let key = Key::read(table, self.key)?;
        let patch = self.patch.as_ref().map(|patch| Patch::read(table, fence_column, patch)).transpose()?;
        let initial = self.initial.as_ref().map(|initial| Patch::initial(table, fence_column, initial)).transpose()?;
        Ok(Row { table, fence_column, fence, key, patch, initial })
    }
}

impl Row<'_> {
    /// The change of this row that answers no row.
    pub(crate) fn change(&self, verb: Verb) -> Change<'_> {
        let (table, fence_column, key, fence) = (self.table, self.fence_column, &self.key, self.fence);
        let (patch, initial) = (self.patch.as_ref(), self.initial.as_ref());
        Change { table, fence_column, key, fence, verb, answer: Answer::Fence, patch, initial, rows: None }
    }

    /// The same, which makes the row of its patch where there is none.
    pub(crate) fn change_or_insert(&self, verb: Verb) -> Change<'_> {
        Change { initial: self.patch.as_ref(), ..self.change(verb) }
    }
}
