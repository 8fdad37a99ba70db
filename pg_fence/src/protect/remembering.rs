//! The WHEN conditions of the triggers that remember deletions: written as SQL here, and recognised in the catalog.
//!
//! A condition names all that its trigger reads: the table of the deletions, the fence column and the columns of the key. So
//! it needs no other record, follows renames, and keeps these from being dropped or given another type. Invariant: what
//! `sql` makes, and nothing that only looks like it, `read` recognises.

use crate::protect::condition::{DELETE, INSERT, NEW, OLD, UPDATE, fence_of, row_name};
use crate::server::catalog;
use crate::server::nodes::{Node, Tree, Variable};
use pg_forms::{Identifier, joined, text};
use pgrx::pg_sys::Oid;
use std::ffi::{CStr, CString, c_int};

/// A trigger that remembers deletions, or asks for one.
pub(crate) struct RememberingTrigger {
    pub(crate) command: &'static CStr,
    pub(crate) name: &'static CStr,
    /// The function of its condition.
    function: &'static CStr,
    /// The rows whose fences and keys it names.
    rows: &'static [c_int],
    bit: i16,
}

/// Those of a protected table, by what fires them.
pub(crate) const TRIGGERS: [RememberingTrigger; 3] = [
    RememberingTrigger {
        command: c"UPDATE",
        name: c"fence_protect_deletions_update",
        function: c"changes_key",
        rows: &[OLD, NEW],
        bit: UPDATE,
    },
    RememberingTrigger {
        command: c"DELETE",
        name: c"fence_protect_deletions_delete",
        function: c"has_key",
        rows: &[OLD],
        bit: DELETE,
    },
    RememberingTrigger {
        command: c"INSERT",
        name: c"fence_protect_deletions_insert",
        function: c"has_key",
        rows: &[NEW],
        bit: INSERT,
    },
];

/// What a condition names, as numbers of its table's columns.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Named {
    /// The table of the deletions.
    pub(crate) deletions: Oid,
    pub(crate) fence: i16,
    /// The columns of the key, in its order.
    pub(crate) key: Vec<i16>,
}

impl RememberingTrigger {
    /// The condition on these columns.
    pub(crate) fn sql(&self, deletions: Oid, fence: &CStr, key: &[CString]) -> Vec<u8> {
        let fences = self.rows.iter().map(|&row| text![row_name(row), ".", Identifier(fence), "::pg_catalog.int8"]);
        let keys = key
            .iter()
            .flat_map(|column| self.rows.iter().map(move |&row| text![row_name(row), ".", Identifier(column)]));
        let table = text!["'", deletions.to_u32(), "'::pg_catalog.regclass"];
        let arguments = joined([table].into_iter().chain(fences).chain(keys), ", ");
        text![Identifier(catalog::INTERNALS), ".", Identifier(self.function), "(", arguments, ")"]
    }
}

/// What the condition of a trigger of this `tgtype` names, if it is one of those above.
pub(crate) fn read(condition: &CStr, tgtype: i16) -> Option<Named> {
    let made = TRIGGERS.iter().find(|made| tgtype & (INSERT | DELETE | UPDATE) == made.bit)?;
    let schema = catalog::internals()?;
    let tree = Tree::read(condition);
    let (function, arguments) = tree.root().call()?;
    if !catalog::is_function(function, schema, made.function) {
        return None;
    }
    let rows = made.rows.len();
    let (table, given) = arguments.split_first()?;
    let (fences, keys) = given.split_at_checked(rows)?;
    let fence = same_column(fences, made.rows, fence_of)?;
    let key: Option<Vec<i16>> =
        keys.chunks(rows).map(|of_column| same_column(of_column, made.rows, column_of)).collect();
    let key = key.filter(|key| !key.is_empty())?;
    Some(Named { deletions: table.relation_constant()?, fence, key })
}

/// The column that the arguments are, one of each row.
fn same_column(given: &[Node], rows: &[c_int], read: fn(Node, c_int) -> Option<i16>) -> Option<i16> {
    let mut columns = rows.iter().enumerate().map(|(n, &row)| read(*given.get(n)?, row));
    let first = columns.next()??;
    columns.all(|column| column == Some(first)).then_some(first)
}

fn column_of(node: Node, row: c_int) -> Option<i16> {
    let Variable { row: of, column } = node.variable()?;
    (of == row && column > 0).then_some(column)
}
