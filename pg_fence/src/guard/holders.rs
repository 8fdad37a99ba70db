//! Who is in a guard, and with which fence, as others can see it.
//!
//! Without memory of its own, so it is right on every server: who holds a guard is in the server's lock table, and with which
//! fence is in the row. A transaction that was alone has written the fence itself, committed or not; those that share the guard
//! have the fence that is committed, for none could write another while they hold it. Invariant: a fence that is named is the one
//! that the transaction held the guard with when the lock table was read; what is not certain is not named.

use crate::errors::Refused;
use crate::guard::guard_table;
use crate::server::heap::{Fields, NamedRows};
use crate::server::lock_table::{Hold, LockTable, Transaction};
use crate::server::locks::{Purpose, RelationLock};
use crate::server::relation::OpenRelation;
use crate::server::stored::{Tid, is_same};
use crate::server::text::{self, Bytes};
use crate::server::versions::Writer;
use pgrx::pg_sys::{self, Oid};
use std::collections::{BTreeMap, BTreeSet};

/// A transaction that holds a guard.
#[derive(Clone, Copy, Debug)]
pub(super) struct Holder {
    pub(super) transaction: Transaction,
    /// Its number, if it has one: a prepared one does.
    pub(super) number: Option<u32>,
    /// With which fence; not known of one that is just being admitted, or whose row was removed.
    pub(super) fence: Option<i64>,
}

/// A guard that is held.
pub(super) struct Held {
    /// Its name; not known where it has no row.
    pub(super) resource: Option<Box<[u8]>>,
    pub(super) holders: Vec<Holder>,
    /// How many wait for it.
    pub(super) waiting: usize,
}

const COLUMNS: usize = 3;
const RESOURCE: usize = 0;
const FENCE: usize = 1;
/// How often the rows are read again, when a fence was committed between two readings.
const MAX_READINGS: usize = 5;

/// The table of the guards, open for reading.
pub(super) struct Guards {
    relation: OpenRelation,
    index: Oid,
}

/// What is stored of a guard.
#[derive(Default)]
struct Stored {
    committed: Option<(Tid, i64)>,
    /// The fences of transactions that run, by their numbers.
    running: Vec<(u32, i64)>,
}

impl Guards {
    pub(super) fn open() -> Result<Guards, Refused> {
        let relation = OpenRelation::open(guard_table()?, RelationLock::Reads).ok_or(Refused::NoGuardTable)?;
        let types = [pg_sys::TEXTOID, pg_sys::INT8OID, pg_sys::TEXTOID];
        let has_columns =
            relation.column_count() == COLUMNS && relation.columns().map(|column| column.form.atttypid).eq(types);
        match relation.key_of_first_text() {
            Some(index) if has_columns && relation.is_heap() => Ok(Guards { relation, index }),
            _ => Err(Refused::GuardTableAltered),
        }
    }

    /// Who holds the guard of this name.
    pub(super) fn holders_of(&self, resource: &[u8]) -> Vec<Holder> {
        let hash = text::hash(resource);
        let (table, stored) = self.reading(&BTreeSet::from([resource.into()]));
        holders(&table, table.holds(hash), stored.get(resource))
    }

    /// All guards of this database that are held.
    pub(super) fn held(&self) -> Vec<Held> {
        let names = self.names(&LockTable::read(Purpose::Guard).held().collect());
        let (table, stored) = self.reading(&names);
        let mut by_hash: BTreeMap<u64, &[u8]> = BTreeMap::new();
        by_hash.extend(names.iter().map(|name| (text::hash(name), &name[..])));
        let held = table.held().map(|hash| {
            let name = by_hash.get(&hash).copied();
            Held {
                resource: name.map(Into::into),
                holders: holders(&table, table.holds(hash), name.and_then(|name| stored.get(name))),
                waiting: table.waiting(hash),
            }
        });
        held.collect()
    }

    /// The lock table, and what is stored of these guards at the same time: read before and after it. Of a guard where that
    /// differs again and again the committed fence is left out.
    fn reading(&self, names: &BTreeSet<Box<[u8]>>) -> (LockTable, BTreeMap<Box<[u8]>, Stored>) {
        let read =
            || -> BTreeMap<Box<[u8]>, Stored> { names.iter().map(|name| (name.clone(), self.stored(name))).collect() };
        let mut before = read();
        for reading in 1.. {
            let table = LockTable::read(Purpose::Guard);
            let mut after = read();
            let mut is_still = true;
            for (name, stored) in &mut after {
                if !before.get(name).is_some_and(|before| before.has_committed(stored)) {
                    is_still = false;
                    if reading == MAX_READINGS {
                        stored.committed = None;
                    }
                }
            }
            if is_still || reading == MAX_READINGS {
                return (table, after);
            }
            before = after;
        }
        unreachable!("the last reading is returned")
    }

    /// The names of the guards whose names have these hashes.
    fn names(&self, hashes: &BTreeSet<u64>) -> BTreeSet<Box<[u8]>> {
        let mut names = BTreeSet::new();
        if !hashes.is_empty() {
            self.rows().each_version(None, |fields: &Fields<COLUMNS>, _, _| {
                if let Some(name) = fields.text(RESOURCE)
                    && hashes.contains(&text::hash(name.bytes()))
                {
                    names.insert(name.bytes().into());
                }
            });
        }
        names
    }

    fn stored(&self, name: &[u8]) -> Stored {
        let mut stored = Stored::default();
        self.rows().each_version(
            Some(Bytes::copy(name).datum()),
            |fields: &Fields<COLUMNS>, writer, tid| match writer {
                Writer::Ended => stored.committed = Some((tid, fields.number(FENCE))),
                Writer::Running(number) => stored.running.push((number, fields.number(FENCE))),
            },
        );
        stored
    }

    fn rows(&self) -> NamedRows<'_> {
        NamedRows { relation: &self.relation, index: self.index }
    }
}

impl Stored {
    /// Whether the same version is committed.
    fn has_committed(&self, other: &Stored) -> bool {
        match (self.committed, other.committed) {
            (Some((one, fence)), Some((other, same))) => is_same(&one, &other) && fence == same,
            (one, other) => one.is_none() && other.is_none(),
        }
    }
}

fn holders(table: &LockTable, holds: &[Hold], stored: Option<&Stored>) -> Vec<Holder> {
    let holder = |hold: &Hold| {
        let transaction = hold.transaction;
        let written = stored.and_then(|stored| {
            stored.running.iter().find(|(number, _)| table.has_number(&transaction, *number)).map(|(_, fence)| *fence)
        });
        // What this transaction has written itself it reads as committed.
        let reads_own = hold.is_shared || transaction.is_own();
        let committed = || stored.filter(|_| reads_own)?.committed.map(|(_, fence)| fence);
        Holder { transaction, number: table.number(&transaction), fence: written.or_else(committed) }
    };
    holds.iter().map(holder).collect()
}
