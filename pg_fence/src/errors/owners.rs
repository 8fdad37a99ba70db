//! How it is said what is wrong with the owner of a fence, or with the column that keeps it.

use crate::errors::OwnerProblem;
use crate::server::catalog::RelationName;
use crate::server::log::Report;
use fence::Fence;
use pg_forms::text;
use std::ffi::CString;

/// What to do about a fence that is another owner's.
const ISSUED_TWICE: &str = "Pass the owner that acquired the lock with this fence. If it was passed, the lock server has lost its \
    state and has issued the fence twice: roll back, raise its fences, and take the lock again.";

/// The fence of a row is another owner's.
pub(crate) fn duplicate(table: RelationName, key: Vec<u8>, stored: Option<CString>, fence: Fence) -> Report {
    let new = |message| Report::new("LF007", message);
    new(text!["fence ", fence, " of this row of table \"", &table.name, "\" is another owner's"])
        .detail(text!["Key ", key, " has this fence of ", said(stored), "."])
        .hint(text![ISSUED_TWICE])
        .about(table)
}

/// The fence of a row is another owner's than those in use.
pub(crate) fn duplicate_in_use(table: RelationName, stored: Option<CString>, fence: i64) -> Report {
    let new = |message| Report::new("LF007", message);
    new(text!["fence ", fence, " of this row of table \"", &table.name, "\" is another owner's"])
        .detail(text!["The row has this fence of ", said(stored), "."])
        .hint(text!["Call fence_use() with the owner. ", ISSUED_TWICE])
        .about(table)
}

/// The fence of a guard is another owner's.
pub(crate) fn duplicate_at_guard(resource: CString, stored: Option<CString>, fence: Fence) -> Report {
    Report::new("LF007", text!["fence ", fence, " at guard \"", &resource, "\" is another owner's"])
        .detail(text!["The guard has admitted this fence of ", said(stored), "."])
        .hint(text![ISSUED_TWICE])
}

/// The owner that was written did not stay.
pub(crate) fn put_back(table: RelationName, key: Vec<u8>, fence: i64) -> Report {
    let new = |message| Report::new("LF004", message);
    new(text!["the owner of fence ", fence, " was written to table \"", &table.name, "\" but did not stay"])
        .detail(text!["Key ", key, " would have been left with another owner."])
        .hint(text!["Check the table's BEFORE triggers: one of them sets the owner column."])
        .about(table)
}

fn said(stored: Option<CString>) -> Vec<u8> {
    stored.map_or_else(|| text!["another owner"], |owner| text!["owner \"", &owner, "\""])
}

impl OwnerProblem {
    pub(crate) fn report(self, table: RelationName, column: CString) -> Report {
        let named = text!["owner column \"", &column, "\" of table \"", &table.name, "\""];
        match self {
            OwnerProblem::Missing => {
                Report::new("42703", text!["table \"", &table.name, "\" has no owner column \"", &column, "\""]).hint(
                    text![
                        "Add one (ALTER TABLE ... ADD COLUMN ",
                        &column,
                        " text), or name the column that keeps the owner with owner_column => '...'.",
                    ],
                )
            }
            OwnerProblem::Type(type_name) => Report::new("42804", text![named, " has type ", type_name])
                .detail(text!["An owner column is text or varchar: owners are compared byte for byte."])
                .hint(text!["Change its type to text."]),
            OwnerProblem::Use(problem) => {
                Report::new("55000", text![named, " ", problem]).hint(text!["Use a column of its own for the owner."])
            }
            OwnerProblem::Room { characters, max } => {
                Report::new("22001", text![named, " has room for ", max, " characters, not for ", characters])
                    .hint(text!["Change its type to text."])
            }
        }
        .about(table)
        .column(column)
    }
}
