//! The counters: what is counted for a table, a guard or a lock, and where its entry lies.
//!
//! A fixed number of entries, in blocks with a lightweight lock each. Where there is no memory, nothing is counted, and
//! that is no error.

use crate::server::session::{self, MainThread};
use crate::stats::memory::{
    BLOCKS, Block, COUNTERS, Contents, Counter, ENTRIES, Entry, MAX_NAME_BYTES, Shared, attached, shared,
};
use std::cell::Cell;

/// A new key that would lie so many entries behind its first cell makes the caller give back the entries of the block
/// whose tables are gone, if it has rested.
const CROWDED: usize = 8;
/// How long a session rests between two searches of a block for what is gone.
const RETURN_REST_US: i64 = 1_000_000;
/// Tables, guards or locks.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum SubjectKind {
    /// Tables, known by their oid.
    Table,
    /// Guards, known by a hash of their name.
    Guard,
    /// Locks, known by a hash of their name.
    Lock,
}

/// What an entry counts.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct SubjectKey {
    pub(crate) database: u32,
    /// The oid of a table, the hash of the name of a guard or a lock.
    pub(crate) object: u64,
}

/// The newest stale call.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Stale {
    /// When, in the server's own time.
    pub(crate) at: i64,
    /// The fence that was refused.
    pub(crate) fence: i64,
    /// The newer one that was stored then.
    pub(crate) stored: i64,
}

/// What is added to an entry.
#[derive(Clone, Copy)]
pub(crate) struct Count {
    pub(crate) counter: Counter,
    pub(crate) times: u64,
    pub(crate) stale: Option<Stale>,
}

/// An entry as it was read.
pub(crate) struct Counted {
    /// The database, and the table or guard; `None` for the others of a kind.
    pub(crate) key: Option<SubjectKey>,
    pub(crate) name: Vec<u8>,
    /// By [`Counter`].
    pub(crate) counts: [u64; COUNTERS],
    pub(crate) stale: Option<Stale>,
}

/// When this session last searched a block of this number for what is gone, in the server's own time.
static RETURNED_AT: MainThread<[Cell<i64>; BLOCKS]> = MainThread([const { Cell::new(i64::MIN) }; BLOCKS]);
/// Whether there is memory for counters now: not before version 17 without preloading.
pub(crate) fn are_there() -> bool {
    shared().is_some()
}

/// Counts. `subject` is asked when the key has no entry yet, never under a lock.
pub(crate) fn count(kind: SubjectKind, key: SubjectKey, count: Count, subject: &impl Named) {
    let Some(shared) = shared() else { return };
    let block = &shared.of(kind)[key.block()];
    let add = |entry: &mut Entry| entry.count(count);
    if block.with(|contents| contents.find(key).map(add)).is_some() {
        return;
    }
    let name = subject.name();
    if name.is_some() && block.with(|contents| contents.is_crowded(key)) && take_turn(&RETURNED_AT[key.block()]) {
        block.give_back(|key| subject.is_gone(key));
    }
    block.with(|contents| match name.as_deref().and_then(|name| contents.find_or_make(key, name)) {
        Some(entry) => entry.count(count),
        None => contents.others.count(count),
    });
}

/// Adds so many to a counter, in the entry of this name or with the others. Asks the server for nothing, so an error can be
/// under way; where the memory was not asked for yet, nothing is counted.
pub(crate) fn add(kind: SubjectKind, key: SubjectKey, name: &[u8], additions: &[(Counter, u64)]) {
    let Some(shared) = attached() else { return };
    shared.of(kind)[key.block()].with(|contents| {
        let entry = match contents.find_or_make(key, name) {
            Some(entry) => entry,
            None => &mut contents.others,
        };
        for &(counter, by) in additions {
            entry.counts[counter as usize] += by;
        }
    });
}

/// What the caller knows of the subjects of entries.
pub(crate) trait Named {
    /// The name of a new entry; `None` where it shall have none, and is counted with the others.
    fn name(&self) -> Option<Vec<u8>>;

    /// Whether what this key counts can never be counted again: its table or its database has been dropped.
    fn is_gone(&self, key: SubjectKey) -> bool;
}

/// All entries of a database, and last the others of the kind, of whatever database.
pub(crate) fn read(kind: SubjectKind, database: u32) -> Vec<Counted> {
    let Some(shared) = shared() else { return Vec::new() };
    let mut others = Entry::UNUSED;
    let mut found = Vec::new();
    for block in shared.of(kind) {
        let mut copies = Vec::with_capacity(ENTRIES);
        block.with(|contents| {
            copies.extend(contents.entries.iter().filter(|entry| entry.is_of(database)));
            others.add(&contents.others);
        });
        found.extend(copies.iter().map(Entry::read));
    }
    found.push(Counted { key: None, ..others.read() });
    found
}

/// Forgets the counts of a database, and those of the others of each kind.
pub(crate) fn reset(database: u32) {
    let Some(shared) = shared() else { return };
    for block in shared.blocks() {
        block.with(|contents| {
            contents.others = Entry::UNUSED;
            contents.free(|entry| entry.database == database);
        });
    }
}

impl Shared {
    fn of(&self, kind: SubjectKind) -> &[Block; BLOCKS] {
        match kind {
            SubjectKind::Table => &self.tables,
            SubjectKind::Guard => &self.guards,
            SubjectKind::Lock => &self.locks,
        }
    }
}

impl Block {
    /// Gives back the entries of what is gone. Whoever makes the same anew meanwhile has it counted from the start.
    fn give_back(&self, is_gone: impl Fn(SubjectKey) -> bool) {
        let mut keys = Vec::with_capacity(ENTRIES);
        self.with(|contents| keys.extend(contents.entries.iter().filter(|entry| entry.is_used).map(Entry::key)));
        keys.retain(|key| is_gone(*key));
        self.with(|contents| contents.free(|entry| keys.contains(&entry.key())));
    }
}

impl Contents {
    /// The entry of a key. It lies at its first cell or behind: those before it may have been given back since.
    fn find(&mut self, key: SubjectKey) -> Option<&mut Entry> {
        let n = key.probes().find(|&n| self.entries[n].is_used && self.entries[n].key() == key)?;
        Some(&mut self.entries[n])
    }

    /// The entry of a key, made if there is none and there is room.
    fn find_or_make(&mut self, key: SubjectKey, name: &[u8]) -> Option<&mut Entry> {
        if self.find(key).is_none() {
            let n = key.probes().find(|&n| !self.entries[n].is_used)?;
            self.entries[n] = Entry::new(key, name);
        }
        self.find(key)
    }

    /// Whether a new entry would lie far behind its first cell, or nowhere.
    fn is_crowded(&self, key: SubjectKey) -> bool {
        key.probes().take(CROWDED).all(|n| self.entries[n].is_used)
    }

    fn free(&mut self, is_unneeded: impl Fn(&Entry) -> bool) {
        for entry in self.entries.iter_mut().filter(|entry| entry.is_used && is_unneeded(entry)) {
            *entry = Entry::UNUSED;
        }
    }
}

impl SubjectKey {
    fn mixed(self) -> u64 {
        const MIX: u64 = 0x9E37_79B9_7F4A_7C15; // 2^64 divided by the golden ratio
        (self.object ^ (u64::from(self.database) << 32)).wrapping_mul(MIX) >> 32
    }

    fn block(self) -> usize {
        self.mixed() as usize % BLOCKS
    }

    /// Where its entry can lie in its block, in the order of the search.
    fn probes(self) -> impl Iterator<Item = usize> {
        let first = self.mixed() as usize / BLOCKS;
        (0..ENTRIES).map(move |n| (first + n) % ENTRIES)
    }
}

impl Entry {
    const UNUSED: Entry = Entry {
        is_used: false,
        name_length: 0,
        database: 0,
        object: 0,
        counts: [0; COUNTERS],
        stale_at: 0,
        stale_fence: 0,
        stale_stored: 0,
        name: [0; MAX_NAME_BYTES],
    };

    fn new(key: SubjectKey, name: &[u8]) -> Entry {
        let mut entry = Entry { is_used: true, database: key.database, object: key.object, ..Entry::UNUSED };
        let length = name.len().min(MAX_NAME_BYTES);
        entry.name_length = length as u8;
        entry.name[..length].copy_from_slice(&name[..length]);
        entry
    }

    fn key(&self) -> SubjectKey {
        SubjectKey { database: self.database, object: self.object }
    }

    fn is_of(&self, database: u32) -> bool {
        self.is_used && self.database == database
    }

    fn count(&mut self, count: Count) {
        self.counts[count.counter as usize] += count.times;
        if let Some(stale) = count.stale {
            (self.stale_at, self.stale_fence, self.stale_stored) = (stale.at, stale.fence, stale.stored);
        }
    }

    fn add(&mut self, other: &Entry) {
        self.counts.iter_mut().zip(other.counts).for_each(|(count, more)| *count += more);
        if other.stale_at > self.stale_at {
            let newest = (other.stale_at, other.stale_fence, other.stale_stored);
            (self.stale_at, self.stale_fence, self.stale_stored) = newest;
        }
    }

    fn read(&self) -> Counted {
        let stale = Stale { at: self.stale_at, fence: self.stale_fence, stored: self.stale_stored };
        Counted {
            key: Some(self.key()),
            name: self.name[..usize::from(self.name_length).min(MAX_NAME_BYTES)].to_vec(),
            counts: self.counts,
            stale: (stale.fence != 0).then_some(stale),
        }
    }
}

/// Takes a turn if this session has rested since its last. Answers whether it did.
fn take_turn(last: &Cell<i64>) -> bool {
    let now = session::now();
    let rested = now.saturating_sub(last.get()) >= RETURN_REST_US;
    if rested {
        last.set(now);
    }
    rested
}
