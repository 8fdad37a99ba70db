//! The tables that a session knows: their facts and plans, how long they are kept, and when they must be read again.
//!
//! Invariants: an entry is used only after its table is locked, which brings in the news of all changes; what the
//! server calls back here only marks entries; nothing of the server is called while the map is borrowed.

use crate::errors::Refused;
use crate::server::callbacks::{self, CatalogId};
use crate::server::catalog;
use crate::server::locks::{self, RelationLock};
use crate::server::rights;
use crate::server::session::{self, MainThread};
use crate::server::spi;
use crate::server::types;
use crate::settings;
use crate::table::facts;
use crate::table::plan::Plan;
use crate::table::relation::{COLUMNS, CatalogEntry, OPERATORS, SCHEMAS, TYPES, Table};
use pgrx::pg_sys::Oid;
use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::hash::{Hash, Hasher};
use std::rc::Rc;

#[derive(Default)]
struct Tables {
    by_oid: RefCell<BTreeMap<u32, Rc<Table>>>,
    /// Counts the calls, to know which table was used last.
    clock: Cell<u64>,
    bytes: Cell<usize>,
    /// Counts the changes of columns, of whatever table.
    column_changes: Cell<u64>,
    /// What [`Table::column_changes`] is for the tables that were dropped from here, all of them together.
    dropped_column_changes: Cell<Option<u64>>,
    /// The columns of tables for which a query that was made for older ones has been refused, as a hash.
    refused: RefCell<BTreeMap<u32, u64>>,
}

/// Only tables that are altered while they are in use come here; a table that is forgotten has a query refused once
/// more.
const MAX_REFUSED: usize = 1_000;

static TABLES: MainThread<Tables> = MainThread(Tables {
    by_oid: RefCell::new(BTreeMap::new()),
    clock: Cell::new(0),
    bytes: Cell::new(0),
    column_changes: Cell::new(0),
    dropped_column_changes: Cell::new(None),
    refused: RefCell::new(BTreeMap::new()),
});

/// The row type that was asked for last, and the table that it is of. Forgotten with any change of a table or type.
static LAST_ROW_TYPE: MainThread<Cell<Option<(Oid, Oid)>>> = MainThread(Cell::new(None));

/// Watches changes of tables and catalogs. Called once, when the library is loaded.
pub(crate) fn watch_changes() {
    callbacks::at_relation_change(relation_changed);
    for catalog in [SCHEMAS, OPERATORS, TYPES, COLUMNS] {
        callbacks::at_catalog_change(catalog, catalog_changed);
    }
}

/// The table of a row type, or of a domain over one.
pub(crate) fn of_row_type(row_type: Oid) -> Result<Oid, Refused> {
    if let Some((_, table)) = LAST_ROW_TYPE.get().filter(|(last, _)| *last == row_type) {
        return Ok(table);
    }
    if !types::type_exists(row_type) {
        session::forget_analyses();
        return Err(Refused::NoType(row_type));
    }
    let table = types::relation_of_type(types::base_type(row_type))
        .ok_or_else(|| Refused::NotARowType { type_name: types::type_name(row_type) })?;
    LAST_ROW_TYPE.set(Some((row_type, table)));
    Ok(table)
}

/// The table with this oid, locked as an UPDATE locks it, to the end of the transaction. Errors: it is gone, not a
/// table, or has no primary key that picks one row. Raises the server's error, before it waits for the lock and again
/// afterwards, where the caller may change no row of it.
pub(crate) fn open(oid: Oid) -> Result<Rc<Table>, Refused> {
    spi::free_dropped();
    let role = rights::current_user();
    let known = TABLES.known(oid);
    let is_writer = known.as_ref().is_some_and(|table| table.writer.get() == role);
    if !is_writer && !rights::require_some_writing(oid) {
        return Err(Refused::NoRelation(oid));
    }
    let table = locked(oid, known)?;
    if table.writer.get() != role {
        rights::require_some_writing(oid);
        table.writer.set(role);
    }
    Ok(table)
}

/// The same for what only the owner may do.
pub(crate) fn open_as_owner(oid: Oid) -> Result<Rc<Table>, Refused> {
    if !catalog::relation_exists(oid) {
        return Err(Refused::NoRelation(oid));
    }
    rights::require_owner(oid, &catalog::relation_name(oid).name);
    let table = locked(oid, TABLES.known(oid))?;
    rights::require_owner(oid, &table.name.name);
    Ok(table)
}

/// Locks the table, which is the known one if the lock brings no news of it.
fn locked(oid: Oid, known: Option<Rc<Table>>) -> Result<Rc<Table>, Refused> {
    locks::lock_relation(oid, RelationLock::Writes);
    if let Some(table) = known.filter(|table| table.is_current.get()) {
        TABLES.touch(&table);
        // The setting can have been lowered.
        TABLES.grow(oid, 0);
        return Ok(table);
    }
    let column_changes = TABLES.column_changes.get();
    let table = Rc::new(facts::read(oid)?);
    table.column_changes.set(column_changes);
    TABLES.put(&table);
    Ok(table)
}

/// Whether a table is still what it was when it was opened. The lock keeps other sessions from changing it, but not a function
/// that reading the arguments has called, such as the check of a domain.
pub(crate) fn is_unchanged(table: &Table) -> Result<bool, Refused> {
    Ok(table.is_current.get() || table.has_facts_of(&facts::read(table.oid)?))
}

/// Notes that a query is refused because it was made for older columns. Answers whether it is the first since the table
/// has these.
pub(crate) fn note_refusal(table: &Table) -> bool {
    let mut hasher = std::hash::DefaultHasher::new();
    for column in &table.columns {
        (column.number, &column.name, column.type_oid.to_u32(), column.typmod).hash(&mut hasher);
    }
    let columns = hasher.finish();
    let mut refused = TABLES.refused.borrow_mut();
    if refused.len() >= MAX_REFUSED {
        refused.clear();
    }
    refused.insert(table.oid.to_u32(), columns) != Some(columns)
}

/// Notes that one of the table's plans is in use, and takes this much more memory than it did. Others are dropped to
/// make room.
pub(crate) fn used_plan(table: &Table, plan: &Plan, grown_by: isize) {
    plan.used.set(TABLES.clock.get());
    if grown_by != 0 {
        TABLES.grow(table.oid, grown_by);
    }
}

impl Tables {
    fn known(&self, oid: Oid) -> Option<Rc<Table>> {
        self.by_oid.borrow().get(&oid.to_u32()).filter(|table| table.is_current.get()).cloned()
    }

    fn put(&self, table: &Rc<Table>) {
        self.touch(table);
        let old = self.by_oid.borrow_mut().insert(table.oid.to_u32(), table.clone());
        let freed = old.map_or(0, |old| old.bytes() + old.plans.bytes());
        self.grow(table.oid, table.bytes() as isize - freed as isize);
    }

    fn touch(&self, table: &Table) {
        let now = self.clock.get() + 1;
        self.clock.set(now);
        table.used.set(now);
    }

    fn grow(&self, in_use: Oid, by: isize) {
        self.bytes.set(self.bytes.get().saturating_add_signed(by));
        let limit = settings::plan_memory();
        if self.bytes.get() > limit {
            self.make_room(in_use.to_u32(), limit - limit / 4);
        }
    }

    /// Drops what was used least recently, plans and tables, until no more than `wanted` bytes are left: some below the
    /// limit, so that it does not happen with every call. What is in use stays.
    fn make_room(&self, in_use: u32, wanted: usize) {
        let now = self.clock.get();
        let tables: Vec<Rc<Table>> = self.by_oid.borrow().values().cloned().collect();
        let mut bytes: usize = tables.iter().map(|table| table.bytes() + table.plans.bytes()).sum();
        // A table comes after its plans.
        let of_table = |table: &Rc<Table>| {
            let plans = table.plans.uses().into_iter().filter(|&used| used != now || table.oid.to_u32() != in_use);
            let plans = plans.map(|used| (used, false, table.clone()));
            let itself = (table.used.get(), true, table.clone());
            plans.chain((table.oid.to_u32() != in_use).then_some(itself)).collect::<Vec<_>>()
        };
        let mut by_use: Vec<(u64, bool, Rc<Table>)> = tables.iter().flat_map(of_table).collect();
        by_use.sort_by_key(|(used, is_table, _)| (*used, *is_table));
        for (used, is_table, table) in by_use {
            if bytes <= wanted {
                break;
            }
            bytes -= table.plans.drop_used_at(used);
            if is_table {
                self.by_oid.borrow_mut().remove(&table.oid.to_u32());
                // A call may still use it, and nobody marks it from now on.
                table.is_current.set(false);
                self.dropped_column_changes.set(self.dropped_column_changes.get().or(Some(self.column_changes.get())));
                bytes -= table.bytes() + table.plans.bytes();
            }
        }
        self.bytes.set(bytes);
    }

    /// Notes how many columns have changed by now for the tables that have changed, and answers whether that is news
    /// for one of them. A query that names the row type of a table does not depend on its columns for the server. Where
    /// the query's columns must fit those of something else, as with RETURN QUERY, it is refused before it calls a
    /// function of this library, so that must not be waited for.
    fn note_column_changes(&self, is_changed: impl Fn(&Table) -> bool) -> bool {
        let now = self.column_changes.get();
        let (mut is_known, mut any_is_news) = (false, false);
        for table in self.by_oid.borrow().values().filter(|table| is_changed(table)) {
            is_known = true;
            any_is_news |= table.column_changes.replace(now) != now;
        }
        if !is_known && let Some(before) = self.dropped_column_changes.get() {
            self.dropped_column_changes.set(Some(now));
            any_is_news = before != now;
        }
        any_is_news
    }

    fn mark(&self, changed: impl Fn(&Table) -> bool) {
        for table in self.by_oid.borrow().values() {
            if changed(table) {
                table.is_current.set(false);
            }
        }
    }
}

fn relation_changed(oid: Option<Oid>) {
    LAST_ROW_TYPE.set(None);
    let is_changed = |table: &Table| oid.is_none_or(|oid| table.oid == oid);
    if TABLES.note_column_changes(is_changed) {
        session::forget_analyses();
    }
    // The index of a primary key is renamed alone.
    TABLES.mark(|table| is_changed(table) || oid == Some(table.key_index));
}

fn catalog_changed(catalog: CatalogId, hash: u32) {
    LAST_ROW_TYPE.set(None);
    if catalog == COLUMNS {
        // Which table's, the hash does not say; that comes next, as a change of the table.
        TABLES.column_changes.set(TABLES.column_changes.get() + 1);
        return;
    }
    let changed = CatalogEntry { catalog, hash };
    // A query that names the row type of a table keeps the type's oid, and the server does not note that. Where the
    // table was dropped, its name may stand for another one now.
    let is_row_type = |table: &Rc<Table>| hash == 0 || table.row_type_hash == hash;
    if catalog == TYPES && TABLES.by_oid.borrow().values().any(is_row_type) {
        session::forget_analyses();
    }
    // A hash of 0 stands for all entries of the catalog.
    TABLES.mark(|table| hash == 0 || table.depends_on.borrow().contains(&changed));
}
