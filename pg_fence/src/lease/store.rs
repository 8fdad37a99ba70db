//! Where leases are stored: the table, its index and the sequence, found by their names and checked before they are trusted.
//!
//! Invariant: what is read as a column is one of the type that the code takes it for, for as long as the store is open.

use crate::errors::Refused;
use crate::lease::names::{Names, give_back};
use crate::lease::row::{self, COLUMNS, Row};
use crate::server::boot::Moment;
use crate::server::callbacks;
use crate::server::catalog;
use crate::server::heap::{Fields, NamedRows, Version};
use crate::server::locks::{self, LockMode, RelationLock};
use crate::server::relation::OpenRelation;
use crate::server::sequence::Sequence;
use crate::server::session::MainThread;
use crate::server::stored::{Tid, is_same};
use crate::server::text::Bytes;
use fence::lock::lease::Lease;
use pgrx::pg_sys::{self, Oid};
use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::ffi::CStr;

const TABLE: &CStr = c"leases";
const SEQUENCE: &CStr = c"lease_fences";
/// A session that uses more names finds some by the index again.
const MAX_HINTS: usize = 4_096;

/// What was found and checked; none after a change of any of it.
static PLACES: MainThread<Cell<Option<Places>>> = MainThread(Cell::new(None));
/// Where a version of each row was.
static HINTS: MainThread<RefCell<BTreeMap<Box<[u8]>, Tid>>> = MainThread(RefCell::new(BTreeMap::new()));

#[derive(Clone, Copy)]
struct Places {
    table: Oid,
    index: Oid,
    sequence: Sequence,
}

/// The open table.
pub(crate) struct Store {
    relation: OpenRelation,
    lock: RelationLock,
    places: Places,
}

/// Forgets what was found when any of it changes. Called once.
pub(crate) fn watch_changes() {
    callbacks::at_relation_change(|changed| {
        let is_ours = |places: Places| {
            changed.is_none_or(|oid| [places.table, places.index, places.sequence.oid()].contains(&oid))
        };
        if PLACES.get().is_some_and(is_ours) {
            PLACES.set(None);
            HINTS.borrow_mut().clear();
        }
    });
}

impl Store {
    /// Opens the table to read it, or to write it.
    pub(crate) fn open(lock: RelationLock) -> Result<Store, Refused> {
        let table = match PLACES.get() {
            Some(places) => places.table,
            None => relation(TABLE).ok_or(Refused::LeaseTable("does not exist"))?,
        };
        // The lock brings in the news of changes: what was found before may be gone.
        let relation = OpenRelation::open(table, lock).ok_or(Refused::LeaseTable("does not exist"))?;
        let places = match PLACES.get() {
            Some(places) => places,
            None => Places::of(&relation)?,
        };
        PLACES.set(Some(places));
        Ok(Store { relation, lock, places })
    }

    /// Closes the table and gives back its lock, where nothing was written.
    pub(crate) fn close_unchanged(self) {
        let (table, lock) = (self.relation.oid(), self.lock);
        drop(self);
        locks::unlock_relation(table, lock);
    }

    pub(crate) fn sequence(&self) -> Sequence {
        self.places.sequence
    }

    /// The newest version of the row of this name, for whoever has the lock on it.
    pub(crate) fn find(&self, name: Bytes, moment: &Moment) -> Option<Version<Row>> {
        let hint = HINTS.borrow().get(name.bytes()).copied();
        let read = |fields: &Fields<COLUMNS>| Row::read(fields, name.bytes(), moment);
        let version = self.rows().find(name.datum(), hint, read);
        if let Some(version) = &version
            && hint.is_none_or(|hint| !is_same(&hint, &version.tid))
        {
            remember(name, version.tid);
        }
        version
    }

    /// The row of this name as it was committed last, for whoever only wants to know.
    pub(crate) fn find_committed(&self, name: Bytes, moment: &Moment) -> Option<Row> {
        self.rows().find_committed(name.datum(), |fields: &Fields<COLUMNS>| Row::read(fields, name.bytes(), moment))
    }

    /// The same of all rows, with their names.
    pub(crate) fn all_committed(&self, moment: &Moment) -> Vec<(Box<[u8]>, Row)> {
        self.rows().all_committed(|fields: &Fields<COLUMNS>| {
            Some((fields.text(row::NAME)?.bytes().into(), Row::of(fields, moment)))
        })
    }

    /// Stores a lease in place of the version that was found. Without an owner the lock is free.
    pub(crate) fn write(
        &self,
        found: Option<&Version<Row>>,
        name: Bytes,
        owner: Option<Bytes>,
        lease: &Lease,
        moment: &Moment,
    ) {
        let fields = row::fields(name, owner, lease, moment);
        let tid = match found {
            Some(version) => self.rows().update(version.tid, &fields),
            None => self.rows().insert(&fields),
        };
        remember(name, tid);
    }

    /// Deletes the row of this name to the end of the transaction, if it is still as the caller asks. Not one that another
    /// transaction is changing.
    pub(crate) fn remove_if(&self, name: &[u8], moment: &Moment, is_removed: impl Fn(&Row) -> bool) -> bool {
        let names = Names::of(name);
        if !names.row.try_take(LockMode::Alone) {
            return false;
        }
        let found = self.find(Bytes::copy(name), moment).filter(|version| is_removed(&version.row));
        match &found {
            Some(found) => self.delete(found),
            None => give_back(&names.row),
        }
        found.is_some()
    }

    /// Deletes the version that was found.
    pub(crate) fn delete(&self, found: &Version<Row>) {
        self.rows().delete(found.tid);
    }

    fn rows(&self) -> NamedRows<'_> {
        NamedRows { relation: &self.relation, index: self.places.index }
    }
}

impl Places {
    /// Checks that the table is as the extension's script makes it.
    fn of(table: &OpenRelation) -> Result<Places, Refused> {
        let sequence = relation(SEQUENCE).and_then(Sequence::of).ok_or(Refused::LeaseTable("lacks its sequence"))?;
        let [name, owner] = [pg_sys::TEXTOID; 2];
        let types = [name, owner].into_iter().chain([pg_sys::INT8OID; COLUMNS - 2]);
        let columns = table.columns().map(|column| column.form.atttypid);
        let has_columns = table.column_count() == COLUMNS && columns.eq(types);
        match table.key_of_first_text() {
            Some(index) if has_columns && table.is_heap() => Ok(Places { table: table.oid(), index, sequence }),
            _ => Err(Refused::LeaseTable("is not as the extension made it")),
        }
    }
}

fn relation(name: &CStr) -> Option<Oid> {
    catalog::internals().and_then(|schema| catalog::relation_in(schema, name))
}

fn remember(name: Bytes, tid: Tid) {
    let mut hints = HINTS.borrow_mut();
    if let Some(known) = hints.get_mut(name.bytes()) {
        *known = tid;
        return;
    }
    if hints.len() >= MAX_HINTS {
        hints.clear();
    }
    hints.insert(name.bytes().into(), tid);
}
