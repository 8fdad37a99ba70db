//! Every refusal as a fact: what stands in the way of a call.
//!
//! Not the errors of the server: those (constraints, permissions, serialization failures, cancels) pass through
//! untouched. Invariant: the SQLSTATE of a refusal says what to do about it, and its code word (`codes`) which it is;
//! the text is made once (`texts`, `problems`).

mod arrays;
mod codes;
mod owners;
mod problems;
mod texts;

use crate::server::catalog::RelationName;
use fence::Fence;
use fence::lock::args::BadArgument;
use pg_forms::text;
use pgrx::pg_sys::Oid;
use std::ffi::{CString, c_int};

/// What stands in the way of a call.
#[derive(Debug)]
pub(crate) enum Refused {
    /// An argument is NULL.
    NullArgument(&'static str),
    /// The fence is out of range.
    Fence(FenceProblem),
    /// The same of a fence that an operator chooses: the argument, and what to pass.
    ChosenFence { argument: &'static str, advice: &'static str, problem: FenceProblem },
    /// The target of a row-returning function is not of a row type.
    NotARowType { type_name: CString },
    /// The columns of the table are no longer those that the query was made for.
    Altered { table: RelationName },
    /// No relation has this oid.
    NoRelation(Oid),
    /// No type has this oid.
    NoType(Oid),
    /// The relation is not a table, or cannot be fenced.
    NotATable { relation: RelationName, kind: &'static str, hint: &'static str },
    /// The table has no primary key, or none that picks one row at any time.
    PrimaryKey { table: RelationName, problem: &'static str, hint: &'static str },
    /// The table has no column of the fence column's name.
    NoFenceColumn { table: RelationName, column: CString },
    /// The fence column has a type that is neither bigint nor integer.
    FenceColumnType { table: RelationName, column: CString, type_name: CString },
    /// The fence column cannot be stamped.
    FenceColumnUse { table: RelationName, column: CString, problem: &'static str },
    /// A column cannot keep the owner of a fence, or not this one.
    OwnerColumn { table: RelationName, column: CString, problem: OwnerProblem },
    /// The key does not fit the primary key.
    Key { table: RelationName, columns: Vec<u8>, problem: KeyProblem },
    /// The argument is not an array of keys.
    Keys { table: RelationName, type_name: CString },
    /// What is wrong with an element of an array, by its place from 1.
    Element { argument: &'static str, place: usize, problem: Box<Refused> },
    /// Two elements of the keys, by their places from 1, are the same key.
    KeyTwice { table: RelationName, key: Vec<u8>, places: (usize, usize) },
    /// An array has several dimensions.
    Dimensions(&'static str),
    /// An array has neither one element nor one for each key.
    ArrayLength { argument: &'static str, given: usize, keys: usize },
    /// The patch cannot be applied.
    Patch(PatchProblem),
    /// A column that the patch names cannot be patched.
    PatchColumn { table: RelationName, column: Vec<u8>, problem: ColumnProblem },
    /// No row has the key, or none that the caller may see. The key and the fence may have been swapped.
    NoRow { table: RelationName, key: Vec<u8>, may_be_swapped: bool },
    /// The stored fence is older than the caller's.
    Unclaimed { table: RelationName, key: Vec<u8>, stored: Disclosed, fence: Fence },
    /// The stored fence is the caller's, with another owner: this one, if the caller may read it and the row has one.
    Duplicate { table: RelationName, key: Vec<u8>, stored: Option<CString>, fence: Fence },
    /// The claim was made in another life of the server than the one since this time. A plain write names no key.
    Outlived { table: RelationName, key: Option<Vec<u8>>, fence: Fence, since: CString },
    /// The row is there and the fence is accepted, but the write reached no row, again and again.
    Blocked { table: RelationName, key: Vec<u8>, stored: Disclosed, fence: i64, verb: &'static str },
    /// No row was inserted, again and again, although none with the key is there for the caller.
    InsertBlocked { table: RelationName, key: Vec<u8> },
    /// The row was inserted with another key.
    KeyChanged { table: RelationName, key: Vec<u8> },
    /// No row has the key, and the server gives out the keys.
    KeyGenerated { table: RelationName, key: Vec<u8>, column: CString },
    /// The write reached the row, but another fence was stored.
    PutBack { table: RelationName, key: Vec<u8>, stored: Disclosed, fence: i64 },
    /// The write reached the row, but another owner was stored.
    OwnerPutBack { table: RelationName, key: Vec<u8>, fence: i64 },
    /// More than one row has the key: the primary key's index is damaged.
    ManyRows { table: RelationName, key: Vec<u8>, rows: u64 },
    /// The server answered a statement in a way that cannot be.
    Server { function: &'static str, code: c_int },
    /// A newer fence is stored at a guard; which one, if the caller may read it.
    StaleGuard { resource: CString, stored: Option<i64>, fence: Fence },
    /// The fence that is stored at a guard is the caller's, with another owner: this one, if the caller may read it.
    DuplicateGuard { resource: CString, stored: Option<CString>, fence: Fence },
    /// The caller of a guard has read in another life of the server than the one since this time.
    OutlivedGuard { resource: CString, fence: Fence, since: CString },
    /// The life that the caller of a guard names is no token.
    NotALife { given: CString },
    /// There is no shared memory for the life, so none can be begun for all sessions.
    NoSharedLife,
    /// A guard in a transaction that reads by one snapshot.
    GuardLevel,
    /// No guard has this name.
    NoGuard { resource: CString },
    /// The name of a guard is empty or too long.
    ResourceLength { bytes: usize, max: usize },
    /// The table of the guards is gone.
    NoGuardTable,
    /// Its columns, its index or its access method are others than the extension's script makes.
    GuardTableAltered,
    /// This session of a superuser's holds the guard, and the caller is none.
    EvictSuperuser { resource: CString, pid: i32 },
    /// A write on a protected table without a valid fence.
    Unfenced { table: RelationName, write: UnfencedWrite },
    /// A row of a protected table has a newer fence than all that the transaction uses.
    StaleRow { table: RelationName, stored: Option<i64>, fence: Fence },
    /// A row of a protected table has an older fence than one that the transaction uses.
    UnclaimedRow { table: RelationName, stored: Option<i64>, fence: Fence },
    /// A row of a protected table has this fence of another owner than all that the transaction uses; of this one, if the
    /// client may read it.
    DuplicateRow { table: RelationName, stored: Option<CString>, fence: i64 },
    /// The fence column of a table that is to be protected can be null.
    NullableFence { table: RelationName, column: CString },
    /// A partition is protected by its parent.
    ProtectedByParent { table: RelationName, parent: RelationName },
    /// An option of `fence_protect` has a value that it does not know.
    NoSuchOption { name: &'static str, other: &'static str, value: CString },
    /// A newer fence has deleted the key of a new row than all that the insert knows; the key, if the client may see it.
    StaleInsert { table: RelationName, key: Option<Vec<u8>>, stored: Disclosed, fence: Fence },
    /// The deletions of a table cannot be remembered or forgotten.
    Deletions { table: RelationName, problem: DeletionsProblem },
    /// Deletions of a negative age are to be forgotten.
    NegativeAge { given: CString },
    /// The transaction uses as many fences as it can.
    ManyInUse { max: usize },
    /// The extension's SQL in this database is of a version that the library does not know.
    Version { library: &'static str, sql: CString },
    /// What ends with its transaction is called outside a transaction block.
    NoBlock { function: &'static str },
    /// An argument is out of range.
    Argument(BadArgument<'static>),
    /// A lock is acquired, extended or released in a transaction block.
    LeaseInBlock { function: &'static str },
    /// As many wait for the lock as may.
    ManyWaiters { max: usize },
    /// The wait was longer than `lock_timeout`.
    LockTimeout,
    /// Every fence has been issued.
    FencesUsedUp,
    /// The last fence of the lock is one that no server can have admitted.
    StoredFenceAhead,
    /// The fences are to be raised too far.
    RaiseAhead { fence: Fence, max: u64 },
    /// The table of the leases is gone or altered: what is wrong with it.
    LeaseTable(&'static str),
    /// The table of the guards is to be protected.
    GuardTable,
    /// A write to the table of the guards that is not one of their functions'.
    GuardWrite,
    /// A trigger function is called as something else.
    NotATrigger,
    /// A distributed engine has spread the table over several servers, and refuses triggers on it.
    Distributed { table: RelationName },
}

/// A stored fence, unless it must be hidden from the client; `None` is null.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Disclosed {
    /// This one.
    Fence(Option<i64>),
    /// The client could not read it.
    Hidden,
}

/// What is wrong with a write on a protected table.
#[derive(Clone, Debug)]
pub(crate) enum UnfencedWrite {
    /// TRUNCATE, which has no way to prove one.
    Truncate,
    /// This command, and the transaction uses no fence.
    NoFence(&'static str),
    /// It changes the fence of a row.
    FenceChanged,
    /// It changes the owner of a row's fence.
    OwnerChanged,
    /// It brings a row with this fence, which is not in use.
    Insert(i64),
    /// It brings a row without a fence, where each must carry one.
    InsertWithout,
    /// It brings a row with the key of a deleted one, without the fence that it requires; the key, if the client may see it.
    DeletedKey { key: Option<Vec<u8>>, stored: Disclosed },
    /// This command, and the trigger does not say which column has the fence.
    Altered(&'static str),
    /// It moves a row of a partitioned table, which has this partition without the trigger on INSERT.
    MoveUnasked(RelationName),
}

/// What is wrong with the table that remembers the deletions of another.
#[derive(Clone, Debug)]
pub(crate) enum DeletionsProblem {
    /// There is none: they are not remembered.
    NotRemembered,
    /// This one belongs to another role.
    Owner(RelationName),
    /// This one does not say that it holds the deletions of the table.
    OfAnother(RelationName),
    /// This one has not the columns of the key.
    Columns(RelationName),
}

/// Why a number is not accepted as a fence.
#[derive(Clone, Debug)]
pub(crate) enum FenceProblem {
    Null,
    /// It is zero or negative.
    NotPositive(i64),
    /// It is above the largest fence there is.
    AboveProtocol(i64),
    /// It is above `pg_fence.max_fence`.
    AboveSetting {
        fence: i64,
        max: u64,
    },
    /// It does not fit the fence column.
    AboveColumn {
        fence: i64,
        max: u64,
        table: RelationName,
        column: CString,
    },
    /// It is further ahead of the clock than `pg_fence.max_fence_ahead`.
    Ahead {
        fence: i64,
        horizon: u64,
        max_ahead_s: u64,
    },
}

/// How a column does not keep an owner.
#[derive(Clone, Debug)]
pub(crate) enum OwnerProblem {
    /// The table has no such column.
    Missing,
    /// It has a type that does not keep every owner as it is.
    Type(CString),
    /// It is used otherwise.
    Use(&'static str),
    /// It has no room for an owner of so many characters.
    Room { characters: usize, max: usize },
}

/// How a key does not fit.
#[derive(Debug)]
pub(crate) enum KeyProblem {
    /// A key or a part of it is NULL.
    Null(Option<CString>),
    /// Its type cannot be compared with the key column.
    Type { column: CString, column_type: CString, given: CString },
    /// It has another number of columns.
    Count { given: usize, wanted: usize },
    /// A JSON object lacks a key column.
    Missing(CString),
    /// A JSON object has a member that is not a key column.
    NoKeyColumn(Vec<u8>),
    /// A JSON value that is not an object.
    NotAnObject(&'static str),
    /// The columns of the primary key cannot hold this key as it is.
    NotStorable(Vec<u8>),
}

/// Why a patch as a whole cannot be applied.
#[derive(Debug)]
pub(crate) enum PatchProblem {
    /// It is not a JSON object.
    NotAnObject(&'static str),
    /// What a new row is made of is not a JSON object.
    InitialNotAnObject(&'static str),
    /// It is neither a JSON object nor an array.
    NotPatches(&'static str),
    /// It names other columns than the first.
    OtherColumns,
    /// It names no column.
    Empty,
    /// A JSON object inside it has a member that the composite type lacks.
    NoField { type_name: CString, field: Vec<u8> },
    /// A value is written as a kind of JSON value that its type has no form for.
    Form { type_name: CString, kind: &'static str },
}

/// Why a column cannot be patched.
#[derive(Clone, Copy, Debug)]
pub(crate) enum ColumnProblem {
    /// The table has no such column.
    Unknown,
    /// It is part of the primary key.
    Key,
    /// It holds the fence.
    Fence,
    /// It keeps the owner of the fence.
    Owner,
    /// It is a generated column.
    Generated,
    /// It is an identity column that is always generated.
    Identity,
    /// The same five of a column that the initial values of a new row name.
    InitialKey,
    InitialFence,
    InitialOwner,
    InitialGenerated,
    InitialIdentity,
}

impl Refused {
    /// The same about a fence that an operator chooses, which is no lock's: the argument, and what to pass.
    pub(crate) fn of_chosen_fence(self, argument: &'static str, advice: &'static str) -> Refused {
        match self {
            Refused::Fence(problem) => Refused::ChosenFence { argument, advice, problem },
            other => other,
        }
    }

    /// The same about an element of an array, by its place from 1.
    pub(crate) fn of_element(self, argument: &'static str, place: usize) -> Refused {
        Refused::Element { argument, place, problem: Box::new(self) }
    }
}

impl Disclosed {
    /// The fence after these words, or the others where it is hidden.
    pub(crate) fn or(self, hidden: &str, words: &str) -> Vec<u8> {
        match self {
            Disclosed::Fence(Some(stored)) => text![words, stored],
            Disclosed::Fence(None) => text![words, "null"],
            Disclosed::Hidden => text![hidden],
        }
    }
}
