//! Counters: of the server, and of the busiest names in a table of fixed size.
//!
//! They decide nothing and are lost with the process.
//! Invariant: counting allocates only when a name enters the table, and the table never grows by itself.

use std::cell::{Cell, LazyCell, RefCell};
use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::ops::Range;

use fence::Fence;
use fence::lock::lease::{Caller, Lost};
use fence::lock::lost::LostHolds;
use fence::lock::queue::LockName;

use crate::ffi::main_thread::MainThread;

mod list;

use list::{COUNT, PER_NAME, POSITION_OF, WAITERS};
pub(crate) use list::{COUNTS, Count, Counter, HOW_BUSY, NAME_FIELDS};

/// How many names are counted unless configured.
pub(crate) const DEFAULT_NAMES: u64 = 1_024;
/// The most names that may be configured: some 140 MB, and the names themselves.
pub(crate) const NAMES_MAX: u64 = 1 << 20;
/// Longer names are counted for the server alone, so that the table has a bound in bytes too.
const NAME_MAX: usize = 1_024;
/// Cells that a name may take: enough that two busy names rarely meet.
const WAYS: usize = 4;

static STATS: MainThread<LazyCell<Stats>> = MainThread::new(LazyCell::new(Stats::new));

/// The value of a counter, by its position in `COUNTS`.
pub(crate) fn get(count: usize) -> u64 {
    STATS.get(count)
}

/// Counts for the server.
pub(crate) fn count(count: Count) {
    STATS.count(count);
}

/// Counts for the server and for the name.
pub(crate) fn count_for(lock: LockName, count: Count) {
    STATS.count_for(lock, count);
}

/// Remembers a hold that has expired, and counts that.
pub(crate) fn count_expired(lock: LockName, owner: &[u8], fence: Fence) {
    count_for(lock, Count::RanOut);
    note_lost(lock, owner, fence);
}

/// Remembers a hold that somebody took the lock from, and counts that.
pub(crate) fn count_stolen(lock: LockName, owner: &[u8], fence: Fence) {
    count(Count::Steals);
    note_lost(lock, owner, fence);
}

/// Remembers a hold that its holder lost.
pub(crate) fn note_lost(lock: LockName, owner: &[u8], fence: Fence) {
    STATS.lost.borrow_mut().note(lock, owner, fence);
}

/// Counts an extension by somebody who does not hold the lock: as late when it did until it lost the lease.
pub(crate) fn count_lost_extension(lost: Lost, lock: LockName, caller: Caller) {
    let is_late = STATS.lost.borrow().is_late(lost, lock, caller.owner, caller.fence);
    count_for(lock, if is_late { Count::LateExtensions } else { Count::UnknownExtensions });
}

/// The same for a release; a second one is not late.
pub(crate) fn count_lost_release(lost: Lost, lock: LockName, caller: Caller) {
    let is_late = STATS.lost.borrow_mut().release_late(lost, lock, caller.owner, caller.fence);
    count_for(lock, if is_late { Count::LateReleases } else { Count::UnknownReleases });
}

/// Takes note of how long a lock was held.
pub(crate) fn held(lock: LockName, held_us: u64) {
    STATS.held(lock, held_us);
}

/// Takes note of how long somebody waited for a lock.
pub(crate) fn waited(lock: LockName, waited_us: u64) {
    STATS.waited(lock, waited_us);
}

/// What is known of a name, if it is in the table.
pub(crate) fn of_name(lock: LockName) -> Option<NameStats> {
    STATS.of_name(lock)
}

/// The names with the largest values of a field, the largest first; none whose value is 0. `waiting` counts who waits
/// for a lock now.
pub(crate) fn top(most: usize, field: usize, waiting: impl Fn(LockName) -> usize) -> Vec<NameStats> {
    STATS.top(most, field, waiting)
}

/// How many names the table has room for.
pub(crate) fn names() -> u64 {
    STATS.names()
}

/// Makes the table this large, and empty; 0 counts no names.
pub(crate) fn set_names(names: u64) {
    STATS.set_names(names);
}

struct Stats {
    /// Holds that expired or were stolen, to know a late holder from a caller that never held the lock.
    lost: RefCell<LostHolds>,
    counts: [Cell<u64>; COUNT],
    names: RefCell<Names>,
}

/// What is known of one name.
#[derive(Clone)]
pub(crate) struct NameStats {
    pub(crate) db: i32,
    pub(crate) name: Box<[u8]>,
    /// Falls when another name wants the cell, rises with every use.
    weight: u64,
    /// Those of `COUNTS` that a name has.
    counts: [u64; PER_NAME],
    longest_hold_ms: u64,
    longest_wait_ms: u64,
}

struct Names {
    cells: Vec<Option<NameStats>>,
    /// The hash of the name in each cell.
    hashes: Vec<u64>,
}

impl Stats {
    fn new() -> Stats {
        Stats {
            lost: RefCell::default(),
            counts: [const { Cell::new(0) }; COUNT],
            names: RefCell::new(Names::new(DEFAULT_NAMES)),
        }
    }

    fn get(&self, count: usize) -> u64 {
        self.counts[count].get()
    }

    fn count(&self, count: Count) {
        let cell = &self.counts[count as usize];
        cell.set(cell.get() + 1);
    }

    fn count_for(&self, lock: LockName, count: Count) {
        self.count(count);
        if let Some(place) = POSITION_OF[count as usize] {
            self.with_name(lock, |stats| stats.counts[place] += 1);
        }
    }

    fn held(&self, lock: LockName, held_us: u64) {
        let held_ms = held_us / 1_000;
        if held_ms > 0 {
            self.with_name(lock, |stats| stats.longest_hold_ms = stats.longest_hold_ms.max(held_ms));
        }
    }

    fn waited(&self, lock: LockName, waited_us: u64) {
        let waited_ms = waited_us / 1_000;
        if waited_ms > 0 {
            self.with_name(lock, |stats| stats.longest_wait_ms = stats.longest_wait_ms.max(waited_ms));
        }
    }

    fn of_name(&self, lock: LockName) -> Option<NameStats> {
        let names = self.names.borrow();
        let hash = hash(lock);
        let at = names.find(names.set_of(hash)?, lock, hash)?;
        names.cells[at].clone()
    }

    fn top(&self, most: usize, field: usize, waiting: impl Fn(LockName) -> usize) -> Vec<NameStats> {
        let names = self.names.borrow();
        let value = |stats: &NameStats| match field {
            WAITERS => waiting(stats.lock()) as u64,
            counted if counted < PER_NAME => stats.counts[counted],
            beside => stats.fields(0)[beside],
        };
        // The least of the chosen is at the top of the heap. Names are read of the chosen alone: a table may have a
        // million.
        let mut chosen = BinaryHeap::with_capacity(most + 1);
        for (at, stats) in names.cells.iter().enumerate() {
            let Some(value) = stats.as_ref().map(value).filter(|&value| value > 0) else { continue };
            if chosen.len() < most || chosen.peek().is_some_and(|&(Reverse(least), _)| value > least) {
                chosen.push((Reverse(value), at));
                if chosen.len() > most {
                    chosen.pop();
                }
            }
        }
        let mut chosen: Vec<_> =
            chosen.into_iter().filter_map(|(value, at)| names.cells[at].clone().map(|stats| (value, stats))).collect();
        chosen.sort_by(|(one, a), (other, b)| (one, a.db, &a.name).cmp(&(other, b.db, &b.name)));
        chosen.into_iter().map(|(_, stats)| stats).collect()
    }

    fn names(&self) -> u64 {
        self.names.borrow().cells.len() as u64
    }

    fn set_names(&self, names: u64) {
        *self.names.borrow_mut() = Names::new(names.min(NAMES_MAX));
    }

    fn with_name(&self, lock: LockName, change: impl FnOnce(&mut NameStats)) {
        if lock.name.len() > NAME_MAX {
            return;
        }
        if let Some(stats) = self.names.borrow_mut().cell(lock) {
            change(stats);
        }
    }
}

impl Names {
    fn new(names: u64) -> Names {
        Names { cells: vec![None; names as usize], hashes: vec![0; names as usize] }
    }

    fn find(&self, mut set: Range<usize>, lock: LockName, hash: u64) -> Option<usize> {
        set.find(|&at| self.hashes[at] == hash && self.cells[at].as_ref().is_some_and(|stats| stats.is_of(lock)))
    }

    /// The cells that a name with this hash may take.
    fn set_of(&self, hash: u64) -> Option<Range<usize>> {
        let sets = self.cells.len().div_ceil(WAYS);
        let first = ((u128::from(hash) * sets as u128) >> 64) as usize * WAYS;
        Some(first..(first + WAYS).min(self.cells.len()))
    }

    /// The cell of a name. A new name gets it once it has come as often as the rarest that is there, so that busy names
    /// stay (Misra and Gries, "Finding repeated elements", 1982).
    fn cell(&mut self, lock: LockName) -> Option<&mut NameStats> {
        let hash = hash(lock);
        let set = self.set_of(hash)?;
        if let Some(at) = self.find(set.clone(), lock, hash) {
            let stats = self.cells[at].as_mut()?;
            stats.weight += 1;
            return Some(stats);
        }
        let at = set.min_by_key(|&at| self.cells[at].as_ref().map_or(0, |stats| stats.weight))?;
        let rarest = &mut self.cells[at];
        match rarest.as_mut() {
            Some(stats) if stats.weight > 1 => {
                stats.weight -= 1;
                return None;
            }
            Some(stats) if stats.name.len() == lock.name.len() => stats.reuse_for(lock),
            _ => *rarest = Some(NameStats::of(lock)),
        }
        self.hashes[at] = hash;
        rarest.as_mut()
    }
}

/// Spreads names over the table. It need not withstand an attack: names that collide only share a few counters.
fn hash(lock: LockName) -> u64 {
    /// 2^64 divided by the golden ratio (Knuth, "The Art of Computer Programming", volume 3, section 6.4).
    const FACTOR: u64 = 0x9e37_79b9_7f4a_7c15;
    let mix = |hash: u64, word: u64| (hash.rotate_left(5) ^ word).wrapping_mul(FACTOR);
    let mut hash = mix(lock.db as u64, lock.name.len() as u64);
    let (words, rest) = lock.name.as_chunks::<8>();
    for &word in words {
        hash = mix(hash, u64::from_le_bytes(word));
    }
    hash = mix(hash, rest.iter().fold(0, |word, &byte| word << 8 | u64::from(byte)));
    hash ^ hash >> 32
}

impl NameStats {
    fn of(lock: LockName) -> NameStats {
        let counts = [0; PER_NAME];
        NameStats { db: lock.db, name: lock.name.into(), weight: 1, counts, longest_hold_ms: 0, longest_wait_ms: 0 }
    }

    /// Makes this the entry of another name of the same length, in the same memory.
    fn reuse_for(&mut self, lock: LockName) {
        let mut name = std::mem::take(&mut self.name);
        name.copy_from_slice(lock.name);
        *self = NameStats { name, ..NameStats::of(LockName { name: b"", ..lock }) };
    }

    /// The values of `NAME_FIELDS`.
    pub(crate) fn fields(&self, waiters: usize) -> [u64; NAME_FIELDS.len()] {
        let count = |count: Count| POSITION_OF[count as usize].map_or(0, |place| self.counts[place]);
        let mut fields = [0; NAME_FIELDS.len()];
        fields[..PER_NAME].copy_from_slice(&self.counts);
        let contended = count(Count::Busy) + count(Count::Waits);
        fields[PER_NAME..].copy_from_slice(&[contended, self.longest_hold_ms, self.longest_wait_ms, waiters as u64]);
        fields
    }

    pub(crate) fn lock(&self) -> LockName<'_> {
        LockName { db: self.db, name: &self.name }
    }

    fn is_of(&self, lock: LockName) -> bool {
        self.db == lock.db && *self.name == *lock.name
    }
}

#[cfg(test)]
mod tests;
