//! Patches: the columns to change and their new values, from JSON objects; or those of a new row.
//!
//! Names match exactly; values are made by the input functions of the columns' types. Invariant: a patch names at
//! least one column, and neither the key, the fence, its owner nor a column that the server computes.

use crate::errors::{ColumnProblem, PatchProblem, Refused};
use crate::row::literal::literal;
use crate::server::context;
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
        Patch::of_members(table, fence, owner, &document.members().map_err(not_an_object)?)
    }

    fn of_members(
        table: &'t Table,
        fence: &Column,
        owner: Option<Owner>,
        members: &[(&[u8], Json)],
    ) -> Result<Patch<'t>, Refused> {
        if members.is_empty() {
            return Err(Refused::Patch(PatchProblem::Empty));
        }
        Patch::of(
            table,
            fence,
            owner,
            members,
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

/// The patches of many rows, all of the same columns.
pub(crate) struct Patches<'t> {
    pub(crate) columns: Vec<&'t Column>,
    /// The values of one patch after the other: one for each row, or one for all.
    values: Vec<Datum>,
    are_null: Vec<bool>,
    /// Whether there is one for each row.
    pub(crate) are_each: bool,
    /// How many there will be.
    count: usize,
}

impl<'t> Patches<'t> {
    /// Reads them: an object that serves all rows, or an array with one for each. Errors: as of a patch; there are not as many
    /// as rows; one names other columns than the first.
    pub(crate) fn read(
        table: &'t Table,
        fence: &Column,
        owner: Option<Owner>,
        document: &Document,
        rows: usize,
    ) -> Result<Patches<'t>, Refused> {
        let are_each = document.is_array();
        let (columns, values, are_null) = (Vec::new(), Vec::new(), Vec::new());
        let mut patches = Patches { columns, values, are_null, are_each, count: if are_each { rows } else { 1 } };
        if !are_each {
            let members = document.members().map_err(|kind| Refused::Patch(PatchProblem::NotPatches(kind)))?;
            patches.add(table, fence, owner, &members)?;
            return Ok(patches);
        }
        let given = document.element_count();
        if given != rows {
            return Err(Refused::ArrayLength { argument: "patches", given, keys: rows });
        }
        let mut place = 0;
        document.each_element(|element| {
            place += 1;
            let add = || match element.kind() {
                JsonKind::Object => patches.add(table, fence, owner, &element.members()),
                _ => Err(not_an_object(element.words())),
            };
            context::within_element(c"patches", place, add).map_err(|refused| refused.of_element("patches", place))
        })?;
        Ok(patches)
    }

    /// The values of the patch of a row.
    pub(crate) fn values_of(&self, row: usize) -> impl Iterator<Item = Option<Datum>> + '_ {
        let (row, width) = (if self.are_each { row } else { 0 }, self.columns.len());
        let fields = row * width..(row + 1) * width;
        self.values[fields.clone()].iter().zip(&self.are_null[fields]).map(|(&value, &null)| (!null).then_some(value))
    }

    /// The patch of a row.
    pub(crate) fn patch(&self, row: usize) -> Patch<'t> {
        Patch { columns: self.columns.clone(), values: self.values_of(row).collect() }
    }

    fn add(
        &mut self,
        table: &'t Table,
        fence: &Column,
        owner: Option<Owner>,
        members: &[(&[u8], Json)],
    ) -> Result<(), Refused> {
        if self.columns.is_empty() {
            let first = Patch::of_members(table, fence, owner, members)?;
            self.columns = first.columns;
            self.values.reserve_exact(self.count * self.columns.len());
            self.are_null.reserve_exact(self.count * self.columns.len());
            first.values.into_iter().for_each(|value| self.push(value));
            return Ok(());
        }
        let is_same =
            self.columns.iter().map(|column| column.name.as_bytes()).eq(members.iter().map(|(name, _)| *name));
        if !is_same {
            return Err(Refused::Patch(match members {
                [] => PatchProblem::Empty,
                _ => PatchProblem::OtherColumns,
            }));
        }
        for (n, (_, json)) in members.iter().enumerate() {
            self.push(value(self.columns[n], json)?);
        }
        Ok(())
    }

    fn push(&mut self, value: Option<Datum>) {
        self.values.push(value.unwrap_or(Datum::null()));
        self.are_null.push(value.is_none());
    }
}

fn not_an_object(kind: &'static str) -> Refused {
    Refused::Patch(PatchProblem::NotAnObject(kind))
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
    let read = || column.input().read(literal.as_deref(), column.typmod);
    Ok(context::within(c"column \"%s\"", &column.name, read))
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
