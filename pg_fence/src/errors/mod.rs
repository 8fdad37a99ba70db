//! Every refusal as a fact, and its text, made once, here.
//!
//! Not the errors of the server: those (constraints, permissions, serialization failures, cancels) pass through
//! untouched. Invariant: the SQLSTATE of a refusal says what to
//! do about it, and its code word (`codes`) which it is.

mod codes;

use crate::server::catalog::RelationName;
use fence::Fence;
use pg_forms::{c_string, packed_sqlstate, text};
use pgrx::pg_sys::{self, Oid};
use std::ffi::{CStr, CString, c_int};

/// What stands in the way of a call.
#[derive(Debug)]
pub enum Refused {
    /// An argument is NULL.
    NullArgument(&'static str),
    /// The fence is out of range.
    Fence(FenceProblem),
    /// The target of a row-returning function is no row type.
    NotARowType { type_name: CString },
    /// The columns of the table are no longer those that the query was made for.
    Altered { table: RelationName },
    /// No relation has this oid.
    NoRelation(Oid),
    /// No type has this oid.
    NoType(Oid),
    /// The relation is no table that can be fenced.
    NotATable { relation: RelationName, kind: &'static str, hint: &'static str },
    /// The table has no primary key, or none that picks one row at any time.
    PrimaryKey { table: RelationName, problem: &'static str, hint: &'static str },
    /// The table has no column of the fence column's name.
    NoFenceColumn { table: RelationName, column: CString },
    /// The fence column has a type that is neither bigint nor integer.
    FenceColumnType { table: RelationName, column: CString, type_name: CString },
    /// The fence column cannot be stamped.
    FenceColumnUse { table: RelationName, column: CString, problem: &'static str },
    /// The key does not fit the primary key.
    Key { table: RelationName, columns: Vec<u8>, problem: KeyProblem },
    /// The array of keys is none.
    Keys { table: RelationName, type_name: CString },
    /// The patch cannot be applied.
    Patch(PatchProblem),
    /// A column that the patch names cannot be patched.
    PatchColumn { table: RelationName, column: Vec<u8>, problem: ColumnProblem },
    /// No row has the key, or none that the caller may see. The key and the fence may have been swapped.
    NoRow { table: RelationName, key: Vec<u8>, may_be_swapped: bool },
    /// The stored fence is older than the caller's.
    Unclaimed { table: RelationName, key: Vec<u8>, stored: Told, fence: Fence },
    /// The row is there and the fence is accepted, but the write reached no row, again and again.
    Blocked { table: RelationName, key: Vec<u8>, stored: Told, fence: i64, verb: &'static str },
    /// The write reached the row, but another fence was stored.
    PutBack { table: RelationName, key: Vec<u8>, stored: Told, fence: i64 },
    /// More than one row has the key: the primary key's index is damaged.
    ManyRows { table: RelationName, key: Vec<u8>, rows: u64 },
    /// The server answered a statement in a way that cannot be.
    Server { function: &'static str, code: c_int },
    /// A newer fence is stored at a guard; which one, if the caller may read it.
    StaleGuard { resource: CString, stored: Option<i64>, fence: Fence },
    /// A guard in a transaction that reads by one snapshot.
    GuardLevel,
    /// No guard has this name.
    NoGuard { resource: CString },
    /// The name of a guard is empty or too long.
    ResourceLength { bytes: usize, max: usize },
    /// The table of the guards is gone.
    NoGuardTable,
    /// A write on a protected table proved no fence.
    Unfenced { table: RelationName, write: UnfencedWrite },
    /// A row of a protected table has a newer fence than all that the transaction uses.
    StaleRow { table: RelationName, stored: Option<i64>, fence: Fence },
    /// A row of a protected table has an older fence than one that the transaction uses.
    UnclaimedRow { table: RelationName, stored: Option<i64>, fence: Fence },
    /// The fence column of a table that is to be protected can be null.
    NullableFence { table: RelationName, column: CString },
    /// A partition is protected by its parent.
    ProtectedByParent { table: RelationName, parent: RelationName },
    /// An option of `fence_protect` has a value that it does not know.
    NoSuchOption { name: &'static str, value: CString },
    /// The transaction uses as many fences as it can.
    ManyInUse { max: usize },
    /// The extension's SQL in this database is of a version that the library does not know.
    Version { library: &'static str, sql: CString },
    /// What ends with its transaction is called outside a transaction block.
    NoBlock { function: &'static str },
    /// The table of the guards is to be protected.
    GuardTable,
    /// A write to the table of the guards that is not one of their functions'.
    GuardWrite,
    /// A trigger function is called as something else.
    NotATrigger,
    /// A distributed engine has spread the table over several servers, and refuses triggers on it.
    Distributed { table: RelationName },
}

/// A stored fence, as far as the client may be told it; `None` is null.
#[derive(Clone, Copy, Debug)]
pub enum Told {
    /// This one.
    Fence(Option<i64>),
    /// The client could not read it.
    Hidden,
}

/// How a write on a protected table proved no fence.
#[derive(Clone, Debug)]
pub enum UnfencedWrite {
    /// TRUNCATE, which has no way to prove one.
    Truncate,
    /// This command, and the transaction uses no fence.
    NoFence(&'static str),
    /// It changes the fence of a row.
    FenceChanged,
    /// It brings a row with this fence, which is not in use.
    Insert(i64),
    /// This command, and the trigger does not say which column has the fence.
    Altered(&'static str),
    /// It moves a row of a partitioned table, which has this partition without the trigger on INSERT.
    MoveUnasked(RelationName),
}

/// Why a number is no fence here.
#[derive(Clone, Debug)]
pub enum FenceProblem {
    /// It is NULL.
    Null,
    /// It is zero or negative.
    NotPositive(i64),
    /// It is above the largest fence there is.
    AboveProtocol(i64),
    /// It is above `pg_fence.max_fence`.
    AboveSetting { fence: i64, max: u64 },
    /// It does not fit the fence column.
    AboveColumn { fence: i64, max: u64, table: RelationName, column: CString },
    /// It is further ahead of the clock than `pg_fence.max_fence_ahead`.
    Ahead { fence: i64, horizon: u64, max_ahead_s: u64 },
}

/// How a key does not fit.
#[derive(Debug)]
pub enum KeyProblem {
    /// A key or a part of it is NULL.
    Null(Option<CString>),
    /// Its type cannot be compared with the key column.
    Type { column: CString, column_type: CString, given: CString },
    /// It has another number of columns.
    Count { given: usize, wanted: usize },
    /// A JSON object lacks a key column.
    Missing(CString),
    /// A JSON object has a member that is no key column.
    NoKeyColumn(Vec<u8>),
    /// A JSON value that is no object.
    NotAnObject(&'static str),
}

/// Why a patch as a whole cannot be applied.
#[derive(Debug)]
pub enum PatchProblem {
    /// It is no JSON object.
    NotAnObject(&'static str),
    /// It names no column.
    Empty,
    /// A JSON object inside it has a member that the composite type lacks.
    NoField { type_name: CString, field: Vec<u8> },
    /// A value is written as a kind of JSON value that its type has no form for.
    Form { type_name: CString, kind: &'static str },
}

/// Why a column cannot be patched.
#[derive(Clone, Copy, Debug)]
pub enum ColumnProblem {
    /// The table has no such column.
    Unknown,
    /// It is part of the primary key.
    Key,
    /// It holds the fence.
    Fence,
    /// It is a generated column.
    Generated,
    /// It is an identity column that is always generated.
    Identity,
}

/// What to do about a stale fence. The sentence after it names the other cause: fences of two locks cannot be compared.
const TAKEN_OVER: &str = "Another holder has taken over. Roll back, and take the lock again.";

impl Refused {
    /// Raises this refusal as an error of the server.
    pub fn raise(self) -> ! {
        let code = self.code();
        self.report().raise(code)
    }

    fn report(self) -> Report {
        match self {
            Refused::NullArgument(name) => Report::new("22004", text!["argument \"", name, "\" must not be null"]),
            Refused::Fence(problem) => problem.report(),
            Refused::NotARowType { type_name } => Report::new("42809", text![type_name, " is not a table's row type"])
                .hint(text!["Pass a null of the table's row type, as in NULL::counters."]),
            Refused::Altered { table } => Report::of_old_analysis()
                .detail(text!["The columns of table \"", &table.name, "\" have changed since the query was prepared."])
                .about(table),
            Refused::NoType(oid) => Report::of_old_analysis().detail(text![
                "Type with OID ",
                oid.to_u32(),
                " does not exist: its table has been dropped, or dropped and created again under its old name."
            ]),
            Refused::NoRelation(oid) => {
                Report::new("42P01", text!["relation with OID ", oid.to_u32(), " does not exist"])
                    .detail(text!["It has been dropped, or dropped and created again under its old name."])
            }
            Refused::NotATable { relation, kind, hint } => {
                Report::new("42809", text!["\"", &relation.name, "\" is ", kind])
                    .detail(text!["Only tables and partitioned tables can be fenced."])
                    .hint(text![hint])
                    .about(relation)
            }
            Refused::PrimaryKey { table, problem, hint } => {
                Report::new("55000", text!["table \"", &table.name, "\" ", problem])
                    .detail(text!["A fenced row is found by its table's primary key."])
                    .hint(text![hint])
                    .about(table)
            }
            Refused::NoFenceColumn { table, column } => Report::new(
                "42703",
                text!["table \"", &table.name, "\" has no fence column \"", &column, "\""],
            )
            .hint(text![
                "Add one (ALTER TABLE ... ADD COLUMN fence bigint NOT NULL DEFAULT 0), or name the column that ",
                "holds the fence with fence_column => '...'.",
            ])
            .about(table)
            .column(column),
            Refused::FenceColumnType { table, column, type_name } => Report::new(
                "42804",
                text!["fence column \"", &column, "\" of table \"", &table.name, "\" has type ", type_name],
            )
            .detail(text!["A fence column is bigint, or integer for small fences."])
            .hint(text!["Change its type to bigint."])
            .about(table)
            .column(column),
            Refused::FenceColumnUse { table, column, problem } => {
                Report::new("55000", text!["fence column \"", &column, "\" of table \"", &table.name, "\" ", problem])
                    .hint(text!["Use a column of its own for the fence."])
                    .about(table)
                    .column(column)
            }
            Refused::Key { table, columns, problem } => problem.report(table, columns),
            Refused::Keys { table, type_name } => {
                Report::new("42804", text!["argument \"keys\" is no array of keys but has type ", type_name])
                    .hint(text!["Pass an array of keys, or a jsonb array of objects of the key's columns."])
                    .about(table)
            }
            Refused::Patch(problem) => problem.report(),
            Refused::PatchColumn { table, column, problem } => problem.report(table, column),
            Refused::NoRow { table, key, may_be_swapped } => {
                Report::new("P0002", text!["table \"", &table.name, "\" has no such row"])
                    .detail(text!["Key ", key, " is not there, or a row-security policy hides it from the caller."])
                    .hint(if may_be_swapped {
                        text!["Key and fence may be swapped. Pass the key before the fence."]
                    } else {
                        text!["Insert the row, then claim it."]
                    })
                    .about(table)
            }
            Refused::Unclaimed { table, key, stored, fence } => {
                Report::new("LF002", text!["fence ", fence, " has not claimed this row of table \"", &table.name, "\""])
                    .detail(text!["Key ", key, " has ", stored.or("an older fence", "the older fence "), "."])
                    .hint(text!["Claim the row with fence ", fence, ", read it again, then write."])
                    .about(table)
            }
            Refused::Blocked { table, key, stored, fence, verb } => {
                Report::new("LF004", text![verb, " on table \"", &table.name, "\" was let through but reached no row"])
                    .detail(text![
                        "Key ",
                        key,
                        " is there with ",
                        stored.or("another fence", "fence "),
                        ", which accepts fence ",
                        fence,
                        "."
                    ])
                    .hint(text![
                        "Look at the table's row-security policies for ",
                        verb,
                        " and at its BEFORE triggers: one of ",
                        "them keeps the caller from this row.",
                    ])
                    .about(table)
            }
            Refused::PutBack { table, key, stored, fence } => Report::new(
                "LF004",
                text!["fence ", fence, " was written to table \"", &table.name, "\" but did not stay"],
            )
            .detail(text!["Key ", key, " would have been left with ", stored.or("another one", "fence "), "."])
            .hint(text!["Look at the table's BEFORE triggers: one of them sets the fence column."])
            .about(table),
            Refused::ManyRows { table, key, rows } => {
                Report::new("XX001", text![rows, " rows of table \"", &table.name, "\" have one primary key"])
                    .detail(text!["Key ", key, "."])
                    .hint(text!["The index of the primary key is damaged: REINDEX reports which rows."])
                    .about(table)
            }
            Refused::Server { function, code } => Report::new("XX000", text![function, " answered ", code]),
            Refused::StaleGuard { resource, stored, fence } => {
                let newer = stored.map_or_else(|| text!["a newer one"], |stored| text!["fence ", stored]);
                Report::new("LF001", text!["fence ", fence, " is stale at guard \"", &resource, "\""])
                    .detail(text!["The guard has let in ", newer, "; this transaction has fence ", fence, "."])
                    .hint(text![TAKEN_OVER, " All transactions that call this guard must take the same lock."])
            }
            Refused::GuardLevel => {
                Report::new("0A000", text!["fenced_guard() works at isolation level READ COMMITTED only"])
                    .detail(text!["At the stricter levels later statements read what was there before the guard."])
                    .hint(text!["Begin the transaction with BEGIN ISOLATION LEVEL READ COMMITTED."])
            }
            Refused::NoGuard { resource } => {
                Report::new("P0002", text!["there is no guard \"", resource, "\""]).hint(text![
                    "Guards are made by fenced_guard(). Compare the name with those in fence_internals.guards."
                ])
            }
            Refused::ResourceLength { bytes, max } => {
                Report::new("22023", text!["the name of the resource has ", bytes, " bytes"])
                    .detail(text!["It has 1 to ", max, "."])
                    .hint(text!["Use a short name, or a hash of a long one."])
            }
            Refused::Unfenced { table, write } => write.report(table),
            Refused::StaleRow { table, stored, fence } => {
                let newer = stored.map_or_else(|| text!["a newer one"], |stored| text!["fence ", stored]);
                Report::new("LF001", text!["fence ", fence, " is stale at a row of table \"", &table.name, "\""])
                    .detail(text!["The row has ", newer, "; the newest that this transaction uses is ", fence, "."])
                    .hint(text![TAKEN_OVER, " All writers of a row must take the same lock."])
                    .about(table)
            }
            Refused::UnclaimedRow { table, stored, fence } => {
                let older = stored.map_or_else(|| text!["an older one"], |stored| text!["the older fence ", stored]);
                Report::new("LF002", text!["fence ", fence, " has not claimed this row of table \"", &table.name, "\""])
                    .detail(text!["The row has ", older, "."])
                    .hint(text!["Claim the row with fence ", fence, ", read it again, then write."])
                    .about(table)
            }
            Refused::NullableFence { table, column } => {
                Report::new("55000", text!["fence column \"", &column, "\" of table \"", &table.name, "\" can be null"])
                    .hint(text!["ALTER TABLE ... ALTER ", &column, " SET DEFAULT 0, ALTER ", &column, " SET NOT NULL."])
                    .about(table)
                    .column(column)
            }
            Refused::ProtectedByParent { table, parent } => {
                Report::new("55000", text!["table \"", &table.name, "\" is a partition of a protected table"])
                    .detail(text!["\"", &parent.name, "\" is protected, and all its partitions with it."])
                    .hint(text!["Name \"", &parent.name, "\"."])
                    .about(table)
            }
            Refused::NoSuchOption { name, value } => {
                Report::new("0A000", text!["fence_protect() does not support ", name, " => '", value, "'"])
                    .hint(text!["Leave the argument out, or pass 'plain'."])
            }
            Refused::ManyInUse { max } => Report::new("54000", text!["this transaction uses ", max, " fences already"])
                .hint(text!["Use a transaction for each part of the work."]),
            Refused::Version { library, sql } => Report::new(
                "55000",
                text!["the library of pg_fence is of version ", library, ", its SQL in this database of version ", sql],
            )
            .hint(text![
                "Install the library that belongs to the SQL, or run ALTER EXTENSION pg_fence UPDATE TO '",
                library,
                "'; then connect anew.",
            ]),
            Refused::Distributed { table } => Report::new(
                "0A000",
                text!["table \"", &table.name, "\" is distributed and cannot be protected"],
            )
            .detail(text!["The distributed engine refuses triggers on it."])
            .hint(text![
                "The fenced_* functions and fenced_guard() work on it. Grant INSERT, UPDATE and DELETE on it to the ",
                "roles alone that use them.",
            ])
            .about(table),
            Refused::NoBlock { function } => {
                Report::new("25P01", text![function, " can only be used in transaction blocks"])
                    .detail(text!["It lasts to the end of the transaction, which is that of this statement alone."])
                    .hint(text!["Send BEGIN first, and COMMIT after the statements that it is for."])
            }
            Refused::GuardTable => {
                Report::new("55000", text!["the table of the guards cannot be protected"]).detail(text![
                    "It is written by the functions of guards alone, and a trigger refuses everything else."
                ])
            }
            Refused::GuardWrite => {
                Report::new("55000", text!["the table of the guards is written by their functions alone"])
                    .hint(text!["Call fenced_guard(), fence_guard_forget() or fence_guard_reset()."])
            }
            Refused::NotATrigger => Report::new("39P01", text!["the function is for triggers alone"])
                .hint(text!["Call fence_protect(), which makes the triggers."]),
            Refused::NoGuardTable => Report::new("55000", text!["the table \"fence_internals.guards\" does not exist"])
                .hint(text!["Create the extension again."]),
        }
    }
}

impl UnfencedWrite {
    fn report(self, table: RelationName) -> Report {
        let new = |message| Report::new("LF003", message);
        let claim = "Use fenced_update() and its like, or claim the row and call fence_use() with your lock's fence in this transaction.";
        match self {
            UnfencedWrite::Truncate => new(text!["TRUNCATE would empty the protected table \"", &table.name, "\""])
                .detail(text!["Its rows can have fences of many holders."])
                .hint(text!["DELETE the rows under their fences, or call fence_unprotect() first."]),
            UnfencedWrite::NoFence(command) => {
                new(text![command, " on the protected table \"", &table.name, "\" proved no fence"])
                    .detail(text![
                        "It is neither the change of a fenced function nor of a transaction that uses the row's fence."
                    ])
                    .hint(text![claim])
            }
            UnfencedWrite::FenceChanged => {
                new(text!["a plain write on the protected table \"", &table.name, "\" would change the fence of a row"])
                    .detail(text!["The fence is stamped by claims and fenced writes, and set by fence_reset(), alone."])
                    .hint(text!["Leave the fence column out of the statement."])
            }
            UnfencedWrite::Altered(command) => {
                new(text![command, " on the protected table \"", &table.name, "\" cannot be judged"])
                    .detail(text!["The trigger that protects it was altered and names no fence column."])
                    .hint(text!["Have the table's owner call fence_protect() again."])
            }
            UnfencedWrite::MoveUnasked(partition) => new(text![
                "a plain write could move a row of the protected table \"",
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
                "a new row of the protected table \"",
                &table.name,
                "\" has fence ",
                fence,
                ", which is not in use"
            ])
            .detail(text!["A row is inserted with fence 0, or with one that this transaction uses."])
            .hint(text![
                "Leave the fence column out, or call fence_use() with your lock's fence in this transaction. ",
                "To restore data alone, use --disable-triggers.",
            ]),
        }
        .about(table)
    }
}

impl FenceProblem {
    fn report(self) -> Report {
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

impl KeyProblem {
    fn report(self, table: RelationName, columns: Vec<u8>) -> Report {
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
            KeyProblem::NotAnObject(kind) => {
                Report::new("22023", text!["the key is ", kind, ", not a JSON object"]).detail(whole).hint(pass)
            }
        }
        .about(table)
    }
}

impl PatchProblem {
    fn report(self) -> Report {
        match self {
            PatchProblem::NotAnObject(kind) => {
                Report::new("22023", text!["the patch is ", kind, ", not a JSON object"])
                    .hint(text!["Pass an object of column names and their new values."])
            }
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
    fn report(self, table: RelationName, column: Vec<u8>) -> Report {
        let named = text!["column \"", &column[..], "\" of table \"", &table.name, "\""];
        match self {
            ColumnProblem::Unknown => Report::new("42703", text![named, " does not exist"])
                .hint(text!["Names match exactly, in upper and lower case."]),
            ColumnProblem::Key => Report::new("22023", text!["the patch may not change key ", named])
                .hint(text!["Leave the key out of the patch. To give the row another key, delete and insert it."]),
            ColumnProblem::Fence => Report::new("22023", text!["the patch may not change fence ", named])
                .hint(text!["Leave it out of the patch: a claim or a fenced write stamps the fence."]),
            ColumnProblem::Generated => Report::new("428C9", text!["the patch may not change generated ", named])
                .hint(text!["Leave it out of the patch: the server computes it."]),
            ColumnProblem::Identity => Report::new("428C9", text!["the patch may not change identity ", named])
                .hint(text!["Leave it out of the patch: it is GENERATED ALWAYS."]),
        }
        .about(table)
        .column(c_string(column))
    }
}

impl Told {
    /// The fence after these words, or the others where it is hidden.
    pub fn or(self, hidden: &str, words: &str) -> Vec<u8> {
        match self {
            Told::Fence(Some(stored)) => text![words, stored],
            Told::Fence(None) => text![words, "null"],
            Told::Hidden => text![hidden],
        }
    }
}

/// An error on its way to the server.
struct Report {
    sqlstate: &'static str,
    message: Vec<u8>,
    detail: Option<Vec<u8>>,
    hint: Option<Vec<u8>>,
    relation: Option<RelationName>,
    column: Option<CString>,
    routine: &'static CStr,
}

impl Report {
    fn new(sqlstate: &'static str, message: Vec<u8>) -> Report {
        Report { sqlstate, message, detail: None, hint: None, relation: None, column: None, routine: c"pg_fence" }
    }

    /// As the server refuses a prepared `SELECT *` on a table whose columns have changed. Drivers know it by its routine,
    /// prepare the query again and go on.
    fn of_old_analysis() -> Report {
        let report = Report::new("0A000", text!["cached plan must not change result type"]);
        Report { routine: c"RevalidateCachedQuery", ..report }.hint(text!["Prepare the query again, or run it again."])
    }

    fn message_if(mut self, yes: bool, message: impl FnOnce() -> Vec<u8>) -> Report {
        if yes {
            self.message = message();
        }
        self
    }

    fn detail(mut self, detail: Vec<u8>) -> Report {
        self.detail = Some(detail);
        self
    }

    fn hint(mut self, hint: Vec<u8>) -> Report {
        self.hint = Some(hint);
        self
    }

    fn about(mut self, relation: RelationName) -> Report {
        self.relation = Some(relation);
        self
    }

    fn column(mut self, column: CString) -> Report {
        self.column = Some(column);
        self
    }

    fn raise(self, code: &CStr) -> ! {
        let mut error = pg_sys::ErrorData {
            elevel: pg_sys::PGERROR as c_int,
            sqlerrcode: packed_sqlstate(self.sqlstate),
            message: duplicate(&c_string(self.message)),
            detail: self.detail.map_or(std::ptr::null_mut(), |text| duplicate(&c_string(text))),
            hint: self.hint.map_or(std::ptr::null_mut(), |text| duplicate(&c_string(text))),
            filename: c"pg_fence".as_ptr(),
            funcname: self.routine.as_ptr(),
            ..Default::default()
        };
        error.constraint_name = duplicate(code);
        if let Some(relation) = self.relation {
            error.schema_name = duplicate(&relation.schema);
            error.table_name = duplicate(&relation.name);
        }
        if let Some(column) = self.column {
            error.column_name = duplicate(&column);
        }
        // SAFETY: every pointer in `error` is null or a string that lives in the current memory context. The function
        // copies them and does not return; the unwinding that follows frees the Rust values of all frames.
        unsafe { pg_sys::ThrowErrorData(&mut error) };
        unreachable!("an error was raised")
    }
}

fn duplicate(text: &CStr) -> *mut std::ffi::c_char {
    // SAFETY: `text` ends with a NUL; the copy lives in the current memory context.
    unsafe { pg_sys::pstrdup(text.as_ptr()) }
}

const _: () = assert!(packed_sqlstate("P0002") == pgrx::PgSqlErrorCode::ERRCODE_NO_DATA_FOUND as c_int);
