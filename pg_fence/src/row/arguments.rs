//! The arguments of the functions on rows: read once, then checked against the table.

use crate::errors::Refused;
use crate::row::change::Change;
use crate::row::key::Key;
use crate::row::patch::Patch;
use crate::server::call::{Arguments, Call};
use crate::server::json::Document;
use crate::server::types::Value;
use crate::settings::accepted_fence;
use crate::table::owner::{Owner, OwnerArguments};
use crate::table::relation::{Column, Table};
use crate::table::tables;
use crate::table::verb::{Answer, Verb};
use fence::Fence;
use fence::lock::args;
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
    owner: OwnerArguments<'c>,
}

/// A row and the fence that it is changed under, as the table takes them.
pub(crate) struct Row<'t> {
    table: &'t Table,
    fence_column: &'t Column,
    owner: Option<Owner<'t>>,
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

/// The owner and the name of its column, the last arguments of a function, which may be left out.
pub(crate) fn owner<'c>(given: &mut Arguments<'c>) -> Result<OwnerArguments<'c>, Refused> {
    if !given.has_more() {
        return Ok(OwnerArguments::default());
    }
    let owner = given.bytes().ok_or(Refused::NullArgument("owner"))?;
    args::owner(owner.bytes()).map_err(Refused::Argument)?;
    let column = match given.has_more() {
        true => Some(given.name().ok_or(Refused::NullArgument("owner_column"))?),
        false => None,
    };
    Ok(OwnerArguments { owner: Some(owner), column })
}

impl<'c> RowArguments<'c> {
    /// `(target, key, fence[, fence_column[, owner[, owner_column]]])`
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
            owner: owner(&mut given)?,
        })
    }

    /// `(target, key, fence, patch[, fence_column[, owner[, owner_column]]])`
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
            owner: owner(&mut given)?,
        })
    }

    /// `(target, key, fence, initial[, fence_column[, owner[, owner_column]]])`
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
            owner: owner(&mut given)?,
        })
    }

    /// The row in its table. Errors: the table has no such fence or owner column, or an argument does not fit it.
    pub(crate) fn of<'t>(&self, table: &'t Table) -> Result<Row<'t>, Refused>
    where
        'c: 't,
    {
        let fence_column = table.fence_column(self.fence_column)?;
        let owner = self.owner.of(table, fence_column)?;
        let fence = accepted_fence(table, fence_column, self.fence)?;
        let key = Key::read(table, self.key)?;
        let patch = self.patch.as_ref().map(|patch| Patch::read(table, fence_column, owner, patch)).transpose()?;
        let initial = self.initial.as_ref();
        let initial = initial.map(|initial| Patch::initial(table, fence_column, owner, initial)).transpose()?;
        Ok(Row { table, fence_column, owner, fence, key, patch, initial })
    }
}

impl Row<'_> {
    /// The change of this row that answers no row.
    pub(crate) fn change(&self, verb: Verb) -> Change<'_> {
        let (table, fence_column, owner, key, fence) =
            (self.table, self.fence_column, self.owner, &self.key, self.fence);
        let (answer, patch, initial) = (Answer::Fence, self.patch.as_ref(), self.initial.as_ref());
        Change { table, fence_column, owner, key, fence, verb, answer, patch, initial, rows: None }
    }
    /// The same, which makes the row of its patch where there is none.
    pub(crate) fn change_or_insert(&self, verb: Verb) -> Change<'_> {
        Change { initial: self.patch.as_ref(), ..self.change(verb) }
    }
}
