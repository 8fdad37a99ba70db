//! How it is said what is wrong with an argument (a fence, a key, a patch) or with a write on a protected table.

use crate::errors::{
    ColumnProblem, DeletionsProblem, Disclosed, FenceProblem, KeyProblem, PatchProblem, UnfencedWrite,
};
use crate::server::catalog::RelationName;
use crate::server::log::Report;
use fence::Fence;
use pg_forms::{c_string, text};

impl FenceProblem {
    pub(crate) fn report(self) -> Report {
        let new = |message| Report::new("LF005", message);
        match self {
            FenceProblem::Null => new(text!["the fence is null"])
                .detail(text!["A fence is an integer from 1 to ", Fence::MAX, "."])
                .hint(text!["Pass the fence that the lock was granted with."]),
            FenceProblem::NotPositive(fence) | FenceProblem::AboveProtocol(fence) => {
                new(text!["fence ", fence, " is out of range"])
                    .detail(text!["A fence is an integer from 1 to ", Fence::MAX, "."])
                    .hint(text!["Pass the fence that the lock was granted with."])
            }
            FenceProblem::AboveSetting { fence, max } => {
                new(text!["fence ", fence, " is out of range"]).detail(text!["pg_fence.max_fence is ", max, "."]).hint(
                    text!["Pass the fence that the lock was granted with. A superuser can raise pg_fence.max_fence."],
                )
            }
            FenceProblem::AboveColumn { fence, max, table, column } => new(text!["fence ", fence, " is out of range"])
                .detail(text![
                    "Fence column \"",
                    &column,
                    "\" of table \"",
                    &table.name,
                    "\" has type integer, which ends at ",
                    max,
                    ".",
                ])
                .hint(text!["Change the column's type to bigint."])
                .about(table)
                .column(column),
            FenceProblem::Ahead { fence, horizon, max_ahead_s } => {
                new(text!["fence ", fence, " is too far ahead of the clock"])
                    .detail(text![
                        "The largest fence accepted now is ",
                        horizon,
                        ": the clock in microseconds since 1970 and ",
                        max_ahead_s,
                        " s (pg_fence.max_fence_ahead).",
                    ])
                    .hint(text![
                        "Compare the clocks of the lock service and of this server. A superuser can raise ",
                        "pg_fence.max_fence_ahead.",
                    ])
            }
        }
    }
}

impl FenceProblem {
    /// The same of a fence that an operator chooses.
    pub(crate) fn report_of_chosen(self, argument: &str, advice: &str) -> Report {
        let is_of_clock_or_column = matches!(self, FenceProblem::Ahead { .. } | FenceProblem::AboveColumn { .. });
        let report = self.report().prefixed(text!["argument \"", argument, "\": "]);
        if is_of_clock_or_column { report } else { report.hint(text![advice]) }
    }
}

impl DeletionsProblem {
    pub(crate) fn report(self, table: RelationName) -> Report {
        let protect = text!["Call fence_protect() with deletes => 'remembered'."];
        match self {
            DeletionsProblem::NotRemembered => {
                Report::new("55000", text!["deletions of table \"", &table.name, "\" are not remembered"]).hint(protect)
            }
            DeletionsProblem::Owner(deletions) => Report::new(
                "55000",
                text!["table \"", &deletions.name, "\" does not belong to the owner of table \"", &table.name, "\""],
            )
            .detail(text!["It remembers the deletions of that table, with the rights of its owner."])
            .hint(text!["ALTER TABLE ", &deletions.name, " OWNER TO the owner of ", &table.name, "."]),
            DeletionsProblem::OfAnother(deletions) => Report::new(
                "55000",
                text!["table \"", &deletions.name, "\" does not hold the deletions of table \"", &table.name, "\""],
            )
            .detail(text!["A trigger names it that fence_protect() has not made, or its constraint fence_protect_deletions is gone."])
            .hint(text!["Call fence_protect(), which makes the triggers as they should be."]),
            DeletionsProblem::Columns(deletions) => Report::new(
                "55000",
                text!["table \"", &deletions.name, "\" cannot remember the deletions of table \"", &table.name, "\""],
            )
            .detail(text!["It has not the columns of the primary key, in their order and of their types, and after them a fence and a time."])
            .hint(text![
                "Give it these columns, or call fence_protect() with deletes => 'plain', which drops it, and then with ",
                "deletes => 'remembered'."
            ]),
        }
        .about(table)
    }
}

impl KeyProblem {
    pub(crate) fn report(self, table: RelationName, columns: Vec<u8>) -> Report {
        let whole = text!["The primary key of table \"", &table.name, "\" is ", &columns[..], "."];
        let pass = text!["Pass ROW", &columns[..], " in this order, or a jsonb object of exactly these columns."];
        match self {
            KeyProblem::Null(None) => Report::new("22004", text!["argument \"key\" must not be null"]).detail(whole),
            KeyProblem::Null(Some(column)) => {
                Report::new("22004", text!["key column \"", &column, "\" must not be null"])
                    .detail(whole)
                    .column(column)
            }
            KeyProblem::Type { column, column_type, given } => Report::new(
                "42804",
                text!["a key of type ", given, " does not fit column \"", &column, "\" of type ", column_type],
            )
            .detail(whole)
            .hint(text!["Cast the key to the type of the column."])
            .column(column),
            KeyProblem::Count { given, wanted } => {
                Report::new("22023", text!["the key has ", given, " of the primary key's ", wanted, " columns"])
                    .message_if(given > wanted, || text!["the key has ", given, " columns, the primary key ", wanted])
                    .detail(whole)
                    .hint(pass)
            }
            KeyProblem::Missing(column) => Report::new("22023", text!["the key lacks column \"", &column, "\""])
                .detail(whole)
                .hint(pass)
                .column(column),
            KeyProblem::NoKeyColumn(column) => {
                Report::new("22023", text!["the primary key has no column \"", column, "\""]).detail(whole).hint(pass)
            }
            KeyProblem::NotStorable(key) => {
                Report::new("22023", text!["no row of table \"", &table.name, "\" can have this key"])
                    .detail(text![
                        "Key ",
                        key,
                        " is not a value of its column as it stands: it would be rounded or cut."
                    ])
                    .hint(text!["Pass a key that the columns of the primary key can hold."])
            }
            KeyProblem::NotAnObject(kind) => {
                Report::new("22023", text!["the key is ", kind, ", not a JSON object"]).detail(whole).hint(pass)
            }
        }
        .about(table)
    }
}

impl PatchProblem {
    pub(crate) fn report(self) -> Report {
        match self {
            PatchProblem::NotAnObject(kind) => {
                Report::new("22023", text!["the patch is ", kind, ", not a JSON object"])
                    .hint(text!["Pass an object of column names and their new values."])
            }
            PatchProblem::InitialNotAnObject(kind) => {
                Report::new("22023", text!["the initial row is ", kind, ", not a JSON object"]).hint(text![
                    "Pass an object of column names and their values; {} has every column get its default."
                ])
            }
            PatchProblem::NotPatches(kind) => {
                Report::new("22023", text!["argument \"patches\" is ", kind, ", neither a JSON object nor an array"])
                    .hint(text!["Pass one object for all rows, or an array with an object for each key."])
            }
            PatchProblem::OtherColumns => Report::new("22023", text!["the patch names other columns than the first"])
                .hint(text!["Name the same columns in every patch, or make a call for each set of columns."]),
            PatchProblem::Empty => Report::new("22023", text!["the patch names no column"])
                .hint(text!["Name the columns to change. To stamp the fence alone, claim the row."]),
            PatchProblem::NoField { type_name, field } => {
                Report::new("42703", text!["type ", type_name, " has no field \"", field, "\""])
                    .hint(text!["Names match exactly, in upper and lower case."])
            }
            PatchProblem::Form { type_name, kind } => {
                Report::new("22023", text!["a value of type ", type_name, " is written as ", kind]).hint(text![
                    "Write it as a string of the type's own text form, or a composite as an object of its fields."
                ])
            }
        }
    }
}

impl ColumnProblem {
    pub(crate) fn report(self, table: RelationName, column: Vec<u8>) -> Report {
        let named = text!["column \"", &column[..], "\" of table \"", &table.name, "\""];
        match self {
            ColumnProblem::Unknown => Report::new("42703", text![named, " does not exist"])
                .hint(text!["Names match exactly, in upper and lower case."]),
            ColumnProblem::Key => Report::new("22023", text!["the patch may not change key ", named])
                .hint(text!["Leave the key out of the patch. To give the row another key, delete and insert it."]),
            ColumnProblem::Fence => Report::new("22023", text!["the patch may not change fence ", named])
                .hint(text!["Leave it out of the patch: a claim or a fenced write stamps the fence."]),
            ColumnProblem::Owner => Report::new("22023", text!["the patch may not change owner ", named])
                .hint(text!["Leave it out of the patch: a claim or a fenced write stores the owner."]),
            ColumnProblem::Generated => Report::new("428C9", text!["the patch may not change generated ", named])
                .hint(text!["Leave it out of the patch: the server computes it."]),
            ColumnProblem::Identity => Report::new("428C9", text!["the patch may not change identity ", named])
                .hint(text!["Leave it out of the patch: it is GENERATED ALWAYS."]),
            ColumnProblem::InitialKey => Report::new("22023", text!["the initial row may not set key ", named])
                .hint(text!["Leave the key out of it: a new row gets the key that is passed before the fence."]),
            ColumnProblem::InitialFence => Report::new("22023", text!["the initial row may not set fence ", named])
                .hint(text!["Leave it out: a new row gets the fence that is passed."]),
            ColumnProblem::InitialOwner => Report::new("22023", text!["the initial row may not set owner ", named])
                .hint(text!["Leave it out: the row is inserted with the owner that is passed beside the fence."]),
            ColumnProblem::InitialGenerated => {
                Report::new("428C9", text!["the initial row may not set generated ", named])
                    .hint(text!["Leave it out: the server computes it."])
            }
            ColumnProblem::InitialIdentity => {
                Report::new("428C9", text!["the initial row may not set identity ", named])
                    .hint(text!["Leave it out: it is GENERATED ALWAYS."])
            }
        }
        .about(table)
        .column(c_string(column))
    }
}

impl UnfencedWrite {
    pub(crate) fn report(self, table: RelationName) -> Report {
        let new = |message| Report::new("LF003", message);
        let claim = "Use a fenced_* function, or claim the row and call fence_use() with your lock's fence in this transaction.";
        match self {
            UnfencedWrite::Truncate => new(text!["TRUNCATE would empty protected table \"", &table.name, "\""])
                .detail(text!["Its rows can have fences of many holders."])
                .hint(text!["DELETE the rows under their fences, or call fence_unprotect() first."]),
            UnfencedWrite::NoFence(command) => {
                new(text![command, " on protected table \"", &table.name, "\" requires a fence"])
                    .detail(text![
                        "The write came from neither a fenced_* function nor a transaction that declared the row's fence with fence_use()."
                    ])
                    .hint(text![claim])
            }
            UnfencedWrite::FenceChanged => {
                new(text!["a plain write on protected table \"", &table.name, "\" would change the fence of a row"])
                    .detail(text!["Only claims, fenced writes and fence_reset() change a fence."])
                    .hint(text!["Leave the fence column out of the statement."])
            }
            UnfencedWrite::OwnerChanged => new(text![
                "a plain write on protected table \"",
                &table.name,
                "\" would change the owner of a fence"
            ])
            .detail(text!["Only claims, fenced writes and fence_reset() change it."])
            .hint(text!["Leave the owner column out of the statement."]),
            UnfencedWrite::InsertWithout => {
                new(text!["a new row of protected table \"", &table.name, "\" requires a fence"])
                    .detail(text!["It is protected with inserts => 'fenced': a row without a fence is not inserted."])
                    .hint(text![
                        "Call fence_use() with your lock's fence in this transaction, and insert the row with that fence."
                    ])
            }
            UnfencedWrite::DeletedKey { key, stored } => {
                new(text!["a new row of protected table \"", &table.name, "\" has the key of a deleted one"])
                    .detail(text![deleted(key, stored), ", and the row carries an older one or none."])
                    .hint(text![
                        "Call fence_use() with your lock's fence in this transaction, and insert the row with that fence."
                    ])
            }
            UnfencedWrite::Altered(command) => {
                new(text![command, " on protected table \"", &table.name, "\" cannot be checked"])
                    .detail(text!["The trigger that protects it was altered and names no fence column."])
                    .hint(text!["Have the table's owner call fence_protect() again."])
            }
            UnfencedWrite::MoveUnasked(partition) => new(text![
                "a plain write could move a row of protected table \"",
                &table.name,
                "\" out of its fence"
            ])
            .detail(text![
                "Partition \"",
                &partition.name,
                "\" has no enabled trigger that checks the fence of a new row."
            ])
            .hint(text!["Have the owner of the partitioned table call fence_protect() again."]),
            UnfencedWrite::Insert(fence) => new(text![
                "a new row of protected table \"",
                &table.name,
                "\" has fence ",
                fence,
                ", which is not in use"
            ])
            .detail(text!["A new row has fence 0, or one that this transaction declared with fence_use()."])
            .hint(text![
                "Leave the fence column out, or call fence_use() with your lock's fence in this transaction. ",
                "To restore data alone, use --disable-triggers.",
            ]),
        }
        .about(table)
    }
}

/// What is remembered of the key of a new row.
pub(crate) fn deleted(key: Option<Vec<u8>>, stored: Disclosed) -> Vec<u8> {
    let key = key.map_or_else(|| text!["Its key"], |key| text!["Key ", key]);
    text![key, " was deleted with ", stored.or("a newer one", "fence ")]
}
