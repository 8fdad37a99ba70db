//! Whether an error may show a stored fence.

use crate::errors::Disclosed;
use crate::protect::members;
use crate::table::relation::{Column, Table};

/// A fence that the caller has read, unless it must be hidden from the client.
pub(crate) fn disclosed(table: &Table, fence_column: &Column, stored: Option<i64>) -> Disclosed {
    match members::may_disclose_what_is_read(table.oid, fence_column.number) {
        true => Disclosed::Fence(stored),
        false => Disclosed::Hidden,
    }
}
