//! The WHEN conditions of the triggers of protected tables: written as SQL here, and recognised in the catalog.
//!
//! The condition names the fence column and that of its owner, so it needs no other record and follows a rename. Invariant: what `sql` and
//! `is_older` make, and nothing that only looks like it, `fence_column` and `owner_column` recognise.

use crate::server::catalog;
use crate::server::nodes::{Node, Tree, Variable};
use pg_forms::{Identifier, joined, text};
use pgrx::pg_sys;
use std::ffi::{CStr, c_int};

/// Bits of `pg_trigger.tgtype`.
const BEFORE: i16 = 1 << 1;
pub(crate) const INSERT: i16 = 1 << 2;
pub(crate) const DELETE: i16 = 1 << 3;
pub(crate) const UPDATE: i16 = 1 << 4;

/// `OLD` and `NEW` as the parser numbers them.
pub(crate) const OLD: c_int = 1;
pub(crate) const NEW: c_int = 2;

/// A row trigger of a protected table.
#[derive(Clone, Copy)]
pub(crate) struct RowTrigger {
    pub(crate) command: &'static CStr,
    function: &'static CStr,
    arguments: &'static [Argument],
    bit: i16,
}

/// The function for new rows where each of them must carry a fence.
const ASKS_NEW_ROWS: &CStr = c"refuses_unfenced_insert";

/// What the condition passes on, of `OLD` or `NEW`.
#[derive(Clone, Copy)]
enum Argument {
    /// The table with the row: the partition.
    Table(c_int),
    /// The place of the row's version.
    Place(c_int),
    /// The transaction that wrote the version.
    Writer(c_int),
    /// The fence.
    Fence(c_int),
    /// The owner of the fence; null where the table keeps none.
    Owner(c_int),
}

/// The row triggers of a protected table.
pub(crate) const ROW_TRIGGERS: [RowTrigger; 3] = [
    RowTrigger {
        command: c"UPDATE",
        function: c"refuses_update",
        arguments: &[
            Argument::Table(OLD),
            Argument::Place(OLD),
            Argument::Writer(OLD),
            Argument::Fence(OLD),
            Argument::Fence(NEW),
            Argument::Owner(OLD),
            Argument::Owner(NEW),
        ],
        bit: UPDATE,
    },
    RowTrigger {
        command: c"DELETE",
        function: c"refuses_delete",
        arguments: &[
            Argument::Table(OLD),
            Argument::Place(OLD),
            Argument::Writer(OLD),
            Argument::Fence(OLD),
            Argument::Owner(OLD),
        ],
        bit: DELETE,
    },
    RowTrigger {
        command: c"INSERT",
        function: c"refuses_insert",
        arguments: &[Argument::Table(NEW), Argument::Place(NEW), Argument::Fence(NEW), Argument::Owner(NEW)],
        bit: INSERT,
    },
];

impl RowTrigger {
    /// The same, but the one on INSERT asks a fence of every new row.
    pub(crate) fn asking_new_rows(self) -> RowTrigger {
        if self.bit == INSERT { RowTrigger { function: ASKS_NEW_ROWS, ..self } } else { self }
    }

    /// The condition on this fence column, and that of its owner.
    ///
    /// When a row of a partitioned table moves, the server evaluates the condition of the parent's UPDATE trigger too,
    /// without firing it. OLD is a copy without system columns there: its table is 0, and to read the writer would be
    /// an error (0A000). Conditions joined with AND are evaluated in order, so the first keeps the call from being
    /// made.
    pub(crate) fn sql(&self, column: &CStr, owner: Option<&CStr>) -> Vec<u8> {
        let row = self.row();
        let arguments = self.arguments.iter().map(|argument| match argument {
            Argument::Table(row) => text![row_name(*row), ".tableoid"],
            Argument::Place(row) => text![row_name(*row), ".ctid"],
            Argument::Writer(row) => text![row_name(*row), ".xmin"],
            Argument::Fence(row) => text![row_name(*row), ".", Identifier(column), "::pg_catalog.int8"],
            Argument::Owner(row) => match owner {
                Some(owner) => text![row_name(*row), ".", Identifier(owner), "::pg_catalog.text"],
                None => text!["NULL::pg_catalog.text"],
            },
        });
        let arguments = joined(arguments, ", ");
        let call = text![Identifier(catalog::INTERNALS), ".", Identifier(self.function), "(", arguments, ")"];
        text![row_name(row), ".tableoid OPERATOR(pg_catalog.<>) '0'::pg_catalog.oid AND ", call]
    }

    /// The row whose table is passed on.
    fn row(&self) -> c_int {
        if self.bit == INSERT { NEW } else { OLD }
    }
}

/// As SQL names it.
pub(crate) fn row_name(row: c_int) -> &'static str {
    if row == OLD { "OLD" } else { "NEW" }
}

/// The condition of the trigger that keeps the newer fence where replication applies an update: it brings an older one.
pub(crate) fn is_older(column: &CStr) -> Vec<u8> {
    text!["NEW.", Identifier(column), " OPERATOR(pg_catalog.<) OLD.", Identifier(column)]
}

/// Whether a trigger of this `tgtype` is on INSERT.
pub(crate) fn is_on_insert(tgtype: i16) -> bool {
    tgtype & INSERT != 0
}

/// The number of the fence column in the condition of a trigger of this `tgtype`, if it is one of those above.
pub(crate) fn fence_column(condition: &CStr, tgtype: i16) -> Option<i16> {
    if tgtype & BEFORE != 0 {
        return if tgtype & (INSERT | DELETE | UPDATE) == UPDATE { column_of_older(condition) } else { None };
    }
    columns(condition, tgtype).map(|columns| columns.fence)
}

/// The number of the column of the owner in such a condition, where it names one.
pub(crate) fn owner_column(condition: &CStr, tgtype: i16) -> Option<i16> {
    if tgtype & BEFORE != 0 { None } else { columns(condition, tgtype)?.owner }
}

/// The columns that a condition names.
struct Columns {
    fence: i16,
    owner: Option<i16>,
}

fn columns(condition: &CStr, tgtype: i16) -> Option<Columns> {
    let made = ROW_TRIGGERS.iter().find(|made| tgtype & (INSERT | DELETE | UPDATE) == made.bit)?;
    let schema = catalog::internals()?;
    let tree = Tree::read(condition);
    let [has_table, call] = tree.root().terms()?[..] else { return None };
    if !is_table_test(has_table, made.row()) {
        return None;
    }
    let (function, given) = call.call()?;
    let is_made = catalog::is_function(function, schema, made.function)
        || catalog::is_function(function, schema, made.asking_new_rows().function);
    if !is_made || given.len() != made.arguments.len() {
        return None;
    }
    let (mut column, mut owner) = (None, None);
    for (node, argument) in given.into_iter().zip(made.arguments) {
        let is_column = |row, column: i32| node.variable() == Some(Variable { row, column: column as i16 });
        let fits = match *argument {
            Argument::Table(row) => is_column(row, pg_sys::TableOidAttributeNumber),
            Argument::Place(row) => is_column(row, pg_sys::SelfItemPointerAttributeNumber),
            Argument::Writer(row) => is_column(row, pg_sys::MinTransactionIdAttributeNumber),
            Argument::Fence(row) => {
                let named = Some(fence_of(node, row)?);
                column.replace(named).is_none_or(|before| before == named)
            }
            Argument::Owner(row) => {
                let named = if node.is_null_constant() { None } else { Some(text_of(node, row)?) };
                owner.replace(named).is_none_or(|before| before == named)
            }
        };
        if !fits {
            return None;
        }
    }
    Some(Columns { fence: column.flatten()?, owner: owner.flatten() })
}

/// Whether this is the condition of a trigger that asks a fence of every new row.
pub(crate) fn asks_new_rows(condition: &CStr, tgtype: i16) -> bool {
    let asks = |tree: Tree| {
        let (function, _) = tree.root().terms()?.get(1)?.call()?;
        Some(catalog::is_function(function, catalog::internals()?, ASKS_NEW_ROWS))
    };
    is_on_insert(tgtype) && fence_column(condition, tgtype).is_some() && asks(Tree::read(condition)).unwrap_or(false)
}

/// The column in a condition that is as [`is_older`] makes it.
fn column_of_older(condition: &CStr) -> Option<i16> {
    let tree = Tree::read(condition);
    let (function, operands) = tree.root().operation()?;
    let [new, old] = operands[..] else { return None };
    let column = fence_of(new, NEW)?;
    let is_less = [pg_sys::F_INT8LT, pg_sys::F_INT4LT].contains(&function.to_u32());
    (is_less && fence_of(old, OLD) == Some(column)).then_some(column)
}

/// Whether a node is `OLD.tableoid <> 0`.
fn is_table_test(node: Node, row: c_int) -> bool {
    let Some((function, operands)) = node.operation() else { return false };
    let [table, zero] = operands[..] else { return false };
    let column = pg_sys::TableOidAttributeNumber as i16;
    function.to_u32() == pg_sys::F_OIDNE
        && table.variable() == Some(Variable { row, column })
        && zero.is_zero_constant()
}

/// The column of `OLD` or `NEW` that an argument is, with no more around it than the cast to bigint.
pub(crate) fn fence_of(node: Node, row: c_int) -> Option<i16> {
    let mut node = node.without_relabelling();
    if let Some((function, arguments)) = node.call() {
        if function.to_u32() != pg_sys::F_INT8_INT4 {
            return None;
        }
        node = *arguments.first()?;
    }
    node.without_relabelling()
        .variable()
        .filter(|variable| variable.row == row && variable.column > 0)
        .map(|variable| variable.column)
}

/// The column of `OLD` or `NEW` that an argument is, with no more around it than it takes to read a domain as a text.
fn text_of(node: Node, row: c_int) -> Option<i16> {
    node.without_relabelling()
        .without_relabelling()
        .variable()
        .filter(|variable| variable.row == row && variable.column > 0)
        .map(|variable| variable.column)
}
