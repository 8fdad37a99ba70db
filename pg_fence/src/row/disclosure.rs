//! Whether an error may show a stored fence or its owner.

use crate::errors::Disclosed;
use crate::protect::members;
use crate::table::relation::{Column, Table};

/// A fence that the caller has read, unless it must be hidden from the client.
pub(crate) fn disclosed(table: &Table, fence_column: &Column, stored: Option<i64>) -> Disclosed {
    if may_disclose(table, fence_column) { Disclosed::Fence(stored) } else { Disclosed::Hidden }
}

/// Whether what the caller has read of a column may be shown to the client.
pub(crate) fn may_disclose(table: &Table, column: &Column) -> bool {
    members::may_disclose_what_is_read(table.oid, column.number)
}
