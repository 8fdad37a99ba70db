//! The WHEN conditions of the triggers of protected tables: written as SQL here, and recognised in the catalog.
//!
//! The condition names the fence column, so it needs no other record and follows a rename. Invariant: what `sql` makes,
//! and nothing that only looks like it, `fence_column` recognises.

use crate::server;
use crate::server::text::{Identifier, text};
use pgrx::pg_sys::{self, Oid};
use std::ffi::{CStr, c_int};

/// Bits of `pg_trigger.tgtype`.
const INSERT: i16 = 1 << 2;
const DELETE: i16 = 1 << 3;
const UPDATE: i16 = 1 << 4;

/// `OLD` and `NEW` as the parser numbers them.
const OLD: c_int = 1;
const NEW: c_int = 2;

/// A kind of row trigger.
pub struct Kind {
    /// The command that fires it.
    pub command: &'static CStr,
    function: &'static CStr,
    rows: &'static [c_int],
    bit: i16,
}

/// The row triggers of a protected table.
pub const KINDS: [Kind; 3] = [
    Kind { command: c"UPDATE", function: c"fence_refuses_update", rows: &[OLD, NEW], bit: UPDATE },
    Kind { command: c"DELETE", function: c"fence_refuses_delete", rows: &[OLD], bit: DELETE },
    Kind { command: c"INSERT", function: c"fence_refuses_insert", rows: &[NEW], bit: INSERT },
];

impl Kind {
    /// The condition on this fence column, with the functions in this schema.
    pub fn sql(&self, schema: &CStr, column: &CStr) -> Vec<u8> {
        let row = |row: &c_int| if *row == OLD { "OLD" } else { "NEW" };
        let fences = self.rows.iter().map(|one| text![row(one), ".", Identifier(column), "::pg_catalog.int8"]);
        let fences = crate::server::text::joined(fences, ", ");
        text![Identifier(schema), ".", Identifier(self.function), "(", fences, ")"]
    }
}

/// The number of the fence column in the condition of a trigger of this `tgtype`, if it is one of those above.
pub fn fence_column(condition: &CStr, tgtype: i16, schema: Oid) -> Option<i16> {
    let kind = KINDS.iter().find(|kind| tgtype & (INSERT | DELETE | UPDATE) == kind.bit)?;
    // SAFETY: the text is a condition of the catalog, which the server reads back into nodes; each node is used as what
    // its tag says.
    unsafe {
        let call =
            cast::<pg_sys::FuncExpr>(pg_sys::stringToNode(condition.as_ptr()).cast(), pg_sys::NodeTag::T_FuncExpr)?;
        if !server::is_function((*call).funcid, schema, kind.function) {
            return None;
        }
        let columns: Option<Vec<i16>> = elements((*call).args)
            .into_iter()
            .zip(kind.rows)
            .map(|(argument, &row)| column_of(argument, row))
            .collect();
        let columns = columns.filter(|columns| columns.len() == kind.rows.len())?;
        let first = columns.first().copied()?;
        columns.iter().all(|&column| column == first).then_some(first)
    }
}

/// The column of `OLD` or `NEW` that an argument is, with no more around it than the cast to bigint.
///
/// # Safety
///
/// The node is valid.
unsafe fn column_of(node: *mut pg_sys::Node, row: c_int) -> Option<i16> {
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
        let column = cast::<pg_sys::Var>(node, pg_sys::NodeTag::T_Var)?;
        ((*column).varno as c_int == row && (*column).varlevelsup == 0).then_some((*column).varattno)
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
