//! Protected tables: triggers that refuse every write without a valid fence.
//!
//! The triggers are the only record, so they survive dump and restore and go with the table. They belong to the table's
//! owner. What lets a write pass is in `passes`; here they are made and removed. Invariant: a table has at most one of
//! each, because their names are fixed; a partition has its parent's.

use crate::errors::Refused;
use crate::guard::guard_table;
use crate::protect::companion::{self, Deletions};
use crate::protect::condition::{self, ROW_TRIGGERS, RowTrigger};
use crate::protect::members::{self, Made, Member, MemberKind};
use crate::protect::options::{Deletes, Inserts, ProtectArguments, Replicated};
use crate::protect::remembering;
use crate::server::call::{Call, Reply};
use crate::server::catalog;
use crate::server::locks::{self, RelationLock};
use crate::server::rights;
use crate::server::spi::Connection;
use crate::table::distributed;
use crate::table::owner::OwnerArguments;
use crate::table::relation::Table;
use crate::table::tables;
use pg_forms::{Identifier, c_string, text};
use pgrx::pg_sys::Oid;
use std::ffi::{CStr, CString};
use std::rc::Rc;

const ON_TRUNCATE: &CStr = c"fence_protect_truncate";
const ON_REPLICATED: &CStr = c"fence_protect_replicated";

/// `fence_protect(target regclass, fence_column name, inserts text, deletes text, replicated text, owner_column name)`: makes the
/// triggers, or makes them again as they should be. Null keeps what the triggers have. Answers on how many tables they
/// are.
pub(crate) fn fence_protect(call: &Call) -> Result<Reply, Refused> {
    let given = ProtectArguments::of(call)?;
    let oid = given.table;
    if guard_table().is_ok_and(|guards| guards == oid) {
        return Err(Refused::GuardTable);
    }
    let table = open_for_triggers(oid, rights::require_trigger_right)?;
    let kept = kept_column(&table, |trigger| trigger.fence_column);
    let kept_owner = kept_column(&table, |trigger| trigger.owner_column);
    let column = table.fence_column(given.fence_column.unwrap_or(kept.as_deref().unwrap_or(c"fence")))?;
    let named = given.owner_column.or(kept_owner.as_deref());
    let owner = OwnerArguments { owner: None, column: named }.of(&table, column)?;
    let owner = owner.map(|owner| owner.column.name.as_c_str());
    if !catalog::is_not_null(oid, column.number) {
        return Err(Refused::NullableFence { table: table.name.clone(), column: column.name.clone() });
    }
    refuse_partition(&table)?;
    let connection = Connection::open()?;
    distributed::refuse_triggers(&table)?;
    let members = members::all(oid, RelationLock::Triggers);
    let triggers = Triggers { connection: &connection };
    let replicated = given.replicated.unwrap_or_else(|| Replicated::of(oid));
    let inserts = given.inserts.unwrap_or_else(|| Inserts::of(&members));
    let deletes = given.deletes.unwrap_or_else(|| Deletes::of(oid));
    let roots = members.iter().filter(|member| companion::is_root(member, oid));
    let were: Vec<(Oid, Option<Oid>)> = roots.map(|root| (root.oid, companion::of(root.oid))).collect();
    let mut deletions = None;
    for member in &members {
        triggers.drop_renamed(member)?;
        for kind in ROW_TRIGGERS.iter().filter(|kind| is_made_on(kind.command, member, oid)) {
            let kind = if inserts == Inserts::Fenced { kind.asking_new_rows() } else { *kind };
            triggers.make_for_rows(member, &kind, &column.name, owner)?;
        }
        triggers.make_on_truncate(member)?;
        triggers.drop_keeping(member)?;
        if replicated == Replicated::Newest && is_made_on(c"UPDATE", member, oid) {
            triggers.make_keeping(member, &column.name)?;
        }
        if deletes == Deletes::Remembered && companion::is_root(member, oid) {
            deletions = Some(companion::make(&connection, member.oid)?);
        }
        triggers.drop_remembering(member, deletes)?;
        if let Some(deletions) = &deletions {
            triggers.make_remembering(member, oid, deletions, &column.name)?;
        }
    }
    if given.deletes == Some(Deletes::Plain) {
        were.into_iter().try_for_each(|(root, was)| companion::drop(&connection, root, was))?;
    }
    connection.close()?;
    Ok(count_of(&members))
}

/// `fence_unprotect(target regclass)`: removes the triggers. Answers on how many tables they were.
pub(crate) fn fence_unprotect(call: &Call) -> Result<Reply, Refused> {
    let oid = call.arguments().table("target")?;
    let table = open_for_triggers(oid, |member| rights::require_owner(member, &catalog::relation_name(member).name))?;
    refuse_partition(&table)?;
    let connection = Connection::open()?;
    let mut members = members::all(oid, RelationLock::Triggers);
    members.retain(|member| !members::made_triggers(member.oid).is_empty());
    for member in &members {
        // The parent comes first, and takes those of its partitions along.
        let made = members::made_triggers(member.oid).into_iter().chain(members::keeping_triggers(member.oid));
        let made = made.map(|trigger| (trigger.is_clone, trigger.name));
        let remembering = members::remembering_triggers(member.oid).into_iter();
        let remembering = remembering.map(|trigger| (trigger.is_clone, trigger.name));
        for (_, name) in made.chain(remembering).filter(|(is_clone, _)| !is_clone) {
            drop_trigger(&connection, &name, member)?;
        }
    }
    connection.close()?;
    Ok(count_of(&members))
}

/// The table, with all below it locked as CREATE TRIGGER does. The rights on each are checked before it waits for a
/// lock, and for what has changed meanwhile by the commands that follow.
fn open_for_triggers(oid: Oid, require_right: impl Fn(Oid)) -> Result<Rc<Table>, Refused> {
    if !catalog::relation_exists(oid) {
        return Err(Refused::NoRelation(oid));
    }
    rights::require_owner(oid, &catalog::relation_name(oid).name);
    members::all(oid, RelationLock::None).into_iter().for_each(|member| require_right(member.oid));
    locks::lock_relation(oid, RelationLock::Triggers);
    tables::open_as_owner(oid)
}

fn count_of(members: &[Member]) -> Reply {
    Reply::from(i32::try_from(members.len()).unwrap_or(i32::MAX))
}

/// The column that the triggers of the table name, of the fence or its owner; none where it has none.
fn kept_column(table: &Table, named: fn(&Made) -> Option<i16>) -> Option<CString> {
    let number = members::made_triggers(table.oid).iter().find_map(named)?;
    table.columns.iter().find(|column| column.number == number).map(|column| column.name.clone())
}

/// Whether a row trigger on a command is made on a member. The server makes those of a parent for its partitions, also for later
/// ones. But the one on INSERT is made on each partition: a parallel restore makes the triggers of a parent before it
/// has loaded the rows of all partitions, and would be refused.
fn is_made_on(command: &CStr, member: &Member, target: Oid) -> bool {
    match member.kind {
        MemberKind::Inherits => true,
        MemberKind::Partition => member.oid == target || command == c"INSERT",
        MemberKind::Partitioned => member.oid == target && command != c"INSERT",
    }
}

struct Triggers<'a> {
    connection: &'a Connection,
}

impl Triggers<'_> {
    /// AFTER triggers, because BEFORE triggers lock each row first, which costs a sixth of an UPDATE.
    fn make_for_rows(
        &self,
        member: &Member,
        kind: &RowTrigger,
        column: &CStr,
        owner: Option<&CStr>,
    ) -> Result<(), Refused> {
        let condition = kind.sql(column, owner);
        let when = text![" FOR EACH ROW WHEN (", condition, ")"];
        self.make(&trigger_name(kind), text!["AFTER ", kind.command], member, when)
    }

    /// A trigger of ours under another name would stay beside the one that is made.
    fn drop_renamed(&self, member: &Member) -> Result<(), Refused> {
        let names: Vec<CString> = ROW_TRIGGERS.iter().map(trigger_name).chain([ON_TRUNCATE.to_owned()]).collect();
        let made = members::made_triggers(member.oid).into_iter();
        made.filter(|made| !made.is_clone && !names.contains(&made.name))
            .try_for_each(|renamed| drop_trigger(self.connection, &renamed.name, member))
    }

    /// A BEFORE trigger, because it keeps the update from being made. Where nobody replicates it never fires, and costs
    /// nothing.
    fn make_keeping(&self, member: &Member, column: &CStr) -> Result<(), Refused> {
        let when = text![" FOR EACH ROW WHEN (", condition::is_older(column), ")"];
        self.create(ON_REPLICATED, text!["BEFORE UPDATE"], member, when, members::KEEPS_NEWER)?;
        let enable =
            text!["ALTER TABLE ", member.qualified_name(), " ENABLE REPLICA TRIGGER ", Identifier(ON_REPLICATED)];
        self.connection.run_direct(enable, &[]).map(|_| ())
    }

    fn drop_keeping(&self, member: &Member) -> Result<(), Refused> {
        let made = members::keeping_triggers(member.oid).into_iter();
        made.filter(|made| !made.is_clone).try_for_each(|made| drop_trigger(self.connection, &made.name, member))
    }

    /// AFTER triggers: a row that is not deleted or inserted after all is none of theirs.
    fn make_remembering(&self, on: &Member, target: Oid, deletions: &Deletions, column: &CStr) -> Result<(), Refused> {
        for kind in remembering::TRIGGERS.iter().filter(|kind| is_made_on(kind.command, on, target)) {
            let when = text![" FOR EACH ROW WHEN (", kind.sql(deletions.table, column, &deletions.key), ")"];
            self.create(kind.name, text!["AFTER ", kind.command], on, when, members::REMEMBERS)?;
        }
        Ok(())
    }

    /// All of them, or those under other names than they are made again with.
    fn drop_remembering(&self, on: &Member, deletes: Deletes) -> Result<(), Refused> {
        let is_made_again =
            |name: &CStr| deletes == Deletes::Remembered && remembering::TRIGGERS.iter().any(|kind| kind.name == name);
        let made = members::remembering_triggers(on.oid).into_iter();
        made.filter(|made| !made.is_clone && !is_made_again(&made.name))
            .try_for_each(|made| drop_trigger(self.connection, &made.name, on))
    }

    fn make_on_truncate(&self, member: &Member) -> Result<(), Refused> {
        self.make(ON_TRUNCATE, text!["BEFORE TRUNCATE"], member, text![" FOR EACH STATEMENT"])
    }

    fn make(&self, name: &CStr, event: Vec<u8>, on: &Member, each: Vec<u8>) -> Result<(), Refused> {
        self.create(name, event, on, each, members::FUNCTION)
    }

    fn create(&self, name: &CStr, event: Vec<u8>, on: &Member, each: Vec<u8>, function: &CStr) -> Result<(), Refused> {
        let sql = text![
            "CREATE OR REPLACE TRIGGER ",
            Identifier(name),
            " ",
            event,
            " ON ",
            on.qualified_name(),
            each,
            " EXECUTE FUNCTION ",
            Identifier(catalog::INTERNALS),
            ".",
            Identifier(function),
            "()",
        ];
        self.connection.run_direct(sql, &[]).map(|_| ())
    }
}

fn drop_trigger(connection: &Connection, name: &CStr, on: &Member) -> Result<(), Refused> {
    connection.run_direct(text!["DROP TRIGGER ", Identifier(name), " ON ", on.qualified_name()], &[]).map(|_| ())
}

fn trigger_name(kind: &RowTrigger) -> CString {
    c_string(text!["fence_protect_", &kind.command.to_bytes().to_ascii_lowercase()[..]])
}

/// A partition has the triggers of its parent, which nobody can change from here.
fn refuse_partition(table: &Table) -> Result<(), Refused> {
    let is_protected = |ancestor: &Oid| !members::made_triggers(*ancestor).is_empty();
    match catalog::partition_ancestors(table.oid).into_iter().rev().find(is_protected) {
        Some(parent) => {
            Err(Refused::ProtectedByParent { table: table.name.clone(), parent: catalog::relation_name(parent) })
        }
        None => Ok(()),
    }
}
