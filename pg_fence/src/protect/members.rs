//! A table together with its partitions and with the tables that inherit from it, and whether they have a trigger.

use crate::protect::condition;
use crate::protect::remembering::{self, Named};
use crate::server::catalog;
use crate::server::locks::RelationLock;
use crate::server::relation::OpenRelation;
use crate::server::rights;
use pg_forms::{Identifier, text};
use pgrx::pg_sys::{self, Oid};
use std::ffi::{CStr, CString};

/// The function of the triggers that refuse a write, in the extension's schema of its own.
pub(crate) const FUNCTION: &CStr = c"refuse";
/// That of the triggers that keep the newer fence where replication applies an update.
pub(crate) const KEEPS_NEWER: &CStr = c"keep_newer";

/// That of the triggers that remember deletions.
pub(crate) const REMEMBERS: &CStr = c"remember";

/// A table, or one that is part of it or inherits from it.
pub(crate) struct Member {
    pub(crate) oid: Oid,
    pub(crate) kind: MemberKind,
}

/// What a [`Member`] is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum MemberKind {
    /// A partitioned table, at the top or below.
    Partitioned,
    /// A partition with rows.
    Partition,
    /// A table of its own, or one that inherits from another.
    Inherits,
}

impl Member {
    /// The table in SQL.
    pub(crate) fn qualified_name(&self) -> Vec<u8> {
        let name = catalog::relation_name(self.oid);
        text![Identifier(&name.schema), ".", Identifier(&name.name)]
    }
}

/// The table and all below it, the parents first, each locked so.
pub(crate) fn all(table: Oid, lock: RelationLock) -> Vec<Member> {
    let kind = |oid| match catalog::relation_kind(oid) {
        pg_sys::RELKIND_PARTITIONED_TABLE => MemberKind::Partitioned,
        _ if catalog::is_partition(oid) => MemberKind::Partition,
        _ => MemberKind::Inherits,
    };
    catalog::with_descendants(table, lock).into_iter().map(|oid| Member { oid, kind: kind(oid) }).collect()
}

/// Whether an error may show the value of a column: both the current role and the client's may read it, of the table or
/// of a partitioned table above it, without a policy that could hide the row. In a cascade the current role is the
/// table's owner, so the client's counts too.
pub(crate) fn may_disclose(table: Oid, column: i16) -> bool {
    reads_all_rows(table, column, rights::current_user()) && reads_all_rows(table, column, rights::client_user())
}

/// The same if the current role has just read the row: it is the client's own, or the client may read all rows as well.
/// In a SECURITY DEFINER function the current role is the definer.
pub(crate) fn may_disclose_what_is_read(table: Oid, column: i16) -> bool {
    let client = rights::client_user();
    client == rights::current_user() || reads_all_rows(table, column, client)
}

fn reads_all_rows(table: Oid, column: i16, role: Oid) -> bool {
    let in_parent = |parent| catalog::column_number(parent, &catalog::column_name(table, column));
    rights::reads_all_rows(table, column, role)
        || catalog::partition_ancestors(table)
            .into_iter()
            .any(|parent| rights::reads_all_rows(parent, in_parent(parent), role))
}

/// A trigger that calls a function of fence_protect()'s, whatever its name and its condition.
pub(crate) struct Made {
    pub(crate) name: CString,
    /// The fence column in its condition, where that is as fence_protect() makes it.
    pub(crate) fence_column: Option<i16>,
    /// The column of its owner, where the condition names one.
    pub(crate) owner_column: Option<i16>,
    /// Whether it is one of a partition that follows its parent's.
    pub(crate) is_clone: bool,
    pub(crate) is_on_insert: bool,
    /// Of one on INSERT, whether it asks a fence of every new row.
    pub(crate) asks_new_rows: bool,
    /// Whether it fires where nobody has changed `session_replication_role`.
    pub(crate) is_enabled: bool,
}

/// The triggers of a relation that keep the newer fence. The relation is locked as for [`made_triggers`].
pub(crate) fn keeping_triggers(relation: Oid) -> Vec<Made> {
    OpenRelation::open(relation, RelationLock::Reads).map_or_else(Vec::new, |open| calling(&open, KEEPS_NEWER))
}

/// A trigger that remembers deletions, whatever its name and its condition.
pub(crate) struct Remembering {
    pub(crate) name: CString,
    /// What its condition names, where that is as fence_protect() makes it.
    pub(crate) named: Option<Named>,
    pub(crate) is_clone: bool,
}

/// The triggers of a relation that remember deletions. The relation is locked as for [`made_triggers`].
pub(crate) fn remembering_triggers(relation: Oid) -> Vec<Remembering> {
    let Some((open, schema)) = OpenRelation::open(relation, RelationLock::Reads).zip(catalog::internals()) else {
        return Vec::new();
    };
    let made = open.triggers().filter(|trigger| catalog::is_function(trigger.function(), schema, REMEMBERS));
    made.map(|trigger| Remembering {
        name: trigger.name().to_owned(),
        named: trigger.condition().and_then(|condition| remembering::read(condition, trigger.kind())),
        is_clone: trigger.is_clone(),
    })
    .collect()
}

/// The triggers of a relation that refuse a write. The relation is locked to the end of the transaction: by the
/// caller already, or, a parent of its table, here.
pub(crate) fn made_triggers(relation: Oid) -> Vec<Made> {
    OpenRelation::open(relation, RelationLock::Reads).map_or_else(Vec::new, |open| made_of(&open))
}

/// A partition into which a row of this partition could move although no trigger asks there for the fence that it
/// brings: one that was attached since the partitioned table was protected.
///
/// Nothing is locked for it, as the maintenance of a partition would hold up the moves between others.
pub(crate) fn open_to_moves(partition: Oid) -> Option<Oid> {
    let made = |relation| OpenRelation::description(relation).map_or_else(Vec::new, |open| made_of(&open));
    let protected =
        catalog::partition_ancestors(partition).into_iter().rev().find(|&ancestor| !made(ancestor).is_empty())?;
    let asks = |trigger: &Made| trigger.is_on_insert && trigger.is_enabled && trigger.fence_column.is_some();
    let members = all(protected, RelationLock::None).into_iter();
    let mut partitions = members.filter(|member| member.kind == MemberKind::Partition).map(|member| member.oid);
    partitions.find(|&partition| !made(partition).iter().any(asks))
}

fn made_of(relation: &OpenRelation) -> Vec<Made> {
    calling(relation, FUNCTION)
}

fn calling(relation: &OpenRelation, function: &CStr) -> Vec<Made> {
    let Some(schema) = catalog::internals() else { return Vec::new() };
    let made = relation.triggers().filter(|trigger| catalog::is_function(trigger.function(), schema, function));
    made.map(|trigger| Made {
        name: trigger.name().to_owned(),
        fence_column: trigger.condition().and_then(|condition| condition::fence_column(condition, trigger.kind())),
        owner_column: trigger.condition().and_then(|condition| condition::owner_column(condition, trigger.kind())),
        is_clone: trigger.is_clone(),
        is_on_insert: condition::is_on_insert(trigger.kind()),
        asks_new_rows: trigger.condition().is_some_and(|condition| condition::asks_new_rows(condition, trigger.kind())),
        is_enabled: trigger.is_enabled(),
    })
    .collect()
}
