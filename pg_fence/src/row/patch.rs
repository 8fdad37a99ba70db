//! A patch: the columns to change and their new values, from a JSON object; or those of a new row.
//!
//! Names match exactly; values are made by the input functions of the columns' types. Invariant: a patch names at
//! least one column, and neither the key, the fence, its owner nor a column that the server computes.

use crate::errors::{ColumnProblem, PatchProblem, Refused};
use crate::row::literal::literal;
use crate::server::json::{Document, Json, JsonKind};
use crate::table::owner::Owner;
use crate::table::relation::{Column, Table};
use pg_forms::c_string;
use pgrx::pg_sys::{self, Datum};

/// The columns to change, in the order of jsonb, and their new values; `None` is null.
pub(crate) struct Patch<'t> {
    pub(crate) columns: Vec<&'t Column>,
    /// The value of each, of the column's type.
    pub(crate) values: Vec<Option<Datum>>,
}

impl<'t> Patch<'t> {
    /// Reads a patch for a table. Errors: it is not an object, is empty, or names a column that it may not change; what
    /// the input function of a type says of a value.
    pub(crate) fn read(
        table: &'t Table,
        fence: &Column,
        owner: Option<Owner>,
        document: &Document,
    ) -> Result<Patch<'t>, Refused> {
        let members = document.members().map_err(|kind| Refused::Patch(PatchProblem::NotAnObject(kind)))?;
        if members.is_empty() {
            return Err(Refused::Patch(PatchProblem::Empty));
        }
        Patch::of(
            table,
            fence,
            owner,
            &members,
            [
                ColumnProblem::Key,
                ColumnProblem::Fence,
                ColumnProblem::Owner,
                ColumnProblem::Generated,
                ColumnProblem::Identity,
            ],
        )
    }

    /// The same of what a new row is made of, which may name no column: all others get their defaults.
    pub(crate) fn initial(
        table: &'t Table,
        fence: &Column,
        owner: Option<Owner>,
        document: &Document,
    ) -> Result<Patch<'t>, Refused> {
        let members = document.members().map_err(|kind| Refused::Patch(PatchProblem::InitialNotAnObject(kind)))?;
        Patch::of(
            table,
            fence,
            owner,
            &members,
            [
                ColumnProblem::InitialKey,
                ColumnProblem::InitialFence,
                ColumnProblem::InitialOwner,
                ColumnProblem::InitialGenerated,
                ColumnProblem::InitialIdentity,
            ],
        )
    }

    fn of(
        table: &'t Table,
        fence: &Column,
        owner: Option<Owner>,
        members: &[(&[u8], Json)],
        problems: [ColumnProblem; 5],
    ) -> Result<Patch<'t>, Refused> {
        let settable = |(name, _): &(&[u8], Json)| settable(table, fence, owner, name, problems);
        let columns: Vec<&Column> = members.iter().map(settable).collect::<Result<_, _>>()?;
        let values = columns.iter().zip(members).map(|(column, (_, json))| value(column, json));
        let values = values.collect::<Result<_, _>>()?;
        Ok(Patch { columns, values })
    }
}

/// The column of this name, unless it is part of the key, the fence, its owner, or one that the server computes: each has
/// its problem.
fn settable<'t>(
    table: &'t Table,
    fence: &Column,
    owner: Option<Owner>,
    name: &[u8],
    [key, fences, owners, generated, identity]: [ColumnProblem; 5],
) -> Result<&'t Column, Refused> {
    let problem = match table.column(name) {
        None => ColumnProblem::Unknown,
        Some(column) if column.number == fence.number => fences,
        Some(column) if owner.is_some_and(|owner| column.number == owner.column.number) => owners,
        Some(Column { is_key: true, .. }) => key,
        Some(Column { is_generated: true, .. }) => generated,
        Some(Column { is_identity_always: true, .. }) => identity,
        Some(column) => return Ok(column),
    };
    Err(Refused::PatchColumn { table: table.name.clone(), column: name.to_vec(), problem })
}

fn value(column: &Column, json: &Json) -> Result<Option<Datum>, Refused> {
    if column.type_oid == pg_sys::JSONBOID && !matches!(json.kind(), JsonKind::Null) {
        return Ok(Some(json.to_jsonb()));
    }
    if let Some(datum) = integer(column, json) {
        return Ok(Some(datum));
    }
    let literal = literal(json, column.base_type)?.map(c_string);
    Ok(column.input().read(literal.as_deref(), column.typmod))
}

/// A short integer for a column of integers, which is the most common value and needs no text in between.
fn integer(column: &Column, json: &Json) -> Option<Datum> {
    let is_integer = matches!(column.type_oid, pg_sys::INT8OID | pg_sys::INT4OID | pg_sys::INT2OID);
    if !is_integer || !matches!(json.kind(), JsonKind::Number) {
        return None;
    }
    let number = json.short_integer()?;
    match column.type_oid {
        pg_sys::INT8OID => Some(Datum::from(number)),
        pg_sys::INT4OID => i32::try_from(number).ok().map(Datum::from),
        _ => i16::try_from(number).ok().map(Datum::from),
    }
}
