//! Deletions that are remembered: the trigger that notes them and asks for them, and how they are forgotten.
//!
//! It fires after a row of a protected table was deleted, inserted, or given another key. It reads and writes the table of
//! the deletions with the rights of its owner, who owns the protected table too; nobody else needs a right on it. Whoever
//! inserts a key that another transaction is deleting waits for it at the primary key; what that one has committed is then
//! read whatever the snapshot. Invariant: what is remembered of a key is at least as new as the last row that had it.

use crate::errors::{DeletionsProblem, Disclosed, Refused, UnfencedWrite};
use crate::protect::companion;
use crate::protect::members;
use crate::protect::passes;
use crate::protect::remembering::{self, Named};
use crate::row::key::Key;
use crate::server::call::{Call, Reply};
use crate::server::callbacks;
use crate::server::catalog::{self, RelationName};
use crate::server::locks::{self, RelationLock};
use crate::server::operators;
use crate::server::relation::OpenRelation;
use crate::server::rights::{self, AsOwner};
use crate::server::session::MainThread;
use crate::server::trigger::{Command, EventRow, TriggerEvent};
use crate::server::types::{self, Value};
use crate::stats;
use crate::table::plans::{self, Values};
use crate::table::relation::{Column, Table};
use crate::table::statement::Statement;
use crate::table::tables;
use crate::table::verb::{Answer, Source, Verb};
use fence::deletion::{InsertVerdict, remembered_after};
use pg_forms::joined;
use pgrx::pg_sys::{self, Datum, Oid};
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;

/// What the conditions of triggers were seen to name, checked. A session that fires more triggers reads some again.
static KNOWN: MainThread<RefCell<BTreeMap<u32, Rc<Known>>>> = MainThread(RefCell::new(BTreeMap::new()));
/// The table of the deletions of each table that a function of this library has inserted into.
static TABLES: MainThread<RefCell<BTreeMap<u32, Option<Oid>>>> = MainThread(RefCell::new(BTreeMap::new()));
const MAX_KNOWN: usize = 1_000;

struct Known {
    named: Named,
    /// The relations that it was read from.
    relations: Vec<Oid>,
}

/// Forgets what was read of a relation when that changes. Called once, when the library is loaded.
pub(crate) fn watch_changes() {
    callbacks::at_relation_change(|changed| {
        KNOWN.borrow_mut().retain(|_, known| changed.is_some_and(|oid| !known.relations.contains(&oid)));
        TABLES
            .borrow_mut()
            .retain(|&table, deletions| changed.is_some_and(|oid| oid.to_u32() != table && *deletions != Some(oid)));
    });
}

/// `remember()`, the trigger: notes the key of a row that was deleted, and refuses a new row whose key a newer fence has
/// deleted.
pub(crate) fn remember(call: &Call) -> Result<Reply, Refused> {
    let event = TriggerEvent::of(call).ok_or(Refused::NotATrigger)?;
    let known = known(&event)?;
    let named = &known.named;
    let fence = |row| event.integer(row, named.fence);
    match event.command() {
        Command::Insert => ask(&event, named, EventRow::Given)?,
        // A row that goes on in another partition leaves its key: what places it is part of that.
        Command::Delete => {
            let moved_with = passes::fence_of_move(event.table(), &event.tid());
            note(&event, named, fence(EventRow::Given).max(moved_with))?;
        }
        Command::Update => {
            note(&event, named, fence(EventRow::Given).max(fence(EventRow::New)))?;
            ask(&event, named, EventRow::New)?;
        }
        Command::Truncate => return Err(Refused::NotATrigger),
    }
    Ok(Reply::Void)
}

/// `has_key(deletions regclass, fence bigint, VARIADIC key "any")`: the condition of the trigger on deletions and inserts,
/// true of every row.
pub(crate) fn has_key(_call: &Call) -> Result<Reply, Refused> {
    Ok(Reply::from(true))
}

/// `changes_key(deletions regclass, old_fence bigint, new_fence bigint, VARIADIC keys "any")`: whether the values before and
/// after an update, which follow each other in pairs, have other bytes.
pub(crate) fn changes_key(call: &Call) -> Result<Reply, Refused> {
    let mut given = call.arguments();
    (0..3).for_each(|_| given.skip());
    while given.has_more() {
        let old = given.value("keys").ok();
        // A call by hand may pass anything.
        if !given.has_more() {
            return Ok(Reply::from(true));
        }
        let is_same = match (old, given.value("keys").ok()) {
            (Some(old), Some(new)) => old.type_oid() == new.type_oid() && operators::have_same_bytes(old, new),
            (old, new) => old.is_none() && new.is_none(),
        };
        if !is_same {
            return Ok(Reply::from(true));
        }
    }
    Ok(Reply::from(false))
}

/// `fence_forget_deletions(target regclass, older_than interval)`: forgets the deletions that are older, and answers how many.
/// For the owner of the table.
pub(crate) fn fence_forget_deletions(call: &Call) -> Result<Reply, Refused> {
    let mut given = call.arguments();
    let table = given.table("target")?;
    let older_than = given.value("older_than")?;
    if !catalog::relation_exists(table) {
        return Err(Refused::NoRelation(table));
    }
    let name = catalog::relation_name(table);
    rights::require_owner(table, &name.name);
    if operators::is_negative(older_than) {
        return Err(Refused::NegativeAge { given: older_than.text() });
    }
    companion::forget(table, older_than).map(Reply::from)
}

/// `trigger_deletions(condition pg_node_tree, kind smallint, OUT deletions regclass, OUT fence smallint, OUT key text)`: what
/// the WHEN condition of a trigger with this `pg_trigger.tgtype` names; nulls when it is not one that `fence_protect` makes.
pub(crate) fn trigger_deletions(call: &Call) -> Result<Reply, Refused> {
    let mut given = call.arguments();
    let (condition, kind) = (given.text_of_tree(), given.small_number());
    let named = condition.zip(kind).and_then(|(condition, kind)| remembering::read(&condition, kind));
    Ok(call.record(&named.map_or([None; 3], |named| {
        let key = joined(named.key.iter().map(|&column| i64::from(column)), " ");
        [Some(Datum::from(named.deletions)), Some(Datum::from(named.fence)), Some(types::text_datum(&key))]
    })))
}

/// The fence that a deletion of this key, with values of its columns' own types, is remembered with.
pub(crate) fn recall(table: &Table, key: &Key) -> Result<Option<i64>, Refused> {
    if !table.may_be_protected {
        return Ok(None);
    }
    let found = TABLES.borrow().get(&table.oid.to_u32()).copied();
    let deletions = found.unwrap_or_else(|| {
        // Where it is none, or one of another key, the trigger of the insert refuses.
        let found = companion::named(table.oid).filter(|named| {
            companion::check(named.deletions, table.oid).is_ok()
                && companion::is_key(table, &named.key)
                && companion::fits(named.deletions, &companion::key_types(table))
        });
        let found = found.map(|named| named.deletions);
        let mut tables = TABLES.borrow_mut();
        if tables.len() >= MAX_KNOWN {
            tables.clear();
        }
        tables.insert(table.oid.to_u32(), found);
        found
    });
    match deletions {
        Some(deletions) => Memory::open(deletions, table.name.clone())?.read(&key.values),
        None => Ok(None),
    }
}

fn note(event: &TriggerEvent, named: &Named, deleted: Option<i64>) -> Result<(), Refused> {
    let Some(fence) = remembered_after(None, deleted) else { return Ok(()) };
    let Some(values) = key(event, named, EventRow::Given) else { return Ok(()) };
    Memory::open(named.deletions, event.table_name())?.write(&values, fence)
}

fn ask(event: &TriggerEvent, named: &Named, row: EventRow) -> Result<(), Refused> {
    let Some(values) = key(event, named, row) else { return Ok(()) };
    let memory = Memory::open(named.deletions, event.table_name())?;
    let remembered = memory.read(&values)?;
    let new = event.integer(row, named.fence);
    let verdict = passes::judge_insert(remembered, new);
    if verdict == InsertVerdict::Accepted {
        return Ok(());
    }
    let key = memory.key(&values)?.text(&memory.table);
    let fence = memory.fence().number;
    drop(memory);
    let may_show = members::may_disclose(event.table(), named.fence) && members::may_disclose(named.deletions, fence);
    let stored = if may_show { Disclosed::Fence(remembered) } else { Disclosed::Hidden };
    let (table, key) = (event.table_name(), may_show.then_some(key));
    let refused = match verdict {
        InsertVerdict::Stale(fence) => Refused::StaleInsert { table, key, stored, fence },
        _ => Refused::Unfenced { table, write: UnfencedWrite::DeletedKey { key, stored } },
    };
    stats::count_refused(event.table(), &refused, remembered);
    Err(refused)
}

/// None where a value is null: a primary key has no nulls, but one that is gone may have left some. Nothing is remembered of
/// those.
fn key(event: &TriggerEvent, named: &Named, row: EventRow) -> Option<Vec<Value>> {
    named.key.iter().map(|&column| event.value(row, column)).collect()
}

/// What the trigger's condition names. Errors: it was altered, or names a table that cannot be that of the deletions.
fn known(event: &TriggerEvent) -> Result<Rc<Known>, Refused> {
    let trigger = event.trigger_oid().to_u32();
    let cached = || KNOWN.borrow().get(&trigger).cloned();
    if let Some(known) = cached() {
        // What has changed before the lock is read again.
        locks::lock_relation(known.named.deletions, RelationLock::Writes);
        if let Some(known) = cached() {
            return Ok(known);
        }
    }
    let table = event.table();
    let named = event.condition().and_then(|condition| remembering::read(condition, event.kind()));
    let Some(named) = named else {
        return Err(Refused::Unfenced { table: event.table_name(), write: UnfencedWrite::Altered("write") });
    };
    let above = catalog::partition_ancestors(table);
    let refused = |problem| Refused::Deletions { table: event.table_name(), problem };
    // Before the lock too, which nobody may take on a table of somebody else.
    companion::check(named.deletions, table).map_err(refused)?;
    locks::lock_relation(named.deletions, RelationLock::Writes);
    companion::check(named.deletions, table).map_err(refused)?;
    let key_types = named.key.iter().map(|&column| event.column_type(column)).collect::<Vec<_>>();
    if !companion::fits(named.deletions, &key_types) || !is_of_key(table, &named) {
        return Err(refused(DeletionsProblem::Columns(catalog::relation_name(named.deletions))));
    }
    let relations = [table, named.deletions].into_iter().chain(above).collect();
    let known = Rc::new(Known { named, relations });
    let mut all = KNOWN.borrow_mut();
    if all.len() >= MAX_KNOWN {
        all.clear();
    }
    all.insert(trigger, known.clone());
    Ok(known)
}

/// Whether the key is the primary key of the table, which may have lost it.
fn is_of_key(table: Oid, named: &Named) -> bool {
    let key = OpenRelation::open(table, RelationLock::None).and_then(|open| open.primary_key());
    key.is_none_or(|key| key.columns.iter().map(|column| column.number).eq(named.key.iter().copied()))
}

/// The table of the deletions, and the rights of its owner as long as this lives.
struct Memory {
    table: Rc<Table>,
    /// Whose deletions they are.
    target: RelationName,
    _owner: AsOwner,
}

impl Memory {
    fn open(deletions: Oid, target: RelationName) -> Result<Memory, Refused> {
        let owner = AsOwner::past_policies(deletions);
        Ok(Memory { table: tables::open(deletions)?, target, _owner: owner })
    }

    fn read(&self, values: &[Value]) -> Result<Option<i64>, Refused> {
        let key = self.key(values)?;
        let mut bound = Values::with_capacity(values.len());
        bound.extend(key.datums());
        Ok(plans::run(&self.statement(&key, Verb::Recall), &bound)?.fence)
    }

    fn write(&self, values: &[Value], fence: i64) -> Result<(), Refused> {
        let key = self.key(values)?;
        let mut bound = Values::with_capacity(values.len() + 1);
        bound.extend(key.datums());
        bound.push(Some(Datum::from(fence)));
        plans::run(&self.statement(&key, Verb::Remember), &bound).map(|_| ())
    }

    /// Errors: the table was altered since it was checked, before it was locked here.
    fn key(&self, values: &[Value]) -> Result<Key, Refused> {
        Key::of_column_values(&self.table, values.to_vec())?.ok_or_else(|| {
            let problem = DeletionsProblem::Columns(self.table.name.clone());
            Refused::Deletions { table: self.target.clone(), problem }
        })
    }

    fn statement<'m>(&'m self, key: &'m Key, verb: Verb) -> Statement<'m> {
        let (table, fence) = (&*self.table, self.fence());
        Statement {
            table,
            fence,
            owner: None,
            source: Source::Parameters,
            fits: &key.fits,
            verb,
            answer: Answer::Fence,
            patch: &[],
        }
    }

    /// The first column after the key's.
    fn fence(&self) -> &Column {
        let fence = self.table.columns.iter().find(|column| !column.is_key && column.type_oid == pg_sys::INT8OID);
        fence.unwrap_or(&self.table.columns[0])
    }
}
