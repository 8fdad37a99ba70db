//! The deadline index over stored values: which lease ends next, and where its key is.
//!
//! Not a timer: see the reaper. Keys come and go behind its back, so an entry is a hint that is checked before use.
//! Invariant: every value in the wheel carries the mark of the index, and its handle points back at its entry.

use fence::queue::LockName;
use fence::wheel::{Handle, Wheel};

use crate::value::Value;

pub(crate) struct Index {
    wheel: Wheel<Value>,
    /// Values that have left their key, to be looked at when that is over.
    suspects: Vec<Value>,
    /// `databases[n]` is the number under which database n is known here. SWAPDB swaps two entries and no value.
    databases: Vec<u32>,
    /// Some value lives under a name that the index does not know.
    pub has_strays: bool,
}

impl Index {
    pub fn new(origin_us: u64) -> Index {
        Index { wheel: Wheel::new(origin_us), suspects: Vec::new(), databases: Vec::new(), has_strays: false }
    }

    /// The number under which a database is known here: its own until it is swapped.
    pub fn known_as(&self, db: i32) -> u32 {
        self.databases.get(db as usize).copied().unwrap_or(db as u32)
    }

    /// The database that is known under this number.
    pub fn database(&self, known_as: u32) -> i32 {
        self.databases.iter().position(|&known| known == known_as).unwrap_or(known_as as usize) as i32
    }

    pub fn swap_databases(&mut self, first: i32, second: i32) {
        let (first, second) = (first as usize, second as usize);
        while self.databases.len() <= first.max(second) {
            self.databases.push(self.databases.len() as u32);
        }
        self.databases.swap(first, second);
    }

    pub fn len(&self) -> usize {
        self.wheel.len()
    }

    pub fn allocated(&self) -> usize {
        self.wheel.allocated()
    }

    pub fn next_us(&self) -> Option<u64> {
        self.wheel.next_us()
    }

    /// Has the value looked at when `due_us` has come.
    pub fn insert_at(&mut self, due_us: u64, value: Value) {
        // A full wheel leaves the value out: it is free in time all the same, and its memory comes back when it is touched.
        if let Some(handle) = self.wheel.insert(due_us, value) {
            value.enter_index(handle);
        }
    }

    pub fn remove(&mut self, value: Value) {
        if let Some(handle) = value.handle() {
            self.wheel.remove(handle);
            value.leave_index();
        }
    }

    /// Follows a changed deadline.
    pub fn reschedule(&mut self, due_us: u64, value: Value) {
        if let Some(handle) = value.handle() {
            self.wheel.reschedule(handle, due_us);
        }
    }

    /// Whether the index knows the value under this name.
    pub fn knows(&self, value: Value, lock: LockName) -> bool {
        value.handle().is_some() && value.key() == lock.name && value.db() == self.known_as(lock.db)
    }

    /// Takes out one value whose time has come. The caller inserts it again or calls `leave_index` when done with it.
    pub fn pop(&mut self, now_us: u64, budget: &mut usize) -> Option<Value> {
        let value = self.wheel.pop(now_us, budget)?;
        value.leave_wheel();
        Some(value)
    }

    /// Notes a value that is leaving its key. The earlier ones have left by now.
    pub fn suspect(&mut self, value: Value) {
        self.settle_suspects();
        if value.enter_suspects() {
            self.suspects.push(value);
        }
    }

    /// Forgets the suspects that are gone; one that lives on has moved to another name.
    pub fn settle_suspects(&mut self) {
        while let Some(value) = self.suspects.pop() {
            if value.is_in_keyspace() {
                self.has_strays = true;
            } else {
                self.remove(value);
            }
            value.leave_suspects();
        }
    }

    /// Forgets all values of a database, or of all, after a flush.
    pub fn forget(&mut self, db: Option<i32>) {
        self.settle_suspects();
        let known_as = db.map(|db| self.known_as(db));
        self.forget_where(0, usize::MAX, |value| known_as.is_none_or(|known| value.db() == known));
    }

    /// Some of the values, looking at `most` entries from `from`. Returns them and where to go on.
    pub fn values(&self, from: usize, most: usize) -> (Vec<Value>, Option<usize>) {
        let mut values = Vec::new();
        let next = self.wheel.visit(from, most, |_, &value| values.push(value));
        (values, next)
    }

    /// Forgets values that no key holds any more, looking at `most` entries from `from`. Returns where to go on, and
    /// how many were forgotten.
    pub fn sweep(&mut self, from: usize, most: usize) -> (Option<usize>, usize) {
        self.forget_where(from, most, |value| !value.is_in_keyspace())
    }

    fn forget_where(&mut self, from: usize, most: usize, gone: impl Fn(&Value) -> bool) -> (Option<usize>, usize) {
        let mut found: Vec<Handle> = Vec::new();
        let next = self.wheel.visit(from, most, |handle, value| {
            if gone(value) {
                found.push(handle);
            }
        });
        for &handle in &found {
            if let Some(value) = self.wheel.remove(handle) {
                value.leave_index();
            }
        }
        (next, found.len())
    }
}
