//! The stored locks and their deadlines: which lease ends next, and where its key is.
//!
//! Not a timer, which is `timer::expiry`. Keys change unseen by the module, so an entry is a hint that is checked
//! before use. Invariant: every value in the wheel carries the mark of the index.

use std::cell::{LazyCell, RefCell};

use fence::lock::bonds::Bonds;
use fence::lock::lease::Hold;
use fence::lock::queue::LockName;
use fence::wheel::Slots;

use crate::clock;
use crate::ffi::main_thread::{self, MainThread};
use crate::lock::flushes::{Database, Flushes};
use crate::lock::pool::Pool;
use crate::lock::value::Value;

static INDEX: MainThread<LazyCell<RefCell<Index>>> =
    MainThread::new(LazyCell::new(|| RefCell::new(Index::new(clock::origin_us()))));

/// The index of this server.
pub(crate) fn index() -> &'static RefCell<Index> {
    &INDEX
}

/// Notes a value that is leaving its key, perhaps by an eviction.
pub(crate) fn suspect(value: &Value, lock: LockName) {
    let mut index = INDEX.borrow_mut();
    index.unbind(value);
    index.suspect(value);
    index.last_unlinked = Some((lock.db, lock.name.into()));
}

/// The keyspace has dropped a value, which may be freed. On any thread.
pub(crate) fn free(value: Value) {
    if !main_thread::is_main_thread() {
        return value.leave_keyspace_unseen();
    }
    if Value::count_freed_with_all() {
        return;
    }
    let Ok(mut index) = INDEX.try_borrow_mut() else { return value.leave_keyspace_unseen() };
    // Some commands, such as RESTORE, replace a value without unlinking it first. What was flushed is dropped in
    // slices.
    if value.is_in_wheel_only() && !index.is_flushed(&value) {
        index.remove(&value);
    }
    if value.leave_keyspace() {
        index.discard(value);
    }
}

pub(crate) struct Index {
    slots: Slots,
    pool: Pool,
    /// Values that are leaving their key, to be checked when the call is over.
    suspects: Vec<Value>,
    /// The first of the values that nobody uses and that are not discarded yet.
    orphans: Option<Value>,
    /// `databases[n]` is the number under which database n is known here. SWAPDB swaps two entries and no value.
    databases: Vec<u32>,
    /// Some value is stored under a name that the index does not know.
    pub(crate) has_strays: bool,
    /// Some values were freed without being touched.
    has_freed: bool,
    /// The sweep for them is to begin from the start.
    restart: bool,
    /// Another thread may free values, or will.
    is_freed_elsewhere: bool,
    /// A keyspace is loaded beside the one that is served.
    is_loading_aside: bool,
    /// Connections, and the cells of the leases that end with them. A value that leaves the index is unbound.
    pub(crate) bonds: Bonds,
    flushes: Flushes,
    /// The lock that left its key last, and not by our own doing: it may turn out to be evicted.
    last_unlinked: Option<(i32, Box<[u8]>)>,
}

/// Orphans discarded with each new value, so that cells are freed faster than they are taken.
const ORPHANS_AT_ONCE: usize = 2;

impl Index {
    pub(crate) fn new(origin_us: u64) -> Index {
        Index {
            slots: Slots::new(origin_us),
            pool: Pool::new(),
            suspects: Vec::new(),
            orphans: None,
            databases: Vec::new(),
            has_strays: false,
            has_freed: false,
            restart: false,
            is_freed_elsewhere: false,
            is_loading_aside: false,
            bonds: Bonds::default(),
            flushes: Flushes::default(),
            last_unlinked: None,
        }
    }

    /// The number under which a database is known here: its own until it is swapped.
    pub(crate) fn known_as(&self, db: i32) -> u32 {
        self.databases.get(db as usize).copied().unwrap_or(db as u32)
    }

    /// The database that is known under this number.
    pub(crate) fn database(&self, known_as: u32) -> i32 {
        self.databases.iter().position(|&known| known == known_as).unwrap_or(known_as as usize) as i32
    }

    pub(crate) fn swap_databases(&mut self, first: i32, second: i32) {
        let (first, second) = (first as usize, second as usize);
        while self.databases.len() <= first.max(second) {
            self.databases.push(self.databases.len() as u32);
        }
        self.databases.swap(first, second);
    }

    pub(crate) fn len(&self) -> usize {
        self.flushes.live
    }

    pub(crate) fn allocated(&self) -> usize {
        self.slots.allocated() + self.pool.allocated()
    }

    pub(crate) fn next_us(&self) -> Option<u64> {
        self.slots.next_us()
    }

    /// Makes a new value, due when its lease ends.
    pub(crate) fn add(&mut self, hold: &Hold, db: i32, key: &[u8]) -> Value {
        self.discard_orphans(ORPHANS_AT_ONCE);
        if self.is_freed_elsewhere && !self.is_loading_aside && self.pool.is_empty() {
            self.is_freed_elsewhere = false;
        }
        let db = self.known_as(db);
        let value = Value::create(&mut self.pool, hold, db, key);
        if value.is_in_index() {
            self.flushes.enter(db);
        }
        self.insert_at(hold.lease.deadline_us, &value);
        value
    }

    /// Frees the cell of a value that nobody uses.
    pub(crate) fn discard(&mut self, value: Value) {
        match value.cell() {
            Some(cell) => self.pool.release(cell),
            None => value.free_loose(),
        }
    }

    /// Discards some of the orphans, which other threads have freed; false when there are no more.
    pub(crate) fn discard_orphans(&mut self, most: usize) -> bool {
        for _ in 0..most {
            let Some(value) = self.orphans.take().or_else(Value::take_orphans) else { return false };
            self.orphans = value.next_orphan();
            self.discard(value);
        }
        true
    }

    pub(crate) fn has_orphans(&self) -> bool {
        self.orphans.is_some() || Value::has_orphans()
    }

    /// Links a value of the index into the wheel, due at `at_us` (never before its own deadline).
    pub(crate) fn insert_at(&mut self, at_us: u64, value: &Value) {
        // A value without a cell is left out: the lease ends in time all the same, and the key goes with the next
        // access.
        if let Some(cell) = value.cell() {
            debug_assert!(value.is_in_index());
            self.slots.link(&mut self.pool, cell, at_us);
        }
    }

    /// Drops a value that is in the wheel. It may be freed.
    pub(crate) fn remove(&mut self, value: &Value) {
        if value.is_in_wheel()
            && let Some(cell) = value.cell()
        {
            self.slots.unlink(&mut self.pool, cell);
            self.leave(Value::in_cell(&self.pool, cell));
        }
    }

    /// Drops a value that is not in the wheel. It may be freed.
    pub(crate) fn leave(&mut self, value: Value) {
        if let Some(cell) = value.cell().filter(|_| value.is_in_index()) {
            self.unbind(&value);
            self.flushes.leave(value.db(), self.pool.generation_of(cell));
        }
        if value.leave_index() {
            Value::note_last_left();
            self.discard(value);
        }
    }

    /// Binds the lease of a value to a connection, as long as the value stays in that database.
    pub(crate) fn bind(&mut self, value: &Value, client: u64, db: i32) {
        if let Some(cell) = value.cell().filter(|_| value.is_in_index()) {
            self.bonds.bind(cell, client, db);
        }
    }

    /// Ends the bond of a lease.
    pub(crate) fn unbind(&mut self, value: &Value) {
        if let Some(cell) = value.cell().filter(|_| value.is_ephemeral()) {
            self.bonds.unbind(cell);
        }
    }

    /// The value in a bound cell.
    pub(crate) fn bound(&self, cell: u32) -> Value {
        Value::in_cell(&self.pool, cell)
    }

    /// Whether the database of a value was flushed after the value was stored.
    pub(crate) fn is_flushed(&self, value: &Value) -> bool {
        self.pool.has_generations()
            && value.cell().is_some_and(|cell| self.flushes.is_flushed(value.db(), self.pool.generation_of(cell)))
    }

    /// Changes a deadline. A later one costs a store: the wheel moves the value when the old time comes.
    pub(crate) fn set_deadline(&mut self, value: &Value, deadline_us: u64) {
        match value.cell().filter(|_| value.is_in_wheel() && deadline_us < value.deadline_us()) {
            None => value.set_deadline(deadline_us),
            Some(cell) => {
                self.slots.unlink(&mut self.pool, cell);
                value.set_deadline(deadline_us);
                self.slots.link(&mut self.pool, cell, deadline_us);
            }
        }
    }

    /// Whether the index has filed the value under this name.
    pub(crate) fn knows(&self, value: &Value, lock: LockName) -> bool {
        let is_filed = value.is_in_wheel() && !self.is_flushed(value);
        is_filed && value.key() == lock.name && value.db() == self.known_as(lock.db)
    }

    /// Takes one value that is due out of the wheel. The caller then calls `insert_at` or `leave`.
    pub(crate) fn pop(&mut self, now_us: u64, budget: &mut usize) -> Option<Value> {
        let cell = self.slots.pop(&mut self.pool, now_us, budget)?;
        Some(Value::in_cell(&self.pool, cell))
    }

    /// Whether this lock has just left its key.
    pub(crate) fn was_last_unlinked(&self, lock: LockName) -> bool {
        self.last_unlinked.as_ref().is_some_and(|(db, name)| *db == lock.db && **name == *lock.name)
    }

    /// That lock was found to be evicted, or the call in which it left is over.
    pub(crate) fn forget_last_unlinked(&mut self) {
        self.last_unlinked = None;
    }

    /// Notes a value that is leaving its key. Those noted before have left by now.
    fn suspect(&mut self, value: &Value) {
        self.settle_suspects();
        self.suspects.extend(value.enter_suspects());
    }

    /// Drops the suspects that were freed; one that was not has moved to another name.
    pub(crate) fn settle_suspects(&mut self) {
        while let Some(value) = self.suspects.pop() {
            if value.is_in_keyspace() {
                self.has_strays = true;
            } else {
                self.remove(&value);
            }
            if value.leave_suspects() {
                Value::note_last_left();
                self.discard(value);
            }
        }
    }

    /// Begins a new generation: the values of a database, or of all, are flushed.
    pub(crate) fn flush(&mut self, db: Option<i32>) {
        self.settle_suspects();
        let known_as = db.map(|db| self.known_as(db) as usize);
        let flushes = &mut self.flushes;
        let concerned = |at: usize, database: &Database| known_as.is_none_or(|known| known == at) && database.live > 0;
        if !flushes.databases.iter().enumerate().any(|(at, database)| concerned(at, database)) {
            return;
        }
        flushes.is_flushed_aside |= self.is_loading_aside;
        let since = self.pool.begin_generation();
        for (at, database) in flushes.databases.iter_mut().enumerate() {
            if concerned(at, database) {
                flushes.live -= database.live;
                flushes.flushed += database.live;
                *database = Database { live: 0, since };
            }
        }
    }

    /// Another thread frees values from now on. It is done when no value is left.
    pub(crate) fn note_freed_elsewhere(&mut self) {
        self.is_freed_elsewhere = true;
    }

    /// A keyspace is loaded beside the one that is served, or that is over: another thread frees one of them.
    pub(crate) fn note_loading_aside(&mut self, is_loading: bool) {
        (self.is_freed_elsewhere, self.is_loading_aside) = (true, is_loading);
        // What was loaded before a flush counts as flushed.
        self.has_strays |= std::mem::take(&mut self.flushes.is_flushed_aside);
    }

    /// Whether the main thread is the only one that frees values.
    pub(crate) fn is_freed_here(&self) -> bool {
        !self.is_freed_elsewhere
    }

    /// Every value was freed without being touched.
    pub(crate) fn note_all_freed(&mut self) {
        self.flushes.freed_before = self.pool.begin_generation();
        (self.has_freed, self.restart) = (true, true);
    }

    /// Whether the index has values that no key holds, besides the suspects.
    pub(crate) fn has_remains(&self) -> bool {
        self.has_freed || self.flushes.flushed > 0 || Value::left_behind() > self.suspects.len() as isize
    }

    /// Drops values that no key holds, checking `most` cells from `from` on. Returns where to go on, and how many were
    /// dropped.
    pub(crate) fn sweep(&mut self, from: usize, most: usize) -> (Option<usize>, usize) {
        let from = if std::mem::take(&mut self.restart) { 0 } else { from };
        let (mut freed, mut found) = (Vec::new(), Vec::new());
        let next = self.pool.visit(from, most, |cell| {
            let value = Value::visited(cell);
            if value.is_in_keyspace() && self.is_freed(&value) {
                freed.push(Value::visited(cell));
            }
            if value.is_in_wheel() && (!value.is_in_keyspace() || self.is_flushed(&value)) {
                found.push(value);
            }
        });
        let dropped = freed.len().max(found.len());
        for value in freed {
            if value.leave_keyspace() {
                self.discard(value);
            }
        }
        for value in &found {
            self.remove(value);
        }
        self.has_freed &= next.is_some();
        (next, dropped)
    }

    fn is_freed(&self, value: &Value) -> bool {
        self.has_freed && value.cell().is_some_and(|cell| self.pool.generation_of(cell) < self.flushes.freed_before)
    }
}
