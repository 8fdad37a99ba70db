//! The WHEN conditions of the triggers of protected tables: written as SQL here, and recognised in the catalog.
//!
//! The condition names the fence column, so it needs no other record and follows a rename. Invariant: what `sql` makes,
//! and nothing that only looks like it, `fence_column` recognises.

use crate::server::catalog;
use pg_forms::{Identifier, joined, text};
use pgrx::pg_sys;
use std::ffi::{CStr, c_int};

/// Bits of `pg_trigger.tgtype`.
const INSERT: i16 = 1 << 2;
const DELETE: i16 = 1 << 3;
const UPDATE: i16 = 1 << 4;

/// `OLD` and `NEW` as the parser numbers them.
const OLD: c_int = 1;
const NEW: c_int = 2;

/// A kind of row trigger.
pub(crate) struct Kind {
    pub(crate) command: &'static CStr,
    function: &'static CStr,
    arguments: &'static [Argument],
    bit: i16,
}

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
    /// The owner of the fence, which no table keeps yet.
    Owner,
}

/// The row triggers of a protected table.
pub(crate) const KINDS: [Kind; 3] = [
    Kind {
        command: c"UPDATE",
        function: c"refuses_update",
        arguments: &[
            Argument::Table(OLD),
            Argument::Place(OLD),
            Argument::Writer(OLD),
            Argument::Fence(OLD),
            Argument::Fence(NEW),
            Argument::Owner,
            Argument::Owner,
        ],
        bit: UPDATE,
    },
    Kind {
        command: c"DELETE",
        function: c"refuses_delete",
        arguments: &[
            Argument::Table(OLD),
            Argument::Place(OLD),
            Argument::Writer(OLD),
            Argument::Fence(OLD),
            Argument::Owner,
        ],
        bit: DELETE,
    },
    Kind {
        command: c"INSERT",
        function: c"refuses_insert",
        arguments: &[Argument::Table(NEW), Argument::Place(NEW), Argument::Fence(NEW), Argument::Owner],
        bit: INSERT,
    },
];

impl Kind {
    /// The condition on this fence column.
    ///
    /// When a row of a partitioned table moves, the server evaluates the condition of the parent's UPDATE trigger too,
    /// without firing it. OLD is a copy without system columns there: its table is 0, and to read the writer would be an
    /// error (0A000). Conditions joined with AND are evaluated in order, so the first keeps the call from being made.
    pub(crate) fn sql(&self, column: &CStr) -> Vec<u8> {
        let row = self.row();
        let arguments = self.arguments.iter().map(|argument| match argument {
            Argument::Table(row) => text![row_name(*row), ".tableoid"],
            Argument::Place(row) => text![row_name(*row), ".ctid"],
            Argument::Writer(row) => text![row_name(*row), ".xmin"],
            Argument::Fence(row) => text![row_name(*row), ".", Identifier(column), "::pg_catalog.int8"],
            Argument::Owner => text!["NULL::pg_catalog.text"],
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

fn row_name(row: c_int) -> &'static str {
    if row == OLD { "OLD" } else { "NEW" }
}

/// Whether a trigger of this `tgtype` is on INSERT.
pub(crate) fn is_on_insert(tgtype: i16) -> bool {
    tgtype & INSERT != 0
}

/// The number of the fence column in the condition of a trigger of this `tgtype`, if it is one of those above.
pub(crate) fn fence_column(condition: &CStr, tgtype: i16) -> Option<i16> {
    let kind = KINDS.iter().find(|kind| tgtype & (INSERT | DELETE | UPDATE) == kind.bit)?;
    let schema = catalog::internals()?;
    // SAFETY: the text is a condition of the catalog, which the server reads back into nodes; each node is used as what
    // its tag says.
    unsafe {
        let both =
            cast::<pg_sys::BoolExpr>(pg_sys::stringToNode(condition.as_ptr()).cast(), pg_sys::NodeTag::T_BoolExpr)?;
        let [has_table, call] = elements((*both).args)[..] else { return None };
        if (*both).boolop != pg_sys::BoolExprType::AND_EXPR || !is_table_test(has_table, kind.row()) {
            return None;
        }
        let call = cast::<pg_sys::FuncExpr>(call, pg_sys::NodeTag::T_FuncExpr)?;
        if !catalog::is_function((*call).funcid, schema, kind.function) {
            return None;
        }
        let given = elements((*call).args);
        if given.len() != kind.arguments.len() {
            return None;
        }
        let mut column = None;
        for (node, argument) in given.into_iter().zip(kind.arguments) {
            let fits = match *argument {
                Argument::Table(row) => is_variable(node, row, pg_sys::TableOidAttributeNumber),
                Argument::Place(row) => is_variable(node, row, pg_sys::SelfItemPointerAttributeNumber),
                Argument::Writer(row) => is_variable(node, row, pg_sys::MinTransactionIdAttributeNumber),
                Argument::Fence(row) => {
                    let named = Some(fence_of(node, row)?);
                    column.replace(named).is_none_or(|before| before == named)
                }
                Argument::Owner => is_null(node),
            };
            if !fits {
                return None;
            }
        }
        column.flatten()
    }
}

/// Whether a node is `OLD.tableoid <> 0`.
///
/// # Safety
///
/// The node is valid.
unsafe fn is_table_test(node: *mut pg_sys::Node, row: c_int) -> bool {
    // SAFETY: as the caller promises; each node is used as what its tag says.
    unsafe {
        let Some(test) = cast::<pg_sys::OpExpr>(node, pg_sys::NodeTag::T_OpExpr) else { return false };
        let [table, zero] = elements((*test).args)[..] else { return false };
        let zero = cast::<pg_sys::Const>(zero, pg_sys::NodeTag::T_Const);
        pg_sys::get_opcode((*test).opno).to_u32() == pg_sys::F_OIDNE
            && is_variable(table, row, pg_sys::TableOidAttributeNumber)
            && zero.is_some_and(|zero| !(*zero).constisnull && (*zero).constvalue.value() == 0)
    }
}

/// # Safety
///
/// The node is valid.
unsafe fn is_null(node: *mut pg_sys::Node) -> bool {
    // SAFETY: as the caller promises; each node is used as what its tag says.
    unsafe { cast::<pg_sys::Const>(node, pg_sys::NodeTag::T_Const).is_some_and(|value| (*value).constisnull) }
}

/// Whether a node is this column of `OLD` or `NEW` and nothing else.
///
/// # Safety
///
/// The node is valid.
unsafe fn is_variable(node: *mut pg_sys::Node, row: c_int, column: i32) -> bool {
    // SAFETY: as the caller promises; each node is used as what its tag says.
    unsafe { variable(node, row) == i16::try_from(column).ok() }
}

/// # Safety
///
/// The node is valid.
unsafe fn variable(node: *mut pg_sys::Node, row: c_int) -> Option<i16> {
    // SAFETY: as the caller promises; each node is used as what its tag says.
    unsafe {
        let column = cast::<pg_sys::Var>(node, pg_sys::NodeTag::T_Var)?;
        ((*column).varno as c_int == row && (*column).varlevelsup == 0).then_some((*column).varattno)
    }
}

/// The column of `OLD` or `NEW` that an argument is, with no more around it than the cast to bigint.
///
/// # Safety
///
/// The node is valid.
unsafe fn fence_of(node: *mut pg_sys::Node, row: c_int) -> Option<i16> {
    // SAFETY: as the caller promises; each node is used as what its tag says.
    unsafe {
        let mut node = node;
        if let Some(relabel) = cast::<pg_sys::RelabelType>(node, pg_sys::NodeTag::T_RelabelType) {
            node = (*relabel).arg.cast();
        }
        if let Some(widened) = cast::<pg_sys::FuncExpr>(node, pg_sys::NodeTag::T_FuncExpr) {
            if (*widened).funcid.to_u32() != pg_sys::F_INT8_INT4 {
                return None;
            }
            node = elements((*widened).args).first().copied()?;
        }
        if let Some(relabel) = cast::<pg_sys::RelabelType>(node, pg_sys::NodeTag::T_RelabelType) {
            node = (*relabel).arg.cast();
        }
        variable(node, row).filter(|&column| column > 0)
    }
}

/// # Safety
///
/// The node is null or valid.
unsafe fn cast<T>(node: *mut pg_sys::Node, tag: pg_sys::NodeTag) -> Option<*mut T> {
    // SAFETY: as the caller promises.
    (!node.is_null() && unsafe { (*node).type_ } == tag).then_some(node.cast())
}

/// # Safety
///
/// The list is null or a valid list of nodes.
unsafe fn elements(list: *mut pg_sys::List) -> Vec<*mut pg_sys::Node> {
    if list.is_null() {
        return Vec::new();
    }
    // SAFETY: as the caller promises; the list has as many elements as it says.
    unsafe { (0..(*list).length as usize).map(|n| (*(*list).elements.add(n)).ptr_value.cast()).collect() }
}
